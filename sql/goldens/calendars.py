"""sql/cells/calendars: times of noleap and 360_day over rows, expected from xarray and cftime."""

import datetime

import cftime
import numpy as np
import xarray as xr

from .core import DATA, ERA5, EXTERNAL, Script

STORES = {name: xr.open_zarr(DATA / f"cf/{name}.zarr", consolidated=False).load() for name in ("noleap", "day360")}
TIMES = {name: list(ds.time.values) for name, ds in STORES.items()}

f = Script("cells/calendars", "Times of other calendars in cells.", 1e-12,
           setup=(ERA5, EXTERNAL.format("noleap", "ZARR", "cf/noleap.zarr"), EXTERNAL.format("day360", "ZARR", "cf/day360.zarr")))

f.note("Times of two calendars are in no column together, and are not compared.")
early = {name: [t for t in times if t.isoformat() < "2000-02-15"] for name, times in TIMES.items()}
f.rows("SELECT time FROM noleap WHERE x = 1 AND time < '2000-02-15' UNION ALL SELECT time FROM noleap WHERE x = 2 AND time < '2000-01-15'",
       [(t,) for t in early["noleap"]] + [(t,) for t in early["noleap"] if t.isoformat() < "2000-01-15"])
f.rows("SELECT time::text AS t FROM noleap WHERE x = 1 AND time < '2000-02-15' UNION ALL SELECT time::text FROM day360 WHERE x = 1 AND time < '2000-02-15'",
       [(t,) for name in ("noleap", "day360") for t in early[name]])
two = ".*of the calendar noleap and .*of the calendar 360_day"
f.error("SELECT time FROM noleap UNION ALL SELECT time FROM day360", f"type_error: `UNION` {two}")
f.error("SELECT time FROM noleap UNION SELECT time FROM day360", f"type_error: `UNION` {two}")
f.error("SELECT time FROM noleap UNION ALL SELECT time FROM era5", "type_error: `UNION` .*noleap and .*standard")
f.error("SELECT time FROM noleap WHERE time IN (SELECT time FROM day360)", f"type_error: `IN` {two}")
f.error("SELECT time FROM noleap WHERE time NOT IN (SELECT time FROM day360)", f"type_error: `IN` {two}")
f.error("SELECT time FROM noleap WHERE time = ANY (SELECT time FROM day360)", f"type_error: `=` {two}")
f.error("SELECT coalesce(n.time, d.time) AS t FROM noleap n, day360 d WHERE n.x = d.x", f"type_error: `coalesce` {two}")
f.error("SELECT CASE WHEN n.v > 10 THEN n.time ELSE d.time END AS t FROM noleap n, day360 d WHERE n.x = d.x", f"type_error: `CASE` {two}")
f.rows("SELECT count(*) AS n FROM noleap WHERE time IN (SELECT time FROM noleap WHERE x = 2 AND time < '2000-02-15')", [(3 * len(early["noleap"]),)])


def gregorian(t):
    """The same date in the standard calendar, or None."""
    try:
        return np.datetime64(datetime.datetime(t.year, t.month, t.day, t.hour))
    except ValueError:
        return None


f.note("As timestamps they have the same dates; 30 February is none.")
some = [t for t in TIMES["day360"] if "2000-02-01" < t.isoformat() < "2000-03-15"]
f.rows("SELECT try_cast(time AS timestamp)::text AS t, try_cast(time AS date)::text AS d, try_cast(time AS text) AS s FROM day360 WHERE x = 1 AND time > '2000-02-01' AND time < '2000-03-15'",
       [(g, None if g is None else str(g)[:10], t) for t in some for g in [gregorian(t)]])
f.rows("SELECT time::timestamp::text AS t, time::date::text AS d FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(gregorian(t), str(gregorian(t))[:10]) for t in early["noleap"]])
f.rows("SELECT count(*) AS n FROM noleap WHERE time::timestamp >= TIMESTAMP '2001-03-08'", [(3 * sum(t.isoformat() >= "2001-03-08" for t in TIMES["noleap"]),)])
f.error("SELECT time::timestamp AS t FROM day360 WHERE x = 1", "(execution|type_error): .*2000-02-30")


def start(t, part):
    """The first moment of the part in which a time lies."""
    if part == "week":
        return (t - datetime.timedelta(days=t.dayofwk)).replace(hour=0)
    first = {"year": {"month": 1, "day": 1}, "quarter": {"month": (t.month - 1) // 3 * 3 + 1, "day": 1}, "month": {"day": 1}, "day": {}}[part]
    return t.replace(hour=0, **first)


f.note("date_trunc, in items, keys and conditions.")
for name, ds in STORES.items():
    some = [t for t in TIMES[name] if t.isoformat() < "2000-06-15"]
    f.rows(f"SELECT time, date_trunc('year', time) AS y, date_trunc('quarter', time) AS q, date_trunc('month', time) AS m, date_trunc('week', time) AS w, date_trunc('day', time) AS d FROM {name} WHERE x = 2 AND time < '2000-06-15'",
           [(t, *[start(t, part) for part in ("year", "quarter", "month", "week", "day")]) for t in some])
    for part in ("month", "quarter", "year"):
        groups = {}
        for i, t in enumerate(TIMES[name]):
            groups.setdefault(start(t, part), []).append(i)
        of = lambda ix: ds.v.isel(time=ix).values.ravel()
        rows = [(key, np.nanmean(of(ix)), int(np.sum(~np.isnan(of(ix)))), TIMES[name][ix[-1]]) for key, ix in groups.items()]
        f.rows(f"SELECT date_trunc('{part}', time) AS p, avg(v) AS a, count(v) AS n, max(time) AS t FROM {name} GROUP BY date_trunc('{part}', time)", rows)
        f.rows(f"SELECT p, year(p) AS y, month(p) AS m, n FROM (SELECT date_trunc('{part}', time) AS p, count(v) AS n FROM {name} WHERE v > -100 GROUP BY p) s ORDER BY p DESC LIMIT 4",
               [(key, key.year, key.month, n) for key, _, n, _ in rows[::-1][:4]])
f.rows("SELECT DISTINCT time FROM noleap WHERE date_trunc('quarter', time) = '2000-04' ORDER BY time", [(t,) for t in TIMES["noleap"] if t.year == 2000 and t.month in (4, 5, 6)])
f.error("SELECT date_trunc('fortnight', time) AS d FROM noleap WHERE x = 1", "invalid_argument: .*fortnight")
f.error("SELECT date_trunc('month', x) AS d FROM noleap WHERE x = 1", "type_error: .*date_trunc.* is not defined for text and float64")
f.error("SELECT date_trunc('month', x::bigint) AS d FROM noleap WHERE x = 1", "type_error: .*date_trunc.* is not defined for text and int64")


def plus(t, months=0, **span):
    """A time moved by months, then by a fixed length."""
    month = t.year * 12 + t.month - 1 + months
    for day in (t.day, 30, 29, 28):
        try:
            return t.replace(year=month // 12, month=month % 12 + 1, day=day) + datetime.timedelta(**span)
        except ValueError:
            continue


f.note("Times move by intervals. A day that the month does not have becomes its last one.")
for name, ds in STORES.items():
    some = [t for t in TIMES[name] if "2000-01-25" < t.isoformat() < "2000-09-05"]
    f.rows(f"SELECT time + INTERVAL '1 day' AS a, time - INTERVAL '40 days 6 hours' AS b, INTERVAL '1 month' + time AS c, time - INTERVAL '1 year 2 months' AS d FROM {name} WHERE x = 4 AND time > '2000-01-25' AND time < '2000-09-05'",
           [(plus(t, days=1), plus(t, days=-40, hours=-6), plus(t, 1), plus(t, -14)) for t in some])
f.rows("SELECT count(*) AS n FROM noleap WHERE time + INTERVAL '10 days' >= '2001-03-08' AND time - INTERVAL '1 month' < date_trunc('year', time)",
       [(3 * sum(plus(t, days=10).isoformat() >= "2001-03-08" and t.month == 1 for t in TIMES["noleap"]),)])
ends = {}
for i, t in enumerate(TIMES["noleap"]):
    ends.setdefault(plus(start(t, "month"), 1, days=-1), []).append(i)
f.rows("SELECT date_trunc('month', time) + INTERVAL '1 month' - INTERVAL '1 day' AS last, count(v) AS n FROM noleap GROUP BY last ORDER BY last LIMIT 4",
       [(key, int(STORES["noleap"].v.isel(time=ix).count())) for key, ix in list(ends.items())[:4]])
f.rows("SELECT a.time, b.v FROM noleap a JOIN noleap b ON a.time + INTERVAL '10 days' = b.time AND a.x = b.x WHERE a.x = 1 AND a.time < '2000-02-15'",
       [(t, STORES["noleap"].v.sel(x=1, time=plus(t, days=10)).values[()]) for t in TIMES["noleap"] if t.isoformat() < "2000-02-15"])

f.note("Names and ends of days and months, and differences.")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February")
f.rows("SELECT time, dayname(time) AS d, monthname(time) AS m, isodow(time) AS i FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(t, DAYS[t.dayofwk], MONTHS[t.month - 1], t.dayofwk + 1) for t in early["noleap"]])
f.rows("SELECT last_day(time) AS l, date_diff('day', time, last_day(time)) AS n, date_sub('month', time, time + INTERVAL '2 months') AS m, time_bucket(INTERVAL '1 month', time) AS b FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(plus(start(t, "month"), 1, days=-1), plus(start(t, "month"), 1, days=-1).day - t.day, 2, start(t, "month")) for t in early["noleap"]])

f.rows("SELECT strftime(time, '%Y-%m-%d|%j|%A|%B|%H:%M') AS s FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(f"{t.strftime('%Y-%m-%d')}|{t.dayofyr:03}|{DAYS[t.dayofwk]}|{MONTHS[t.month - 1]}|{t.strftime('%H:%M')}",) for t in early["noleap"]])
for call in ("avg(time)", "sum(time)", "median(time)", "quantile_cont(time, 0.5)", "stddev(time)", "avg(time) OVER ()"):
    f.error(f"SELECT x, {call} AS a FROM noleap GROUP BY x, time", "type_error: .*calendar noleap")
f.rows("SELECT avg(epoch(time)) AS a, count(time) AS n FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(float(np.mean([cftime.date2num(t, "seconds since 1970-01-01", "noleap") for t in early["noleap"]])), len(early["noleap"]))])

f.note("What returns one of its arguments is a time of their calendar.")
v = STORES["noleap"].v.sel(x=1)
day = early["noleap"][0]
at = lambda text: day.strptime(text, "%Y-%m-%d", calendar="noleap")
rows = [(t, v.sel(time=t).values[()] > 10) for t in early["noleap"]]
f.rows("SELECT CASE WHEN v > 10 THEN time END AS a, CASE WHEN v > 10 THEN time ELSE time + INTERVAL '1 day' END AS b, CASE time WHEN '2000-01-12' THEN 1 ELSE 0 END AS c FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(t if warm else None, t if warm else plus(t, days=1), int(t == at("2000-01-12"))) for t, warm in rows])
f.rows("SELECT greatest(time, '2000-01-20') AS a, least(time, '2000-01-20') AS b, nullif(time, '2000-01-12') AS c, coalesce(nullif(time, '2000-01-12'), '2001') AS d FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(max(t, at("2000-01-20")), min(t, at("2000-01-20")), None if t == at("2000-01-12") else t, at("2001-01-01") if t == at("2000-01-12") else t) for t, _ in rows])
f.rows("SELECT t FROM (SELECT CASE WHEN v > 10 THEN time END AS t FROM noleap WHERE x = 1) s WHERE t > '2000-01-20' AND t < '2000-02-15'",
       [(t,) for t, warm in rows if warm and t > at("2000-01-20")])
f.rows("SELECT max(CASE WHEN v > 10 THEN time END) AS a, min(coalesce(time, '1999')) AS b FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(max(t for t, warm in rows if warm), day)])
f.error("SELECT greatest(time, 'soon') AS a FROM noleap WHERE x = 1", "type_error: .*soon")
