"""The xarray engine and accessor, on the repository's test data."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tessera_sql as ts

xr = pytest.importorskip("xarray")

from tessera_sql import _lazy, xarray_backend  # noqa: E402

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
AIR = DATA / "cf" / "air.zarr"
COLPEX = DATA / "colpex.v3.zarr"


@pytest.fixture(scope="module", autouse=True)
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Without an installed package (sources on the path), the engine is that of pyproject.toml."""
    with pytest.MonkeyPatch.context() as patch:
        if not entry_points(group="xarray.backends", name="tessera"):
            project = tomllib.loads((DATA.parents[1] / "pyproject.toml").read_text())["project"]
            place = tmp_path_factory.mktemp("site")
            info = place / "tessera_sql-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tessera-sql\nVersion: 0\n")
            engines = project["entry-points"]["xarray.backends"].items()
            lines = ["[xarray.backends]", *(f"{name} = {target}" for name, target in engines)]
            (info / "entry_points.txt").write_text("\n".join(lines))
            patch.syspath_prepend(str(place))
        xr.backends.list_engines.cache_clear()
        yield
    xr.backends.list_engines.cache_clear()


class Spy:
    """A connection that records its statements."""

    def __init__(self, connection: ts.Connection) -> None:
        self.connection = connection
        self.statements: list[str] = []

    def sql(self, query: str, *args: Any, **kwargs: Any) -> Any:
        self.statements.append(query)
        return self.connection.sql(query, *args, **kwargs)

    def _describe(self, what: str) -> Any:
        self.statements.append(f"DESCRIBE {what}")
        return self.connection._describe(what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def opened(source: Any, con: Any, **kwargs: Any) -> Any:
    return xr.open_dataset(source, engine="tessera", connection=con, **kwargs)


def zarr(path: Path) -> Any:
    pytest.importorskip("zarr")
    return xr.open_zarr(path, chunks=None)


# The engine


@pytest.mark.parametrize("path", [COLPEX, DATA / "colpex.v2.zarr", AIR, DATA / "cf" / "air3.zarr"])
def test_a_store_reads_as_with_open_zarr(path: Path, con: ts.Connection) -> None:
    ours, theirs = opened(path, con), zarr(path)
    assert dict(ours.sizes) == dict(theirs.sizes)
    assert set(ours.variables) == set(theirs.variables)
    for name, variable in theirs.variables.items():
        mine = ours[name]
        assert mine.dims == variable.dims, name
        if name == "rh":
            # `valid_range`, which xarray does not apply.
            variable = variable.where((variable >= 0) & (variable <= 100))
        if variable.dtype.kind == "f":
            # Packed integers: xarray decodes them in float32 or float64, Tessera in float64.
            np.testing.assert_allclose(mine.values, variable.values, rtol=1e-6)
        else:
            np.testing.assert_array_equal(mine.values, variable.values)


def test_dtypes_chunks_and_attributes_are_known_before_a_cell_is_read(con: ts.Connection) -> None:
    spy = Spy(con)
    ds = opened(COLPEX, spy)
    before = list(spy.statements)
    v = ds["air_potential_temperature"]
    assert v.dtype == np.float32
    assert v.dims == ("time", "model_level_number", "grid_latitude", "grid_longitude")
    assert v.shape == (6, 10, 83, 83)
    assert v.encoding["preferred_chunks"] == {
        "time": 2,
        "model_level_number": 5,
        "grid_latitude": 40,
        "grid_longitude": 40,
    }
    assert v.attrs["units"] == "K"
    assert ds["grid_latitude"].attrs == {"standard_name": "grid_latitude", "units": "degrees"}
    assert ds.encoding["source"] == str(COLPEX)
    assert spy.statements == before
    reads = [s for s in before if not s.startswith("DESCRIBE")]
    assert all('"air_potential_temperature"[0:0, 0:0, 0:0, 0:0]' in s for s in reads if "air_potential" in s)


def test_attributes_have_the_types_that_the_store_gives_them(tmp_path: Path, con: ts.Connection) -> None:
    pytest.importorskip("zarr")
    attrs = {"text": "a: b; c", "number": 3, "half": 0.5, "list": [1, 2, 3], "flag": "true"}
    xr.Dataset({"v": ("x", np.arange(3.0), attrs)}, {"x": ("x", [1, 2, 3], {"text": "; d: e"})}).to_zarr(
        tmp_path / "a.zarr", zarr_format=3, consolidated=True
    )
    ds = opened(tmp_path / "a.zarr", con)
    assert ds["v"].attrs == attrs
    assert ds["x"].attrs == {"text": "; d: e"}


def test_each_access_reads_the_cells_that_it_touches(con: ts.Connection) -> None:
    spy = Spy(con)
    ds = opened(COLPEX, spy, cache=False)
    spy.statements.clear()
    v = ds["air_potential_temperature"][0:2, 3, 10:20:2]
    assert spy.statements == []
    assert v.values.shape == (2, 5, 83)
    (statement,) = spy.statements
    assert "[0:2, 3, 10:19:2, :]" in statement


def test_a_damaged_chunk_is_an_error_only_where_it_is_touched(tmp_path: Path, con: ts.Connection) -> None:
    store = tmp_path / "c.zarr"
    shutil.copytree(COLPEX, store)
    chunk = store / "air_potential_temperature" / "c" / "2" / "0" / "0" / "0"
    assert chunk.exists()
    chunk.write_bytes(b"damaged")
    ds = opened(store, con, cache=False)
    v = ds["air_potential_temperature"]
    assert np.isfinite(v[0:4].values).any()
    assert np.isfinite(v[4:6, 5:10].values).any()
    with pytest.raises(ts.Error):
        v[4, 0, 0, 0].load()


KEYS: list[Any] = [
    (0, 0, 0),
    (-1, -2, -3),
    (slice(None), 1, slice(None)),
    (slice(5, 100, 7), slice(None, None, -1), slice(3, 0, -2)),
    (slice(10, 10), slice(None), 0),
    ([3, 1, 1, 139], slice(1, 3), [0, 3]),
    (np.arange(140) % 3 == 0, 0, slice(None)),
    ([], slice(None), 0),
    ([5], [4], [0]),
    ([-1, 0], slice(None), slice(None)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys_select_what_numpy_selects(key: Any, con: ts.Connection) -> None:
    lazy = opened(AIR, con, cache=False)["t2m"]
    assert lazy.variable._in_memory is False
    loaded = lazy.copy(deep=True).load()
    lazy = opened(AIR, con, cache=False)["t2m"]
    xr.testing.assert_identical(lazy[key].load(), loaded[key])


def test_pointwise_keys_select_what_numpy_selects(con: ts.Connection) -> None:
    lazy = opened(AIR, con, cache=False)["t2m"]
    loaded = opened(AIR, con)["t2m"].load()
    at = xr.DataArray([100, 3, 3], dims="station"), xr.DataArray([4, 0, 2], dims="station")
    xr.testing.assert_identical(
        lazy.isel(time=at[0], lat=at[1]).load(), loaded.isel(time=at[0], lat=at[1])
    )
    near = lazy.sel(lat=[44.0, 61.0], lon=0.4, method="nearest")
    xr.testing.assert_identical(near.load(), loaded.sel(lat=[44.0, 61.0], lon=0.4, method="nearest"))


def test_long_lists_of_positions_are_read_as_a_slice(tmp_path: Path, con: ts.Connection) -> None:
    np.save(tmp_path / "long.npy", np.arange(20000, dtype=np.int32) * 2)
    v = opened(tmp_path / "long.npy", con)["long"]
    positions = np.unique(np.random.default_rng(0).integers(0, 20000, 9000))
    assert len(positions) > _lazy._LIST_MAX
    np.testing.assert_array_equal(v[positions].values, positions * 2)
    np.testing.assert_array_equal(v[positions[::-1]].values, positions[::-1] * 2)


def test_masked_integers_are_floats_with_nan(con: ts.Connection) -> None:
    flag = opened(AIR, con)["flag"]
    assert flag.dtype == np.float32
    assert flag.dtype == flag.values.dtype
    np.testing.assert_array_equal(flag.values, zarr(AIR)["flag"].values)
    assert np.isnan(flag.values).any()


@pytest.mark.parametrize("name", ["noleap", "day360"])
def test_times_of_other_calendars_are_cftime(name: str, con: ts.Connection) -> None:
    cftime = pytest.importorskip("cftime")
    path = DATA / "cf" / f"{name}.zarr"
    ours, theirs = opened(path, con), zarr(path)
    first = ours["time"].values[0]
    assert isinstance(first, cftime.datetime)
    assert first.calendar == theirs["time"].values[0].calendar
    assert list(ours["time"].values) == list(theirs["time"].values)
    np.testing.assert_array_equal(ours["v"].sel(time="2001").values, theirs["v"].sel(time="2001").values)


def test_auxiliary_variables_are_lazy_coordinates(con: ts.Connection) -> None:
    spy = Spy(con)
    ds = opened(DATA / "stores" / "cmip.zarr", spy)
    assert {"lat_bnds", "time_bnds", "height"} <= set(ds.coords)
    assert all("lat_bnds\"[0:0, 0:0]" in s for s in spy.statements if "lat_bnds" in s)
    assert ds["height"].item() == 2.0
    assert ds["lat_bnds"].values.shape == (2, 2)
    assert str(ds["time_bnds"].values[0, 0])[:10] == "2000-01-01"
    level = opened(COLPEX, con)["level_height"]
    assert level.dims == ("model_level_number",)
    assert not level.variable._in_memory
    assert level.values[0] == 5


def test_a_query_is_a_lazy_dataset(con: ts.Connection) -> None:
    spy = Spy(con)
    query = f"-- anomalies\nSELECT t2m - mean(t2m, 0) AS anomaly, mean(t2m, 0) FROM '{AIR}'; "
    ds = opened(query, spy)
    assert list(ds.data_vars) == ["anomaly", "mean(t2m, 0)"]
    assert ds["anomaly"].dims == ("time", "lat", "lon")
    np.testing.assert_array_equal(ds["lat"].values, [65, 60, 45, 30, 25])
    assert not any("anomaly\"" in s for s in spy.statements)
    t2m = opened(AIR, con)["t2m"].load()
    expected = (t2m - t2m.mean("time")).values
    np.testing.assert_allclose(ds["anomaly"][3:5, ::2].values, expected[3:5, ::2], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ds["mean(t2m, 0)"].values, t2m.mean("time").values)


@pytest.mark.parametrize(
    ("text", "is_query"),
    [
        ("SELECT 1", True),
        ("  with a as (select 1) select * from a", True),
        ("/* x */ -- y\n(select(1))", True),
        ("FROM x", True),
        ("select.zarr", False),
        ("from_here.zarr", False),
        ("withdrawals", False),
        ("data/selected/SELECT 1", False),
    ],
)
def test_queries_are_told_from_paths(text: str, is_query: bool) -> None:
    assert xarray_backend.is_query(text) is is_query


def test_rows_are_read_at_once(con: ts.Connection) -> None:
    ds = opened(f"SELECT lat, avg(t2m) AS t2m FROM '{AIR}' GROUP BY lat", con)
    assert ds["t2m"].dims == ("lat",)
    expected = opened(AIR, con)["t2m"].mean(["time", "lon"])
    np.testing.assert_allclose(ds["t2m"].sel(lat=expected["lat"]).values, expected.values)


def test_a_stored_tensor_opens_by_its_name(con: ts.Connection) -> None:
    con.sql(f"CREATE TENSOR climate AS SELECT mean(t2m, 0) AS t2m, orog FROM '{AIR}'")
    ds = opened("climate", con)
    assert set(ds.data_vars) == {"t2m", "orog"}
    assert ds["t2m"].dims == ("lat", "lon")
    with pytest.raises(ts.Error) as error:
        opened("climat", con)
    assert error.value.code == "unknown_name"


def test_groups_open_by_their_path(con: ts.Connection) -> None:
    store = DATA / "zarr_zoo" / "v3_nested.zarr"
    with pytest.raises(ValueError, match="group='outer"):
        opened(store, con)
    ds = opened(store, con, group="outer/inner", drop_variables=["v"])
    assert "v" not in ds.variables
    assert "v" in opened(store, con, group="/outer/inner/").variables


def test_variables_that_do_not_fit_one_dataset_are_refused(con: ts.Connection) -> None:
    query = f"SELECT t2m AS a, t2m[0:3] AS b FROM '{AIR}'"
    with pytest.raises(ValueError, match="'time' has the length 140 in 'a' and 3 in 'b'"):
        opened(query, con)
    query = f"SELECT t2m[0:3] AS a, t2m[3:6] AS b FROM '{AIR}'"
    with pytest.raises(ValueError, match="labels along the dimension 'time'"):
        opened(query, con)


def test_dimensions_without_names_are_renamed_where_their_lengths_differ(con: ts.Connection) -> None:
    ds = opened(DATA / "npy" / "two.npz", con)
    assert ds["a"].dims == ("dim_0", "dim_1", "dim_2")
    assert ds["b"].dims == ("b_dim_0", "b_dim_1")
    assert ds["b"][1:3, 4].values.shape == (2,)
    assert ds["b"].encoding["preferred_chunks"] == {"b_dim_0": 5, "b_dim_1": 7}
    ds = opened("SELECT svd(reshape(arange(12)::double, [3, 4])) AS d", con)
    assert {name: v.shape for name, v in ds.data_vars.items()} == {"d.u": (3, 3), "d.s": (3,), "d.vh": (3, 4)}
    ours = con.sql("SELECT svd(reshape(arange(12)::double, [3, 4])) AS d").to_xarray()
    xr.testing.assert_allclose(ds.load(), ours)


def test_a_script_is_refused_and_does_not_run(con: ts.Connection) -> None:
    con.sql("CREATE TENSOR kept AS SELECT arange(3) AS v")
    for script in ("SELECT v FROM kept; DROP TENSOR kept", "WITH a AS (SELECT 1 AS x) SELECT x FROM a; SELECT 1 AS y"):
        with pytest.raises(ValueError, match="2 statements"):
            opened(script, con)
    assert con.sql("SELECT sum(v) AS s FROM kept").to_numpy() == 3
    assert opened("FROM kept", con)["v"].sum() == 3


@pytest.mark.parametrize("option", [{"decode_cf": False}, {"mask_and_scale": False}, {"decode_times": False}])
def test_what_cannot_be_left_undecoded_is_refused(option: dict[str, bool], con: ts.Connection) -> None:
    with pytest.raises(ValueError, match="decode_cf => false"):
        opened(AIR, con, **option)
    stored = opened(f"SELECT t2m, time FROM read_zarr('{AIR}', decode_cf => false)", con)
    assert stored["t2m"].dtype == np.int16
    assert opened(AIR, con, decode_cf=True, mask_and_scale=True)["t2m"].dtype == np.float64


def test_unreadable_variables_are_left_out_with_a_warning(tmp_path: Path, con: ts.Connection) -> None:
    store = tmp_path / "broken.zarr"
    shutil.copytree(DATA / "cf" / "air3.zarr", store, ignore=shutil.ignore_patterns("sst"))
    shutil.copytree(DATA / "bad" / "codec_unknown.zarr", store / "sst")
    with pytest.warns(UserWarning, match="'sst' is left out.*codec") as told:
        ds = opened(store, con)
        xr.open_datatree(store, engine="tessera", connection=con)
    assert {warning.filename for warning in told} == {__file__}
    assert "sst" not in ds.variables
    assert float(ds["orog"].sum()) == float(opened(AIR, con)["orog"].sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(store, con, drop_variables="sst")


def test_texts_are_coordinates(con: ts.Connection) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = opened(DATA / "texts" / "netcdf4.nc", con)
    # As xarray reads them, which has NaN for the name that is missing.
    assert ds["station_name"].dims == ("station",)
    names = ds["station_name"].values.tolist()
    assert names[:2] + names[3:] == ["Oslo", "Köln", "Oslo", ""] and np.isnan(names[2])
    assert ds["network"].values.tolist() == ["A", "B", "A", "A", "B"]
    assert ds["centre"].shape == () and ds["centre"].item() == "Zürich"
    assert {"station_name", "network", "centre"} <= set(ds.coords) and set(ds.data_vars) == {"height", "t"}
    oslo = ds["t"][:, ds["station_name"].values == "Oslo"].values
    np.testing.assert_array_equal(oslo, [[1.5, 4.5], [6.5, 9.5], [11.5, 14.5]])
    # Also as labels of a dimension.
    named = opened(DATA / "formats" / "netcdf" / "fixed.nc", con)
    assert named["station"].values.tolist() == ["Kiel", "Köln", "Ulm"]
    assert named["obs"].sel(station="Köln").shape == (12,)


def test_masked_integers_stay_integers_on_demand(con: ts.Connection) -> None:
    ds = opened(AIR, con, integer_masks=True)
    assert ds["flag"].dtype == np.int16
    assert ds["flag_mask"].dtype == bool
    assert not ds["flag_mask"].variable._in_memory
    theirs = opened(AIR, con)["flag"]
    np.testing.assert_array_equal(ds["flag_mask"].values, theirs.isnull().values)
    np.testing.assert_array_equal(ds["flag"].where(~ds["flag_mask"]).values, theirs.values)
    eager = con.sql(f"SELECT flag FROM '{AIR}'").to_xarray()
    np.testing.assert_array_equal(eager["flag_mask"].values, ds["flag_mask"].values)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_opens_a_connection_of_its_own(tmp_path: Path, con: ts.Connection) -> None:
    code = f"""
        import os, sys, xarray as xr, tessera_sql as ts
        from tessera_sql.xarray_backend import TesseraBackendEntrypoint
        with ts.connect(warehouse="w", threads=1) as con:
            ds = xr.open_dataset({str(AIR)!r}, engine=TesseraBackendEntrypoint, connection=con, cache=False)
            expected = float(ds.orog.sum())
            child = os.fork()
            if child == 0:
                os._exit(0 if float(ds.orog.sum()) == expected else 1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(code, tmp_path) == "0"


def test_what_is_no_path_is_refused(con: ts.Connection) -> None:
    with pytest.raises(TypeError, match="list"):
        xarray_backend.TesseraBackendEntrypoint().open_dataset([], connection=con)  # type: ignore[arg-type]
    with pytest.raises(ts.Error):
        opened(DATA / "nothing.zarr", con)


def test_the_engine_opens_only_what_names_it() -> None:
    engine = xr.backends.list_engines()["tessera"]
    assert isinstance(engine, xarray_backend.TesseraBackendEntrypoint)
    assert not engine.guess_can_open(str(COLPEX))


def test_dask_reads_chunk_by_chunk(con: ts.Connection) -> None:
    pytest.importorskip("dask")
    spy = Spy(con)
    ds = opened(COLPEX, spy, chunks={})
    v = ds["air_potential_temperature"]
    assert v.chunks == ((2, 2, 2), (5, 5), (40, 40, 3), (40, 40, 3))
    spy.statements.clear()
    mean = v[:, 0, :40, :40].mean("time").compute()
    assert sum("air_potential_temperature" in s for s in spy.statements) == 3
    loaded = opened(COLPEX, con)["air_potential_temperature"]
    np.testing.assert_allclose(mean.values, loaded[:, 0, :40, :40].mean("time").values, rtol=1e-6)


def test_a_pickled_dataset_opens_in_another_process(tmp_path: Path, con: ts.Connection) -> None:
    con.sql(f"CREATE TENSOR climate AS SELECT mean(t2m, 0) AS t2m FROM '{AIR}'")
    ds = opened("climate", con, cache=False)
    (tmp_path / "ds.pickle").write_bytes(pickle.dumps(ds))
    code = f"""
        import pickle
        ds = pickle.load(open({str(tmp_path / "ds.pickle")!r}, "rb"))
        assert not ds.t2m.variable._in_memory
        print(repr(float(ds.t2m[0, 1:].sum())))
    """
    out = run(code, tmp_path)
    assert float(out) == float(ds.t2m[0, 1:].sum())


def test_copies_keep_the_connection(con: ts.Connection) -> None:
    array = _lazy.TesseraArray(_lazy.door_of(con), "a", "a", (1,), np.dtype(float))
    assert copy.deepcopy(array)._door is array._door
    assert pickle.loads(pickle.dumps(array))._door is not array._door


def test_variables_load_asynchronously(con: ts.Connection) -> None:
    ds = opened(AIR, con)
    expected = opened(AIR, con).load()
    xr.testing.assert_identical(asyncio.run(ds.load_async()), expected)


# The accessor


@pytest.fixture
def ds() -> Any:
    return xr.Dataset(
        {"t": (("time", "lat"), np.arange(12.0).reshape(4, 3))},
        {"time": np.arange("2020-01-01", "2020-01-05", dtype="M8[D]").astype("M8[ns]"), "lat": [10.0, 20.0, 30.0]},
    )


def test_a_dataset_is_the_relation_ds(ds: Any, con: ts.Connection) -> None:
    out = ds.tessera.sql("SELECT mean(t, 0) AS t FROM ds", connection=con)
    assert isinstance(out, xr.DataArray)
    assert out.dims == ("lat",)
    np.testing.assert_array_equal(out["lat"].values, ds["lat"].values)
    np.testing.assert_array_equal(out.values, ds["t"].mean("time").values)
    both = ds.tessera.sql("SELECT t + 1 AS a, max(t, 1) AS b FROM this", connection=con)
    assert isinstance(both, xr.Dataset)
    np.testing.assert_array_equal(both["b"].values, [2, 5, 8, 11])


def test_an_array_is_a_relation_of_its_own_name(ds: Any, con: ts.Connection) -> None:
    for name in ("t", "ds", "this"):
        for variable in ("t", name):
            out = ds["t"].tessera.sql(f"SELECT sum({variable}) AS s FROM {name}", connection=con)
            assert float(out) == 66.0
    unnamed = ds["t"].rename(None)
    assert float(unnamed.tessera.sql("SELECT max(ds) AS m FROM ds", connection=con)) == 11.0
    assert float(ds["lat"].tessera.sql("SELECT max(ds) AS m FROM ds", connection=con)) == 30.0


def test_rows_of_cells_come_back_as_a_dataset(ds: Any, con: ts.Connection) -> None:
    out = ds.tessera.sql("SELECT lat, max(t) AS t FROM ds WHERE lat > ? GROUP BY lat", [15], connection=con)
    assert isinstance(out, xr.Dataset)
    np.testing.assert_array_equal(out["lat"].values, [20, 30])
    np.testing.assert_array_equal(out["t"].values, [10, 11])


def test_variables_of_the_caller_are_relations_too(ds: Any, con: ts.Connection) -> None:
    weights = xr.DataArray([1.0, 0.0, 2.0], {"lat": ds["lat"]}, name="w")
    out = ds.tessera.sql("SELECT sum(t * weights, 1) AS s FROM ds, weights", connection=con)
    np.testing.assert_array_equal(out.values, (ds["t"] * weights).sum("lat").values)


def test_the_object_hides_a_stored_tensor_called_ds(ds: Any, con: ts.Connection) -> None:
    con.sql("CREATE TENSOR ds AS SELECT zeros([4, 3]) AS t")
    assert float(ds.tessera.sql("SELECT sum(t) AS s FROM ds", connection=con)) == 66.0


def test_relations_are_lazy(ds: Any, con: ts.Connection) -> None:
    relation = ds.tessera.relation("SELECT t * $k AS t FROM ds", {"k": 2}, connection=con)
    assert isinstance(relation, ts.Relation)
    np.testing.assert_array_equal(relation.to_numpy(), ds["t"].values * 2)


def test_statements_that_store_return_nothing(ds: Any, con: ts.Connection) -> None:
    assert ds.tessera.sql("CREATE TENSOR kept AS SELECT t FROM ds", connection=con) is None
    np.testing.assert_array_equal(con.sql("SELECT t FROM kept").to_numpy(), ds["t"].values)
    with pytest.raises(ValueError, match="2"):
        ds.tessera.sql("SELECT t FROM ds; SELECT t FROM ds", connection=con)
    with pytest.raises(ValueError, match="no result"):
        ds.tessera.relation("DROP TENSOR kept", connection=con)


def run(code: str, cwd: Path) -> str:
    package = str(Path(ts.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["xarray", "tessera_sql"])
def test_the_accessor_is_there_in_both_orders_of_imports(first: str, tmp_path: Path) -> None:
    second = {"xarray": "tessera_sql", "tessera_sql": "xarray"}[first]
    code = f"""
        import sys, warnings
        warnings.simplefilter("error")
        import {first}
        assert ("xarray" in sys.modules) is ({first!r} == "xarray")
        import {second}
        import xarray
        from tessera_sql._accessor import TesseraAccessor, _Finder
        assert xarray.Dataset.tessera is TesseraAccessor
        assert xarray.DataArray.tessera is TesseraAccessor
        assert not any(isinstance(f, _Finder) for f in sys.meta_path)
        assert type(xarray.__loader__).__name__ == type(xarray.__spec__.loader).__name__ == "SourceFileLoader"
        print(type(xarray.Dataset().tessera).__name__)
    """
    assert run(code, tmp_path) == "TesseraAccessor"


def test_a_failed_import_of_xarray_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "xarray.py").write_text("raise ImportError('broken')")
    code = """
        import sys
        import tessera_sql
        for _ in range(2):
            try:
                import xarray
            except ImportError as e:
                assert str(e) == "broken", e
            else:
                raise AssertionError
        sys.path.remove("")
        import importlib
        importlib.invalidate_caches()
        import xarray
        print(type(xarray.Dataset().tessera).__name__)
    """
    assert run(code, tmp_path) == "TesseraAccessor"


def test_without_xarray_the_package_imports(tmp_path: Path) -> None:
    code = """
        import sys
        sys.modules["xarray"] = None
        import tessera_sql
        print("ok")
    """
    assert run(code, tmp_path) == "ok"


@pytest.mark.parametrize("form", ["netcdf", "zarr"])
def test_groups_open_as_a_tree(con: ts.Connection, tmp_path: Path, form: str) -> None:
    x = {"x": ("x", [1.0, 2.0], {"units": "m"})}
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"a": ("x", [1, 2])}, coords=x, attrs={"title": "root"}),
            "/one": xr.Dataset({"b": (("y", "x"), np.arange(6.0).reshape(3, 2))}, coords=x),
            "/one/two": xr.Dataset({"c": ("z", np.arange(4, dtype="f4"), {"units": "K"})}),
            "/none": xr.Dataset(),
        }
    )
    path = tmp_path / f"tree.{form}"
    if form == "netcdf":
        tree.to_netcdf(path, engine="netcdf4")
        want = xr.open_datatree(path, engine="netcdf4")
    else:
        tree.to_zarr(path, consolidated=False)
        want = xr.open_datatree(path, engine="zarr", consolidated=False)
    got = xr.open_datatree(path, engine="tessera", connection=con)
    assert not got["one/b"].variable._in_memory
    xr.testing.assert_identical(got.load(), want.load())
    groups = xr.open_groups(path, engine="tessera", connection=con, group="one", drop_variables="b")
    assert list(groups) == ["/", "/two"] and "b" not in groups["/"]
    xr.testing.assert_identical(groups["/two"].load(), want["one/two"].to_dataset(inherit=False))
    assert list(xr.open_groups(f"{path}#one", engine="tessera", connection=con)) == ["/", "/two"]


@pytest.mark.parametrize("form", ["h5", "zarr"])
def test_groups_of_any_name_are_opened(con: ts.Connection, tmp_path: Path, form: str) -> None:
    names = ["Channel #1", "50% é", "what? [1]*", "it's %23", "#refs#"]
    path = tmp_path / f"run#1.{form}"
    for i, name in enumerate(names):
        group = f"{name}/inner"
        if form == "h5":
            with h5py.File(path, "a") as f:
                f[f"{group}/v"] = np.arange(3) + i
        else:
            xr.Dataset({"v": ("x", np.arange(3) + i)}).to_zarr(path, group=group, mode="a", consolidated=False)
    listed = [row[0] for row in con.sql(f"DESCRIBE '{path}'").fetchall()]
    # HDF5's `#refs#` in the root is MATLAB's own.
    assert listed == sorted(n for n in names if form == "zarr" or n != "#refs#")
    for i, name in enumerate(names):
        escaped = name.replace("%", "%25").replace("#", "%23").replace("'", "''")
        (row,) = con.sql(f"DESCRIBE '{path}#{escaped}'").fetchall()
        assert row[0] == "inner"
        # What DESCRIBE prints is a relation.
        got = con.sql(f"SELECT v {row[-1]}").to_numpy()
        np.testing.assert_array_equal(got, np.arange(3) + i)
        ds = xr.open_dataset(path, engine="tessera", group=f"{name}/inner", connection=con)
        np.testing.assert_array_equal(ds["v"].values, np.arange(3) + i)


def test_a_relation_without_groups_is_a_tree(con: ts.Connection) -> None:
    tree = xr.open_datatree(f"SELECT orog FROM '{AIR}'", engine="tessera", connection=con)
    assert list(tree.data_vars) == ["orog"] and not tree.children
