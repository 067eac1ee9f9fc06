//! Snapshots of plans.
use super::show;

macro_rules! plans {
    ($($name:ident: $sql:expr,)*) => { $(#[test] fn $name() { insta::assert_snapshot!(show($sql)); })* };
}

plans! {
    q10: "SELECT lat, lon, avg(t2m) FROM era5 WHERE time >= '2020-01-01' GROUP BY lat, lon",
    q26: "SELECT lat, avg(t2m) FROM 'testdata/air.zarr' GROUP BY lat ORDER BY lat DESC LIMIT 5",
    by_month: "SELECT date_part('month', time) AS m, avg(t2m), count(t2m) FROM era5 GROUP BY date_part('month', time)",
    subquery_month: "SELECT month, lat, avg(t2m) AS clim FROM (SELECT *, date_part('month', time) AS month FROM era5) GROUP BY month, lat",
    having: "SELECT lat, avg(t2m) - 273.15 AS c FROM era5 GROUP BY lat HAVING max(t2m) > 300 ORDER BY c DESC LIMIT 2",
    counts: "SELECT lat, count(*), count(flag), count(DISTINCT time) FROM era5 GROUP BY lat",
    case_inside: "SELECT sum(CASE WHEN t2m > 290 THEN 1 ELSE 0 END), count(*) FROM era5",
    value_filter: "SELECT lat, avg(t2m), count(*) FROM era5 WHERE t2m > 280 AND lat < 55 AND lon IN (0.5) GROUP BY lat",
    aggregate_filter: "SELECT avg(t2m) FILTER (WHERE lat > 45), count(*) FILTER (WHERE precip > 5) FROM era5",
    repeats: "SELECT lat, avg(orog), sum(orog), sum(flag), stddev(orog) FROM era5 GROUP BY lat",
    weights: "SELECT sum(t2m * cos(radians(lat))) / sum(cos(radians(lat))) FROM era5 WHERE time < '2020'",
    cte: "WITH warm AS (SELECT lat, t2m - 273.15 AS c FROM era5 WHERE lon < 5) SELECT lat, max(c) FROM warm GROUP BY lat",
    view: "SELECT LAT, avg(celsius) FROM Warm w GROUP BY w.lat",
    distinct: "SELECT DISTINCT month(time), place FROM era5",
    noleap: "SELECT month(time) AS m, min(time) FROM noleap WHERE time >= '2020-01' GROUP BY month(time)",
    slice_rows: "SELECT lat, lon, t2m FROM era5 WHERE time = '2020-02-01' ORDER BY t2m DESC LIMIT 3",
    limit_rows: "SELECT * FROM era5 LIMIT 3",
    window_rows: "SELECT time, lat, avg(t2m) OVER (PARTITION BY lat, lon ORDER BY time) FROM era5 WHERE lat BETWEEN 45 AND 55",
    join_rows: "SELECT a.lat, sum(a.t2m * b.t2m) FROM era5 a JOIN era5 b USING (time, lat) WHERE a.time > '2020-02' GROUP BY a.lat",
    median_rows: "SELECT lat, median(t2m) FROM era5 GROUP BY lat",
    nothing_left: "SELECT avg(t2m), count(*) FROM era5 WHERE lat > 100",
    operators: "SELECT lat // 7, 2 ^ 10, avg(t2m ^ 2), avg(precip // 2) FROM era5 GROUP BY lat // 7",
    two_sets: "SELECT x, sum(a) FROM two GROUP BY x",
    nested: "SELECT avg(m) FROM (SELECT lat, max(t2m) AS m FROM era5 GROUP BY lat)",
}
