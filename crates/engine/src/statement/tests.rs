use super::progress::eta;
use super::*;

#[test]
fn the_table_of_states() {
    use StatementState::*;
    let allowed = |from: StatementState| {
        StatementState::ALL.into_iter().filter(|&to| from.may_become(to)).collect::<Vec<_>>()
    };
    assert_eq!(allowed(Queued), [Planning, Failed, Cancelled]);
    assert_eq!(allowed(Planning), [Queued, Running, Finished, Failed, Cancelled]);
    assert_eq!(allowed(Running), [Planning, Finished, Failed, Cancelled]);
    for end in StatementState::ALL.into_iter().filter(|s| s.is_over()) {
        assert_eq!(allowed(end), []);
    }
    for s in StatementState::ALL {
        assert_eq!(StatementState::parse(s.name()), Some(s));
    }
}

#[test]
fn secrets_are_not_shown() {
    let h = Handle::new();
    h.track().name("COPY x TO 'y' OPTIONS ('aws.secret_access_key' 'TOP')");
    assert!(h.track().text().ends_with("'(hidden)')"), "{}", h.track().text());
    h.begin("SET a.token = 'TOP'", 1, 1);
    assert!(!h.track().text().contains("TOP"), "{}", h.track().text());
}

#[test]
fn a_recorded_end_does_not_change() {
    let h = Handle::new();
    h.begin("SELECT 1", 1, 2);
    assert!(h.move_to(StatementState::Running) && h.move_to(StatementState::Running));
    h.begin("SELECT 2", 2, 2);
    assert_eq!((h.state(), h.track().text()), (StatementState::Planning, "SELECT 2".into()));
    assert!(h.move_to(StatementState::Cancelled));
    assert!(!h.move_to(StatementState::Finished) && !h.move_to(StatementState::Cancelled));
    let p = h.progress();
    assert_eq!((p.state, p.statement, p.statements), (StatementState::Cancelled, 2, 2));
    assert_eq!(h.progress().elapsed_s, p.elapsed_s);
}

#[test]
fn running_statements_are_listed_once() {
    let queries = Arc::new(Queries::default());
    let h = Handle::new();
    h.track().name("SELECT 1");
    let first = queries.enter(&h);
    drop(queries.enter(&h));
    assert_eq!(queries.rows().len(), 1);
    assert_eq!(queries.rows()[0][..3], [h.id().to_string(), "QUEUED".into(), "SELECT 1".into()]);
    queries.find(h.id()).unwrap().cancel();
    assert!(h.is_cancelled());
    assert!(queries.find("nope").is_none());
    drop(first);
    assert!(queries.list().is_empty() && queries.find(h.id()).is_none());
}

#[test]
fn the_time_left_is_that_of_the_operands_left() {
    // 10 of 20 took 5 s on threads and 2.5 s by the clock: two threads; 5 s of work are left.
    assert_eq!(eta(&[20], &[(10, 5.0)], 2.5), Some(2.5));
    // A stage that has not begun is taken for an average one.
    assert_eq!(eta(&[10, 10], &[(10, 5.0), (0, 0.0)], 5.0), Some(5.0));
    // Operands that ran again do not make the rest negative.
    assert_eq!(eta(&[4], &[(9, 1.0)], 1.0), Some(0.0));
    assert_eq!(eta(&[4], &[(0, 0.0)], 1.0), None);
}

#[test]
fn progress_comes_back_from_its_json() {
    let mut p = Progress::new(StatementState::Running);
    p.operands = [1, 2, 3, 4, 5, 6, 7, 8];
    (p.operands_total, p.operands_done, p.bytes_read, p.recomputed) = (99, 9, 1 << 40, 3);
    (p.eta_s, p.elapsed_s, p.statement, p.statements) = (Some(1.5), 0.25, 2, 3);
    assert_eq!(Progress::from_json(StatementState::Running, &p.to_json()), p);
    assert_eq!(p.fraction(), Some(9.0 / 99.0));
    assert_eq!(Progress::from_json(StatementState::Queued, &Value::Null).fraction(), None);
    let h = Handle::new();
    h.track().tell(p.clone());
    assert_eq!((h.state(), h.progress().operands_done), (StatementState::Running, 9));
}

use serde_json::Value;
