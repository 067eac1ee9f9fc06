"""What a dataset keeps on its way through Tessera: what it keeps on its way through xarray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tessera_sql as ts

TITLE = {"title": "on a curved grid", "Conventions": "CF-1.8, ACDD-1.3", "history": "made\nby hand", "version": 3}


def curved(first: str = "2020-01-01", title: str = TITLE["title"]) -> xr.Dataset:
    """Two-dimensional latitudes, a scalar height, a second coordinate along `x`, bounds, a grid mapping."""
    rng = np.random.default_rng(7)
    plane, corners = ("y", "x"), ("y", "x", "corner")
    t2m = rng.normal(280, 5, (3, 4, 5)).astype("f4")
    return xr.Dataset(
        {
            "t2m": (("time", *plane), t2m, {"units": "K", "grid_mapping": "crs", "cell_methods": "time: mean"}),
            "orog": (plane, rng.integers(0, 900, (4, 5)).astype("i2"), {"units": "m"}),
            "lat_bnds": (corners, rng.random((4, 5, 4))),
            "crs": ((), np.int32(0), {"grid_mapping_name": "rotated_latitude_longitude"}),
        },
        coords={
            "time": ("time", pd.date_range(first, periods=3), {"axis": "T"}),
            "lat": (plane, rng.random((4, 5)), {"units": "degrees_north", "bounds": "lat_bnds"}),
            "lon": (plane, rng.random((4, 5)), {"units": "degrees_east"}),
            "column": ("x", np.arange(7, 12, dtype="i4"), {"long_name": "number of the column"}),
            "height": ((), 2.0, {"units": "m"}),
        },
        attrs={**TITLE, "title": title},
    )


def opened(path: Path) -> xr.Dataset:
    with xr.open_dataset(path, **({"engine": "zarr"} if path.suffix == ".zarr" else {})) as ds:
        return ds.load()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.nc"
    curved().to_netcdf(path)
    return path


def test_a_dataset_is_the_same_after_netcdf_zarr_and_netcdf(con: ts.Connection, source: Path, tmp_path: Path) -> None:
    want = opened(source)
    assert set(want.coords) == {"time", "lat", "lon", "column", "height"}
    at = source
    for name in ["a.zarr", "b.nc", "c.zarr", "d.nc"]:
        con.sql(f"COPY (SELECT * FROM '{at}') TO '{tmp_path / name}'")
        at = tmp_path / name
        xr.testing.assert_identical(opened(at), want)
    # Names of coordinates are where CF has them, and no variable has its own dimension among them.
    with xr.open_dataset(at, decode_coords=False) as raw:
        named = {k: v.attrs["coordinates"] for k, v in raw.variables.items() if "coordinates" in v.attrs}
        assert "coordinates" not in raw.attrs
    assert named == {
        "t2m": "column height lat lon",
        "orog": "column height lat lon",
        "lat_bnds": "column height lat lon",
        "crs": "height",
    }


def test_columns_that_are_left_out_or_renamed_keep_the_dataset(con: ts.Connection, source: Path, tmp_path: Path) -> None:
    want = opened(source)
    con.sql(f"CREATE VIEW most AS SELECT * EXCLUDE (orog) FROM '{source}'")
    renamed = "* EXCLUDE (t2m, height), t2m AS temperature, height AS level"
    for query, of in [
        ("SELECT * FROM most", want.drop_vars("orog")),
        (f"SELECT {renamed} FROM most", want.drop_vars("orog").rename(t2m="temperature", height="level")),
        (f"SELECT * FROM (SELECT {renamed} FROM '{source}')", want.rename(t2m="temperature", height="level")),
        ("SELECT * EXCLUDE (lat_bnds) FROM (SELECT * FROM most) m", want.drop_vars(["orog", "lat_bnds"])),
    ]:
        for ending in ["zarr", "nc"]:
            con.sql(f"COPY ({query}) TO '{tmp_path / 'out'}.{ending}' (overwrite true)")
            got = opened(tmp_path / f"out.{ending}")
            # Attributes that name what is left out are left out.
            of = of.copy()
            if "lat_bnds" not in of:
                of["lat"].attrs.pop("bounds", None)
            xr.testing.assert_identical(got, of)
    with pytest.raises(ts.Error) as e:
        con.sql(f"COPY (SELECT *, t2m AS orog FROM '{source}') TO '{tmp_path / 'twice.zarr'}'")
    assert "orog" in str(e.value)


def test_conditions_on_labels_keep_the_dataset(con: ts.Connection, source: Path, tmp_path: Path) -> None:
    want = opened(source)
    for condition, of in [
        ("time > '2020-01-01'", want.isel(time=slice(1, None))),
        ("time > '2020-01-01' AND y < 2 AND \"column\" IN (8, 10)", want.isel(time=[1, 2], y=[0, 1], x=[1, 3])),
        ("s.time = '2020-01-02' AND x BETWEEN 1 AND 2", want.isel(time=[1], x=[1, 2])),
    ]:
        for ending in ["zarr", "nc"]:
            con.sql(f"COPY (SELECT * FROM '{source}' s WHERE {condition}) TO '{tmp_path / 'out'}.{ending}' (overwrite true)")
            xr.testing.assert_identical(opened(tmp_path / f"out.{ending}"), of)
        inside = f"SELECT * FROM '{source}' s WHERE {condition}"
        con.sql(f"CREATE OR REPLACE VIEW cut AS {inside}")
        for query in [
            f"WITH d AS ({inside}) SELECT * FROM d",
            f"SELECT * FROM ({inside}) q",
            "SELECT * FROM cut",
            f"WITH c AS (SELECT 1 AS one), d AS ({inside}), e AS (SELECT * FROM d f) SELECT * FROM (SELECT * FROM e) g WHERE g.x < 9",
        ]:
            con.sql(f"COPY ({query}) TO '{tmp_path / 'inside.zarr'}' (overwrite true)")
            xr.testing.assert_identical(opened(tmp_path / "inside.zarr"), of)
    query = f"""
        WITH a AS (SELECT * EXCLUDE (crs) FROM '{source}' WHERE x > 0), b AS (SELECT * FROM a q WHERE q.y < 3)
        SELECT *, height AS level FROM b c WHERE c.time > '2020-01-01'
    """
    con.sql(f"COPY ({query}) TO '{tmp_path / 'levels.zarr'}'")
    levels = want.drop_vars("crs").isel(time=[1, 2], y=[0, 1, 2], x=[1, 2, 3, 4])
    xr.testing.assert_equal(opened(tmp_path / "levels.zarr"), levels.assign_coords(level=levels.height))
    con.sql(f"CREATE VIEW most AS SELECT * EXCLUDE (orog) FROM '{source}'")
    con.sql("CREATE TENSOR part AS SELECT *, height AS level FROM most WHERE x > 2")
    con.sql(f"COPY part TO '{tmp_path / 'part.nc'}'")
    part = want.drop_vars("orog").isel(x=[3, 4])
    xr.testing.assert_equal(opened(tmp_path / "part.nc"), part.assign_coords(level=part.height))
    # Conditions on cells leave rows, whose tensors have all dimensions.
    con.sql(f"COPY (SELECT * FROM '{source}' WHERE orog >= 0) TO '{tmp_path / 'rows.nc'}'")
    assert opened(tmp_path / "rows.nc").orog.dims == ("time", "y", "x")


def test_datasets_of_the_program_keep_their_coordinates(con: ts.Connection, tmp_path: Path) -> None:
    ds = curved()
    con.sql("SELECT * FROM ds").to_zarr(tmp_path / "a.zarr")
    ds.to_zarr(tmp_path / "theirs.zarr")
    xr.testing.assert_identical(opened(tmp_path / "a.zarr"), opened(tmp_path / "theirs.zarr"))


def test_a_tensor_of_the_warehouse_is_the_dataset(con: ts.Connection, source: Path, tmp_path: Path) -> None:
    con.sql(f"CREATE TENSOR stored AS SELECT * FROM '{source}'")
    con.sql(f"CREATE TEMP TENSOR held AS SELECT * FROM '{source}'")
    want = opened(source)
    for name in ["stored", "held"]:
        con.sql(f"COPY {name} TO '{tmp_path / name}.nc'")
        got = opened(tmp_path / f"{name}.nc")
        assert got.attrs == want.attrs and set(got.coords) == set(want.coords)
        xr.testing.assert_equal(got, want)
    # There they are variables as any others.
    kinds = dict(row[:2] for row in con.sql("DESCRIBE stored").fetchall())
    assert kinds["lat"] == "variable"
    later = "SELECT assign_coords(t2m, time => time + INTERVAL '10 days') AS t2m FROM stored"
    con.sql(f"INSERT INTO stored {later}")
    con.sql(f"COPY stored TO '{tmp_path / 'longer.nc'}'")
    longer = opened(tmp_path / "longer.nc")
    assert longer.sizes["time"] == 6 and longer.t2m.attrs["units"] == "K"
    assert longer.attrs == want.attrs and set(longer.coords) == set(want.coords)


def test_items_that_are_coordinates_stay_coordinates(con: ts.Connection, source: Path, tmp_path: Path) -> None:
    want = opened(source)
    query = f"SELECT t2m - 273.15 AS t, lat AS south, lon, height FROM '{source}'"
    con.sql(f"COPY ({query}) TO '{tmp_path / 'a.nc'}'")
    got = opened(tmp_path / "a.nc")
    assert set(got.data_vars) == {"t"} and set(got.coords) == {"time", "south", "lon", "height"}
    # What is computed has no units of the cells that it was computed from; the dataset keeps its title.
    assert got.t.attrs == {} and got.south.attrs["units"] == "degrees_north"
    assert got.attrs == want.attrs
    here = con.sql(f"SELECT t2m, lat, lon FROM '{source}'").to_xarray()
    assert isinstance(here, xr.Dataset)
    assert set(here.data_vars) == {"t2m"} and set(here.coords) == {"time", "lat", "lon"}
    assert here.attrs == want.attrs
    # Coordinates alone are data.
    con.sql(f"COPY (SELECT lat FROM '{source}') TO '{tmp_path / 'lat.zarr'}'")
    assert set(opened(tmp_path / "lat.zarr").data_vars) == {"lat"}


def test_many_files_have_the_attributes_of_the_first(con: ts.Connection, tmp_path: Path) -> None:
    curved("2020-01-01", "first").to_netcdf(tmp_path / "part1.nc")
    curved("2020-01-04", "second").to_netcdf(tmp_path / "part2.nc")
    con.sql(f"COPY (SELECT * FROM '{tmp_path}/part*.nc') TO '{tmp_path / 'all.zarr'}'")
    got = opened(tmp_path / "all.zarr")
    theirs = xr.open_mfdataset(
        str(tmp_path / "part*.nc"), data_vars="minimal", coords="minimal", compat="override", combine_attrs="override"
    )
    assert got.sizes["time"] == 6
    assert got.attrs == theirs.attrs and got.attrs["title"] == "first"
    assert set(got.coords) == set(theirs.coords)


def test_coordinates_along_the_dimension_are_appended(con: ts.Connection, tmp_path: Path) -> None:
    parts = [
        curved(first).assign_coords(lead=("time", lead))
        for first, lead in [("2020-01-01", [6, 12, 18]), ("2020-01-04", [6, 24, 30])]
    ]
    for i, part in enumerate(parts):
        part.to_netcdf(tmp_path / f"{i}.nc")
    store = tmp_path / "all.zarr"
    con.sql(f"COPY (SELECT * FROM '{tmp_path / '0.nc'}') TO '{store}'")
    con.sql(f"COPY (SELECT * FROM '{tmp_path / '1.nc'}') TO '{store}' STORED AS ZARR OPTIONS (append 'time')")
    minimal = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "combine_attrs": "override"}
    want = xr.concat(parts, "time", join="override", **minimal)
    got = opened(store)
    xr.testing.assert_equal(got, want)
    assert "lead" in got.coords and got.attrs == want.attrs
    # The coordinate has to grow, too.
    with pytest.raises(ts.Error) as e:
        con.sql(f"COPY (SELECT t2m FROM '{tmp_path / '1.nc'}') TO '{store}' STORED AS ZARR OPTIONS (append 'time')")
    assert "`lead` of the store has the dimension `time`" in str(e.value)
    con.sql(f"CREATE TENSOR stored AS SELECT * FROM '{tmp_path / '0.nc'}'")
    con.sql(f"COPY (SELECT * FROM '{tmp_path / '0.nc'}') TO '{tmp_path / 'again.zarr'}'")
    con.sql(f"CREATE EXTERNAL TABLE again STORED AS ZARR LOCATION '{tmp_path / 'again.zarr'}'")
    for name in ["stored", "again"]:
        con.sql(f"INSERT INTO {name} SELECT * FROM '{tmp_path / '1.nc'}'")
        con.sql(f"COPY {name} TO '{tmp_path / name}_out.zarr'")
        xr.testing.assert_equal(opened(tmp_path / f"{name}_out.zarr"), want)


def test_a_dataset_of_the_engine_has_its_attributes(con: ts.Connection, source: Path) -> None:
    ds = xr.open_dataset(source, engine="tessera", connection=con)
    assert ds.attrs == opened(source).attrs


def test_masked_datetimes_are_nat_in_numpy(con: ts.Connection, tmp_path: Path) -> None:
    times = np.array(["2020-01-01", "NaT", "2020-03-01T12"], "datetime64[us]")
    xr.Dataset({"when": ("x", times.astype("datetime64[ns]")), "n": ("x", [1, 2, 3])}).to_netcdf(tmp_path / "t.nc")
    query = f"SELECT \"when\" FROM '{tmp_path / 't.nc'}'"
    con.sql(f"COPY ({query}) TO '{tmp_path / 't.npy'}'")
    con.sql(f"COPY ({query}) TO '{tmp_path / 't.npz'}'")
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), times)
    np.testing.assert_array_equal(np.load(tmp_path / "t.npz")["when"], times)
    np.testing.assert_array_equal(np.asarray(con.sql(query).to_numpy()), times)


def stations() -> xr.Dataset:
    """Texts that are coordinates, and others; one of them is missing, one is empty, one has no dimension."""

    def texts(*values: str) -> np.ndarray:
        return np.array(values, dtype=object)

    return xr.Dataset(
        {
            "t": (("time", "station"), np.arange(6, dtype="f4").reshape(2, 3), {"units": "K", "grid_mapping": "crs"}),
            "operator": ("station", texts("A", "", "B")),
            "crs": ((), np.int32(0), {"grid_mapping_name": "latitude_longitude"}),
        },
        coords={
            "time": ("time", pd.date_range("2000-01-01", periods=2)),
            "name": ("station", texts("Oslo", "NA", "Köln"), {"missing_value": "NA", "long_name": "name of the station"}),
            "centre": ((), "ECMWF"),
        },
        attrs={"featureType": "timeSeries"},
    )


def assert_same_texts(got: xr.Dataset, want: xr.Dataset) -> None:
    """Equal datasets, whatever types of NumPy their texts have."""
    names = ["name", "operator", "centre"]
    for name in names:
        assert got[name].dims == want[name].dims
        assert got[name].attrs == want[name].attrs
        values = [np.atleast_1d(ds[name].values).tolist() for ds in (got, want)]
        plain = [[v if isinstance(v, str) else None for v in of] for of in values]
        assert plain[0] == plain[1], name
    assert set(got.coords) == set(want.coords) and set(got.data_vars) == set(want.data_vars)
    # A NetCDF file says which conventions it follows.
    assert {k: v for k, v in got.attrs.items() if k != "Conventions"} == want.attrs
    xr.testing.assert_equal(got.drop_vars(names), want.drop_vars(names))


@pytest.mark.parametrize("source", ["classic.nc", "four.nc", "two.zarr", "three.zarr"])
def test_attributes_that_are_nan_or_infinite_stay_floats(con: ts.Connection, tmp_path: Path, source: str) -> None:
    ranges = {"actual_range": [-np.inf, 1.5], "threshold": np.inf, "unknown": np.nan, "letters": "NaN"}
    v = xr.Variable("x", np.array([1, 2, np.nan], "f4"), ranges, {"missing_value": np.float32("nan")})
    ds = xr.Dataset({"v": v}, {"x": ("x", [1.0, 2.0, 3.0], {"lowest": -np.inf})}, {"title": "x", "best": np.nan})
    at = tmp_path / source
    if at.suffix == ".zarr":
        ds.to_zarr(at, zarr_format=2 if source == "two.zarr" else 3)
    else:
        ds.to_netcdf(at, format="NETCDF3_64BIT" if source == "classic.nc" else "NETCDF4")
    want = opened(at)
    for name, options in [("a.zarr", ""), ("b.nc", ""), ("c.zarr", "(zarr_format 2)"), ("d.nc", "")]:
        con.sql(f"COPY (SELECT * FROM '{at}') TO '{tmp_path / name}' {options}")
        at = tmp_path / name
        got = opened(at)
        got.attrs.pop("Conventions", None)
        xr.testing.assert_identical(got, want)
        shown = {row[0]: row[-1] for row in con.sql(f"DESCRIBE '{at}'").fetchall()}["v"]
        assert shown == "actual_range: [-Infinity,1.5]; letters: NaN; threshold: Infinity; unknown: NaN"
        attrs = con.sql(f"SELECT v FROM '{at}'").to_xarray().attrs
        np.testing.assert_equal(attrs, ranges)
    # An append writes the documents of the store anew.
    more = ds.assign_coords(x=ds.x + 3)
    store = tmp_path / "a.zarr"
    con.sql(f"COPY (SELECT * FROM more) TO '{store}' STORED AS ZARR OPTIONS (append 'x')")
    assert opened(store).sizes == {"x": 6}
    np.testing.assert_equal(opened(store).v.attrs, want.v.attrs)


@pytest.mark.parametrize("source", ["classic.nc", "four.nc", "two.zarr", "three.zarr"])
def test_texts_are_the_same_after_netcdf_and_zarr(con: ts.Connection, tmp_path: Path, source: str) -> None:
    at = tmp_path / source
    if at.suffix == ".zarr":
        stations().to_zarr(at, zarr_format=2 if source == "two.zarr" else 3)
    else:
        stations().to_netcdf(at, format="NETCDF3_64BIT" if source == "classic.nc" else "NETCDF4")
    want = opened(at)
    assert [v if isinstance(v, str) else None for v in want["name"].values] == ["Oslo", None, "Köln"]
    assert set(want.coords) == {"time", "name", "centre"}
    for name, options in [("a.zarr", ""), ("b.nc", ""), ("c.zarr", "(zarr_format 2)"), ("d.nc", ""), ("e.zarr", "")]:
        con.sql(f"COPY (SELECT * FROM '{at}') TO '{tmp_path / name}' {options}")
        at = tmp_path / name
        assert_same_texts(opened(at), want)
        assert opened(at).t.attrs == want.t.attrs
    con.sql(f"CREATE TENSOR stored AS SELECT * FROM '{at}'")
    con.sql(f"CREATE TEMP TENSOR held AS SELECT * FROM '{at}'")
    con.sql(f"CREATE VIEW seen AS SELECT * EXCLUDE (operator) FROM '{at}'")
    for relation in ["stored", "held"]:
        con.sql(f"COPY {relation} TO '{tmp_path / relation}.nc'")
        assert_same_texts(opened(tmp_path / f"{relation}.nc"), want)
    con.sql(f"COPY (SELECT * FROM '{at}' WHERE name = 'Köln') TO '{tmp_path / 'one.nc'}'")
    assert_same_texts(opened(tmp_path / "one.nc"), want.isel(station=[2]))
    con.sql(f"COPY seen TO '{tmp_path / 'seen.zarr'}'")
    some = opened(tmp_path / "seen.zarr")
    assert "operator" not in some and set(some.coords) == {"time", "name", "centre"}
    # A tensor that grows keeps them; its new cells may have the same ones.
    later = "SELECT assign_coords(t, time => time + INTERVAL '10 days') AS t FROM stored"
    con.sql(f"INSERT INTO stored {later}")
    assert con.sql("SELECT count(*), count(name) FROM stored").fetchall() == [(12, 8)]


def test_texts_have_no_form_in_formats_of_numbers(con: ts.Connection, tmp_path: Path) -> None:
    stations().to_netcdf(tmp_path / "s.nc")
    for ending in ["npz", "safetensors"]:
        with pytest.raises(ts.Error) as e:
            con.sql(f"COPY (SELECT * FROM '{tmp_path / 's.nc'}') TO '{tmp_path / 'out'}.{ending}'")
        assert "`name` consists of texts" in str(e.value) or "`centre` consists of texts" in str(e.value)
        assert "EXCLUDE" in str(e.value)
    con.sql(f"COPY (SELECT * FROM '{tmp_path / 's.nc'}') TO '{tmp_path / 'all.zarr'}'")
    with pytest.raises(ts.Error) as e:
        con.sql(
            f"COPY (SELECT * FROM '{tmp_path / 's.nc'}') TO '{tmp_path / 'all.zarr'}' STORED AS ZARR OPTIONS (append 'station')"
        )
    assert "a dimension of text" in str(e.value)


def test_names_that_a_format_forbids_are_named(con: ts.Connection, tmp_path: Path) -> None:
    x = np.arange(3)
    for name, ending, hint in [("a/b", "zarr", "AS"), ("-a", "nc", "AS"), ("../a", "npz", "AS")]:
        with pytest.raises(ts.Error) as e:
            con.sql(f"COPY (SELECT x AS \"{name}\" FROM x) TO '{tmp_path / 'out'}.{ending}'")
        assert name in str(e.value) and hint in str(e.value)
    con.sql(f"COPY (SELECT x AS \"a/b\" FROM x) TO '{tmp_path / 'out.npz'}'")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["a/b"], x)
