"""sql/cells/station_names: texts along a dimension that something else labels, or nothing, and texts without a dimension.
From xarray."""

import numpy as np
import xarray as xr

from .core import DATA, Script, T

at = lambda name: f"'tests/data/texts/{name}'"


def opened(name):
    path = DATA / "texts" / name
    return xr.open_zarr(path, consolidated=False).load() if name.endswith("zarr") else xr.open_dataset(path).load()


def names_of(ds):
    """The names, None for missing ones."""
    return [v if isinstance(v, str) else None for v in ds.station_name.values]


mark = lambda text: None if text is None else f"{text}!"  # an empty text is seen
last = lambda text: (text is None, text or "")

f = Script("cells/station_names", "Texts that are no labels of their dimension, and texts without a dimension, as columns.", tolerance=1e-12, source=None)
for name in ("classic.nc", "netcdf4.nc", "zarr2.zarr", "zarr3.zarr"):
    place, ds = at(name), opened(name)
    names, t, height = names_of(ds), ds.t.values.astype("f8"), ds.height.values
    networks, times = [str(v) for v in ds.network.values], ds.time.values
    assert names == ["Oslo", "Köln", None, "Oslo", ""], names
    of = lambda text: [i for i, other in enumerate(names) if other == text]
    distinct = sorted(set(names), key=lambda text: (text is None, names.index(text)))
    f.note(f"{name}: items, groups and conditions; the rows of a text are its dimension's.")
    f.rows(f"SELECT station_name || '!' AS s, height FROM {place} WHERE height > 0", zip(map(mark, names), height))
    f.rows(f"SELECT station_name || '!' AS s, avg(t), max(height) FROM {place} GROUP BY station_name",
           [(mark(text), t[:, of(text)].mean(), height[of(text)].max()) for text in distinct])
    f.rows(f"SELECT time, t FROM {place} WHERE station_name = 'Oslo'", [(times[i], t[i, k]) for i in range(3) for k in of("Oslo")])
    f.rows(f"SELECT time, t FROM {place} WHERE station_name IN ('', 'Bergen') AND time > '2000-01-01'", [(times[i], t[i, k]) for i in (1, 2) for k in of("")])
    f.rows(f"SELECT t FROM {place} WHERE station_name IS NULL", [(v,) for v in t[:, of(None)[0]]])
    f.rows(f"SELECT height FROM {place} WHERE station_name LIKE '%l%' AND length(station_name) = 4", [(height[k],) for k, n in enumerate(names) if n and "l" in n and len(n) == 4])
    f.rows(f"SELECT count(*) FROM {place} WHERE station_name <> 'Oslo'", [(3 * sum(n is not None and n != "Oslo" for n in names),)])
    f.rows(f"SELECT count(*), count(station_name), count(DISTINCT station_name) FROM {place}", [(15, 3 * sum(n is not None for n in names), len(distinct) - 1)])
    f.rows(f"SELECT station_name || '!' AS s, height FROM {place} ORDER BY station_name DESC NULLS LAST, height",
           sorted(sorted(((mark(n), h) for n, h in zip(names, height)), key=lambda row: row[1]), key=lambda row: row[0] or "", reverse=True))
    f.rows(f"SELECT network, station_name || '!' AS s, count(t) FROM {place} GROUP BY network, station_name ORDER BY network, s NULLS LAST",
           [(a, mark(b), 3 * sum(1 for x in zip(networks, names) if x == (a, b))) for a, b in sorted(set(zip(networks, names)), key=lambda key: (key[0], last(key[1])))])
    f.rows(f"SELECT height, row_number() OVER (PARTITION BY network ORDER BY height) AS n FROM {place} WHERE height > 0 ORDER BY height",
           sorted((h, sum(o <= h and m == n for o, m in zip(height, networks))) for h, n in zip(height, networks)))
    f.note("Keys of joins, CTEs, and the labels of a tensor.")
    f.rows(f"SELECT s.time, s.t, v.k FROM {place} s JOIN (VALUES ('Oslo', 1), ('Köln', 2), ('Bern', 3)) v(name, k) ON s.station_name = v.name WHERE s.time < '2000-01-01T06:00'",
           [(times[0], t[0, k], {"Oslo": 1, "Köln": 2}[n]) for k, n in enumerate(names) if n in ("Oslo", "Köln")])
    f.rows(f"WITH q AS (SELECT station_name, t FROM {place} WHERE t > 8) SELECT station_name || '!' AS s, count(*) FROM q WHERE NOT isnan(t) GROUP BY station_name ORDER BY s NULLS LAST",
           [(mark(text), int((t[:, of(text)] > 8).sum())) for text in sorted(distinct, key=last) if (t[:, of(text)] > 8).any()])
    f.q(f"SELECT [network], max(height) AS h FROM {place} GROUP BY network", h=T(np.array([height[[k for k, n in enumerate(networks) if n == a]].max() for a in "AB"]), ["network"]))
    f.error(f"SELECT [station_name], max(height) AS h FROM {place} GROUP BY station_name", "null_key")
    f.note("A text without a dimension is the same in each row.")
    centre = str(ds.centre.values)
    f.rows(f"SELECT centre FROM {place} LIMIT 5", [(centre,)])
    f.rows(f"SELECT centre, max(height) FROM {place} GROUP BY centre", [(centre, height.max())])
    f.rows(f"SELECT centre, time, count(t) FROM {place} WHERE station_name = 'Oslo' GROUP BY centre, time", [(centre, time, 2) for time in times])
    f.rows(f"SELECT count(*) FROM {place} WHERE centre = 'Bern'", [(0,)])
    f.note("Tensors have no texts.")
    f.error(f"SELECT station_name FROM {place}", "unsupported")
    f.error(f"SELECT centre FROM {place}", "unsupported")
    f.rows(f"SELECT station_name || '!' AS s, network FROM CELLS({place})", zip(map(mark, names), networks))
    f.note("All columns.")
    lost = " EXCLUDE (pairs)" if name.endswith("zarr") else ""
    f.rows(f"SELECT network, centre, station, t FROM (SELECT *{lost} FROM {place}) WHERE height > 80", [(networks[k], centre, k, t[i, k]) for i in range(3) for k in range(5) if height[k] > 80])
    if lost:
        f.error(f"SELECT * FROM {place}", "unsupported_dtype")
        f.error(f"SELECT count(pairs) FROM {place}", "unsupported_dtype")

f.note("Bytes, and texts in shards; the cells of a chunk that is not stored.")
for name in ("zarr2.zarr", "zarr3.zarr"):
    ds = opened(name)
    aliases = [v if isinstance(v, str) else None for v in ds.alias.values]
    f.q(f"SELECT swap_dims(t, 'station', 'code')[code => 'x9'] AS v FROM {at(name)}", v=T(ds.t.values[:, 2], ["time"]))
    f.rows(f"SELECT code || '!' AS c, alias || '!' AS a FROM {at(name)} WHERE height > 0", zip((mark(v.decode()) for v in ds.code.values), map(mark, aliases)))

f.note("Several files: the same texts in all of them, others, and a text without a dimension in each.")
days = [opened(f"day{i}.nc") for i in (0, 1)]
t = np.concatenate([ds.t.values.astype("f8") for ds in days])
names = names_of(days[0])
f.rows(f"SELECT time, t FROM {at('day*.nc')} WHERE station_name = 'Köln' AND time > '2000-01-02'", [(days[1].time.values[1], days[1].t.values[1, 1])])
f.rows(f"SELECT station_name || '!' AS s, max(t) FROM {at('day*.nc')} WHERE time <> '2000-01-01T12:00' AND time <> '2000-01-02T12:00' GROUP BY station_name",
       [(mark(n), t[[0, 2]][:, [k for k, o in enumerate(names) if o == n]].max()) for n in ("Oslo", "Köln", "", None)])
f.error(f"SELECT count(station_name) FROM {at('moved*.nc')}", "no_labels")
f.rows(f"SELECT network, count(t) FROM {at('moved*.nc')} GROUP BY network", [("A", 12), ("B", 8)])
sites = [opened(f"site{i}.nc") for i in (0, 1)]
place = f"read_netcdf(['tests/data/texts/site0.nc', 'tests/data/texts/site1.nc'], concat => 'station')"
f.rows(f"SELECT station_name, avg(t) FROM {place} GROUP BY station_name", [(str(ds.station_name.values), ds.t.values.astype("f8").mean()) for ds in sites])
f.rows(f"SELECT time, t FROM {place} WHERE station_name = 'Köln'", zip(sites[1].time.values, sites[1].t.values))
f.error(f"SELECT max(station_name) FROM {at('site*.nc')}", "not_one_dataset")
