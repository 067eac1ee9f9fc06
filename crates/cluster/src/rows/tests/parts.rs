//! Tasks that read by parts the rows that workers keep.

use super::*;

fn ranges(order: &RowsOrder) -> Vec<(u32, u32)> {
    order.holders.iter().map(|holder| (holder.from, holder.to)).collect()
}

/// The addresses of the other workers of an order.
fn others(order: &RowsOrder) -> Vec<String> {
    order.holders.iter().filter_map(|holder| holder.address.clone()).collect()
}

/// All messages of a task of a stage that reads 12 splits by parts.
async fn read_part(plan: &Arc<RowsPlan>, number: u32) -> Result<Vec<Bytes>, RowsLost> {
    let all = task_of_parts(plan, number, (8, 12)).try_collect();
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_take_over_the_rows_of_a_lost_worker() {
    let stage = Stage::new(|_, task, attempt| match (task, attempt) {
        (0, 1) => What::LacksRows,
        (6, 1) => What::Dies(1),
        _ => What::All,
    });
    let (bench, fakes) = with_fakes(4, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    let all = join_all((0..6).map(|number| read_part(&plan, number))).await;
    for (number, messages) in (0..).zip(all) {
        assert_eq!(messages.unwrap(), whole(number), "task {number}");
    }
    // The worker whose rows do not arrive lives, but keeps no more rows.
    assert_eq!((stage.attempts(0), kinds(&bench, "no_rows")), (2, 1));
    let orders = stage.orders.lock().unwrap().clone();
    assert_eq!(ranges(&orders[0].1), [(0, 3), (3, 6), (6, 9), (9, 12)]);
    let of_first: Vec<&RowsOrder> =
        orders.iter().map(|(_, order)| order).filter(|order| order.task == 0).collect();
    let left_out = others(of_first[0]).remove(0);
    assert!(!others(of_first[1]).contains(&left_out), "{of_first:?}");
    // The task whose worker dies reads from its next one alone.
    assert_eq!(read_part(&plan, 6).await.unwrap(), whole(6));
    let alone = RowsHolder { from: 0, to: 12, address: None };
    let again = stage.orders.lock().unwrap().last().unwrap().1.clone();
    assert_eq!((again.task, again.holders), (6, vec![alone]));
    assert_eq!((plan.totals().lost, kinds(&bench, "poison")), (1, 0));
    // The remaining workers keep the rows of the dead one.
    assert_eq!(read_part(&plan, 7).await.unwrap(), whole(7));
    let alive: Vec<String> =
        bench.cluster.registry().alive().into_iter().map(|m| m.hello.address).collect();
    let last = stage.orders.lock().unwrap().last().unwrap().1.clone();
    let are_able = |address: &String| *address != left_out && alive.contains(address);
    assert!(others(&last).iter().all(are_able), "{last:?}");
    for (_, order) in stage.orders.lock().unwrap().iter() {
        let mut next = 0;
        for (from, to) in ranges(order) {
            assert!(from == next && from < to, "{order:?}");
            next = to;
        }
        assert_eq!(next, 12, "{order:?}");
    }
    // All workers that kept rows forget them, even if they ran no task.
    drop(plan);
    let has_forgotten = |fake: &&Arc<Fake>| fake.forgotten.lock().unwrap().contains(&last.query);
    until("the rows are forgotten", || fakes.iter().filter(has_forgotten).count() == 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_groups_rows_that_no_worker_gets() {
    let stage = Stage::new(|_, task, _| if task == 0 { What::LacksRows } else { What::All });
    let (bench, _fakes) = with_fakes(2, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    assert!(matches!(read_part(&plan, 0).await, Err(RowsLost::Here(_))));
    assert_eq!(stage.attempts(0), 4);
    // Tasks of the stage that begin later are not sent.
    assert!(matches!(read_part(&plan, 1).await, Err(RowsLost::Here(_))));
    assert_eq!((stage.attempts(1), plan.totals().here), (0, 2));
    // Other stages are.
    let header = Bytes::from_static(b"task 2");
    let other = plan.task(STAGE + 1, 2, (3, 0), header, Bytes::from_static(b"the plan"));
    assert_eq!(other.try_collect::<Vec<_>>().await.unwrap(), whole(2));
}
