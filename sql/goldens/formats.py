"""sql/formats: every array of the zoo and every .npy is read as zarr-python and NumPy read it."""

import numpy as np
import xarray as xr

from .core import DATA, EXTERNAL, Script, T, da, group, read

SKIP = {"c16": "complex", "f2": "float16", "delta": "a filter that zarrs does not have", "dt64": "datetime64 as a dtype of Zarr"}


def zoo(fmt):
    path = f"zarr_zoo/v{fmt}.zarr"
    f = Script(f"formats/zarr_zoo_v{fmt}", f"Zarr v{fmt}: every dtype, codec, filter, order, key encoding, fill value.",
               setup=(EXTERNAL.format("zoo", "ZARR", path),))
    f.source = "zoo"
    arrays = sorted(group(path).arrays())
    for name, array in arrays:
        if name in SKIP:
            continue
        dims = {"named": ["y", "x"], "half_named": ["y", "dim_1"]}.get(name)
        value = read(array)
        if np.ma.is_masked(value) and value.mask.all():
            value = np.ma.array(value.data, mask=True)
        f.q(f'"{name}"', **{name: T(value, dims)})
    f.note("Slices read the chunks that they touch; whole reductions read all.")
    get = lambda name: read(group(path)[name])
    f.q("SELECT zstd[3:, ::-3] FROM zoo", get("zstd")[3:, ::-3])
    f.q(f"SELECT gzip[2] FROM 'tests/data/{path}'", get("gzip")[2])
    f.q(f"SELECT i8 FROM 'tests/data/{path}/i8'", i8=get("i8"))
    f.q("SELECT sum(one_chunk), max(f_order), sum(slash, axis => 0) FROM zoo" if fmt == 2 else "SELECT sum(sharded), max(transpose_be_zstd), sum(dot, axis => 0) FROM zoo",
        *((get("one_chunk").sum(), get("f_order").max(), get("slash").sum(0)) if fmt == 2 else (get("sharded").sum(), get("transpose_be_zstd").max(), get("dot").sum(0))))
    f.q("SELECT count(fill_all), count(fill_9999), min(fill_0) FROM zoo", np.int64(np.ma.count(get("fill_all"))), np.int64(np.ma.count(get("fill_9999"))), get("fill_0").min())
    if fmt == 3:
        f.q("SELECT sharded[5:9:3, 1::4], sharded_start[-1], sharded_missing[4:7, 2:6] FROM zoo", get("sharded")[5:9:3, 1::4], get("sharded_start")[-1], get("sharded_missing")[4:7, 2:6])
    for kind, sub in (("consolidated", ""), ("nested", "#outer/inner"), ("nested", "/outer/inner")):
        where = f"zarr_zoo/v{fmt}_{kind}.zarr{sub}"
        ds = xr.open_zarr(DATA / where.replace("#", "/"), consolidated=False).load()
        f.q(f"SELECT v, y, x FROM 'tests/data/{where}'", **{n: da(ds[n], masked=False) for n in "vyx"})
        f.q(f"SELECT v[y => 10:20, x => 2.0:0.5] FROM 'tests/data/{where}'", da(ds.v.sel(y=slice(10, 20), x=slice(2.0, 0.5)), masked=False))


zoo(2)
zoo(3)

f = Script("formats/npy", "Every .npy: dtypes, byte orders, C and Fortran order, format versions, 0-d, no cells.", setup=())
files = sorted(p for p in (DATA / "npy").glob("*.npy") if p.stem not in ("c16", "f2", "datetime"))
for file in files:
    f.q(f"SELECT \"{file.stem}\" FROM 'tests/data/npy/{file.name}'", **{file.stem: np.load(file)})
load = lambda name: np.load(DATA / "npy" / f"{name}.npy")
f.note("A variable of a .npy is called by the alias, else by the file's stem; its name stands for itself in expressions.")
f.q("SELECT a FROM 'tests/data/npy/one_d.npy' a", a=load("one_d"))
f.q("SELECT one_d[2:5] + 1 AS b, sum(one_d) FROM 'tests/data/npy/one_d.npy'", b=load("one_d")[2:5] + 1, v1=load("one_d").sum())
f.q("SELECT sum(fortran, axis => 0), fortran[::-1, 1, ::2] FROM 'tests/data/npy/fortran.npy'", load("fortran").sum(0), load("fortran")[::-1, 1, ::2])
f.q("SELECT a[0] + b[0] FROM 'tests/data/npy/fortran.npy' a, 'tests/data/npy/version2.npy' b", load("fortran")[0] + load("version2")[0])
f.q("SELECT i4[-1, -1] - be_i4[-1, -1] FROM 'tests/data/npy/i4.npy', 'tests/data/npy/be_i4.npy'", np.int32(0))
f.ok("CREATE EXTERNAL TABLE line STORED AS NPY LOCATION 'tests/data/npy/one_d.npy'")
f.q("SELECT line * 2, mean(line) FROM line", load("one_d") * 2, load("one_d").mean())
f.q("SELECT x FROM read_npy('tests/data/npy/one_d.npy') x", x=load("one_d"))
f.rows("SELECT count(*), max(one_d) FROM 'tests/data/npy/one_d.npy' WHERE one_d > 1", [(5, 2.25)])
