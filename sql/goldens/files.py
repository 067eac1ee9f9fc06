"""sql/formats: NetCDF, HDF5, GeoTIFF, GRIB, safetensors, references, and many files as one dataset, as xarray with
h5netcdf, h5py, tifffile, cfgrib and safetensors read them.
"""

import h5py
import numpy as np
import xarray as xr

from .core import DATA, Script, T, da

FILES = DATA / "formats"
at = lambda name: f"'tests/data/formats/{name}'"


def opened(name, **options):
    return xr.open_dataset(FILES / name, decode_timedelta=False, **options)


def series(f, name, sql, dataset, variable, relation="{}"):
    """A variable whole, in parts, reduced, and as rows."""
    place, x = relation.format(at(name)), dataset[variable]
    f.q(f"SELECT {sql} FROM {place}", **{variable: da(x)})
    dims = x.dims
    part = tuple(slice(1, None) if n > 1 else slice(None) for n in x.shape)
    text = ", ".join("1:" if n > 1 else ":" for n in x.shape)
    f.q(f"SELECT {sql}[{text}] FROM {place}", da(x[part]))
    f.q(f"SELECT {sql}[{', '.join(['::-3'] + [':'] * (x.ndim - 1))}] FROM {place}", da(x[::-3]))
    f.q(f"SELECT max({sql}), min({sql}, axis => '{dims[-1]}') FROM {place}", da(x.max()), da(x.min(dims[-1])))


f = Script("formats/netcdf", "NetCDF classic: records, packed cells, CDF-5; times as labels.", tolerance=1e-12, source=None)
with opened("netcdf/records.nc", engine="scipy") as d:
    for v in ("t2m", "pr", "mask"):
        series(f, "netcdf/records.nc", v, d, v)
    f.q(f"SELECT time FROM {at('netcdf/records.nc')}", time=T(d.time.values.astype("M8[us]"), ["time"]))
    frame = d.pr.to_dataframe().reset_index()
    some = frame[(frame.time >= "2020-11-01") & (frame.lat > 50)][["time", "lat", "lon", "pr"]]
    f.cells(f"SELECT time, lat, lon, pr FROM {at('netcdf/records.nc')} WHERE time >= '2020-11' AND lat > 50 ORDER BY time, lat DESC, lon", some)
    means = frame.groupby("lat", sort=True).pr.mean().reset_index()
    f.cells(f"SELECT lat, avg(pr) FROM {at('netcdf/records.nc')} GROUP BY lat ORDER BY lat", means)

f = Script("formats/hdf5", "NetCDF-4 and HDF5: chunks with filters, fill values, groups, dimension scales.", tolerance=1e-12, source=None)
with opened("hdf5/netcdf4.nc", engine="h5netcdf", drop_variables=["ragged", "pairs"]) as d:
    for v in ("t2m", "t2m_flat", "big"):
        series(f, "hdf5/netcdf4.nc", v, d, v)
place = at("hdf5/scales.h5")
with h5py.File(FILES / "hdf5/scales.h5") as d:
    x = T(d["d"][:], ["y", "x", "zed"])
    f.q(f"SELECT d FROM {place}", d=x)
    f.q(f"SELECT d[::-1, 1:, 0], max(d) FROM {place}", T(x.values[::-1, 1:, 0], ["y", "x"]), x.values.max())
    f.q(f"SELECT x, y FROM {place}", x=T(d["x"][:], ["x"]), y=T(d["y"][:], ["y"]))

f = Script("formats/geotiff", "GeoTIFF: tiles, strips, bands, overviews, nodata; pixel centres as labels.", source=None)


def bands(name, level=0):
    """The bands of a file, as tifffile reads them, cells of its nodata masked, and where its first pixel begins."""
    import tifffile

    with tifffile.TiffFile(FILES / "tiff" / name) as tif:
        page = tif.series[0].levels[level]
        x = page.asarray()
        first = tif.pages[0]
        nodata = first.tags.get("GDAL_NODATA")
        # Pixels have their bands beside each other, or bands are planes.
        x = x[None] if x.ndim == 2 else np.moveaxis(x, -1, 0) if page.axes.endswith("S") else x
        if nodata is not None:
            x = np.ma.masked_equal(x, x.dtype.type(float(nodata.value)))
        for mask in (p for p in tif.pages if p.subfiletype & 4 and p.shape[:2] == x.shape[1:]):
            x = np.ma.masked_where(np.broadcast_to(mask.asarray() == 0, x.shape), x)
        scale, tie = (first.tags[n].value if n in first.tags else [0] * 6 for n in ("ModelPixelScaleTag", "ModelTiepointTag"))
    return T(x, ["band", "y", "x"]), ((scale[0], tie[3]), (-scale[1], tie[4]))


for name in ("cog.tif", "overviews.tif", "sparse_nodata.tif", "mixed.tif", "lzw_f4_p3_le.tif", "zstd_u2_p2_be.tif"):
    x, _ = bands(name)
    place, dims = at(f"tiff/{name}"), ["band", "y", "x"]
    v = x.values
    f.note(name)
    if v.size < 1000:
        f.q(f"SELECT band_data FROM {place}", band_data=x)
    f.q(f"SELECT band_data[0, 3:9, 5:12], band_data[-1, ::-7, ::11] FROM {place}", T(v[0, 3:9, 5:12], dims[1:]), T(v[-1, ::-7, ::11], dims[1:]))
    f.q(f"SELECT max(band_data, axis => ['y', 'x']), min(band_data) FROM {place}", T(v.max((1, 2)), ["band"]), v.min())
for level in (1, 2):
    v = bands("cog.tif", level)[0].values
    f.q(f"SELECT band_data[1, 2:5, ::4] FROM {at(f'tiff/cog.tif#overview_{level}')}", T(v[1, 2:5, ::4], ["y", "x"]))
# As rioxarray computes them.
labels = lambda step, start: np.arange(3) * step + (start + step * 0.5)
across, down = bands("cog.tif")[1]
f.q(f"SELECT x[:3], y[:3] FROM {at('tiff/cog.tif')}", T(labels(*across), ["x"]), T(labels(*down), ["y"]))

f = Script("formats/grib", "GRIB 1 and 2: messages as cubes by number, time, step and level.", tolerance=1e-12, source=None)
for name in ("cube1.grib", "cube2.grib"):
    with opened(f"grib/{name}", engine="cfgrib", backend_kwargs={"indexpath": ""}) as d:
        x = d.t
        f.note(name)
        f.q(f"SELECT t FROM {at(f'grib/{name}')}", t=da(x))
        f.q(f"SELECT max(t, axis => ['latitude', 'longitude']), sum(t::float64) FROM {at(f'grib/{name}')}",
            da(x.max(["latitude", "longitude"])), np.nansum(x.values.astype("f8")))
        rows = x.isel(latitude=2).mean(["number", "longitude"], dtype="f8").to_dataframe("m").reset_index()
        rows = rows[["step", "isobaricInhPa", "time", "m"]].sort_values(["time", "step", "isobaricInhPa"])
        f.cells(f"SELECT step, \"isobaricInhPa\", time, avg(t::float64) FROM {at(f'grib/{name}')} WHERE latitude = {float(x.latitude[2])} "
                "GROUP BY time, step, \"isobaricInhPa\" ORDER BY time, step, \"isobaricInhPa\"", rows.astype({"step": int}))

f = Script("formats/safetensors", "safetensors: halves, integers, booleans.", tolerance=1e-7, source=None)


def tensors():
    from safetensors import safe_open

    with safe_open(FILES / "safetensors/model.safetensors", framework="numpy") as s:
        return {n: s.get_tensor(n) for n in ("half", "index", "flags", "layer.0.weight")}


for name, v in tensors().items():
    x = T(v.astype("f4") if v.dtype == np.float16 else v)
    f.q(f'SELECT "{name}" FROM {at("safetensors/model.safetensors")}', **{name: x})
    f.q(f'SELECT "{name}"[::-2] FROM {at("safetensors/model.safetensors")}', T(x.values[::-2], x.dims))

f = Script("formats/many", "Several files as one dataset: patterns, lists in any order, packings that differ.", tolerance=1e-6, source=None)
with xr.open_mfdataset(sorted((FILES / "netcdf").glob("year*.nc")), engine="scipy", combine="by_coords", data_vars="minimal", coords="minimal", compat="override", join="override") as d:
    d = d.load()
    names = [f"tests/data/formats/netcdf/year{y}.nc" for y in (2002, 2000, 2001)]
    for place in (at("netcdf/year*.nc"), "[" + ", ".join(f"'{n}'" for n in names) + "]"):
        x = d.v
        f.q(f"SELECT v FROM {place}", v=da(x))
        f.q(f"SELECT v[::-3, 1:] FROM {place}", da(x[::-3, 1:]))
        f.q(f"SELECT mean(v::float64, axis => 'time'), max(v) FROM {place}", da(x.astype("f8").mean("time")), da(x.max()))
        frame = x.to_dataframe().reset_index()
        sums = frame.groupby(frame.time.dt.year).v.agg(["count", "max"]).reset_index()
        f.cells(f"SELECT date_part('year', time) AS y, count(v), max(v) FROM {place} GROUP BY date_part('year', time) ORDER BY y", sums)

f = Script("formats/references", "kerchunk's references read the cells of the files that they name.", tolerance=1e-12, source=None)
with opened("netcdf/records.nc", engine="scipy") as d:
    series(f, "references/records.json", "pr", d, "pr", "read_references({})")
