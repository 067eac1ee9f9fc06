"""sql/stores: what real writers put into stores: missing labels, times as data, NumPy's own types, packed numbers,
bounds, arrays that cannot be read. From cftime, xarray, zarr-python and numcodecs."""

import sys

import cftime
import numpy as np
import xarray as xr
import zarr

from .core import DATA, Script, T, cell, da

sys.path.insert(0, str(DATA))
from make_stores import AXES, BYTES, FILLS, FILLS2, FILLS3, FILTERS, STORED, TYPES  # noqa: E402

at = lambda name: f"'tests/data/stores/{name}'"


def moments(numbers, units, calendar):
    """cftime's dates of some numbers; None stays."""
    def one(n):
        if n is None:
            return None
        if units.startswith("nano"):
            return np.datetime64("2000-01-01", "ns") + np.timedelta64(int(n), "ns")
        if units.startswith("weeks"):
            return cftime.num2date(n * 7, units.replace("weeks", "days"), calendar)
        return cftime.num2date(n, units, calendar)

    return [one(n) for n in numbers]


def column(values, dims, calendar, first=None):
    hidden = [v is None for v in values]
    filled = np.empty(len(values), object)
    filled[:] = values
    own = {"standard": "", "proleptic_gregorian": ""}.get(calendar, f", {calendar}")
    return T(np.ma.MaskedArray(filled, hidden), dims, f"datetime64[us{own}]")


NUMPYS = ("standard", "proleptic_gregorian")  # calendars that are timestamps of SQL

f = Script("stores/times", "Each calendar with one label missing and in several units; times as data; bounds without units of their own.", source=None)
for name, (calendar, units, _, numbers, _) in AXES.items():
    place = at(f"times.zarr#{name}")
    t = moments(numbers, units, calendar)
    shown = "gregorian" if name.startswith("old") else calendar
    f.note(f"{name}: {units}, {calendar}.")
    f.q(f"SELECT time FROM {place}", time=column(t, ["time"], shown))
    f.rows(f"SELECT time, v FROM {place} WHERE v >= 0", [(a, 10.0 * i) for i, a in enumerate(t)])
    if name != "nano":
        f.rows(f"SELECT time::text, v FROM {place} WHERE v < 25", [(a, 10.0 * i) for i, a in enumerate(t) if i < 3])
    f.rows(f"SELECT v FROM {place} WHERE time IS NULL", [(10.0 * numbers.index(None),)])
    f.rows(f"SELECT count(time), count(*) FROM {place}", [(3, 4)])
    years = [int((str(a) if isinstance(a, np.datetime64) else a.isoformat())[:4]) for a in t if a is not None]
    f.rows(f"SELECT date_part('year', time) AS y, count(*) FROM {place} WHERE time IS NOT NULL GROUP BY date_part('year', time) ORDER BY y",
           [(y, years.count(y)) for y in sorted(set(years))])
    f.rows(f"SELECT v FROM {place} WHERE time = '{cell(t[3])}'", [(30.0,)])
    f.rows(f"SELECT time, sum(v) FROM {place} GROUP BY time", sorted([(a, 10.0 * i) for i, a in enumerate(t)], key=lambda row: row[0] is None))
    if name != "nano":
        f.q(f"SELECT v[time => '{cell(t[3])}'] FROM {place}", np.float64(30) if shown in NUMPYS else T(np.array([30.0]), ["time"]))
    pairs = [b for n in numbers for b in moments([n or 0, (n or 0) + 1], units, calendar)]
    bounds = column(pairs, ["time", "nv"], shown)
    bounds.values = np.ma.getdata(bounds.values).reshape(4, 2)
    if name != "nano":
        f.q(f"SELECT time_bnds FROM {place}", time_bnds=bounds)
    if not name.startswith("old"):
        f.q(f"SELECT \"when\" FROM {place}", when=column(t[::-1], ["time"], shown))
        f.rows(f"SELECT \"when\", v FROM {place} WHERE v >= 0", [(a, 10.0 * i) for i, a in enumerate(t[::-1])])
f.note("The Gregorian reform: 1582-10-04 is followed by 1582-10-15.")
f.q(f"SELECT v[time => '1582-10-15'] FROM {at('times.zarr#old')}", T(np.array([30.0]), ["time"]))
f.error(f"SELECT v[time => '1582-10-10'] FROM {at('times.zarr#old')}", "invalid_label")

f.note("Times of other calendars meet their own kind and texts; their texts are dates, also where nobody wrote the cast.")
a, b = at("times.zarr#noleap"), at("times.zarr#day360")
t = moments(AXES["day360"][3], AXES["day360"][1], "360_day")
f.rows(f"SELECT time || '!' AS t FROM {b} WHERE v >= 0", [(f"{m.isoformat()}!" if m else None,) for m in t])
f.rows(f"SELECT v FROM {b} WHERE time::text LIKE '2000-02%'", [(10.0,)])
f.rows(f"SELECT count(*) FROM {a} a JOIN {a} b USING (time)", [(3,)])
for sql in (f"SELECT count(*) FROM {a} a JOIN {b} b USING (time)", f"SELECT count(*) FROM {a} a JOIN {b} b ON a.time = b.time",
            f"SELECT v FROM {a} WHERE time > 5"):
    f.error(sql, "type_error")
f.error(f"SELECT resample(v, 'sum', time => '1 day') FROM {at('times.zarr#standard')}", "invalid_argument")

f = Script("stores/native", "timedelta64, datetime64, bytes and LZ4, in both formats of Zarr.", source=None)
for fmt in (2, 3):
    place = at(f"native{fmt}.zarr")
    g = zarr.open_group(str(DATA / f"stores/native{fmt}.zarr"), mode="r")
    whole = lambda name: np.ma.MaskedArray(g[name][...].astype("i8"), np.isnat(g[name][...]))
    f.note(f"Zarr v{fmt}.")
    f.q(f"SELECT span FROM {place}", span=T(whole("span"), ["td"]))
    f.q(f"SELECT td FROM {place}", td=T(np.ma.filled(whole("td").astype("f8"), np.nan), ["td"]))
    f.q(f"SELECT v_td[td => 4] FROM {place}", np.float64(3))
    # In SQL NaN is above all numbers.
    f.rows(f"SELECT td, v_td FROM {place} WHERE td > 1", [(2.0, 1.0), (float("nan"), 2.0), (4.0, 3.0)])
    sites = [b.decode() for b in g["site"][...]]
    f.rows(f"SELECT site || '!' AS s, v_site FROM {place} WHERE v_site >= 0", [(s + "!", 2.0 * i) for i, s in enumerate(sites)])
    f.q(f"SELECT v_site[site => 'de'] FROM {place}", np.float64(4))
    f.q(f"SELECT us FROM {place}", us=T(np.ma.MaskedArray(g["us"][...].astype("M8[us]"), np.isnat(g["us"][...])), ["us"]))
    f.rows(f"SELECT us, v_us FROM {place} WHERE v_us >= 0", [(None if np.isnat(a) else a, 3.0 * i) for i, a in enumerate(g["us"][...])])
    f.note("Labels that are no whole microseconds are refused when they are used.")
    f.q(f"SELECT v_ns FROM {place}", v_ns=T(g["v_ns"][...], ["ns"]))
    f.rows(f"SELECT v_ns FROM {place} WHERE v_ns > 5", [(8.0,), (12.0,)])
    for sql in ("SELECT v_ns[ns => '1970-01-01'] FROM {}", "SELECT ns FROM {}", "SELECT ns, v_ns FROM {} WHERE v_ns > 5", "SELECT v_ns FROM {} WHERE ns > '1970-01-01'"):
        f.error(sql.format(place), "invalid_time")
    f.q(f"SELECT lat, v_lat FROM {place}", lat=T(g["lat"][...], ["lat"]), v_lat=T(g["v_lat"][...], ["lat"]))
    f.q(f"SELECT v_lat[lat => 20:40:5], sum(v_lat) FROM {place}", T(g["v_lat"][10:21:5], ["lat"]), np.int64(g["v_lat"][...].sum()))

f = Script("stores/scaled", "numcodecs' FixedScaleOffset computes in float64 for integers, in the stored type for floats.", source=None)
for fmt in (2, 3):
    g = zarr.open_group(str(DATA / f"stores/scaled{fmt}.zarr"), mode="r")
    # Of v2 the fill value is what is missing: no cell has it but in the chunk that is absent.
    for of in ("f4", "f8"):
        for stored in STORED:
            f.q(f"SELECT {of}_{stored} FROM {at(f'scaled{fmt}.zarr')}", **{f"{of}_{stored}": T(g[f"{of}_{stored}"][...], ["x"])})
    part = np.ma.MaskedArray(g["part"][...], [fmt == 2 and i > 2 for i in range(6)])
    f.q(f"SELECT part FROM {at(f'scaled{fmt}.zarr')}", part=T(part if fmt == 2 else part.data, ["y"]))

f = Script("stores/cmip", "Bounds stand apart: they add no rows and no dimensions, and are there by name.", source=None)
place = at("cmip.zarr")
ds = xr.open_zarr(DATA / "stores/cmip.zarr").load()
f.rows(f"SELECT count(*) FROM {place}", [(24,)])
f.rows(f"SELECT time, lev, lat, lon, ta, ps, a FROM {place} WHERE ta > 21",
       [(ds.time.values[i], ds.lev.values[j], ds.lat.values[k], ds.lon.values[m], ds.ta.values[i, j, k, m], ds.ps.values[i, k, m], ds.a.values[j])
        for i in range(3) for j in range(2) for k in range(2) for m in range(2) if ds.ta.values[i, j, k, m] > 21])
f.rows(f"SELECT lev, avg(ta) FROM {place} GROUP BY lev", zip(ds.lev.values, ds.ta.astype("f8").mean(["time", "lat", "lon"]).values))
f.q(f"SELECT time_bnds, lat_bnds, a_bnds FROM {place}", time_bnds=T(ds.time_bnds.values, ds.time_bnds.dims), lat_bnds=da(ds.lat_bnds), a_bnds=da(ds.a_bnds))
f.q(f"SELECT sum(ta::double * (lev_bnds[:, 0] - lev_bnds[:, 1]), axis => 'lev')[0] FROM {place}",
    da((ds.ta.astype("f8") * (ds.lev_bnds[:, 0] - ds.lev_bnds[:, 1])).sum("lev")[0]))
f.rows(f"SELECT time::text FROM {place} WHERE lev = 0.9 AND lat = 5 AND lon = 0.5", [(t,) for t in ds.time.values])

f = Script("stores/words", "Attributes that are NaN and infinities, which JSON has not and Python writes.", source=None)
for name in ("words2", "words2c", "words3", "words3c"):
    ds = xr.open_zarr(DATA / f"stores/{name}.zarr", consolidated=name.endswith("c")).load()
    place = at(f"{name}.zarr")
    f.q(f"SELECT lat, v, w FROM {place}", lat=T(ds.lat.values, ["lat"]), v=da(ds.v), w=T(ds.w.values, ["lat"]))
    f.q(f"SELECT v[lat => 4], w[lat => 8] FROM {place}", ds.v.sel(lat=4).values[()], ds.w.sel(lat=8).values[()])
    f.rows(f"SELECT * FROM {place} WHERE lat > 2", [(a, None if np.isnan(v) else v, w) for a, v, w in zip(ds.lat.values, ds.v.values, ds.w.values) if a > 2])

packed = lambda name: zarr.open_group(zarr.storage.ZipStore(DATA / f"stores/{name}.zarr.zip", mode="r"), mode="r")

f = Script("stores/codecs", "Each codec of numcodecs in both formats of Zarr; of each array the last chunk is absent.", source=None)
for fmt in (2, 3):
    g, place, dims = packed(f"codecs{fmt}"), at(f"codecs{fmt}.zarr.zip"), ["x"] if fmt == 3 else ["dim_0"]
    f.note(f"Zarr v{fmt}.")
    for name in {**FILTERS, **BYTES}:
        if name == "lzma":
            f.error(f"SELECT lzma FROM {place}", "unsupported")
            continue
        f.q(f"SELECT {name} FROM {place}", **{name: T(g[name][...], dims)})
        part = g[name][3:6]
        f.q(f"SELECT {name}[3:6] FROM {place}", T(part, dims))
    if fmt == 2:
        for name in ("columns", "column_bits"):
            f.q(f"SELECT {name} FROM {place}", **{name: T(g[name][...])})
            f.q(f"SELECT {name}[2:, 5] FROM {place}", T(g[name][2:, 5]))
    if fmt == 3:
        f.q(f"SELECT shards FROM {place}", shards=T(g["shards"][...], dims))
        f.q(f"SELECT shards[5] FROM {place}", g["shards"][5])

f = Script("stores/archives", "Stores in ZIP archives: groups, shards, members that were written twice, compressed members.", source=None)
for name in ("groups", "deflated", "bzip2"):
    g, place = packed(name), f"{name}.zarr.zip"
    w, x, v = g["w"][...], g["x"][...], g["deep/v"][...]
    f.q(f"SELECT w FROM {at(place)}", w=T(w, ["x"]))
    f.rows(f"SELECT x, w FROM {at(place)} WHERE w > 1", [(a, b) for a, b in zip(x, w) if b > 1])
    f.q(f"SELECT v FROM {at(place + '#deep')}", v=T(v, ["y", "x"]))
    f.q(f"SELECT v[2:5, x => 3] FROM {at(place + '#deep')}", T(v[2:5, 2], ["y"]))
    f.q(f"SELECT sum(v) FROM {at(place + '#deep/v')}", v.sum())
f.note("A store below a directory of the archive is its group.")
f.q(f"SELECT w FROM {at('below.zarr.zip#inner')}", w=T(packed("groups")["w"][...], ["x"]))
f.error(f"SELECT w FROM {at('below.zarr.zip')}", "not_an_array")
f.error(f"SELECT w FROM {at('groups.zarr.zip#none')}", "not_found")
f.note("Members that are compressed otherwise are refused by name.")
f.error(f"SELECT w FROM {at('lzma.zarr.zip')}", "unsupported")

f = Script("stores/types", "NumPy's types in Zarr v3, fill values in the forms of other writers.", source=None)
place = at("types3.zarr.zip")
for name, v in TYPES.items():
    if v.dtype.kind in "Mm" and name != "years":
        v = np.ma.MaskedArray(v.astype("M8[us]" if v.dtype.kind == "M" else "i8"), np.isnat(v))
    elif name in ("texts", "letters"):
        texts = [t.decode() if isinstance(t, bytes) else str(t) for t in v]
        f.rows(f"SELECT {name} || '!' AS t, v_{name} FROM {place} WHERE v_{name} >= 0", [(t + "!", float(i)) for i, t in enumerate(texts)])
        f.q(f"SELECT v_{name}[{name} => '{texts[1]}'] FROM {place}", np.float64(1))
        continue
    elif name == "half":
        v = v.astype("f4")
    elif name != "truth":
        f.error(f'SELECT "{name}" FROM {place}', "unsupported_dtype")
        continue
    f.q(f"SELECT {name} FROM {place}", **{name: T(v, ["n"])})
for fmt in (2, 3):
    g, place = packed(f"fills{fmt}"), at(f"fills{fmt}.zarr.zip")
    f.note(f"Fill values of Zarr v{fmt}.")
    for name in {**FILLS, **(FILLS3 if fmt == 3 else FILLS2)}:
        v = g[name][...]
        if v.dtype.kind in "Mm":
            v = np.ma.MaskedArray(v.astype("M8[us]" if v.dtype.kind == "M" else "i8"), np.isnat(v))
        v = v.astype("f4") if v.dtype == np.float16 else v
        f.q(f"SELECT {name} FROM {place}", **{name: T(v)})
