//! The queries and the pictures of plots.

use super::axis::Axis;
use super::*;

const ASCII: Style = Style { colours: Colours::None, unicode: false };

fn column(name: &str, kind: &str, dtype: &str, dims: &[(&str, u64)]) -> Column {
    Column {
        name: name.into(),
        kind: kind.into(),
        dtype: dtype.into(),
        dims: dims.iter().map(|(d, n)| ((*d).into(), *n)).collect(),
        chunks: String::new(),
        attributes: "units: K; long_name: x".into(),
    }
}

fn axis(name: &str, labels: &[&str], grows: bool) -> Axis {
    Axis { name: name.into(), labels: labels.iter().map(|l| (*l).into()).collect(), grows }
}

#[test]
fn a_plot_command_becomes_a_query() {
    // Names and paths are not queries.
    for relation in ["era5", "'a/b.zarr'", "a/b.zarr"] {
        assert_eq!(query(relation), None);
    }
    let query = |what: &str| query(what).unwrap();
    assert_eq!(query("t2m FROM era5"), "SELECT t2m FROM era5");
    assert_eq!(query("sin(linspace(0, 1, 9))"), "SELECT sin(linspace(0, 1, 9))");
    assert_eq!(query("select 1"), "select 1");
}

#[test]
fn results_that_cannot_be_drawn_are_reported() {
    let told = |all: &[Column]| Subject::of(all, "x").unwrap_err().render("");
    let t = "float64";
    insta::assert_snapshot!(told(&[column("a", "result", t, &[("t", 2), ("y", 3), ("x", 4)])]), @"
    error[usage]: `a` has 3 dimensions [t: 2, y: 3, x: 4], and `.plot` draws one or two
    hint: take a slice or a mean: `.plot a[t => …] FROM …`, `.plot mean(a, axis => 't') FROM …`
    ");
    insta::assert_snapshot!(told(&[column("a", "result", t, &[])]), @"
    error[usage]: `a` is one value
    hint: `.plot` draws what has one or two dimensions
    ");
    insta::assert_snapshot!(told(&[column("a", "result", t, &[("t", 0)])]), @"
    error[usage]: `a` [t: 0] has no cells
    hint: there is nothing to draw
    ");
    insta::assert_snapshot!(told(&[column("a", "result", "datetime64[us]", &[("t", 2)])]), @"
    error[usage]: `a` is of datetime64[us]
    hint: `.plot` draws numbers and truth values
    ");
    insta::assert_snapshot!(told(&[column("a", "column", "Int64", &[])]), @"
    error[usage]: `.plot` draws tensors, and this query gives rows
    hint: ask for a tensor: `.plot mean(x, axis => 'time') FROM …`
    ");
    let two = [column("a", "result", t, &[("t", 2)]), column("b", "result", t, &[("t", 2)])];
    insta::assert_snapshot!(told(&two), @"
    error[usage]: `.plot` draws one tensor, and here are 2: a, b
    hint: name one: `.plot NAME FROM …`
    ");
}

#[test]
fn blocks_are_as_many_as_there_are_places() {
    let canvas = Canvas { width: 30, height: 10, style: ASCII };
    let map = [
        column("t2m", "result", "float32 masked", &[("lat", 25), ("lon", 3000)]),
        column("lon", "coordinate", "float32", &[("lon", 3000)]),
    ];
    let subject = Subject::of(&map, "x").unwrap();
    let blocks = subject.blocks(&canvas);
    assert_eq!((&blocks.factors[..], subject.units.as_str()), (&[3, 100][..], "K"));
    let whole = "reshape(concat([reshape(\"t2m\"::float64, [25, 3000]), where(zeros([2, 3000]) > 0, 0.0, NULL)], \
                 axis => 0), [9, 3, 30, 100])";
    assert_eq!(
        blocks.sql("SELECT t2m FROM a", &subject),
        format!(
            "SELECT mean({whole}, axis => [1, 3], skipna => true) AS value, count({whole}, axis => [1, 3]) AS n, \
             \"lon\"[::100] AS l1 FROM (SELECT t2m FROM a)"
        )
    );
    let small = [column("v0", "result", "int64", &[("dim_0", 7)])];
    let subject = Subject::of(&small, "x").unwrap();
    assert_eq!(
        subject.blocks(&canvas).sql("SELECT 1", &subject),
        "SELECT \"v0\"::float64 AS value FROM (SELECT 1)"
    );
}

#[test]
fn a_heat_map_in_letters() {
    use Block::{Masked, Nan, Value};
    let cells = [Value(0.0), Value(1.0), Value(2.0), Nan, Masked, Value(4.0)];
    let (y, x) = (axis("lat", &["-10", "10"], true), axis("lon", &["1", "2", "3"], true));
    let canvas = Canvas { width: 12, height: 6, style: ASCII };
    insta::assert_snapshot!(heat::draw(&cells, &y, &x, "K", &canvas), @"
    lat
        |????    @@@@
     10 |????    @@@@
        |....----++++
    -10 |....----++++
        +------------
         1          3  lon
         0 ...:::--===++***##%%%@@@ 4 K   blank: masked   ?: NaN
    ");
    // One character shows two cells: greatest over middle in the last column, nothing over the middle one.
    let canvas =
        Canvas { style: Style { colours: Colours::True, unicode: true }, height: 1, width: 3 };
    let shown = heat::draw(&cells, &y, &x, "K", &canvas);
    let line = shown.lines().nth(1).unwrap();
    assert_eq!(
        line.split_once('\u{1b}').map(|(_, l)| l.replace('\x1b', "")).unwrap(),
        "[38;2;128;128;128;48;2;68;1;84m▀[0;38;2;59;81;139m▄[38;2;253;231;37;48;2;33;144;141m▀[0m"
    );
}

#[test]
fn a_line_in_letters_and_in_braille() {
    use Block::{Masked, Nan, Value};
    let cells: Vec<Block> = [0.0, 1.0, 4.0, 9.0, f64::NAN, 4.0, 1.0, f64::INFINITY, 0.0]
        .iter()
        .map(|v| if v.is_nan() { Nan } else { Value(*v) })
        .chain([Masked])
        .collect();
    let x = axis("t", &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], true);
    let canvas = Canvas { width: 28, height: 6, style: ASCII };
    insta::assert_snapshot!(line::draw(&cells, &[], &[], &x, &canvas), @"
      9 |         *
        |        *
        |       *
    4.5 |     **        **
        |  ***            **
      0 |**                      *
        +----------------------------
                     x        ^     .  x: NaN  .: masked  ^: infinite
         0                          9  t
    ");
    let canvas = Canvas { style: Style::PLAIN, ..canvas };
    let shown = line::draw(&cells, &[], &[], &x, &canvas);
    assert!(shown.starts_with("  9 ┤") && shown.contains("└─"), "{shown}");
    assert!(shown.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "{shown}");
    // The least and the greatest of a block are joined from top to bottom.
    let shown = line::draw(
        &[Block::Value(5.0)],
        &[Some(0.0)],
        &[Some(9.0)],
        &axis("t", &["0"], true),
        &Canvas { style: ASCII, ..canvas },
    );
    assert_eq!(shown.matches('*').count(), 6, "{shown}");
}

#[test]
fn one_value_or_none_is_drawn_too() {
    let canvas = Canvas { width: 10, height: 5, style: ASCII };
    let x = axis("t", &["0", "1"], false);
    for cells in [
        [Block::Masked; 2],
        [Block::Nan; 2],
        [Block::Value(3.0); 2],
        [Block::Value(f64::INFINITY); 2],
    ] {
        let line = line::draw(&cells, &[], &[], &x, &canvas);
        let map = heat::draw(&cells, &axis("y", &["0"], false), &x, "", &canvas);
        assert!(line.lines().count() >= 7 && map.lines().count() >= 4, "{line}{map}");
    }
    assert_eq!(axis::number(3.0, 0.0), "3");
    assert_eq!(axis::number(-1e-9, 2.0), "0");
    assert_eq!(axis::number(273.16, 12.0), "273.2");
    assert_eq!(axis::number(1.5e9, 1e9), "1.500e9");
}
