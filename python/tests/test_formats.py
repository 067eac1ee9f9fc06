"""Files of other formats beside the libraries that know them: NetCDF as xarray and netCDF4 read it, HDF5 that h5py wrote."""

import itertools
import json
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import iris_sample_data
import numcodecs
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import tessera_sql as ts


def real_files():
    """The NetCDF files of iris-sample-data, which are of the Met Office and others."""
    return sorted(Path(iris_sample_data.path).glob("**/*.nc"))


def cells(relation):
    found = relation.to_numpy()
    return np.ma.filled(found, np.nan) if np.ma.isMaskedArray(found) else found


def agree(path, **options):
    """All numeric variables of a file are as xarray reads them; returns their number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = xr.open_dataset(path, decode_timedelta=False, **options)
    compared = 0
    for name, variable in theirs.variables.items():
        if variable.dtype.kind not in "biufM" or name in theirs.dims:
            continue
        ours, wanted = cells(ts.sql(f"SELECT \"{name}\" FROM '{path}'")), variable.values
        assert ours.shape == wanted.shape, name
        if wanted.dtype.kind == "M":
            # Times that are stored as floats are rounded to microseconds; xarray cuts them to nanoseconds.
            apart = (wanted.astype("M8[us]") - ours.astype("M8[us]")).astype(int)
            assert np.all(np.abs(apart) <= 1), name
            compared += 1
            continue
        # Where xarray makes floats of masked integers, Tessera keeps the integers.
        np.testing.assert_array_equal(ours.astype(wanted.dtype), wanted, err_msg=name)
        if variable.ndim:
            box = tuple(slice(n // 3, n // 3 + 5) for n in variable.shape)
            text = ", ".join(f"{s.start}:{s.stop}" for s in box)
            part = cells(ts.sql(f"SELECT \"{name}\"[{text}] FROM '{path}'"))
            np.testing.assert_array_equal(part.astype(wanted.dtype), wanted[box], err_msg=name)
        compared += 1
    return compared


@pytest.mark.parametrize("path", real_files(), ids=lambda p: p.name)
def test_files_of_others(path):
    assert agree(path) > 0


def a_cube(rng):
    t2m = (280 + 10 * rng.standard_normal((12, 7, 9))).astype("f4")
    t2m[0, 0, 0] = np.nan
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {"t2m": (dims, t2m), "pr": (dims, rng.random((12, 7, 9))), "n": (dims[1:], rng.integers(0, 9, (7, 9)).astype("i2"))},
        coords={
            "time": pd.date_range("2020-01-01", periods=12, freq="MS"),
            "lat": np.linspace(60, 30, 7),
            "lon": np.linspace(0, 40, 9),
        },
    )


PACKED = {"dtype": "i2", "scale_factor": np.float32(0.01), "add_offset": np.float32(280), "_FillValue": np.int16(-32768)}


@pytest.mark.parametrize("format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF4", "NETCDF4_CLASSIC"])
@pytest.mark.parametrize("unlimited", [(), ("time",)])
def test_xarray_writes_and_tessera_reads(tmp_path, format, unlimited):
    path = tmp_path / "cube.nc"
    extra = {"zlib": True, "chunksizes": (5, 4, 4)} if format.startswith("NETCDF4") else {}
    a_cube(np.random.default_rng(0)).to_netcdf(
        path, format=format, unlimited_dims=unlimited, encoding={"t2m": PACKED | extra, "pr": extra}
    )
    assert agree(path) == 3


def test_many_files_are_one_dataset(tmp_path):
    rng = np.random.default_rng(1)
    whole = a_cube(rng)
    for i in range(4):
        part = whole.isel(time=slice(3 * i, 3 * i + 3))
        part.to_netcdf(tmp_path / f"part{i}.nc", encoding={"t2m": PACKED | {"scale_factor": 0.01 + 0.001 * i}})
    files = sorted(tmp_path.glob("part*.nc"))
    theirs = xr.open_mfdataset(files, data_vars="minimal", coords="minimal", compat="override")
    for relation in (f"'{tmp_path}/part*.nc'", f"[{', '.join(repr(str(f)) for f in reversed(files))}]"):
        ours = ts.sql(f"SELECT pr FROM {relation}").to_xarray()
        np.testing.assert_array_equal(ours.values, theirs.pr.values)
        np.testing.assert_array_equal(ours.time.values, theirs.time.values)
        t2m = cells(ts.sql(f"SELECT t2m FROM {relation}"))
        np.testing.assert_allclose(t2m, theirs.t2m.values, rtol=1e-6)
        ours = ts.sql(f"SELECT n FROM {relation}").to_numpy()
        np.testing.assert_array_equal(ours, theirs.n.values)


def test_integers_of_hdf5_may_have_few_bits(tmp_path):
    plain = np.arange(60).reshape(6, 10)
    layouts = {"contiguous": None, "compact": h5py.h5d.COMPACT, "chunked": (4, 4)}
    types = {
        "u12": (h5py.h5t.STD_U16LE, 12, 0, plain * 60),
        "u12_at_3": (h5py.h5t.STD_U16LE, 12, 3, plain * 60),
        "i12_big": (h5py.h5t.STD_I16BE, 12, 4, plain * 30 - 900),
        "i24": (h5py.h5t.STD_I32LE, 24, 0, plain * 100000 - 3000000),
        "i5": (h5py.h5t.STD_I8LE, 5, 1, plain % 31 - 15),
        "large": (h5py.h5t.STD_U16LE, 12, 0, np.arange(1300 * 1000).reshape(1300, 1000) % 4096),
    }
    with h5py.File(tmp_path / "bits.h5", "w") as f:
        for (name, (base, bits, offset, cells)), (how, layout) in itertools.product(types.items(), layouts.items()):
            if name == "large" and how == "compact":
                continue
            of = base.copy()
            of.set_offset(0)
            of.set_precision(bits)
            of.set_offset(offset)
            created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            if how == "compact":
                created.set_layout(layout)
            if how == "chunked":
                created.set_chunk((400, 300) if name == "large" else layout)
            space = h5py.h5s.create_simple(cells.shape)
            d = h5py.h5d.create(f.id, f"{name}_{how}".encode(), of, space, created)
            d.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(cells, dtype=f"i{max(2, base.get_size())}"))
    with h5py.File(tmp_path / "bits.h5") as f:
        for name in f:
            ours = ts.sql(f"SELECT \"{name}\" FROM '{tmp_path}/bits.h5'").to_numpy()
            np.testing.assert_array_equal(ours, f[name][()], err_msg=name)


def test_attributes_of_any_type_leave_a_file_readable(tmp_path):
    path = tmp_path / "attributes.h5"
    with h5py.File(path, "w") as f:
        f["v"] = np.arange(3)
        for of in (f, f["v"]):
            lists = np.empty(2, dtype=object)
            lists[:] = [np.array([1, 2], "i4"), np.array([3], "i4")]
            of.attrs["compound"] = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
            of.attrs["opaque"] = np.void(b"\1\2\3")
            of.attrs["reference"] = f["v"].ref
            of.attrs["region"] = f["v"].regionref[:2]
            of.attrs["complex"] = 1 + 2j
            of.attrs["long"] = np.longdouble(1.25)
            of.attrs.create("lists", lists, dtype=h5py.vlen_dtype("i4"))
            of.attrs.create("array", np.arange(6.0).reshape(2, 3), shape=(2, 3), dtype=np.dtype("(3,)f8"))
            texts = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
            h5py.h5a.create(of.id, b"null", texts, h5py.h5s.create(h5py.h5s.SCALAR))
            h5py.h5a.create(of.id, b"nulls", texts, h5py.h5s.create_simple((2,)))
            of.attrs["units"] = "K"
        f["named"] = np.dtype("i4")
        f.create_dataset("committed", data=[1, 2], dtype=f["named"])
        f["committed"].attrs.create("of_named", 5, dtype=f["named"])
    got = ts.sql(f"SELECT v FROM '{path}'").to_xarray()
    assert got.attrs == {"array": [0, 1, 2, 3, 4, 5], "null": "", "nulls": ["", ""], "units": "K"}
    committed = ts.sql(f"SELECT committed FROM '{path}'").to_xarray()
    assert committed.values.tolist() == [1, 2] and committed.attrs == {"of_named": 5}


@pytest.mark.parametrize("size", [512, 1024, 32768])
def test_hdf5_may_follow_a_block_of_the_user(tmp_path, size):
    path = tmp_path / "user.h5"
    with h5py.File(path, "w", userblock_size=size) as f:
        f["v"] = np.arange(60).reshape(6, 10)
        f.create_dataset("c", data=f["v"], chunks=(4, 4), compression="gzip")
    for name in "vc":
        np.testing.assert_array_equal(ts.sql(f"SELECT {name} FROM '{path}'").to_numpy(), np.arange(60).reshape(6, 10))


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "v112", "v114", "latest"])
def test_groups_of_many_entries(tmp_path, libver):
    path = tmp_path / "many.h5"
    with h5py.File(path, "w", libver=libver) as f:
        for i in range(3000):
            f[f"g/v{i:05}"] = np.int32(i)
        for i in range(40):
            f["g"].attrs[f"a{i:03}"] = i
    with h5py.File(path) as f:
        assert len(f["g"]) == 3000
    assert len(ts.sql(f"DESCRIBE '{path}#g'").fetchall()) == 3000
    for i in (0, 1234, 2999):
        assert ts.sql(f"SELECT v{i:05} FROM '{path}#g'").to_numpy() == i


@pytest.mark.parametrize("code", ["|u1", "<i2", ">i4"])
def test_categories_of_numcodecs_are_texts(tmp_path, code):
    names = np.array(["Oslo", "Köln", "", "Oslo", "Bern", "Köln", "Oslo"])
    g = zarr.open_group(tmp_path / "named.zarr", mode="w", zarr_format=2)
    labels = ["Köln", "Oslo", "Bern"]
    for name, of in [("station", "<U4"), ("objects", object)]:
        filters = [numcodecs.Categorize(labels, "<U4" if of == "<U4" else object, code)]
        if of is object:
            # zarr-python 3 writes no objects of this form: the same codes with the type that version 2 wrote.
            path = tmp_path / "named.zarr/objects/.zarray"
            (tmp_path / "named.zarr/objects").mkdir()
            document = json.loads((tmp_path / "named.zarr/station/.zarray").read_text())
            document["dtype"], document["filters"][0]["dtype"] = "|O", "|O"
            path.write_text(json.dumps(document))
            for chunk in (tmp_path / "named.zarr/station").glob("[0-9]*"):
                (path.parent / chunk.name).write_bytes(chunk.read_bytes())
        else:
            a = g.create_array(name, shape=(7,), chunks=(3,), dtype=of, filters=filters)
            a[...] = names
            np.testing.assert_array_equal(zarr.open_array(tmp_path / "named.zarr/station")[...], names)
        (tmp_path / f"named.zarr/{name}/.zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": ["x"]}))
    g.create_array("v", shape=(7,), dtype="f8", attributes={"_ARRAY_DIMENSIONS": ["x"]})[...] = np.arange(1, 8)
    rows = ts.sql(f"SELECT v, station, objects FROM '{tmp_path}/named.zarr' ORDER BY v").fetchall()
    want = [name or None for name in names]
    assert [row[1] or None for row in rows] == want and [row[2] or None for row in rows] == want


@pytest.mark.parametrize("dim", ["time", "lat", "run"])
def test_files_may_have_their_dimensions_in_another_order(tmp_path, dim):
    rng = np.random.default_rng(3)
    orders = [("time", "lat", "lon"), ("lon", "time", "lat"), ("lat", "lon", "time"), ("time", "lat", "lon")]
    parts = []
    for i, order in enumerate(orders):
        labels = {"time": np.arange(5), "lat": np.arange(4.0), "lon": np.arange(6)}
        if dim in labels:
            labels[dim] = labels[dim] + i * len(labels[dim])
        v = xr.DataArray(rng.random((5, 4, 6)).astype("f4"), labels, ("time", "lat", "lon"))
        n = (v[:, :, 0] * 100).astype("i2").drop_vars("lon")
        ds = xr.Dataset({"v": v, "n": n}).transpose(*order, missing_dims="ignore")
        # One file is packed, one has chunks.
        chunked = {"v": {"chunksizes": [2, 3, 2]}} if i == 2 else {}
        packed = {"v": {"dtype": "i2", "scale_factor": 0.001, "_FillValue": -1}} if i == 1 else {}
        ds.to_netcdf(tmp_path / f"part{i}.nc", encoding=packed | chunked)
        parts.append(xr.open_dataset(tmp_path / f"part{i}.nc"))
    theirs = xr.concat(parts, dim, data_vars="all") if dim == "run" else xr.combine_by_coords(parts)
    relation = f"read_netcdf('{tmp_path}/part*.nc'" + (", concat => 'run')" if dim == "run" else ")")
    for name in ["v", "n"]:
        ours = ts.sql(f"SELECT {name} FROM {relation}").to_xarray()
        assert ours.dims == theirs[name].dims
        np.testing.assert_allclose(ours.values, theirs[name].values, rtol=1e-6)
    cut = ts.sql(f"SELECT v[1:, 2:4, 1:5] AS c FROM {relation}").to_numpy() if dim != "run" else None
    if cut is not None:
        np.testing.assert_allclose(cut, theirs.v.values[1:, 2:4, 1:5], rtol=1e-6)


@pytest.mark.parametrize("fmt", [2, 3])
def test_appends_write_the_checksums_of_numcodecs(tmp_path, fmt):
    numcodecs, zarr = pytest.importorskip("numcodecs"), pytest.importorskip("zarr")
    of_v3 = pytest.importorskip("zarr.codecs.numcodecs")
    store, names = tmp_path / "sums.zarr", ("Fletcher32", "Adler32", "CRC32")
    group = zarr.open_group(store, mode="w", zarr_format=fmt)
    for name in names:
        # The last chunk is read, checked and written again.
        if fmt == 2:
            how = {"filters": [getattr(numcodecs, name)()], "compressors": None}
        else:
            how = {"compressors": [getattr(of_v3, name)()], "dimension_names": ["x"]}
        array = group.create_array(name, shape=(6,), chunks=(4,), dtype="f8", **how)
        if fmt == 2:
            array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
        array[:] = np.arange(1.0, 7)
    new = "rename(astype(arange(7, 12), 'float64'), dim_0 => 'x')"
    items = ", ".join(f'{new} AS "{name}"' for name in names)
    ts.sql(f"COPY (SELECT {items}) TO '{store}' STORED AS ZARR OPTIONS (append 'x')")
    for name in names:
        np.testing.assert_array_equal(zarr.open_group(store, mode="r")[name][:], np.arange(1.0, 12))


def test_appends_are_read_by_xarray(tmp_path):
    whole = a_cube(np.random.default_rng(2))[["t2m", "pr"]]
    store, new = tmp_path / "store.zarr", tmp_path / "new.zarr"
    chunks = {"t2m": PACKED | {"chunks": (5, 4, 9)}, "pr": {"chunks": (4, 7, 5)}}
    for version in (2, 3):
        whole.isel(time=slice(0, 7)).to_zarr(store, mode="w", zarr_format=version, encoding=chunks, consolidated=version == 2)
        whole.isel(time=slice(7, 12)).to_zarr(new, mode="w", consolidated=False)
        ts.sql(f"COPY (SELECT t2m, pr FROM '{new}') TO '{store}' STORED AS ZARR OPTIONS (append 'time')")
        for consolidated in (True, False):
            theirs = xr.open_zarr(store, consolidated=consolidated)
            np.testing.assert_array_equal(theirs.time.values, whole.time.values)
            np.testing.assert_array_equal(theirs.pr.values, whole.pr.values)
            np.testing.assert_allclose(theirs.t2m.values, whole.t2m.values, atol=0.00501)


class Files(ThreadingHTTPServer):
    """A directory over HTTP with ranges, which counts what it answers."""

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), Answer)
        self.directory, self.lock, self.requests, self.bytes = directory, threading.Lock(), 0, 0

    def take(self):
        """Requests and bytes since the last call."""
        with self.lock:
            found = self.requests, self.bytes
            self.requests = self.bytes = 0
        return found


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.server.directory / self.path.lstrip("/")
        if not path.is_file():
            self.answer(404, b"", {})
            return
        whole = path.read_bytes()
        start, end, status = 0, len(whole), 200
        headers = {"ETag": f'"{len(whole)}"', "Accept-Ranges": "bytes"}
        if asked := self.headers.get("Range"):
            first, last = asked.removeprefix("bytes=").split("-")
            start = int(first) if first else max(len(whole) - int(last), 0)
            end = min(int(last) + 1, len(whole)) if first and last else len(whole)
            status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{len(whole)}"
        self.answer(status, whole[start:end], headers)

    do_HEAD = do_GET

    def answer(self, status, body, headers):
        body = b"" if self.command == "HEAD" else body
        with self.server.lock:
            self.server.requests += 1
            self.server.bytes += len(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def web(tmp_path):
    server = Files(tmp_path)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


# The pages of a file in which metadata are looked for.
PAGE = 64 << 10


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_chunks_of_hdf5_are_read_by_range(web, tmp_path, libver):
    cells = np.random.default_rng(3).integers(0, 1 << 30, (512, 1024), dtype="i4")
    np.save(tmp_path / "cells.npy", cells)
    # h5py and netCDF4 bring an HDF5 library each: h5py writes in a process of its own.
    write = f"""
import h5py, numpy
cells = numpy.load("cells.npy")
with h5py.File("cube.h5", "w", libver="{libver}") as f:
    f.create_dataset("v", data=cells, chunks=(64, 256), compression="gzip", shuffle=True)
    f.create_dataset("w", data=cells.astype("f8"))
"""
    subprocess.run([sys.executable, "-c", write], cwd=tmp_path, check=True)
    url = f"http://127.0.0.1:{web.server_port}/cube.h5"
    chunk = 64 * 256 * 4
    np.testing.assert_array_equal(ts.sql(f"SELECT v[70:80, 300:310] FROM '{url}'").to_numpy(), cells[70:80, 300:310])
    requests, fetched = web.take()
    assert requests <= 8 and fetched <= 6 * PAGE + chunk, (requests, fetched)
    # Eight chunks in another row: the metadata are known.
    np.testing.assert_array_equal(ts.sql(f"SELECT v[200:210] FROM '{url}'").to_numpy(), cells[200:210])
    requests, fetched = web.take()
    assert requests <= 8 and fetched <= 2 * PAGE + 8 * chunk, (requests, fetched)
    # Contiguous cells: those of the rows.
    np.testing.assert_array_equal(ts.sql(f"SELECT w[100:104] FROM '{url}'").to_numpy(), cells[100:104])
    requests, fetched = web.take()
    assert requests <= 4 and fetched <= 4 * PAGE, (requests, fetched)


def test_a_window_of_a_cog_is_its_tiles(web, tmp_path):
    path = tmp_path / "image.tif"
    ts.sql(f"COPY (SELECT random_normal([2048, 2048], seed => 5)::float32 AS v) TO '{path}' STORED AS TIFF")
    url, tile = f"http://127.0.0.1:{web.server_port}/image.tif", 512 * 512 * 4
    size = path.stat().st_size
    window = "band_data[0, 600:700, 1100:1200]"
    got = ts.sql(f"SELECT {window} FROM '{url}'").to_numpy()
    np.testing.assert_array_equal(got, ts.sql(f"SELECT {window} FROM '{path}'").to_numpy())
    requests, fetched = web.take()
    assert requests <= 5 and fetched <= tile + 4 * PAGE < size / 8, (requests, fetched, size)
    # The smallest overview, without the image.
    assert ts.sql(f"SELECT count(band_data) FROM '{url}#overview_2'").to_numpy() == 512 * 512
    requests, fetched = web.take()
    assert requests <= 5 and fetched <= tile + 4 * PAGE, (requests, fetched)
