"""sql/cells: the cell surface (SQL's meaning, as DataFusion defines it), expected from pandas over xarray's frames."""

import json

import duckdb
import numpy as np
import pandas as pd

from .core import DATA, ERA5, Script, da
from .labels import GRID, air, box

cells = air[["t2m", "precip", "rh", "sst", "gust", "orog", "flag"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
grid = box[["v"]].to_dataframe().reset_index()
at = pd.Timestamp


def script(name, about, tolerance=1e-12):
    return Script(f"cells/{name}", about, tolerance, setup=(ERA5, GRID))


def by(frame, keys, **aggregates):
    """GROUP BY keys (given in dimension order), rows in dimension order; aggregates are name=(column, how)."""
    rows = []
    for key, rest in frame.groupby(keys, sort=False):
        values = [how(rest[column]) if callable(how) else rest[column].agg(how) for column, how in aggregates.values()]
        rows.append([*key, *values])
    for name in reversed(keys):
        known = next((f[name] for f in (cells, grid) if name in f), frame[name])
        place = {label: k for k, label in enumerate(pd.unique(known))}
        rows.sort(key=lambda row, k=keys.index(name): place[row[k]])
    return pd.DataFrame(rows, columns=[*keys, *aggregates], dtype=object)


def total(column):
    """SQL's sum: float64, NULL without any value."""
    return (column, lambda s: s.astype("f8").sum(min_count=1))


def average(column):
    return (column, lambda s: s.astype("f8").mean())


year2020 = cells[cells.time >= at("2020-01-01")]

f = script("where_dims", "WHERE on dimensions: a slice; rows come in dimension order.")
f.cells("SELECT lat, lon, t2m FROM era5 WHERE time = '2019-01-06T06:00:00'", cells[cells.time == at("2019-01-06T06:00")][["lat", "lon", "t2m"]])
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE lat BETWEEN 30 AND 45 AND lon > 0 AND time < '2019-01-12'",
        cells[cells.lat.between(30, 45) & (cells.lon > 0) & (cells.time < at("2019-01-12"))][["time", "lat", "lon", "t2m"]])
f.cells("SELECT time, t2m FROM era5 WHERE lat = 45 AND lon = 0.5 AND time >= '2020-11'", cells[(cells.lat == 45) & (cells.lon == 0.5) & (cells.time >= at("2020-11-01"))][["time", "t2m"]])
f.cells("SELECT t2m, lon, lat FROM era5 WHERE time >= '2020-12-25' AND lat IN (65, 25)", cells[(cells.time >= at("2020-12-25")) & cells.lat.isin([65, 25])][["t2m", "lon", "lat"]])
f.cells("SELECT lat, lon, orog FROM era5 WHERE time = '2019-01-01' AND lat < 40", cells[(cells.time == at("2019-01-01")) & (cells.lat < 40)][["lat", "lon", "orog"]])
f.cells("SELECT y, x, v FROM grid WHERE y > 10 AND x <= 1.0", grid[(grid.y > 10) & (grid.x <= 1.0)][["y", "x", "v"]])
f.cells("SELECT y, x, v FROM grid WHERE y = 20 OR x = 3.0", grid[(grid.y == 20) | (grid.x == 3.0)][["y", "x", "v"]])
f.cells("SELECT y, x, v + 1 AS w FROM grid WHERE NOT (y < 30) AND x <> 1.5", grid[(grid.y >= 30) & (grid.x != 1.5)].assign(w=lambda g: g.v + 1)[["y", "x", "w"]])
f.cells("SELECT x FROM grid WHERE y = 0 AND x * 2 > 3", grid[(grid.y == 0) & (grid.x * 2 > 3)][["x"]])
f.note("No rows; a label that does not occur is no error in WHERE.")
f.cells("SELECT y, v FROM grid WHERE y = 11", grid[grid.y == 11][["y", "v"]])
f.cells("SELECT y, v FROM grid WHERE y > 20 AND y < 10", grid[:0])
f.rows("SELECT count(*), count(t2m) FROM era5 WHERE lat = 44", [(0, 0)])
f.rows("SELECT count(*), sum(v), min(y), max(x) FROM grid WHERE y >= 30", [(14, grid[grid.y >= 30].v.sum(), np.int32(30), 3.0)])
f.cells("SELECT * FROM grid WHERE y = 10 AND x < 1", grid[(grid.y == 10) & (grid.x < 1)][["y", "x", "v"]])
f.error("SELECT lat FROM era5 WHERE altitude > 3", "unknown_name")
f.error("SELECT v FROM grid WHERE y", "(type_error|plan_error)")

f = script("group_by_dims", "GROUP BY dimensions: a reduction over the others, without rows.")
f.cells("SELECT lat, lon, avg(t2m) FROM era5 WHERE time >= '2020-01-01' GROUP BY lat, lon", by(year2020, ["lat", "lon"], a=average("t2m")))
f.cells("SELECT lat, avg(t2m) FROM era5 GROUP BY lat", by(cells, ["lat"], a=average("t2m")))
f.cells("SELECT lon, avg(t2m), min(t2m), max(t2m), count(t2m), count(*) FROM era5 GROUP BY lon",
        by(cells, ["lon"], a=average("t2m"), b=("t2m", "min"), c=("t2m", "max"), d=("t2m", "count"), e=("t2m", "size")))
f.cells("SELECT time, avg(t2m) FROM era5 WHERE time < '2019-02-01' GROUP BY time", by(cells[cells.time < at("2019-02-01")], ["time"], a=average("t2m")))
f.cells("SELECT lon, sum(precip), avg(precip) FROM era5 GROUP BY lon", by(cells, ["lon"], a=total("precip"), b=average("precip")))
f.note("In dimension order whatever the order of the keys.")
f.cells("SELECT lon, lat, max(t2m) FROM era5 GROUP BY lon, lat", by(cells, ["lat", "lon"], a=("t2m", "max"))[["lon", "lat", "a"]])
f.cells("SELECT lat, time, avg(t2m) FROM era5 WHERE time >= '2020-12-20' GROUP BY lat, time",
        by(cells[cells.time >= at("2020-12-20")], ["time", "lat"], a=average("t2m"))[["lat", "time", "a"]])
f.cells("SELECT time, lat, lon, avg(t2m) FROM era5 WHERE time <= '2019-01-01' GROUP BY time, lat, lon", cells[cells.time == at("2019-01-01")][["time", "lat", "lon", "t2m"]])
f.rows("SELECT avg(t2m), sum(precip), count(*) FROM era5 WHERE lat > 40", [(cells[cells.lat > 40].t2m.mean(), cells[cells.lat > 40].precip.astype("f8").sum(), 140 * 12)])
f.cells("SELECT avg(t2m) FROM era5 GROUP BY lat", by(cells, ["lat"], a=average("t2m"))[["a"]])
f.cells("SELECT lat, avg(t2m) - 273.15 AS celsius, max(t2m) - min(t2m) AS spread FROM era5 GROUP BY lat",
        by(cells, ["lat"], a=("t2m", "mean"), b=("t2m", "max"), c=("t2m", "min")).assign(celsius=lambda g: g.a - 273.15, spread=lambda g: g.b - g.c)[["lat", "celsius", "spread"]])
f.cells("SELECT lat, avg(t2m * 2 + precip), sum(t2m * t2m) FROM era5 GROUP BY lat",
        by(cells.assign(e=cells.t2m * 2 + cells.precip.astype("f8"), s=cells.t2m**2), ["lat"], a=("e", "mean"), b=("s", "sum")))
f.note("A variable with fewer dims repeats over those that others bring in.")
f.cells("SELECT lat, avg(orog), sum(orog), count(orog) FROM era5 GROUP BY lat", by(cells[cells.time == cells.time[0]], ["lat"], a=average("orog"), b=total("orog"), c=("orog", "count")))
f.cells("SELECT lat, avg(t2m - orog) FROM era5 GROUP BY lat", by(cells.assign(e=cells.t2m - cells.orog.astype("f8")), ["lat"], a=("e", "mean")))
f.cells("SELECT y, sum(v) FROM grid GROUP BY y", by(grid, ["y"], a=("v", "sum")))
f.cells("SELECT x, avg(v), count(*) FROM grid WHERE y < 25 GROUP BY x", by(grid[grid.y < 25], ["x"], a=("v", "mean"), b=("v", "size")))
f.cells("SELECT y, avg(v) FROM grid WHERE y > 1000 GROUP BY y", grid[:0])
f.cells("SELECT CAST(lat AS INT) AS l, avg(t2m) FROM era5 GROUP BY lat", by(cells, ["lat"], a=average("t2m")).assign(lat=lambda g: g.lat.astype("i4").astype(object)))
f.error("SELECT lat, t2m FROM era5 GROUP BY lat", "not_grouped")
f.error("SELECT lat, mean(t2m, axis => 'time') FROM era5 GROUP BY lat", "wrong_surface")

f = script("group_by_expr", "GROUP BY an expression of one dimension.")
month = cells.assign(month=cells.time.dt.month, year=cells.time.dt.year)
f.cells("SELECT date_part('month', time) AS month, avg(t2m) FROM era5 GROUP BY date_part('month', time)", by(month, ["month"], a=average("t2m")))
f.cells("SELECT date_part('year', time) AS year, lat, avg(t2m), count(t2m) FROM era5 GROUP BY date_part('year', time), lat", by(month, ["year", "lat"], a=average("t2m"), b=("t2m", "count")))
f.cells("SELECT month, lon, max(t2m) FROM (SELECT *, date_part('month', time) AS month FROM era5) GROUP BY month, lon", by(month, ["month", "lon"], a=("t2m", "max")))
f.cells("SELECT extract(hour FROM time) AS h, avg(t2m), count(*) FROM era5 GROUP BY extract(hour FROM time)", by(cells.assign(h=cells.time.dt.hour), ["h"], a=average("t2m"), b=("t2m", "size")))
f.cells("SELECT lat > 40 AS north, avg(t2m) FROM era5 GROUP BY lat > 40 ORDER BY north", by(cells.assign(n=cells.lat > 40), ["n"], a=average("t2m")).sort_values("n"))
f.cells("SELECT floor(lat / 20) AS band, avg(t2m), count(*) FROM era5 GROUP BY floor(lat / 20) ORDER BY band",
        by(cells.assign(n=np.floor(cells.lat / 20)), ["n"], a=average("t2m"), b=("t2m", "size")).sort_values("n"))
f.cells("SELECT CASE WHEN lat >= 60 THEN 'north' WHEN lat >= 40 THEN 'middle' ELSE 'south' END AS zone, avg(t2m) AS a FROM era5 GROUP BY zone ORDER BY a",
        by(cells.assign(n=np.where(cells.lat >= 60, "north", np.where(cells.lat >= 40, "middle", "south"))), ["n"], a=average("t2m")).sort_values("a"))
f.cells("SELECT y / 20 AS half, sum(v) FROM grid GROUP BY y / 20 ORDER BY half", by(grid.assign(h=grid.y // 20), ["h"], a=("v", "sum")).sort_values("h"))
f.cells("SELECT y % 20 AS odd, count(*) FROM grid GROUP BY y % 20 ORDER BY odd", by(grid.assign(h=grid.y % 20), ["h"], a=("v", "size")).sort_values("h"))
f.cells("SELECT date_trunc('month', time) AS m, lat, min(t2m) FROM era5 WHERE time < '2019-03-01' GROUP BY date_trunc('month', time), lat",
        by(cells[cells.time < at("2019-03-01")].assign(m=lambda g: g.time.dt.to_period("M").dt.start_time), ["m", "lat"], a=("t2m", "min")))

f = script("having_order_limit", "HAVING, ORDER BY, LIMIT, OFFSET on top of a dense reduction.")
lats = by(cells, ["lat"], a=average("t2m"))
f.cells("SELECT lat, avg(t2m) FROM era5 GROUP BY lat ORDER BY lat DESC LIMIT 5", lats.sort_values("lat", ascending=False))
f.cells("SELECT lat, avg(t2m) FROM era5 GROUP BY lat ORDER BY lat LIMIT 2", lats.sort_values("lat")[:2])
f.cells("SELECT lat, avg(t2m) AS a FROM era5 GROUP BY lat HAVING avg(t2m) > 285 ORDER BY a DESC", lats[lats.a > 285].sort_values("a", ascending=False))
f.cells("SELECT lat, avg(t2m) AS a FROM era5 GROUP BY lat HAVING avg(t2m) > 285", lats[lats.a > 285])
f.cells("SELECT lat, count(t2m) AS n FROM era5 GROUP BY lat HAVING count(t2m) < 545 ORDER BY n, lat", by(cells, ["lat"], n=("t2m", "count")).query("n < 545").sort_values(["n", "lat"]))
f.cells("SELECT lat, lon, max(t2m) AS top FROM era5 GROUP BY lat, lon ORDER BY top DESC, lat, lon LIMIT 3 OFFSET 1",
        by(cells, ["lat", "lon"], top=("t2m", "max")).sort_values(["top", "lat", "lon"], ascending=[False, True, True])[1:4])
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE t2m IS NOT NULL ORDER BY t2m DESC, time, lat, lon LIMIT 3",
        cells[cells.t2m.notna()].sort_values(["t2m", "time", "lat", "lon"], ascending=[False, True, True, True])[["time", "lat", "lon", "t2m"]][:3])
f.cells("SELECT y, x, v FROM grid ORDER BY v LIMIT 4", grid.sort_values("v")[:4][["y", "x", "v"]])
f.cells("SELECT y, x, v FROM grid LIMIT 3", grid[:3][["y", "x", "v"]])
f.cells("SELECT y, x FROM grid ORDER BY x, y LIMIT 6", grid.sort_values(["x", "y"])[:6][["y", "x"]])
f.cells("SELECT lat, avg(t2m) FROM era5 GROUP BY lat HAVING avg(t2m) > 1000", lats[:0])
f.cells("SELECT y FROM grid LIMIT 0", grid[:0])
f.cells("SELECT DISTINCT y FROM grid ORDER BY y DESC", grid[["y"]].drop_duplicates().sort_values("y", ascending=False))

f = script("aggregates", "Aggregates with SQL's names, meaning and result types.")
one = cells[cells.lat == 45]
f.rows("SELECT avg(t2m), sum(t2m), min(t2m), max(t2m), count(t2m), count(*) FROM era5", [(cells.t2m.mean(), cells.t2m.sum(), cells.t2m.min(), cells.t2m.max(), cells.t2m.count(), len(cells))])
f.rows("SELECT stddev(t2m), stddev_pop(t2m), var_samp(t2m), var_pop(t2m) FROM CELLS(era5)", [(cells.t2m.std(), cells.t2m.std(ddof=0), cells.t2m.var(), cells.t2m.var(ddof=0))])
far = cells.assign(a=cells.t2m.astype("f8") + 1e4, b=cells.gust.astype("f8") - 1e4)
r = lambda d: np.corrcoef(d.dropna().to_numpy("f8").T)[0, 1]
f.cells("SELECT lat, corr(t2m, gust) AS r, corr(t2m::double + 1e4, gust::double - 1e4) AS s FROM era5 GROUP BY lat",
        by(far, ["lat"], r=(["t2m", "gust"], r), s=(["a", "b"], r)))
f.cells("SELECT lat, stddev(t2m), stddev_pop(t2m), var_samp(t2m), var_pop(t2m) FROM era5 GROUP BY lat",
        by(cells, ["lat"], a=("t2m", "std"), b=("t2m", lambda s: s.std(ddof=0)), c=("t2m", "var"), d=("t2m", lambda s: s.var(ddof=0))))
f.note("A block without any clause of the cell surface is a tensor block: count(*) or CELLS() make it one of cells.")
f.note("float32: sums and averages are float64, extremes float32.")
f.rows("SELECT avg(precip), sum(precip), min(precip), max(precip), count(*) FROM era5",
       [(cells.precip.astype("f8").mean(), cells.precip.astype("f8").sum(), np.float32(cells.precip.min()), np.float32(cells.precip.max()), 2800)])
f.rows("SELECT avg(rh), count(rh), max(rh), avg(sst), count(sst), avg(gust), count(gust), count(*) FROM era5",
       [(cells.rh.astype("f8").mean(), cells.rh.count(), np.float32(cells.rh.max()), cells.sst.astype("f8").mean(), cells.sst.count(), cells.gust.astype("f8").mean(), cells.gust.count(), 2800)])
f.note("int16 with a mask, repeated over lat and lon.")
f.rows("SELECT sum(flag), avg(flag), min(flag), max(flag), count(flag), count(*) FROM era5", [(int(cells.flag.sum()), cells.flag.astype("f8").mean(), int(cells.flag.min()), int(cells.flag.max()), cells.flag.count(), 2800)])
f.rows("SELECT sum(t2m * precip) / sum(precip), avg(abs(t2m - 285)), max(sqrt(precip)), count(*) FROM era5",
       [((cells.t2m * cells.precip.astype("f8")).sum() / cells.precip.astype("f8").sum(), (cells.t2m - 285).abs().mean(), np.float32(np.sqrt(cells.precip).max()), 2800)])
f.rows("SELECT sum(CASE WHEN t2m > 290 THEN 1 ELSE 0 END), count(CASE WHEN t2m > 290 THEN 1 END), sum(CASE WHEN precip > 0 THEN precip END), count(*) FROM era5",
       [((cells.t2m > 290).sum(), (cells.t2m > 290).sum(), cells.precip.astype("f8").sum(), 2800)])
f.rows("SELECT avg(t2m) FILTER (WHERE lat > 40), count(*) FILTER (WHERE precip > 5) FROM era5", [(cells[cells.lat > 40].t2m.mean(), (cells.precip > 5).sum())])
f.note("Aggregates that only rows have make the block one of cells, by their form or by their name.")
f.rows("SELECT count(DISTINCT t2m) FROM era5", [(cells.t2m.nunique(),)])
f.rows("SELECT count(DISTINCT round(t2m)), sum(t2m) FROM era5", [(cells.t2m.round().nunique(), cells.t2m.sum())])
f.rows("SELECT sum(t2m) FILTER (WHERE lat > 40) / sum(t2m) FROM era5", [(cells[cells.lat > 40].t2m.sum() / cells.t2m.sum(),)])
f.rows("SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY t2m) FROM era5", [(cells.t2m.quantile(0.9),)])
both = cells[["t2m", "precip"]].dropna().to_numpy("f8").T
f.rows("SELECT corr(t2m, precip), covar_samp(t2m, precip) FROM era5", [(np.corrcoef(both)[0, 1], np.cov(both)[0, 1])])
f.rows("SELECT first_value(t2m ORDER BY t2m), var_pop(t2m) FROM era5", [(cells.t2m.min(), cells.t2m.var(ddof=0))])
f.note("Nothing to aggregate.")
f.rows("SELECT avg(t2m), sum(t2m), min(t2m), max(t2m), stddev(t2m), count(t2m), count(*) FROM era5 WHERE lat > 100", [(None, None, None, None, None, 0, 0)])
f.rows("SELECT stddev(v), var_samp(v), stddev_pop(v) FROM grid WHERE y = 0 AND x = 3.0", [(None, None, 0.0)])
f.rows("SELECT sum(y), avg(y), max(x), count(DISTINCT y), count(*) FROM grid", [(int(grid.y.sum()), grid.y.mean(), 3.0, 5, 35)])
f.note("Integer / truncates, log is base 10, round is half away from zero: SQL's meaning, not NumPy's.")
f.rows("SELECT y / 15, y % 15, log(100.0), round(v) FROM grid WHERE y = 20 AND x = 3.0", [(1, 5, 2.0, np.round(grid[(grid.y == 20) & (grid.x == 3.0)].v.values[0]))])
f.rows("SELECT round(2.5), round(-0.5), 7 / 2, -7 / 2, -7 % 3 FROM grid WHERE y = 0 AND x = 0.0", [(3.0, -1.0, 3, -3, -1)])
f.rows("SELECT 7 // 2, -7 // 2, 2 ^ 10 FROM grid WHERE y = 0 AND x = 0.0", [(3, -4, 1024)])
f.error("SELECT sum(9223372036854775807 + 0 * y), count(*) FROM grid", "overflow")

f = Script("cells/nested", "Subscripts of lists, from 1 as in SQL, and fields of structs.")
NESTED = "'tests/data/tables/nested.ndjson'"
f.rows(f"SELECT id, li[1], li[-1], li[id], st['a'], st['b'], st.a FROM {NESTED}",
       [(1, 10, 30, 10, 5, "x", 5), (2, 40, 40, None, 6, "y", 6), (3, None, None, None, 7, "z", 7)])
f.rows(f"SELECT li[1] + st['a'] AS s, count(*) FROM {NESTED} t WHERE t.li[1] > 5 GROUP BY li[1] + st['a'] ORDER BY s", [(15, 1), (46, 1)])
f.error(f"SELECT id[1] FROM {NESTED}", "type_error: `array_element` is not defined for int64")
f.error(f"SELECT id['a'] FROM {NESTED}", "type_error: int64 has no fields")

f.note("NaN and infinities, which JSON has not and Python writes, as DuckDB reads them.")
words = [json.loads(line) for line in open(DATA / "tables/words.ndjson")]
nth = lambda l, n: float(l[n]) if l and n < len(l) else None
f.rows("SELECT id, x, l[1], l[2], s['y'], t FROM 'tests/data/tables/words.ndjson'",
       [(w["id"], w["x"], nth(w["l"], 0), nth(w["l"], 1), w["s"] and w["s"]["y"], w["t"]) for w in words])

f = Script("cells/minutes", "Times of CSV without seconds, as DuckDB reads them.")
for query in ["SELECT id, t, u, d, note FROM {}", "SELECT date_trunc('hour', t) AS h, count(*) AS n FROM {} GROUP BY h ORDER BY h NULLS LAST", "SELECT id FROM {} WHERE u > t + INTERVAL '10 seconds' ORDER BY id"]:
    f.rows(query.format("'tests/data/tables/minutes.csv'"), duckdb.sql(query.format(f"'{DATA}/tables/minutes.csv'")).fetchall())

f = script("dates", "Times in the cell surface: partial dates are their first instant in WHERE.")
point = cells[(cells.lat == 45) & (cells.lon == 0.5)]
for clause, keep in [("time >= '2020-12'", point.time >= at("2020-12-01")), ("time < '2019-01-22'", point.time < at("2019-01-22")), ("time <= '2019-01-22'", point.time <= at("2019-01-22")),
                     ("time > '2020-12-20' AND time <= '2020-12-30T18:00:00'", (point.time > at("2020-12-20")) & (point.time <= at("2020-12-30T18:00"))),
                     ("time BETWEEN '2019-03-01' AND '2019-03-20'", point.time.between(at("2019-03-01"), at("2019-03-20"))), ("time = '2019-01-22'", point.time == at("2019-01-22")),
                     ("time = '2019-01-06'", point.time == at("2019-01-06")), ("date_part('month', time) = 2 AND date_part('year', time) = 2020", (point.time.dt.month == 2) & (point.time.dt.year == 2020)),
                     ("extract(hour FROM time) = 18 AND time < '2019-04-01'", (point.time.dt.hour == 18) & (point.time < at("2019-04-01"))),
                     ("time IN ('2019-01-01', '2019-01-22')", point.time.isin([at("2019-01-01"), at("2019-01-22")])),
                     ("time >= TIMESTAMP '2020-12-01 00:00:00' AND time < TIMESTAMP '2020-12-10 00:00:00'", (point.time >= at("2020-12-01")) & (point.time < at("2020-12-10")))]:
    f.cells(f"SELECT time, t2m FROM era5 WHERE lat = 45 AND lon = 0.5 AND {clause}", point[keep][["time", "t2m"]])
f.rows("SELECT min(time), max(time), count(DISTINCT time), count(*) FROM era5", [(cells.time.min(), cells.time.max(), 140, 2800)])
f.cells("SELECT date_part('month', time) AS m, date_part('day', time) AS d, date_part('hour', time) AS h FROM era5 WHERE lat = 45 AND lon = 0.5 AND time < '2019-02-01'",
        point[point.time < at("2019-02-01")].assign(m=lambda g: g.time.dt.month, d=lambda g: g.time.dt.day, h=lambda g: g.time.dt.hour)[["m", "d", "h"]])
f.cells("SELECT lat, count(*) FROM era5 WHERE time >= '2019-06' AND time < '2019-07' GROUP BY lat", by(cells[(cells.time >= at("2019-06-01")) & (cells.time < at("2019-07-01"))], ["lat"], n=("t2m", "size")))
f.error("SELECT t2m FROM era5 WHERE time > 'soon'", "type_error")

f = script("masks_three_valued", "NULL in the cell surface: three-valued logic.")
first = cells[cells.time == cells.time[np.argmax(cells.t2m.isna())]]  # the first step with a masked cell
moment = first.time.iloc[0].strftime("%Y-%m-%dT%H:%M:%S")
here = f"FROM era5 WHERE time = '{moment}'"
pick = lambda frame: frame[["lat", "lon", "t2m"]]
f.cells(f"SELECT lat, lon, t2m {here}", pick(first))
f.cells(f"SELECT lat, lon, t2m {here} AND t2m > 280", pick(first[first.t2m > 280]))
f.cells(f"SELECT lat, lon, t2m {here} AND NOT (t2m > 280)", pick(first[first.t2m <= 280]))
f.cells(f"SELECT lat, lon, t2m {here} AND t2m IS NULL", pick(first[first.t2m.isna()]))
f.cells(f"SELECT lat, lon, t2m {here} AND (t2m > 280 OR t2m IS NULL)", pick(first[(first.t2m > 280) | first.t2m.isna()]))
f.cells(f"SELECT lat, lon, t2m {here} AND t2m <> 280", pick(first[first.t2m.notna() & (first.t2m != 280)]))
f.cells(f"SELECT lat, lon, t2m {here} AND t2m NOT IN (280, 281)", pick(first[first.t2m.notna()]))
three = lambda a, null: [None if n else bool(v) for v, n in zip(a, null)]
null = first.t2m.isna().values
f.rows(f"SELECT t2m > 280, t2m > 280 AND lat > 0, t2m > 280 AND lat < 0, t2m > 280 OR lat > 0, t2m IS NULL, coalesce(t2m, 0) = 0 {here}",
       zip(three(first.t2m > 280, null), three(first.t2m > 280, null), [False] * 20, [True] * 20, null, null))
f.rows(f"SELECT CASE WHEN t2m > 280 THEN 'warm' ELSE 'cold' END, t2m + NULL, nullif(lon, 0.5) {here} AND lat = 65",
       [("warm" if r.t2m > 280 else "cold", None, None if r.lon == 0.5 else r.lon) for r in first[first.lat == 65].itertuples()])
f.rows("SELECT count(*), count(t2m), count(*) - count(t2m), sum(CASE WHEN t2m IS NULL THEN 1 ELSE 0 END) FROM era5", [(2800, cells.t2m.count(), cells.t2m.isna().sum(), cells.t2m.isna().sum())])
f.cells("SELECT lat, avg(sst), max(sst), count(sst), count(*) FROM era5 GROUP BY lat", by(cells, ["lat"], a=average("sst"), b=("sst", "max"), c=("sst", "count"), d=("sst", "size")))
f.note("A WHERE on a value is a mask; groups without rows vanish.")
f.cells("SELECT lat, avg(t2m), count(*) FROM era5 WHERE t2m > 295 GROUP BY lat", by(cells[cells.t2m > 295], ["lat"], a=average("t2m"), b=("t2m", "size")))
f.cells("SELECT lat, lon, count(*) FROM era5 WHERE t2m > 301 GROUP BY lat, lon", by(cells[cells.t2m > 301], ["lat", "lon"], b=("t2m", "size")))
f.cells("SELECT lat, avg(precip) FROM era5 WHERE t2m IS NULL GROUP BY lat", by(cells[cells.t2m.isna()], ["lat"], a=average("precip")))
f.cells("SELECT flag, count(*) FROM era5 WHERE lat = 45 AND lon = 0.5 GROUP BY flag ORDER BY flag NULLS LAST",
        pd.DataFrame({"flag": [*range(0, 4), None], "n": [int((point.flag == k).sum()) for k in range(4)] + [int(point.flag.isna().sum())]}, dtype=object))

f = Script("queries/subqueries", "Subqueries, CTEs, views and TEMP tensors: labels pass through, the outer block decides its surface.", 1e-12, setup=(ERA5, GRID))
t2m, lat_mean = air.t2m, air.t2m.mean("time")
dev = (t2m - lat_mean).transpose("time", "lat", "lon")
box3 = box.v - box.v.mean("x")
f.q("WITH c AS (SELECT mean(t2m, axis => 'time') AS clim FROM era5) SELECT clim[lat => 45], clim - mean(clim) FROM c", da(lat_mean.sel(lat=45)), da(lat_mean - lat_mean.mean()))
f.q("WITH a AS (SELECT v * 2 AS w FROM grid), b AS (SELECT w + 1 AS u FROM a) SELECT u[y => 20], u[0, 0] FROM b", da(box.v.sel(y=20) * 2 + 1), da(box.v[0, 0] * 2 + 1))
f.q("SELECT mean(w, axis => 'x'), y FROM (SELECT v + 1 AS w FROM grid) AS s", v0=da((box.v + 1).mean("x")), y=da(box.y))
f.q("SELECT p.w - q.w AS d FROM (SELECT v AS w FROM grid) p, (SELECT mean(v, axis => 'x', keepdims => true) AS w FROM grid) q", d=da(box3))
f.cells("SELECT lat, max(a) FROM (SELECT t2m - mean(t2m, axis => 'time') AS a FROM era5) GROUP BY lat",
        by(dev.to_dataframe(name="a").reset_index(), ["lat"], b=("a", "max")))
f.cells("SELECT y, sum(w) FROM (SELECT v[y => 10:30] * 2 AS w FROM grid) GROUP BY y", by(grid[grid.y.between(10, 30)].assign(w=lambda g: g.v * 2), ["y"], a=("w", "sum")))
f.cells("WITH m AS (SELECT lat, avg(t2m) AS a FROM era5 GROUP BY lat) SELECT lat, a FROM m WHERE a > 285 ORDER BY a", lats[lats.a > 285].sort_values("a"))
f.rows("SELECT max(a) - min(a) AS gradient FROM (SELECT lat, avg(t2m) AS a FROM era5 GROUP BY lat) s", [(lats.a.max() - lats.a.min(),)])
f.ok("CREATE TEMP TENSOR january AS SELECT t2m[time => '2020-01'] AS v, orog FROM era5")
f.q("SELECT january.v[lat => 45, lon => 0.5], mean(v, axis => 'time')[lat => 60], time[0], orog[lat => 45] FROM january",
    da(t2m.sel(time="2020-01", lat=45, lon=0.5)), da(t2m.sel(time="2020-01").mean("time").sel(lat=60)), da(t2m.sel(time="2020-01").time[0]), da(air.orog.sel(lat=45)))
f.cells("SELECT lon, avg(v) FROM january WHERE lat <= 45 GROUP BY lon", by(cells[(cells.time >= at("2020-01-01")) & (cells.time < at("2020-02-01")) & (cells.lat <= 45)], ["lon"], a=average("t2m")))
f.error("SELECT w FROM warm", "unknown_name")

f = Script("queries/views", "Views.", 1e-12, setup=(ERA5,))
f.ok("CREATE OR REPLACE VIEW warm AS SELECT where(t2m > 290, t2m, NULL) AS w FROM era5")
warm = t2m.where(t2m > 290)
f.q("SELECT count(w), mean(w, axis => ['time', 'lon']) FROM warm", np.int64(warm.count()), da(warm.mean(["time", "lon"])))
f.q("SELECT mean(w - t2m) FROM warm, era5", np.float64(0.0))
f.ok("DROP VIEW warm")
