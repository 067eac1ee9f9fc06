"""xarray objects as relations, and results as xarray objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tessera_sql as ts


@pytest.fixture
def ds() -> xr.Dataset:
    rng = np.random.default_rng(3)
    time = pd.date_range("2019-12-30", periods=40, freq="D")
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat", "lon"),
                rng.normal(280, 5, (40, 3, 4)).astype(np.float32),
                {"units": "K", "levels": np.array([1, 2])},
            ),
            "orog": (("lat", "lon"), rng.integers(0, 900, (3, 4))),
        },
        coords={
            "time": time,
            "lat": ("lat", [10.0, 20.0, 30.0], {"units": "degrees_north"}),
            "lon": [0, 90, 180, 270],
            "season": ("time", time.month.values),
            "area": (("lat", "lon"), rng.random((3, 4))),
            "height": 2.0,
        },
        attrs={"title": "air"},
    )


def test_a_dataset_is_a_relation(con: ts.Connection, ds: xr.Dataset) -> None:
    got = con.sql("SELECT lat, avg(t2m) AS v FROM ds WHERE time >= '2020' GROUP BY lat ORDER BY lat")
    want = ds.t2m.sel(time=slice("2020", None)).astype("f8").mean(["time", "lon"])
    np.testing.assert_allclose([v for _, v in got.fetchall()], want.values, rtol=1e-12)
    back = got.to_xarray()
    assert isinstance(back, xr.Dataset) and back.v.dims == ("lat",)
    np.testing.assert_array_equal(back.lat, ds.lat)
    np.testing.assert_allclose(
        con.sql("SELECT sum(t2m * area) AS v FROM ds").to_numpy(),
        (ds.t2m.astype("f8") * ds.area).sum().values,
        rtol=1e-6,
    )
    assert con.sql("SELECT height FROM ds").to_numpy() == 2.0


def test_labels_and_attributes_come_back(con: ts.Connection, ds: xr.Dataset) -> None:
    out = con.sql("SELECT t2m FROM ds").to_xarray()
    assert isinstance(out, xr.DataArray) and out.name == "t2m" and out.dims == ds.t2m.dims
    np.testing.assert_array_equal(out.values, ds.t2m.values)
    np.testing.assert_array_equal(out.time, ds.time.astype("datetime64[us]"))
    assert out.attrs == {"units": "K", "levels": [1, 2]}
    assert out.lat.attrs == {"units": "degrees_north"}
    both = con.sql("SELECT t2m - mean(t2m, 'time') AS anomaly, orog FROM ds").to_xarray()
    assert set(both.data_vars) == {"anomaly", "orog"} and both.orog.dtype == ds.orog.dtype
    xr.testing.assert_allclose(
        both.anomaly, (ds.t2m - ds.t2m.mean("time")).drop_vars(["season", "area", "height"]), atol=1e-4
    )


def test_a_dataarray_has_the_name_of_its_variable(con: ts.Connection, ds: xr.Dataset) -> None:
    air = ds.t2m
    np.testing.assert_allclose(
        con.sql("SELECT mean(air, 'time') AS m FROM air").to_numpy(), air.mean("time"), rtol=1e-6
    )
    transposed = air.transpose("lon", ...)
    out = con.sql("SELECT transposed FROM transposed").to_xarray()
    np.testing.assert_array_equal(out, transposed)
    assert out.dims == transposed.dims


def test_masked_results(con: ts.Connection) -> None:
    x = np.ma.masked_equal(np.arange(6).reshape(2, 3), 4)
    out = con.sql("SELECT x FROM x").to_xarray()
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out.coords["x_mask"], x.mask)
    floats = x.astype(float)
    np.testing.assert_array_equal(con.sql("SELECT floats FROM floats").to_xarray(), floats.filled(np.nan))


def test_an_item_with_the_name_of_a_mask_is_refused(con: ts.Connection) -> None:
    x = np.ma.MaskedArray([1, 2, 3], mask=[False, True, False])
    for items in ("x, x + 1 AS x_mask", "x + 1 AS x_mask, x"):
        with pytest.raises(ts.UserError, match="`x_mask`"):
            con.sql(f"SELECT {items} FROM x").to_xarray()


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "julian", "standard", "all_leap"])
def test_calendars(con: ts.Connection, calendar: str) -> None:
    time = xr.date_range("2001-02-27", periods=5, calendar=calendar, use_cftime=True)
    da = xr.DataArray(np.arange(5.0), dims="time", coords={"time": time}, name="da")
    months = con.sql("SELECT month(time) AS m FROM da").to_numpy()
    np.testing.assert_array_equal(months, [t.month for t in time])
    out = con.sql("SELECT time, da FROM da WHERE time > '2001-02-28'").to_xarray()
    assert [str(t) for t in out.time.values] == [str(t) for t in time[2:]]
    whole = con.sql("SELECT da + 1 AS v FROM da").to_xarray()
    assert [str(t) for t in whole.time.values] == [str(t) for t in time]


def test_what_cannot_be_read_is_said(con: ts.Connection, ds: xr.Dataset) -> None:
    stacked = ds.stack(z=("lat", "lon"))
    with pytest.raises(ts.UserError, match="MultiIndex") as told:
        con.sql("SELECT mean(t2m) AS m FROM stacked")
    assert "reset_index" in str(told.value)
    chunked = ds.chunk({"time": 10})
    with pytest.raises(ts.UserError, match="Dask") as told:
        con.sql("SELECT mean(t2m) AS m FROM chunked").run()
    assert "compute()" in str(told.value)
    lazy = chunked.t2m
    with pytest.raises(ts.UserError, match="Dask"):
        con.sql("SELECT mean(lazy) AS m FROM lazy")
    assert not lazy.variable._in_memory
    # A variable of another dtype does not disturb the others.
    odd = ds.assign(name=("lat", np.array(["a", "b", "c"], dtype=object)), c=("lon", np.zeros(4, complex)))
    assert con.sql("SELECT max(orog) AS m FROM odd").to_numpy() == ds.orog.max()
    with pytest.raises(ts.UserError, match="complex"):
        con.sql("SELECT c FROM odd").run()


def test_texts_along_a_dimension_are_columns(con: ts.Connection, ds: xr.Dataset) -> None:
    named = ds.assign(name=("lat", np.array(["a", None, "a"], dtype=object)), code=("lon", ["w", "x", "y", "z"]))
    got = con.sql("SELECT name, max(orog) AS m FROM named GROUP BY name").fetchall()
    rows = ds.orog.max("lon").values
    assert got == [("a", max(rows[0], rows[2])), (None, rows[1])]
    frame = con.sql("SELECT code, lat, orog FROM named WHERE name = 'a' AND code <> 'x'").df()
    part = ds.orog.values[[0, 2]][:, [0, 2, 3]]
    assert frame.code.tolist() == ["w", "y", "z"] * 2 and frame.lat.tolist() == [10.0] * 3 + [30.0] * 3
    assert frame.orog.tolist() == part.ravel().tolist()
    table = con.sql("SELECT name, orog FROM named WHERE lon = 0").arrow()
    assert table.column("name").to_pylist() == ["a", None, "a"]
    assert table.column("orog").to_pylist() == ds.orog.values[:, 0].tolist()
    with pytest.raises(ts.UserError, match="the text `name`") as told:
        con.sql("SELECT name FROM named").run()
    assert "CELLS" in str(told.value)


def test_a_lazy_store_is_read_by_the_engine(
    con: ts.Connection, ds: xr.Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "ds.zarr"
    ds.drop_vars("season").to_zarr(path)
    lazy = xr.open_zarr(path, chunks=None)
    con.sql("SELECT max(orog) AS m FROM lazy").run()
    assert not lazy.t2m.variable._in_memory
    np.testing.assert_allclose(
        con.sql("SELECT mean(t2m, 'time') AS m FROM lazy").to_numpy(), ds.t2m.mean("time"), rtol=1e-6
    )
    part = lazy.isel(time=slice(3, 9))
    np.testing.assert_allclose(
        con.sql("SELECT mean(t2m, 'time') AS m FROM part").to_numpy(),
        ds.t2m[3:9].mean("time"),
        rtol=1e-6,
    )


def test_items_that_do_not_fit_are_refused(con: ts.Connection) -> None:
    a, b = np.zeros((2, 3)), np.zeros((4, 3))
    both = con.sql("SELECT sum(a, 0) AS p, sum(a, 1) AS q FROM a").to_xarray()
    assert dict(both.sizes) == {"dim_0": 3, "q_dim_0": 2}
    del b


def test_rows_without_keys_are_along_row(con: ts.Connection) -> None:
    out = con.sql("SELECT k, v FROM (VALUES (1, 2.5), (2, 3.5)) t(k, v)").to_xarray()
    assert dict(out.sizes) == {"row": 2} and out.v.values.tolist() == [2.5, 3.5]
    assert con.sql("SHOW TENSORS").fetchall() == []


def test_a_result_is_plotted(con: ts.Connection, ds: xr.Dataset) -> None:
    pytest.importorskip("matplotlib")
    assert con.sql("SELECT mean(t2m, 'time') AS m FROM ds").plot() is not None


def test_attributes_come_back(con: ts.Connection) -> None:
    attrs = {"a": np.nan, "b": ["x", np.nan], "c": {"d": np.inf}, "e": np.float32(1.5), "f": {"g": [1]}, "h": np.array(["q"])}
    da = xr.DataArray([1, 2], dims="x", attrs=attrs, name="da")
    got = con.sql("SELECT da FROM da").to_xarray().attrs
    np.testing.assert_equal(got, {**attrs, "e": 1.5, "h": ["q"]})


def test_texts_and_scalars_are_the_coordinates_that_they_were(con: ts.Connection, ds: xr.Dataset, tmp_path: Path) -> None:
    given = ds[["orog"]].assign_coords(place=("lat", ["a", "b", "c"]), model="IFS").assign(code=("lon", list("wxyz")))
    con.sql("SELECT * FROM given").to_zarr(tmp_path / "given.zarr")
    stored = xr.open_zarr(tmp_path / "given.zarr", chunks=None)
    assert set(stored.data_vars) == set(given.data_vars) and set(stored.coords) == set(given.coords)
    for name in ("place", "model", "code"):
        assert stored[name].dims == given[name].dims
        np.testing.assert_array_equal(stored[name].values.astype(object), given[name].values)
    kinds = {row[0]: row[1] for row in con.sql("DESCRIBE given").fetchall()}
    assert kinds["model"] == kinds["place"] == "coordinate"
    got = con.sql("SELECT place, max(orog) AS m FROM given WHERE model = 'IFS' GROUP BY place ORDER BY place").fetchall()
    assert got == list(zip("abc", ds.orog.max("lon").values.tolist(), strict=True))


def test_bytes_are_texts(con: ts.Connection) -> None:
    ds = xr.Dataset({"v": ("k", [1.0, 2.0, 4.0])}, coords={"k": np.array(["a", "ø".encode(), "a"], dtype="S2")})
    got = con.sql("SELECT k, sum(v) AS s FROM ds GROUP BY k ORDER BY k").fetchall()
    assert got == [("a", 5.0), ("ø", 2.0)]
    with pytest.warns(UserWarning, match="UTF-8"):
        con.sql("SELECT v FROM ds", locals={"ds": ds.assign_coords(k=np.array([b"a", b"b", b"\xff"]))}).run()


def test_dates_of_calendars_are_cells(con: ts.Connection) -> None:
    time = xr.date_range("2001-02-27", periods=3, calendar="noleap", use_cftime=True)
    bounds = np.stack([time.values, time.shift(1, "D").values], axis=1)
    ds = xr.Dataset({"v": ("time", [1.0, 2.0, 3.0]), "bounds": (("time", "n"), bounds)}, coords={"time": time})
    got = con.sql("SELECT * FROM ds").to_xarray()
    np.testing.assert_array_equal(got.bounds.values, bounds)
    assert got.bounds.values[0, 0].calendar == "noleap"


def test_columns_of_pandas_in_a_dataset(con: ts.Connection) -> None:
    big = 2**53 + 1
    df = pd.DataFrame(
        {
            "i": pd.array([big, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": pd.array(["x", None, "y"], dtype="string"),
            "c": pd.Categorical(["p", "q", "p"]),
            "t": pd.date_range("2020", periods=3, tz="UTC"),
        },
        index=pd.Index([10, 20, 30], name="k"),
    )
    ds = df.to_xarray()
    got = con.sql("SELECT i + 1 AS i, NOT b AS b FROM ds").to_numpy()
    assert got["i"].tolist() == [big + 1, None, 4] and got["b"].tolist() == [False, None, True]
    assert con.sql("SELECT c, sum(k) AS n FROM ds WHERE s IS NOT NULL GROUP BY c").fetchall() == [("p", 40)]
    with pytest.raises(ts.UserError, match="time zone") as told:
        con.sql("SELECT t FROM ds").run()
    assert "tz_convert" in str(told.value)


def test_a_lazy_dataset_is_described_and_copied_whole(con: ts.Connection, ds: xr.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "ds.nc"
    ds.to_netcdf(path)
    with xr.open_dataset(path) as lazy:
        rows = {row[0]: row[2:4] for row in con.sql("DESCRIBE lazy").fetchall()}
        assert rows["t2m"] == ("float32", "time=40, lat=3, lon=4") and set(rows) == set(ds.variables)
        assert con.sql("SELECT max(orog) AS m FROM lazy").to_numpy() == ds.orog.max()
        with pytest.raises(ts.UserError, match="`t2n`"):
            con.sql("SELECT max(t2n) AS m FROM lazy").run()
        assert not lazy.t2m.variable._in_memory
        con.sql(f"COPY lazy TO '{tmp_path / 'ds.zarr'}' STORED AS ZARR")
    stored = xr.open_zarr(tmp_path / "ds.zarr", chunks=None)
    np.testing.assert_array_equal(stored.t2m, ds.t2m)
    assert set(stored.data_vars) == set(ds.data_vars)


def test_an_item_without_a_name_has_that_of_its_column(con: ts.Connection, ds: xr.Dataset) -> None:
    relation = con.sql("SELECT lat, max(orog) FROM ds GROUP BY lat")
    (name,) = set(relation.columns) - {"lat"}
    got = relation.to_xarray()
    assert list(got.data_vars) == [name] and got[name].dims == ("lat",)


def test_items_share_coordinates_and_indexes(con: ts.Connection, ds: xr.Dataset) -> None:
    got = con.sql("SELECT t2m, t2m * 2 AS twice, orog FROM ds").to_xarray()
    want = xr.Dataset({"t2m": ds.t2m, "twice": ds.t2m * 2, "orog": ds.orog}).drop_vars(["season", "area", "height"])
    xr.testing.assert_equal(got, want)
    xr.testing.assert_equal(got.sel(lat=20, time="2020-01-05"), want.sel(lat=20, time="2020-01-05"))
    for name, index in want.xindexes.items():
        assert type(got.xindexes[name]) is type(index) and got.xindexes[name].equals(index)
    array = con.sql("SELECT t2m FROM ds").to_xarray()
    assert array.dtype == np.float32 and array.lon.dtype == ds.lon.dtype
    xr.testing.assert_equal(array.isel(time=[3, 1]).sortby("time"), want.t2m.isel(time=[1, 3]))
    # An item with the name of its dimension is its labels.
    assert list(con.sql("SELECT rename(arange(3), dim_0 => 'k') AS k, 1 AS one").to_xarray().indexes) == ["k"]
