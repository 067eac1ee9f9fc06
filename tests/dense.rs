//! Queries that must stay dense: EXPLAIN ANALYZE counts the rows that were built from cells, and expects 0.

use crate::common::Place;
use tessera_engine::answer::Answer;

const DENSE: [&str; 46] = [
    "SELECT lat, avg(t) FROM wx GROUP BY lat",
    "SELECT lat, avg(t), count(*) FROM wx WHERE t > 1 AND p < 3 GROUP BY lat",
    "SELECT lat, avg(t) FROM wx WHERE lat IN (60, 47.5, -10) AND lon <> 5 GROUP BY lat",
    "SELECT avg(t) FILTER (WHERE n > 2), count(*) FILTER (WHERE b) FROM wx",
    "SELECT lat, avg(clip(log1p(square(t)), 0, 5)), sum(isfinite(t)), mean(t > 1), nanmax(t), sum(digitize(t, [0, 10])) FROM wx WHERE less(hypot(t, n), 50) GROUP BY lat",
    "SELECT DISTINCT lat, lon FROM wx",
    "SELECT DISTINCT date_part('month', time) FROM wx WHERE lat > 0",
    "SELECT count(DISTINCT time), count(DISTINCT lat), count(*) FROM wx",
    "SELECT lon, count(DISTINCT date_part('month', time)) FROM wx WHERE lat < 50 GROUP BY lon",
    "SELECT lat, max(m) FROM (SELECT lat, lon, avg(t) AS m FROM wx GROUP BY lat, lon) GROUP BY lat",
    "SELECT l.time, r.z, avg(l.t - r.q) FROM wx l JOIN st r USING (lat) GROUP BY l.time, r.z",
    "SELECT l.time, l.lat, l.t - r.q AS d FROM wx l JOIN st r ON l.lat = r.lat WHERE r.z = 'elm'",
    "SELECT l.y, sum(l.w * r.c) FROM gr l, xs r WHERE l.x = r.x AND r.e = 0.5 GROUP BY l.y",
    "SELECT l.y, r.e, sum(l.w * r.c) FROM gr l JOIN xs r USING (x) GROUP BY l.y, r.e",
    "SELECT l.time, l.t - c.m AS anomaly FROM wx l
     JOIN (SELECT lat, lon, avg(t) AS m FROM wx GROUP BY lat, lon) c ON l.lat = c.lat AND l.lon = c.lon",
    "SELECT l.lat, count(r.m) FROM wx l LEFT JOIN (SELECT lat, avg(q) AS m FROM st GROUP BY lat) r USING (lat) GROUP BY l.lat",
    "SELECT time, avg(t) OVER (PARTITION BY lat, lon ORDER BY time ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS week FROM wx WHERE lat > 40",
    "SELECT y, lag(w, 1) OVER (PARTITION BY x ORDER BY y) AS before FROM gr",
    "SELECT y, w - lead(w) OVER (PARTITION BY x ORDER BY y DESC) AS step FROM gr",
    "SELECT y, sum(m) OVER (PARTITION BY x ORDER BY y), min(v) OVER (PARTITION BY x ORDER BY y) FROM gr",
    "SELECT y, row_number() OVER (PARTITION BY x ORDER BY y) AS n, w - avg(w) OVER (PARTITION BY x) AS d FROM gr",
    "SELECT y, max(d) FROM (SELECT y, x, w - lag(w) OVER (PARTITION BY y ORDER BY x) AS d FROM gr) GROUP BY y",
    "SELECT lat, max(a) FROM (SELECT t - mean(t, axis => 'time') AS a FROM wx) GROUP BY lat",
    "SELECT time, lat, t FROM wx ORDER BY t DESC NULLS LAST LIMIT 5",
    "SELECT time, lat, t FROM wx WHERE n > 0 ORDER BY p DESC, lat LIMIT 3 OFFSET 2",
    "SELECT time, t FROM wx ORDER BY time DESC LIMIT 5",
    "SELECT t - n AS d FROM wx WHERE b ORDER BY abs(t) LIMIT 4",
    "SELECT time, t FROM wx WHERE t > 3",
    "SELECT y, row_number() OVER (PARTITION BY x ORDER BY y) AS k FROM gr WHERE w > 0",
    "SELECT y, sum(v) OVER (PARTITION BY x ORDER BY y), lag(m) OVER (PARTITION BY x ORDER BY y) FROM gr WHERE w > 0",
    "SELECT y, w - avg(w) OVER (PARTITION BY x), lead(v, 2) OVER (PARTITION BY x ORDER BY y DESC) FROM gr WHERE m > 0",
    "SELECT time, t - avg(t) OVER (PARTITION BY date_part('month', time), lat, lon) AS a FROM wx",
    "SELECT time, stddev(t) OVER (PARTITION BY lat > 0) AS a FROM wx",
    "SELECT time, sum(t) OVER (PARTITION BY date_part('month', time), lat, lon ORDER BY time) AS a FROM wx",
    "SELECT lag(t) OVER (PARTITION BY date_part('month', time), lat, lon ORDER BY time DESC) AS a FROM wx WHERE lat > 0",
    "SELECT l.lat, r.z, sum(l.n * r.g) FROM wx l JOIN st r USING (lat) GROUP BY l.lat, r.z",
    "SELECT l.y, r.e, sum(l.h * r.a) FROM gr l JOIN xs r USING (x) WHERE l.w > 0 GROUP BY l.y, r.e",
    "SELECT r.lat, r.q, l.a FROM (SELECT lat, avg(t) AS a FROM wx GROUP BY lat) l RIGHT JOIN (SELECT lat, sum(q) AS q FROM st WHERE lat <> 10 GROUP BY lat) r ON l.lat = r.lat",
    "SELECT l.time, l.lat, r.o FROM wx l FULL JOIN (SELECT lat, max(o) AS o FROM wx GROUP BY lat) r ON l.lat = r.lat",
    "SELECT l.time, l.lat, r.g FROM wx l LEFT JOIN (SELECT lat, z, q + g AS g FROM st WHERE z = 'elm') r ON l.lat = r.lat",
    "SELECT DISTINCT lat > 40, date_part('year', time) FROM wx",
    "SELECT lat, sum(t * o) FILTER (WHERE n > 0) FROM wx GROUP BY lat",
    "SELECT time, max(k) FROM (SELECT time, row_number() OVER (PARTITION BY time, lat ORDER BY lon) AS k FROM wx WHERE t > 0) GROUP BY time",
    "WITH warm AS (SELECT lat, t + 1 AS u FROM wx WHERE lon < 12) SELECT lat, max(u) FROM warm GROUP BY lat",
    "SELECT r.name, avg(l.t), max(l.t), stddev(l.p) FROM wx l JOIN 'tests/data/tables/regions.csv' r ON l.lat BETWEEN r.lat0 AND r.lat1 AND l.lon >= r.lon0 WHERE l.n > 0 GROUP BY r.name",
    "SELECT r.name, date_part('month', l.time) AS m, sum(l.t * r.lat0), count(*) FROM 'tests/data/tables/regions.csv' r, wx l WHERE l.lat > r.lat0 AND l.lat <= r.lat1 GROUP BY r.name, m",
];

/// Queries that need rows, and the word by which EXPLAIN explains it.
const ROWS: [(&str, &str); 12] = [
    ("SELECT median(t), count(*) FROM wx", "median"),
    ("SELECT k, count(*) FROM wx GROUP BY k", "GROUP BY"),
    ("SELECT lat, count(DISTINCT t) FROM wx GROUP BY lat", "DISTINCT"),
    ("SELECT count(*) FROM wx l JOIN st r ON l.lat < r.lat", "join"),
    ("SELECT sum(t) OVER (ORDER BY t) FROM wx", "OVER"),
    (
        "SELECT sum(t) OVER (PARTITION BY lat, lon ORDER BY time RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW) FROM wx",
        "frame",
    ),
    ("SELECT lat, sum(t) FROM wx GROUP BY ROLLUP (lat)", "GROUPING SETS"),
    ("SELECT t FROM wx WHERE 10 / (k + 7) > 1", "division"),
    ("SELECT r.lat, l.t FROM wx l RIGHT JOIN st r USING (lat)", "have no match"),
    ("SELECT CASE WHEN t > 0 THEN 'a' ELSE 'b' END AS s, t FROM wx ORDER BY s LIMIT 2", "tensors"),
    ("SELECT l.y, r.lat FROM gr l JOIN wx r ON l.m = r.k", "join"),
    (
        "SELECT r.name, l.t FROM wx l JOIN 'tests/data/tables/regions.csv' r ON l.lat > r.lat0",
        "not grouped",
    ),
];

/// A clause that EXPLAIN names as a reason for rows, although the plan below it stays dense.
const REASON: (&str, &str) = (
    "SELECT avg(t) OVER (PARTITION BY lat, lon ORDER BY time ROWS 2 PRECEDING) FROM wx WHERE t > 1",
    "WHERE on values",
);

#[test]
fn no_rows_are_built() {
    let place = Place::open(&[("memory-limit", "1GiB")]);
    let run = |sql: &str| match place.run(sql).remove(0).answer {
        Answer::Text(text) => text,
        _ => String::new(),
    };
    for name in ["wx", "gr", "st", "xs"] {
        run(&format!(
            "CREATE EXTERNAL TABLE {name} STORED AS ZARR LOCATION 'tests/data/random/{name}.zarr'"
        ));
    }
    for sql in DENSE {
        let text = run(&format!("EXPLAIN ANALYZE {sql}"));
        assert!(text.contains("measured: 0 rows of cells were built"), "{sql}\n{text}");
    }
    for (sql, why) in ROWS.into_iter().chain([REASON]) {
        let text = run(&format!("EXPLAIN ANALYZE {sql}"));
        let is_dense = text.contains("measured: 0 rows of cells");
        assert_eq!(is_dense, sql == REASON.0, "{sql}\n{text}");
        let reason = text.lines().find(|l| l.starts_with("rows: ") && l.contains("because"));
        assert!(reason.is_some_and(|r| r.contains(why)), "{sql}\n{text}");
    }
    // The switch: the same query from rows.
    run("SET tessera.lift = 'off'");
    let text = run(&format!("EXPLAIN ANALYZE {}", DENSE[0]));
    assert!(text.contains("measured: 160 rows of cells were built"), "{text}");
    assert!(text.contains("because tessera.lift is off"), "{text}");
}
