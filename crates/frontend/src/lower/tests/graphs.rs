//! Graphs of small queries: each line of a script is a query, its snapshot the nodes and labels.

use super::fixture::show;

/// Each query of a script with its result.
pub(super) fn each(script: &str, show: impl Fn(&str) -> String) -> String {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|sql| format!("{sql}\n{}\n", show(sql))).collect()
}

#[test]
fn literals_and_operators() {
    insta::assert_snapshot!(each(
        "
        SELECT [[1, 2], [3, NULL]], [1.5, 2], [true, false]
        SELECT x + 1, 1 - x, i / 2, i // 2, f * 2, i + 0.5 FROM cases
        SELECT x ^ 2, i ^ 2, f ^ 0.5, 2 ^ i FROM cases
        SELECT -x ^ 2, 2 ^ 3 ^ 2 + x, 7 // -2 + i, -7 % 3 + i FROM cases
        SELECT b + b, b % b, b AND b OR NOT b FROM cases
        SELECT m > 0 AND b, m IS NULL, m IS NOT NULL FROM cases
        SELECT i8 < 300, i8 = 300, u8 > -1, i < u8 FROM cases
        SELECT i IN (1, 2), x NOT BETWEEN -1 AND 1 FROM cases
        SELECT x::float32, CAST(i AS BOOLEAN), u8::INT UNSIGNED FROM cases
        SELECT i & 3, i << 2, ~i FROM cases
        ",
        show
    ));
}

#[test]
fn choices() {
    insta::assert_snapshot!(each(
        "
        SELECT where(b, x, 0), where(x > 0, x, NULL), where(b, NULL, i) FROM cases
        SELECT CASE WHEN x > 2 THEN 2 WHEN x < -2 THEN -2 ELSE i END FROM cases
        SELECT CASE WHEN b THEN x END FROM cases
        SELECT CASE i WHEN 1 THEN 10 ELSE 0.5 END FROM cases
        SELECT coalesce(m, 0), nullif(i, 3), clip(i, 0, 5) FROM cases
        ",
        show
    ));
}

#[test]
fn functions() {
    insta::assert_snapshot!(each(
        "
        SELECT sqrt(i), exp(f), log(u8), floor(i), abs(i8), sign(x) FROM cases
        SELECT round(x, 1), round(i, -2), degrees(x), isnan(i) FROM cases
        SELECT maximum(i, 2), fmax(i, 2), arctan2(i, x), logical_xor(x, b) FROM cases
        SELECT x * pi(), now() FROM cases
        ",
        show
    ));
}

#[test]
fn reductions() {
    insta::assert_snapshot!(each(
        "
        SELECT sum(x), mean(i, 0), var(x, axis => -1, ddof => 1, keepdims => true) FROM cases
        SELECT std(f, [0, 1]), any(x), count_nonzero(m), argmax(x), argmin(x, axis => 1) FROM cases
        SELECT nansum(x), mean(x, skipna => true), max(m, skipna => true), sum(f, dtype => 'float64') FROM cases
        SELECT stddev(x), ptp(x, 0), count(m, axis => 0) FROM cases
        SELECT (x - mean(x, 0)) / std(x, 0) FROM cases
        SELECT t2m - mean(t2m, axis => 'time', keepdims => true) AS anomaly FROM era5
        ",
        show
    ));
}

#[test]
fn scans_and_neighbours() {
    insta::assert_snapshot!(each(
        "
        SELECT cumsum(i8, axis => 0), cumsum(x), nancumsum(x, 1) FROM cases
        SELECT diff(x), diff(b, axis => 0), diff(v, 2) FROM cases
        SELECT shift(t2m, time => 1, lat => -2) FROM era5
        SELECT shift(v, 9), shift(v, 1, fill_value => 0), roll(x, 1, 0) FROM cases
        ",
        show
    ));
}

#[test]
fn creation() {
    insta::assert_snapshot!(each(
        "
        SELECT zeros([2, 3], dims => ['y', 'x']), full([4], true, chunks => [2])
        SELECT arange(5), arange(5, 0, -2), arange(0.0, 1.0, 0.25), linspace(0, 1, 5)
        SELECT eye(2, 3, 1, dtype => 'int32')
        SELECT random([10], seed => 7), random_normal([4, 4], chunks => 2), uniform(-1, 1, [3])
        ",
        show
    ));
}

#[test]
fn layouts() {
    insta::assert_snapshot!(each(
        "
        SELECT transpose(cube, [2, 0, 1]), x.T, cases.x.T, swapaxes(cube, 0, 2), moveaxis(cube, 0, -1) FROM cases
        SELECT reshape(x, [-1, 5]), ravel(x), expand_dims(v, -1), squeeze(v[NEWAXIS]), flip(x, 1) FROM cases
        SELECT broadcast_to(v, [5, 7]), tril(x) FROM cases
        SELECT concat([x, i], axis => 0), stack([v, v + 1], dim => 'member') FROM cases
        SELECT rechunk(x, chunks => [2, 2]) FROM cases
        SELECT rename(rechunk(t2m, time => 10), time => 't') FROM era5
        ",
        show
    ));
}

#[test]
fn products() {
    insta::assert_snapshot!(each(
        "
        SELECT a @ b, a.v[0] @ b, a @ b[:, 0], a[0] @ a[1] FROM a, b
        SELECT cube @ cube[0].T, dot(x, 2) FROM cases
        SELECT outer(r, v), vdot(x, x) FROM cases
        ",
        show
    ));
}

#[test]
fn subscripts() {
    insta::assert_snapshot!(each(
        "
        SELECT x[0], x[-1, ::2], x[1:3, NEWAXIS], x[..., 0], x[::-1] FROM cases
        SELECT x[3:0:-1], x[100:], x[:1:-1, 0], x[: :2] FROM cases
        SELECT x[[3, -1], :], x[:, [true, false, true, false, false, false, true]], cube[[2, 0], :, 1] FROM cases
        SELECT x[[1, 2], [3, 4]], cube[[0, 1], :, [2, 3]], cube[[[0], [1]], [2, 3], NEWAXIS, 0] FROM cases
        SELECT v[[[0, 1], [2, 3]]], x[1 + 1, arange(3)] FROM cases
        SELECT t2m[time => '2020-01-01':'2020-01-03', lat => 60:30, lon => 10.5] FROM era5
        SELECT isel(t2m, time => slice(0, 24), lat => -1), sel(t2m, lat => 51.5, lon => -0.1, method => 'nearest') FROM era5
        SELECT t2m[:, lat > 40] FROM era5
        ",
        show
    ));
}

#[test]
fn groups() {
    insta::assert_snapshot!(each(
        "
        SELECT groupby(t2m, 'mean', by => month(time)) FROM era5
        SELECT t2m - groupby(t2m, 'mean', by => month(time)) AS anomaly FROM era5
        SELECT t2m[time => '2020-01'] - groupby(t2m, 'mean', by => extract(month FROM time)) AS d FROM era5
        SELECT groupby(t2m[time => '2020'], 'max', by => month(time)), groupby(orog, 'sum', by => lat // 30) FROM era5
        ",
        show
    ));
}
