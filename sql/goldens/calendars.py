"""sql/cells/calendars: times of noleap and 360_day over rows, expected from xarray and cftime."""

import datetime

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
f.rows("SELECT try_cast(time AS timestamp) AS t, try_cast(time AS date) AS d, try_cast(time AS text) AS s FROM day360 WHERE x = 1 AND time > '2000-02-01' AND time < '2000-03-15'",
       [(g, None if g is None else str(g)[:10], t) for t in some for g in [gregorian(t)]])
f.rows("SELECT time::timestamp AS t, time::date AS d FROM noleap WHERE x = 1 AND time < '2000-02-15'",
       [(gregorian(t), str(gregorian(t))[:10]) for t in early["noleap"]])
f.rows("SELECT count(*) AS n FROM noleap WHERE time::timestamp >= TIMESTAMP '2001-03-08'", [(3 * sum(t.isoformat() >= "2001-03-08" for t in TIMES["noleap"]),)])
f.error("SELECT time::timestamp AS t FROM day360 WHERE x = 1", "(execution|type_error): .*2000-02-30")
