"""sql/cells/time_functions: functions of times and intervals that DuckDB has, expected from DuckDB; sql/cells/samples."""

from datetime import datetime

import duckdb
import numpy as np

from .core import ERA5, Script
from .labels import air

cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
con = duckdb.connect()
con.execute("SET TimeZone = 'UTC'")
con.execute("CREATE TABLE era5 AS SELECT * FROM cells")
VIEWS = [
    "CREATE VIEW ev AS SELECT * FROM (VALUES (1, timestamp '2020-01-31 10:11:12.345678', timestamp '2021-02-28 09:00:00', date '2020-02-29', 1), "
    "(2, timestamp '1969-12-31 23:30:00', timestamp '1970-01-01 00:30:00', date '1999-12-31', 2), "
    "(3, timestamp '2020-03-31 00:00:00', timestamp '2020-02-29 12:00:00', date '2021-01-01', -3), "
    "(4, NULL, timestamp '2020-02-29 12:00:00', NULL, NULL), "
    "(5, timestamp '2000-02-29 23:59:59.999999', timestamp '2020-02-28 23:59:59', date '2000-01-03', 40)) v(id, a, b, d, n)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/time_functions", "Functions of times and intervals. Expected values from DuckDB.", 1e-12, setup=[ERA5, *VIEWS])


def same(sql, script=None):
    rows = con.execute(sql).fetchall()
    assert rows, sql
    (script or f).rows(sql, [tuple(np.datetime64(v) if isinstance(v, datetime) else v for v in row) for row in rows])


f.note("Intervals of all units, and of columns.")
same("SELECT id, a + INTERVAL '1 quarter' AS q, a + INTERVAL 2 QUARTERS AS qs, a - INTERVAL '1' QUARTER AS back FROM ev ORDER BY id")
same("SELECT id, a + INTERVAL '1 week' AS w, a + INTERVAL '1 decade' AS d, a + INTERVAL '1 century' AS c, INTERVAL '2 millennia' = INTERVAL '2000 years' AS m FROM ev ORDER BY id")
same("SELECT id, a + INTERVAL 3 DECADES AS d, a + INTERVAL 2 CENTURIES AS c, a + INTERVAL 1 QUARTER AS q, a + INTERVAL '1 year 2 months' AS y FROM ev ORDER BY id")
same("SELECT id, a + INTERVAL (n) DAY AS d, a + INTERVAL (n + 1) MONTHS AS m, a - INTERVAL (n) QUARTERS AS q, a + INTERVAL (n * 2) HOURS AS h FROM ev ORDER BY id")
same("SELECT id, b + to_years(n) AS y, b + to_months(n) AS m, b + to_weeks(n) AS w, b + to_days(n) AS d, b + to_quarters(n) AS q, b + to_decades(2) AS dec, b + to_centuries(1) AS c, to_millennia(n) = to_years(1000 * n) AS mi FROM ev ORDER BY id")
same("SELECT id, b + to_hours(n) AS h, b + to_minutes(n) AS m, b + to_seconds(n) AS s, b + to_seconds(n + 0.25) AS f, b + to_milliseconds(n) AS ms, b + to_microseconds(n) AS us FROM ev ORDER BY id")
same("SELECT id, d + INTERVAL (n) DAY AS d, date_add(d, INTERVAL '36 hours') AS h, date_add(a, INTERVAL (n) MONTH) AS m FROM ev ORDER BY id")
same("SELECT id FROM ev WHERE a + INTERVAL (n) DAY > b ORDER BY id")
same("SELECT sum(n) AS n, max(a + to_days(n)) AS t FROM ev WHERE b - a < to_years(2) ")
same("SELECT id, '2 quarters'::interval = INTERVAL '6 months' AS q FROM ev WHERE id < 3 ORDER BY id")
f.error("SELECT a + INTERVAL (n) FROM ev", "unknown_name: .*interval")
f.error("SELECT to_days(n + 0.5) AS i FROM ev", "type_error: .*to_days")
f.error("SELECT b + to_years(n * 100000000) AS t FROM ev WHERE id = 5", "to_years")

f.note("Differences: how often a part begins, and how many whole parts there are.")
for part in ("year", "quarter", "month", "day", "hour", "minute", "second", "microsecond", "decade", "isoyear"):
    same(f"SELECT id, date_diff('{part}', a, b) AS diff, datediff('{part}', d, a::date) AS days, date_sub('{part}', a, b) AS whole FROM ev ORDER BY id")
same("SELECT id, date_diff('week', a, b) AS diff, date_sub('week', a, b) AS whole FROM ev WHERE id <> 2 ORDER BY id")
same("SELECT date_diff('month', d, a) AS m, count(*) AS n FROM ev GROUP BY 1 ORDER BY 1 NULLS LAST")
same("SELECT id FROM ev WHERE date_diff('day', d, a) > 0 ORDER BY id")
same("SELECT id, b - age(b, a) = a AS back, epoch(age(b, a)) AS s, extract(month FROM age(b, a)) AS m, extract(day FROM age(b, a)) AS d, extract(hour FROM age(b, a)) AS h FROM ev ORDER BY id")
same("SELECT id, age(d, date '1999-12-31') > INTERVAL '1 month' AS long, extract(year FROM age(d, date '1990-06-15')) AS y FROM ev ORDER BY id")
f.error("SELECT date_diff('fortnight', a, b) AS x FROM ev", "invalid_argument: .*fortnight")
f.error("SELECT date_diff(n, a, b) AS x FROM ev", "(invalid_argument|type_error)")
f.error("SELECT date_diff('day', a) AS x FROM ev", "(type_error|argument_count)")

f.note("Parts of times, and times of numbers.")
same("SELECT id, last_day(a) AS a, last_day(d) AS d FROM ev ORDER BY id")
same("SELECT id, dayname(a) AS a, dayname(d) AS d, monthname(a) AS ma, monthname(d) AS md FROM ev ORDER BY id")
same("SELECT id, epoch(a) AS s, epoch_ms(a) AS ms, epoch_us(a) AS us, epoch_ns(a) AS ns, epoch_ms(d) AS d FROM ev ORDER BY id")
same("SELECT id, isodow(a) AS a, isodow(d) AS d, weekofyear(d) AS w, isoyear(d) AS y FROM ev ORDER BY id")
same("SELECT id, make_date(2000 + abs(n), 2, 28) AS d, make_timestamp(2000 + abs(n), 2, 28, 10, abs(n), 12.345678) AS t, make_timestamp(epoch_us(a)) AS u, epoch_ms(epoch_ms(a)) AS v FROM ev ORDER BY id")
same("SELECT id, epoch(INTERVAL '14 months' * n) AS m, epoch(INTERVAL '1 day 2 hours' * n) AS d, extract(epoch FROM b - a) AS s, epoch_ms(to_months(n)) AS ms FROM ev ORDER BY id")
same("SELECT id, date_part(['year', 'month'], a)['year'] AS y, date_part(['year', 'month'], a)['month'] AS m FROM ev ORDER BY id")
same("SELECT dayname(d) AS day, count(*) AS n, min(monthname(d)) AS m FROM ev WHERE d IS NOT NULL GROUP BY dayname(d) ORDER BY day")
f.error("SELECT dayname(n) AS x FROM ev", "type_error: .*dayname")
f.error("SELECT make_timestamp(2021, 2, 28 + abs(n), 0, 0, 0) AS t FROM ev WHERE id = 1", "2021-2-29")

f.note("Buckets of times.")
same("SELECT id, time_bucket(INTERVAL '15 minutes', a) AS m, time_bucket(INTERVAL '7 hours', a) AS h, time_bucket(INTERVAL '2 weeks', a) AS w, time_bucket(INTERVAL '5 months', a) AS mo FROM ev ORDER BY id")
same("SELECT id, time_bucket(INTERVAL '2 weeks', d) AS w, time_bucket(INTERVAL '1 quarter', d) AS q, time_bucket(INTERVAL '10 years', d) AS y FROM ev ORDER BY id")
same("SELECT id, time_bucket(INTERVAL '1 day', a, INTERVAL '6 hours') AS o, time_bucket(INTERVAL '15 minutes', a, timestamp '2000-01-01 00:05:00') AS p, time_bucket(INTERVAL '5 months', a, INTERVAL '1 month 3 days') AS q FROM ev ORDER BY id")
same("SELECT time_bucket(INTERVAL '10 days', time) AS t, count(t2m) AS n, max(t2m) AS m FROM era5 GROUP BY t ORDER BY t LIMIT 6")
same("SELECT id, time_bucket(to_days(abs(n)), a) AS t FROM ev ORDER BY id")
f.error("SELECT time_bucket(INTERVAL '1 month 1 day', a) AS t FROM ev", "time_bucket")
f.error("SELECT time_bucket(INTERVAL '0 days', a) AS t FROM ev", "greater than 0")

f.note("Texts in a format.")
TEXTS = "(VALUES (1, '1.2.2020'), (2, '31.12.1999'), (3, NULL), (4, '01.02.2020 ')) t(id, s)"
same(f"SELECT id, strptime(s, '%d.%m.%Y') AS t FROM {TEXTS} ORDER BY id")
same("SELECT id, try_strptime(s, '%d.%m.%Y') AS t, try_strptime(s, ['%Y/%m/%d', '%d.%m.%Y', '%H:%M']) AS u FROM (VALUES (1, '31.2.2020'), (2, 'x'), (3, '2020/3/1'), (4, '29.2.2020'), (5, '10:30')) t(id, s) ORDER BY id")
same("SELECT strptime(s, '%d/%b/%Y:%H:%M:%S.%f %p') AS t FROM (VALUES ('03/Mar/2020:10:11:12.5 PM')) t(s)")
same("SELECT epoch(strptime(s, '%Y-%m-%dT%H:%M:%S%z')) AS t FROM (VALUES ('2020-03-01T10:11:12+02:30')) t(s)")
f.error("SELECT strptime(s, '%Y') AS t FROM (VALUES ('soon')) t(s)", "soon")
f.error("SELECT strptime(s, '%Q') AS t FROM (VALUES ('soon')) t(s)", "%Q")

f.note("Texts of times in a format.")
same("SELECT id, strftime(a, '%Y-%m-%d_%H:%M:%S.%f|%g|%n') AS a, strftime(d, '%x|%X|%T') AS x FROM ev ORDER BY id")
same("SELECT id, strftime(a, '%-d.%-m.%-y|%-H:%-M:%-S|%-I%p|%-j') AS a, strftime(a, '%d.%m.%y|%I|%j') AS p, strftime('%a|%A|%b|%h|%B|%w|%u', d) AS n FROM ev ORDER BY id")
same("SELECT i, strftime(date '2019-12-28' + INTERVAL (i) DAY, '%Y-%m-%d|%U|%W|%V|%G|%j') AS w FROM range(0, 800, 37) t(i) ORDER BY i")
same("SELECT i, strftime(date '2020-12-26' + INTERVAL (i) DAY, '%Y-%m-%d|%a|%U|%W|%V|%G') AS w FROM range(12) t(i) ORDER BY i")
same("SELECT strftime(date '0005-12-31', '%Y|%y|%G|%x') AS a, strftime(a, '%z%Z|100%%é') AS z, strftime(a, NULL) AS n FROM ev WHERE id = 1")
same("SELECT strftime(timestamptz '2020-07-03 14:05:06.5+02:00', '%H:%M:%S.%g|%z|%Z') AS t")
same("SELECT strftime(a, '%Y-%m') AS m, count(*) AS n FROM ev WHERE a IS NOT NULL GROUP BY m ORDER BY m")
f.error("SELECT strftime(a, '%Q') AS t FROM ev", "%Q")
f.error("SELECT strftime(a, '') AS t FROM ev", "0 characters")
f.error("SELECT strftime(n, '%Y') AS t FROM ev", "type_error: .*strftime")
f.error("SELECT strftime(a, 5) AS t FROM ev", "type_error: .*strftime")
same("SELECT strptime('Feb 2020 04:05:06', '%h %Y %T') AS t")

f.note("Hours of a zone that is half an hour ahead.")
there = duckdb.connect()
there.execute("SET TimeZone = 'Asia/Kolkata'")
ZONED = ("SELECT x, date_diff('hour', a, b) AS h, date_diff('minute', a, b) AS m, date_sub('hour', a, b) AS s, date_diff('day', a, b) AS d, strftime(a, '%H:%M|%z|%Z') AS t "
         "FROM (SELECT v.x, v.a AT TIME ZONE 'Asia/Kolkata' AS a, v.b AT TIME ZONE 'Asia/Kolkata' AS b FROM (VALUES (1, timestamp '2020-01-01 00:20:00', timestamp '2020-01-01 00:40:00'), "
         "(2, timestamp '2020-01-01 00:50:00', timestamp '2020-01-01 01:10:00'), (3, timestamp '2019-12-31 23:59:59', timestamp '2020-01-01 05:30:00')) v(x, a, b)) q ORDER BY x")
f.rows(ZONED, there.execute(ZONED).fetchall())

f.note("Texts of times without seconds.")
same("SELECT timestamp '2020-01-01 10:00' AS t, '2020-02-29T09:05'::timestamp AS c, try_cast('2020-02-30 10:00' AS timestamp) AS n, timestamp '2020-01-01 10:00:00' > '2020-01-01 09:59' AS b")
same("SELECT id, s::timestamp AS t FROM (VALUES (1, '2020-01-01 10:00'), (2, '2020-01-01 10:00:30'), (3, NULL), (4, '2020-1-2 1:05'), (5, '2020-03-01')) t(id, s) ORDER BY id")
same("SELECT s::timestamp AS t, count(*) AS n, max(s::timestamp) AS m FROM (VALUES ('2020-01-01 10:00'), ('2020-01-01 10:00:00'), ('2020-01-01 11:30')) t(s) GROUP BY s::timestamp ORDER BY t")
same("SELECT id FROM ev WHERE a >= '2020-01-31 10:11' ORDER BY id")
f.error("SELECT '2020-01-01 10:'::timestamp AS t", "cannot convert")

f.note("Labels of a dimension.")
same("SELECT dayname(time) AS day, count(t2m) AS n, max(t2m) AS m FROM era5 GROUP BY dayname(time) ORDER BY day")
same("SELECT last_day(time) AS d, count(*) AS n FROM era5 WHERE monthname(time) = 'June' GROUP BY 1 ORDER BY 1")
same("SELECT date_diff('week', timestamp '2019-01-01', time) AS w, count(t2m) AS n FROM era5 GROUP BY w ORDER BY w LIMIT 5")

AGGREGATED = [
    "CREATE VIEW ts AS SELECT * FROM (VALUES (1, 1, timestamp '2020-01-01 00:00:00', date '2020-01-01', INTERVAL '1 day'), "
    "(2, 1, timestamp '2020-01-04 12:00:00', date '2020-01-02', INTERVAL '1 month'), "
    "(3, 2, timestamp '1969-12-31 23:59:59.99997', date '1969-01-02', INTERVAL '3 hours'), "
    "(4, 2, timestamp '1970-01-01 00:00:00', date '1969-01-03', INTERVAL '-1 day -1 hour'), "
    "(5, 2, timestamp '1970-01-01 00:00:01.00002', date '1969-01-03', INTERVAL '3 hours'), "
    "(6, 3, NULL, NULL, NULL)) v(id, k, t, d, i)",
]
for view in AGGREGATED:
    con.execute(view)
g = Script("cells/time_aggregates", "Means, medians and quantiles of times, and sums of intervals. Expected values from DuckDB.", setup=[ERA5, *AGGREGATED])

g.note("Of all rows, of groups and of frames.")
same("SELECT avg(t) AS t, avg(d) AS d, mean(t) AS m, count(t) AS n FROM ts", g)
same("SELECT k, avg(t) AS t, avg(d) AS d, median(t) AS mt, median(d) AS md FROM ts GROUP BY k ORDER BY k", g)
same("SELECT k, quantile_cont(t, 0.25) AS q, quantile_cont(d, 0.3) AS d, percentile_cont(0.5) WITHIN GROUP (ORDER BY t DESC) AS p FROM ts GROUP BY k ORDER BY k", g)
same("SELECT quantile_cont(t, 0) AS a, quantile_cont(t, 1.0) AS b, percentile_cont(0.3) WITHIN GROUP (ORDER BY d DESC) AS c FROM ts", g)
same("SELECT id, avg(t) OVER (PARTITION BY k) AS a, avg(d) OVER (ORDER BY id) AS r, avg(t) OVER (ORDER BY id ROWS 1 PRECEDING) AS f FROM ts ORDER BY id", g)
same("SELECT id, median(t) OVER (PARTITION BY k) AS a, median(d) OVER (ORDER BY id ROWS 2 PRECEDING) AS f, quantile_cont(t, 0.5) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS q FROM ts ORDER BY id", g)
same("SELECT k, avg(t) FILTER (WHERE id > 1) AS a, median(t) FILTER (WHERE id > 1) AS m FROM ts GROUP BY k ORDER BY k", g)
same("SELECT avg(DISTINCT d) AS a FROM ts", g)
same("SELECT median(DISTINCT d) AS m, quantile_cont(DISTINCT d, 0.25) AS q FROM ts", g)
same("SELECT k FROM ts GROUP BY k HAVING avg(t) > timestamp '2000-01-01' ORDER BY k", g)
same("SELECT epoch(avg(t)) AS s FROM (SELECT t::timestamptz AS t FROM ts WHERE k = 1) q", g)
same("SELECT avg(t) AS t FROM ts WHERE id > 99", g)

g.note("Of intervals, and of differences of times.")
same("SELECT avg(i) = INTERVAL '6 days 1 hour' AS a, median(i) = INTERVAL '3 hours' AS m FROM ts", g)
same("SELECT k, epoch(avg(i)) AS a, epoch(median(i)) AS m FROM ts GROUP BY k ORDER BY k", g)
same("SELECT id, epoch(avg(i) OVER (ORDER BY id ROWS 1 PRECEDING)) AS a, epoch(median(i) OVER (ORDER BY id ROWS 2 PRECEDING)) AS m FROM ts ORDER BY id", g)
same("SELECT epoch(avg(t - timestamp '2020-01-01')) AS a, epoch(median(t - timestamp '2020-01-01')) AS m FROM ts WHERE k = 1", g)
# DuckDB has no sum of intervals: the months, days and hours of each group, added.
g.rows("SELECT k, sum(i) = INTERVAL '1 month 1 day' AS a, sum(i) = INTERVAL '-1 day 5 hours' AS b, timestamp '2020-02-29' + sum(i) AS t FROM ts GROUP BY k ORDER BY k",
       [(1, True, False, np.datetime64("2020-03-30")), (2, False, True, np.datetime64("2020-02-28T05:00:00")), (3, None, None, None)])
g.rows("SELECT id, timestamp '2020-02-29' + sum(i) OVER (PARTITION BY k ORDER BY id) AS t FROM ts ORDER BY id",
       [(1, np.datetime64("2020-03-01")), (2, np.datetime64("2020-03-30")), (3, np.datetime64("2020-02-29T03:00:00")), (4, np.datetime64("2020-02-28T02:00:00")), (5, np.datetime64("2020-02-28T05:00:00")), (6, None)])
g.error("SELECT sum(t) AS t FROM ts", "type_error")
g.error("SELECT quantile_cont(t, 1.5) AS t FROM ts", "takes a constant fraction from 0 to 1")

g.note("Of labels of a dimension.")
same("SELECT lat, avg(time) AS a, median(time) AS m FROM era5 GROUP BY lat ORDER BY lat", g)
same("SELECT date_trunc('month', time) AS m, avg(time) AS a, quantile_cont(time, 0.5) AS q, max(t2m) AS t FROM era5 GROUP BY m ORDER BY m LIMIT 5", g)
same("SELECT avg(time) AS a FROM era5 WHERE t2m > 300", g)

# What a sample has to be: the rows themselves are of our own generator.
s = Script("cells/samples", "Samples of rows: how many, and the same ones for a seed.", setup=[ERA5])
PART = "range(10000) t(i) TABLESAMPLE 10 PERCENT REPEATABLE ({})"
TEN = "range(10000) t(i) TABLESAMPLE (10 ROWS) REPEATABLE ({})"
five, six, ten, eleven = PART.format(5), PART.format(6), TEN.format(5), TEN.format(6)
s.rows(f"SELECT count(*) BETWEEN 880 AND 1120 AS a, count(DISTINCT t.i) = count(*) AS b, avg(i) BETWEEN 4600 AND 5400 AS c FROM {five}", [(True, True, True)])
s.rows(f"SELECT count(*) AS n FROM (SELECT i FROM {five} EXCEPT SELECT i FROM {five}) q", [(0,)])
s.rows(f"SELECT count(*) > 500 AS n FROM (SELECT i FROM {five} EXCEPT SELECT i FROM {six}) q", [(True,)])
s.rows(f"SELECT count(*) AS n, count(DISTINCT i) AS d FROM {ten}", [(10, 10)])
s.rows(f"SELECT count(*) AS n FROM (SELECT i FROM {ten} EXCEPT SELECT i FROM {ten}) q", [(0,)])
s.rows(f"SELECT count(*) > 0 AS n FROM (SELECT i FROM {ten} EXCEPT SELECT i FROM {eleven}) q", [(True,)])
s.rows(f"SELECT count(*) AS n, count(b) AS m, count(*) FILTER (WHERE b >= i) AS back FROM (SELECT i, lag(i) OVER () AS b FROM {ten}) q", [(10, 9, 0)])
s.rows("SELECT * FROM range(3) t(i) TABLESAMPLE (3 ROWS) REPEATABLE (7)", [(0,), (1,), (2,)])
s.rows("SELECT count(*) < 100 AS n FROM range(10000) a(i) TABLESAMPLE 5 PERCENT JOIN range(10000) b(i) TABLESAMPLE 5 PERCENT ON a.i = b.i", [(True,)])
s.rows("SELECT count(*) AS n FROM range(7) t(i) TABLESAMPLE (10 ROWS)", [(7,)])
s.rows("SELECT * FROM range(3) t(i) TABLESAMPLE BERNOULLI (100)", [(0,), (1,), (2,)])
s.rows("SELECT count(*) AS n FROM range(100) t(i) TABLESAMPLE SYSTEM (0)", [(0,)])
s.rows("SELECT count(*) AS n FROM range(100) t(i) TABLESAMPLE 0", [(0,)])
s.rows("SELECT count(*) AS n FROM range(100) t(i) TABLESAMPLE 5 WHERE i < 0", [(0,)])
s.rows("SELECT sum(a.i - b.i) AS d, count(*) AS n FROM range(50) a(i) TABLESAMPLE (20 ROWS) REPEATABLE (1) JOIN range(50) b(i) TABLESAMPLE (20 ROWS) REPEATABLE (1) ON a.i = b.i", [(0, 20)])
s.rows("SELECT count(*) AS n, count(*) - count(q.k) AS m FROM (SELECT i % 3 AS k FROM range(90) t(i)) q TABLESAMPLE (30 ROWS)", [(30, 0)])
s.rows("SELECT count(*) AS n, max(e.t2m) <= 400 AS m FROM era5 e TABLESAMPLE (25 ROWS) REPEATABLE (3)", [(25, True)])
s.error("SELECT * FROM range(3) t(i) TABLESAMPLE 101 PERCENT", "invalid_argument")
s.error("SELECT * FROM range(3) t(i) TABLESAMPLE (-1 ROWS)", "(invalid_argument|syntax)")
s.error("SELECT * FROM range(3) t(i) TABLESAMPLE (2 ROWS) REPEATABLE (0.5)", "invalid_argument")
