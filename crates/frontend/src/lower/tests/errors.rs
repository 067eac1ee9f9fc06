//! Every error once, as rendered for a terminal.

use super::fixture::labels;
use super::graphs::each;

#[test]
fn names() {
    insta::assert_snapshot!(each(
        "
        SELECT t3m FROM era5
        SELECT era5.t3m FROM era5
        SELECT x FROM nowhere
        SELECT sqr(x) FROM cases
        SELECT mean(t2m, along => 'time') FROM era5
        SELECT mean(t2m, axis => 'level') FROM era5
        SELECT orog[level => 3] FROM era5
        SELECT cases + 1 FROM cases
        SELECT v FROM a, b
        SELECT [1] AS a, [2] AS a
        SELECT x.U FROM cases
        ",
        labels
    ));
}

#[test]
fn types_and_shapes() {
    insta::assert_snapshot!(each(
        "
        SELECT x + 'text' FROM cases
        SELECT time + 1.5 FROM era5
        SELECT x AND b FROM cases
        SELECT -b FROM cases
        SELECT zeros([2], dtype => 'float80')
        SELECT i8 + 300 FROM cases
        SELECT i ^ -1 FROM cases
        SELECT x + cube FROM cases
        SELECT orog + v FROM era5, cases
        SELECT [[1, 2], [3]]
        SELECT a @ a FROM a
        SELECT m @ x.T FROM cases
        SELECT reshape(x, [3, 3]) FROM cases
        SELECT x @ 2 FROM cases
        SELECT t2m[0:3] + t2m[3:6] FROM era5
        SELECT time + time FROM era5
        SELECT zeros([9223372036854775807, 9223372036854775807])
        SELECT max(x[0:0]) FROM cases
        ",
        labels
    ));
}

#[test]
fn arguments() {
    insta::assert_snapshot!(each(
        "
        SELECT sqrt() FROM cases
        SELECT where(b, x) FROM cases
        SELECT mean(x, 2) FROM cases
        SELECT mean(x, axis => [0, -2]) FROM cases
        SELECT argmin(x, axis => [0, 1]) FROM cases
        SELECT zeros([-1])
        SELECT arange(0, 5, 0)
        SELECT var(x, ddof => -1) FROM cases
        SELECT rechunk(t2m, time => 0) FROM era5
        SELECT groupby(t2m, 'no_such', by => month(time)) FROM era5
        SELECT groupby(t2m, 'mean', by => month(lat)) FROM era5
        SELECT groupby(t2m, 'mean', by => orog) FROM era5
        SELECT date_part('moon', time) FROM era5
        SELECT sel(orog, lat => 1, method => 'closest') FROM era5
        SELECT round(x, decimals => 'a') FROM cases
        SELECT mean(x, 0, axis => 1) FROM cases
        ",
        labels
    ));
}

#[test]
fn subscripts() {
    insta::assert_snapshot!(each(
        "
        SELECT x[5] FROM cases
        SELECT t2m[140] FROM era5
        SELECT x[0, 0, 0] FROM cases
        SELECT x[..., ...] FROM cases
        SELECT x[::0] FROM cases
        SELECT x[1.5] FROM cases
        SELECT x['a'] FROM cases
        SELECT x[[true, false]] FROM cases
        SELECT orog[lat => 50] FROM era5
        SELECT t2m[time => '2031-01'] FROM era5
        SELECT t2m[time => 'noon'] FROM era5
        SELECT orog[lat => 'north'] FROM era5
        SELECT orog[lat => 45, lat => 30] FROM era5
        SELECT x[dim_0 => 9] FROM cases
        ",
        labels
    ));
}

#[test]
fn what_is_to_come() {
    insta::assert_snapshot!(each(
        "
        SELECT fft(x) FROM cases
        SELECT count(DISTINCT x) FROM cases
        SELECT x || x FROM cases
        ",
        labels
    ));
}

#[test]
fn habits_of_numpy_and_xarray_get_a_hint() {
    let cases = [
        ("SELECT mean(x, axis = 0) FROM cases", "named arguments are written `axis => 0`"),
        ("SELECT isel(t2m, time = 0) FROM era5", "named arguments are written `time => 0`"),
        ("SELECT t2m.mean('time') FROM era5", "methods are functions: `mean(t2m, 'time')`"),
        ("SELECT np.mean(x) FROM cases", "functions have no prefix: `mean(x)`"),
        ("SELECT x.reshape(35, 1) FROM cases", "methods are functions: `reshape(x, [35, 1])`"),
        ("SELECT mean(t2m, 'time', 'lat') FROM era5", "one list: `['time', 'lat']`"),
        ("SELECT mean(t2m, axis => ('time', 'lat')) FROM era5", "a list is written in brackets"),
        ("SELECT groupby(t2m, 'mean', by => 'time.month') FROM era5", "as in `month(time)`"),
        ("SELECT concat(orog, sst) FROM era5", "as in `concat([orog, sst])`"),
        ("SELECT time::text FROM era5", "`SELECT time::text FROM CELLS(x)`"),
        ("SELECT t2m[lat = 60] FROM era5", "write `lat => 60`"),
        ("SELECT t2m[lat > 30] FROM era5", "write `lat => lat > 30`"),
        (
            "SELECT sel(orog, lat => 50, method => 'nearest', tolerance => 1) FROM era5",
            "dimension `lat` has no label within 1 of 50",
        ),
        ("SELECT x + $z FROM cases", "`--param z=…`"),
        ("SELECT level FROM era5", "the names are `orog`, `sst`, `t2m`"),
        ("SELECT x FROM \"a.zarr\"", "put paths and URLs in quotes: `FROM 'a.zarr'`"),
        ("SELECT corr(a.v, b.v) FROM a, b", "join several by their labels"),
    ];
    for (sql, expected) in cases {
        let told = labels(sql);
        assert!(told.contains(expected), "{sql}: {told}");
    }
}

#[test]
fn deep_expressions_do_not_overflow_the_stack() {
    let chain = format!("SELECT {} FROM cases", vec!["x"; 480].join(" + "));
    let lowered = super::fixture::lower(&chain).unwrap();
    assert_eq!(lowered.outputs[0].shape, [5, 7]);
    let nested = format!("SELECT {}x{} FROM cases", "sqrt(".repeat(100), ")".repeat(100));
    assert_eq!(super::fixture::lower(&nested).unwrap().outputs.len(), 1);
}

#[test]
fn large_tensors_cost_nothing_to_name() {
    let lowered = super::fixture::lower("SELECT mean(arange(1000000000000) ^ 2)").unwrap();
    assert!(lowered.rooted.graph.len() < 20);
}
