//! The shell as a person sees it, in a pseudo-terminal.

mod terminal;

use std::ffi::OsStr;
use terminal::{Terminal, key};

const AIR: &str = "'tests/data/cf/air.zarr'";

fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn tab_completes_by_context() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt();
    t.keys("sel").keys(key::TAB).sees("tessera> select");
    t.keys(key::CTRL_U).keys("SELECT * FROM 'tests/data/cf/ai").keys(key::TAB);
    // Both names are listed, and their common beginning is inserted.
    t.sees("tests/data/cf/air3.zarr").sees("FROM 'tests/data/cf/air");
    t.keys(".").keys(key::TAB).sees("FROM 'tests/data/cf/air.zarr'");
    t.keys(" wher").keys(key::TAB).sees("air.zarr' where");
    t.keys(key::CTRL_U).keys(&format!("SELECT  FROM {AIR}")).keys(key::CTRL_A);
    t.keys(&key::RIGHT.repeat(7)).keys("gu").until(key::TAB, "SELECT gust FROM");
    t.keys(key::CTRL_C).prompt();
    t.keys(&format!("SELECT  FROM {AIR}")).keys(key::CTRL_A).keys(&key::RIGHT.repeat(7));
    t.keys("mean(gust, ski").until(key::TAB, "mean(gust, skipna => ");
    t.keys("true, axis => 'ti").until(key::TAB, "axis => 'time'");
    t.keys(key::CTRL_C).prompt();
    t.keys(".mode nd").keys(key::TAB).sees(".mode ndjson");
    t.keys(key::CTRL_C).prompt();
    t.line("CREATE TEMP TENSOR my_own AS SELECT arange(3);").sees("created temp tensor");
    t.keys("SELECT * FROM my").until(key::TAB, "FROM my_own");
    t.keys(key::CTRL_C).prompt();
    // The signature of the function is shown behind the cursor.
    t.keys("SELECT cumsum(").until(" ", "cumsum(x, axis");
    t.keys(key::CTRL_U).keys(key::CTRL_D);
    assert_eq!(t.ends(), Some(0));
}

#[test]
fn input_in_one_piece_is_read_to_its_end() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().keys("SELECT 1 +\r1 AS one;\rSELECT 40 + 2 AS two;\r.show\r");
    t.sees("42").sees("maxrows").keys(key::CTRL_D);
    assert_eq!(t.ends(), Some(0));
}

#[test]
fn history_is_searched_and_stored() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().line("SELECT 40 + 2").line("AS answer;").sees("42").prompt();
    t.line("SHOW TENSORS;").sees("(0 rows)").prompt();
    t.wipe().keys(key::UP).sees("SHOW TENSORS;");
    // Both lines of the statement come back as one.
    t.keys(key::UP)
        .sees("AS answer;")
        .keys(key::UP)
        .keys(key::DOWN)
        .keys(key::DOWN)
        .sees("SHOW TENSORS;");
    t.keys(key::CTRL_C).prompt().wipe();
    // After typed input, history shows only lines that begin with it.
    t.keys("SELECT").keys(key::UP).sees("SELECT 40 + 2").sees("AS answer;");
    t.keys(key::ENTER).sees("42").prompt().wipe();
    t.keys(key::CTRL_R).keys("W TE").sees("SHOW TENSORS;").keys(key::CTRL_C).prompt();
    t.line(".quit");
    assert_eq!(t.ends(), Some(0));
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().keys(key::UP).keys(key::UP).sees("AS answer;");
    let history = home.path().join(".local/state/tessera/history");
    assert!(std::fs::read_to_string(history).unwrap().contains("SHOW TENSORS;"));
}

#[test]
fn a_long_statement_has_a_bar_and_ctrl_c_cancels_it() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().line("SELECT sum(sin(arange(1000000000000)::float64));");
    t.sees(" % ").sees("operands").keys(key::CTRL_C).sees("error[cancelled]").prompt();
    // The bar is gone, and the shell goes on.
    assert!(!t.shown().contains("operands"), "{}", t.shown());
    t.line("SELECT 40 + 2 AS answer;").sees("42").prompt();
    t.keys("SELECT what is typed").sees("what is typed").keys(key::CTRL_C).prompt();
    t.keys(key::CTRL_D);
    assert_eq!(t.ends(), Some(0));
    // The command line has the bar too.
    let query = ["query", "SELECT sum(sin(arange(1000000000000)::float64))"];
    let mut t = Terminal::with_arguments(home.path(), &[], &query);
    t.sees("operands").keys(key::CTRL_C).sees("error[cancelled]");
    assert_eq!(t.ends(), Some(130));
}

#[test]
fn plots_are_drawn_with_colours_and_labels() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().line(&format!(".plot gust[0] FROM {AIR}")).sees("lon").prompt();
    let shown = t.shown();
    for part in ["lat: 5 × lon: 4", "65.0 ┤", "25.0 ┤", "▀", "-9.5", "20.5", "m s-1"] {
        assert!(shown.contains(part), "no {part} in\n{shown}");
    }
    let coloured = t.cells(|s| {
        let cells = (0..30).flat_map(|r| (0..100).filter_map(move |c| s.cell(r, c)));
        cells.filter(|c| c.contents() == "▀" && matches!(c.fgcolor(), vt100::Color::Idx(_))).count()
    });
    assert!(coloured > 20, "{coloured} coloured cells in\n{shown}");
    t.wipe().line(&format!(".plot mean(sst, axis => ['lat', 'lon']) FROM {AIR}"));
    t.sees("2020-12").sees("time: 140").prompt();
    assert!(t.shown().chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{}", t.shown());
    // More cells than there are places: means of blocks, the last one of fewer cells.
    t.wipe().line(".plot where(arange(10001) < 5000, arange(10001), NULL)");
    t.sees("means of").sees(".: masked").prompt();
    t.wipe().line(&format!(".plot t2m FROM {AIR}")).sees("`t2m` has 3 dimensions");
    t.line(".plot nope").sees("error[unknown_name]");
    let mut t = Terminal::open(home.path(), &[("NO_COLOR", OsStr::new("1"))]);
    t.prompt().line(&format!(".plot gust[0] FROM {AIR}")).sees("lon").prompt();
    assert!(t.shown().contains('@') && !t.written().contains("\x1b[38;"), "{}", t.shown());
}

#[test]
fn answers_fit_the_window_as_it_is() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().line(".pager off").sees("pager is off").resize(40, 60);
    t.line(&format!("DESCRIBE {AIR};")).sees("rows").prompt();
    let shown = t.shown();
    let lines: Vec<&str> = shown.lines().filter(|l| l.contains(['│', '┌', '└', '├'])).collect();
    assert!(lines.len() > 10 && lines.iter().all(|l| l.ends_with(['│', '┐', '┘', '┤'])), "{shown}");
    assert!(shown.contains('…'), "{shown}");
    t.resize(60, 200).line(&format!("DESCRIBE {AIR};")).sees("degrees_north").prompt();
}

#[test]
fn long_answers_go_to_the_pager() {
    let home = home();
    let pager = [("PAGER", OsStr::new("sed s/^/paged:/ | tail -2"))];
    let mut t = Terminal::open(home.path(), &pager);
    t.prompt().line(".functions").sees("paged:zeros").prompt();
    t.line("SELECT 1 AS short;").sees("short").prompt();
    assert!(!t.shown().contains("paged:┌"), "{}", t.shown());
    t.line(".pager off").sees("pager is off").wipe().line(".functions").sees("zeros_like").prompt();
    assert!(!t.shown().contains("paged:"), "{}", t.shown());
}

#[test]
fn settings_and_errors() {
    let home = home();
    std::fs::write(home.path().join(".tesserarc"), ".timer on\n.maxrows 5\n").unwrap();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().line("SELECT 1;").sees("time: ").prompt();
    t.line(".show").sees("maxrows   5").prompt();
    t.line("SELECT mean(nope)").line(&format!("FROM {AIR};"));
    t.sees("error[unknown_name]").sees("1 | SELECT mean(nope)").sees("^^^^").prompt();
    t.line(".tmier").sees("did you mean `.timer`?").prompt();
    t.line(&format!(".shape {AIR}"))
        .sees("gust  float32 masked [time: 140, lat: 5, lon: 4]  2,800 cells")
        .prompt();
    t.line(&format!(".chunks gust FROM {AIR}")).sees("chunk of 13.7 KiB").prompt();
    t.line("\\h cumsum").sees("numpy.cumsum").prompt();
    let rc = home.path().join("other.sql");
    std::fs::write(&rc, "SELECT 6 * 7 AS from_rc;\n.quit\n").unwrap();
    let mut t = Terminal::open(home.path(), &[("TESSERA_RC", rc.as_os_str())]);
    assert_eq!(t.ends(), Some(0));
    t.sees("from_rc");
}

#[test]
fn typed_input_has_colours() {
    let home = home();
    let mut t = Terminal::open(home.path(), &[]);
    t.prompt().keys("SELECT cumsum(").until(" ", "cumsum(x, axis");
    t.keys("arange(3))) -- c").sees("-- c");
    let written = t.written();
    for part in
        ["\x1b[1;34mSELECT\x1b[0m", "\x1b[36mcumsum\x1b[0m", "\x1b[1;31m)\x1b[0m", "\x1b[90m-- c"]
    {
        assert!(written.contains(part), "no {part:?} in {written:?}");
    }
    let mut t = Terminal::open(home.path(), &[("NO_COLOR", OsStr::new("1"))]);
    t.prompt().keys("SELECT 'x").sees("'x").keys(key::CTRL_C).prompt();
    assert!(!t.written().contains("\x1b[1;34m") && !t.written().contains("\x1b[32m"));
}
