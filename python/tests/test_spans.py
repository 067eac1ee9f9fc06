"""`timedelta64` as xarray's CF encoding has it: numbers of the coarsest exact unit in SQL, `timedelta64` in results."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import tessera_sql as ts

H = np.timedelta64(3_600_000_000_000, "ns")
NAT = np.timedelta64("NaT", "ns")


@pytest.fixture
def ds() -> xr.Dataset:
    """Forecasts as cfgrib opens them."""
    time = pd.Timestamp("2020-01-01")
    step = np.arange(4) * 6 * H
    lead = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]) * (H / 4)
    lead[1, 2] = NAT
    return xr.Dataset(
        {
            "t2m": (("step", "lat"), np.arange(12.0).reshape(4, 3), {"units": "K"}),
            "lead": (("step", "lat"), lead, {"long_name": "lead time"}),
        },
        coords={
            "step": ("step", step, {"standard_name": "forecast_period"}),
            "lat": [10.0, 20.0, 30.0],
            "valid_time": ("step", (time + pd.TimedeltaIndex(step)).values),
            "offset": 90 * np.timedelta64(60, "s"),
        },
    )


def test_datasets_with_steps_come_back(con: ts.Connection, ds: xr.Dataset) -> None:
    got = con.sql("SELECT * FROM ds").to_xarray()
    want = ds.drop_vars(["valid_time", "offset"])
    xr.testing.assert_identical(got.drop_vars(["valid_time", "offset"]), want)
    assert got.step.dtype == ds.step.dtype and got.lead.dtype == ds.lead.dtype
    offset = con.sql("SELECT offset FROM ds").to_xarray()
    assert offset.values == ds.offset.values and offset.dtype == ds.offset.dtype
    xr.testing.assert_identical(con.sql("SELECT lead FROM ds").to_xarray(), want.lead)
    xr.testing.assert_identical(ds.tessera.sql("SELECT t2m[2:4] AS t2m FROM ds"), want.t2m[2:])


def test_in_sql_they_are_numbers_of_their_unit(con: ts.Connection, ds: xr.Dataset) -> None:
    for name in ("step", "lead"):
        encoded = xr.conventions.encode_cf_variable(ds[name].variable)
        relation = con.sql(f"SELECT {name} FROM ds")
        missing = np.isnat(ds[name].values)
        got = relation.to_numpy()
        assert got.dtype == np.int64
        np.testing.assert_array_equal(np.ma.getmaskarray(got), missing)
        np.testing.assert_array_equal(np.ma.getdata(got)[~missing], encoded.values[~missing])
    t6 = con.sql("SELECT t2m[step => 6] AS t FROM ds").to_numpy()
    np.testing.assert_array_equal(t6, ds.t2m.sel(step=6 * H))
    rows = con.sql("SELECT step, avg(t2m) AS t FROM ds WHERE step > 6 GROUP BY step ORDER BY step").fetchall()
    want = ds.t2m.sel(step=slice(7 * H, None)).mean("lat")
    assert rows == list(zip([12, 18], want.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT step, lead FROM ds WHERE lat = 30 ORDER BY step", ["step", "lead"]),
        ("SELECT step, lead FROM ds WHERE t2m >= 0 AND lat = 30", ["step", "lead"]),
        ("SELECT step, max(t2m) AS t FROM ds GROUP BY step", ["step"]),
        ("SELECT lead[:, 2] AS lead FROM ds", ["step", "lead"]),
    ],
)
def test_rows_have_timedelta_in_frames_and_parquet(
    con: ts.Connection, ds: xr.Dataset, tmp_path: Path, query: str, names: list[str]
) -> None:
    want = {"step": pd.Series(ds.step.values), "lead": pd.Series(ds.lead.sel(lat=30).values)}
    path = tmp_path / "rows.parquet"
    con.sql(f"COPY ({query}) TO '{path}'")
    frames = [con.sql(query).df(), con.sql(query).arrow().to_pandas(), pd.read_parquet(path)]
    frames += [con.sql(query).pl().to_pandas(), pl.read_parquet(path).to_pandas()]
    for frame in frames:
        for name in names:
            assert frame[name].dtype.kind == "m"
            got = frame[name].astype("timedelta64[ns]")
            pd.testing.assert_series_equal(got, want[name], check_names=False)
    assert pq.read_schema(path).field("step").type == pa.duration("ns")


def test_rows_have_timedelta_as_arrays_and_numbers_in_tuples(con: ts.Connection, ds: xr.Dataset) -> None:
    query = "SELECT step, max(t2m) AS t FROM ds GROUP BY step ORDER BY step"
    np.testing.assert_array_equal(con.sql(query).to_numpy()["step"], ds.step.values)
    assert [row[0] for row in con.sql(query).fetchall()] == [0, 6, 12, 18]
    # What is computed has no attributes.
    assert con.sql("SELECT step * 2 AS d FROM ds WHERE t2m >= 0").df().d.dtype == np.int64


def test_keys_of_joins_have_their_own_units(con: ts.Connection, ds: xr.Dataset) -> None:
    other = pd.DataFrame({"n": [6, 12]})  # noqa: F841
    frame = con.sql("SELECT o.n, ds.step FROM ds JOIN other o ON ds.step = o.n WHERE ds.lat = 30 ORDER BY n").df()
    assert frame.n.tolist() == [6, 12]
    assert frame.step.tolist() == [6 * H, 12 * H]


def test_fractions_are_spans_and_numbers_without_dtype_are_not(con: ts.Connection, tmp_path: Path) -> None:
    spans = {"units": "seconds", "dtype": "timedelta64[s]"}
    stored = xr.Dataset({"a": ("t", [0.5, 1.3, np.nan], spans), "b": ("t", [0.5, 1.3, 2.0], {"units": "seconds"})})
    stored.to_zarr(tmp_path / "a.zarr")
    want = xr.open_zarr(tmp_path / "a.zarr", chunks=None)
    got = con.sql(f"SELECT a, b FROM '{tmp_path / 'a.zarr'}' WHERE b > 0").df()
    pd.testing.assert_series_equal(got.a, pd.Series(want.a.values.astype("timedelta64[ns]"), name="a"))
    assert got.b.tolist() == want.b.values.tolist()


def test_intervals_are_timedelta(con: ts.Connection, tmp_path: Path) -> None:
    rows = "FROM (VALUES (timestamp '2020-01-01 06:00:00', 2), (NULL, 3)) v(t, n) ORDER BY n"
    query = f"SELECT n * INTERVAL '1 day 2 hours' AS i, t - timestamp '2020-01-01' AS d {rows}"
    want = [pd.Timedelta(hours=52), pd.Timedelta(hours=78)]
    con.sql(f"COPY ({query}) TO '{tmp_path / 'i.parquet'}'")
    for frame in (con.sql(query).df(), con.sql(query).pl().to_pandas(), pd.read_parquet(tmp_path / "i.parquet")):
        assert frame.i.tolist() == want
        assert frame.d[0] == pd.Timedelta(hours=6) and frame.d[1] is pd.NaT
    months = f"SELECT n * INTERVAL '1 month' AS i {rows}"
    assert con.sql(months).df().i.dtype.kind in "OT"
    assert con.sql(months).arrow().schema.field("i").type == pa.month_day_nano_interval()
    with pytest.raises(ts.UserError, match="2 months"):
        con.sql(months).pl()
    with pytest.raises(ts.UserError, match="2 months"):
        con.sql(f"COPY ({months}) TO '{tmp_path / 'm.parquet'}'")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT step, avg(t2m) AS t FROM ds GROUP BY step",
        "SELECT step, avg(t2m) AS t FROM ds WHERE t2m >= 0 GROUP BY step ORDER BY step DESC",
        "SELECT [step], avg(t2m) AS t FROM ds GROUP BY step",
        "SELECT a.step, avg((a.t2m + b.t2m) / 2) AS t FROM ds a JOIN ds b ON a.step = b.step AND a.lat = b.lat GROUP BY a.step",
        "WITH q AS (SELECT step, t2m FROM ds) SELECT step, avg(t2m) AS t FROM q GROUP BY step",
        "SELECT step, median(t2m) AS t FROM ds GROUP BY step HAVING count(*) > 2",
        "SELECT step, t2m AS t FROM ds WHERE lat = 20 ORDER BY t2m LIMIT 9",
    ],
)
def test_keys_stay_spans(con: ts.Connection, ds: xr.Dataset, tmp_path: Path, query: str) -> None:
    want = ds.t2m.mean("lat").drop_vars(["valid_time", "offset"]).rename("t")
    con.sql(f"COPY ({query}) TO '{tmp_path / 'a.zarr'}'")
    with xr.open_dataset(tmp_path / "a.zarr", engine="zarr") as stored:
        for got in (con.sql(query).to_xarray(), stored.load()):
            t = got.t if isinstance(got, xr.Dataset) else got
            xr.testing.assert_equal(t.sortby("step"), want)
            assert t.step.dtype == ds.step.dtype and t.step.attrs == ds.step.attrs


@pytest.mark.parametrize(
    ("spans", "unit"),
    [
        (np.array([0, 24, 48]) * H, "D"),
        (np.array([0, -6, 24]) * H, "h"),
        (np.array([15, 30], dtype="timedelta64[m]"), "m"),
        (np.array([1, 61], dtype="timedelta64[s]"), "s"),
        (np.array([1500, 2000], dtype="timedelta64[ms]"), "ms"),
        (np.array([1, 10**6], dtype="timedelta64[us]"), "us"),
        (np.array([1, 10**9]).astype("timedelta64[ns]"), "ns"),
        (np.array([np.iinfo(np.int64).max]).astype("timedelta64[ns]"), "ns"),
        (np.array([200_000], dtype="timedelta64[D]"), "D"),
        (np.array([2, 3], dtype=">m8[6h]"), "h"),
        (np.array([1, 2], dtype="timedelta64[W]"), "D"),
        (np.array([4000, 1_000_000], dtype="timedelta64[ps]"), "ns"),
    ],
)
def test_the_unit_is_the_coarsest_exact_one(con: ts.Connection, spans: np.ndarray, unit: str) -> None:
    units = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds"}
    # xarray has seconds, milliseconds, microseconds and nanoseconds.
    want = xr.DataArray(spans.astype({"m8[6h]": "m8[h]", "m8[ps]": "m8[ns]"}.get(spans.dtype.str[1:], spans.dtype)))
    assert xr.conventions.encode_cf_variable(want.variable).attrs["units"] == units.get(unit, "nanoseconds")
    numbers = want.values // np.timedelta64(1, unit)
    relation = con.sql("SELECT spans FROM spans")
    np.testing.assert_array_equal(relation.to_numpy(), numbers)
    got = relation.to_xarray()
    np.testing.assert_array_equal(got.values, want.values)
    assert got.dtype == want.dtype and got.attrs == {}
    # As labels, too.
    t = ts.tensor(np.arange(len(spans)), dims="step", coords={"step": spans})  # noqa: F841
    assert con.sql(f"SELECT t[step => {numbers[-1]}] AS t FROM t").to_numpy() == len(spans) - 1
    np.testing.assert_array_equal(con.sql("SELECT t FROM t").to_xarray().step.values, want.values)


def test_labels_may_be_missing(con: ts.Connection) -> None:
    delay = np.array([6 * H, NAT, 12 * H])
    ds = xr.Dataset({"t": ("x", [1.0, 2.0, 3.0])}, coords={"x": [1, 2, 3], "delay": ("x", delay)})
    got = con.sql("SELECT delay FROM ds").to_xarray()
    np.testing.assert_array_equal(got.values, delay)
    t = ts.tensor(np.arange(3), dims="step", coords={"step": pd.TimedeltaIndex(delay)})
    np.testing.assert_array_equal(con.sql("SELECT t FROM t").to_xarray().step.values, delay)
    nothing = np.array([NAT, NAT])
    np.testing.assert_array_equal(con.sql("SELECT nothing FROM nothing").to_xarray().values, nothing)
    empty = np.array([], dtype="timedelta64[ns]")
    assert con.sql("SELECT empty FROM empty").to_xarray().dtype == empty.dtype


def test_masked_spans_are_nat(con: ts.Connection) -> None:
    spans = np.ma.MaskedArray(np.array([1, 2, 3]) * H, mask=[False, True, False])
    got = con.sql("SELECT spans FROM spans")
    assert isinstance(got.to_numpy(), np.ma.MaskedArray)
    np.testing.assert_array_equal(got.to_xarray().values, spans.filled(NAT))


def _check_opened(got: xr.Dataset, ds: xr.Dataset) -> None:
    got = got.drop_vars(["valid_time", "offset"], errors="ignore")
    assert got.step.dtype == ds.step.dtype and got.lead.dtype == ds.lead.dtype
    xr.testing.assert_equal(got, ds.drop_vars(["valid_time", "offset"]))
    assert got.lead.attrs["long_name"] == "lead time" and not {"units", "dtype"} & set(got.lead.attrs)
    np.testing.assert_array_equal(got.lead[1, 1:].values, ds.lead[1, 1:].values)
    np.testing.assert_array_equal(got.lead.isel(lat=[0, 2], step=3).values, ds.lead[3, [0, 2]].values)


def test_stores_of_xarray_open_as_timedelta(con: ts.Connection, ds: xr.Dataset, tmp_path: Path) -> None:
    path = str(tmp_path / "theirs.zarr")
    ds.to_zarr(path)
    for source in (path, f"SELECT t2m, lead FROM '{path}'"):
        _check_opened(xr.open_dataset(source, engine="tessera", connection=con), ds)
    masks = xr.open_dataset(path, engine="tessera", connection=con, integer_masks=True)
    assert "lead_mask" not in masks.variables and bool(np.isnat(masks.lead[1, 2]))
    assert masks.chunk().lead.dtype == ds.lead.dtype
    again = pickle.loads(pickle.dumps(masks.lead))
    np.testing.assert_array_equal(again.values, ds.lead.values)
    eager = con.sql(f"SELECT t2m, lead FROM '{path}'").to_xarray()
    xr.testing.assert_identical(eager, ds.drop_vars(["valid_time", "offset"]))
    # As xarray loads it, lazily: its labels are in the unit of a dataset in memory.
    lazy = xr.open_zarr(path, chunks=None)  # noqa: F841
    np.testing.assert_array_equal(con.sql("SELECT t2m[step => 6] AS t FROM lazy").to_numpy(), ds.t2m[1])


def test_stores_of_the_engine_open_as_timedelta(con: ts.Connection, ds: xr.Dataset, tmp_path: Path) -> None:
    con.sql("CREATE TENSOR forecast AS SELECT * FROM ds")
    con.sql("SELECT * FROM forecast").to_zarr(tmp_path / "ours.zarr")
    con.sql(f"COPY forecast TO '{tmp_path}/ours.nc'")
    for source in ("forecast", "SELECT t2m, lead FROM forecast", tmp_path / "ours.zarr", tmp_path / "ours.nc"):
        _check_opened(xr.open_dataset(source, engine="tessera", connection=con), ds)
    # xarray's own engines read them, too.
    _check_opened(xr.open_zarr(tmp_path / "ours.zarr", chunks=None), ds)
    _check_opened(xr.open_dataset(tmp_path / "ours.nc"), ds)


def test_relations_of_relations_keep_them(con: ts.Connection, ds: xr.Dataset) -> None:
    r = con.sql("SELECT t2m, lead FROM ds")
    got = con.sql("SELECT lead FROM r").to_xarray()
    xr.testing.assert_identical(got, ds.lead.drop_vars(["valid_time", "offset"]))
    assert con.sql("SELECT lead * 2 AS twice FROM r").to_xarray().dtype == np.int64


def test_rows_of_relations_are_numbers_in_sql(con: ts.Connection, ds: xr.Dataset) -> None:
    r = con.sql("SELECT step, max(t2m) AS t FROM ds GROUP BY step")  # noqa: F841
    got = con.sql("SELECT step, step * 2 AS d FROM r WHERE step > 6 ORDER BY step")
    assert got.fetchall() == [(12, 24), (18, 36)]
    assert got.df().step.tolist() == [12 * H, 18 * H]


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        (np.array([1, 2], dtype="timedelta64[M]"), "months"),
        (np.array([1, 2], dtype="timedelta64[Y]"), "years"),
        (np.array([1, 2], dtype="timedelta64"), "without a unit"),
        (np.array([1500], dtype="timedelta64[ps]"), "nanosecond"),
        (np.array([2**62], dtype="timedelta64[W]"), "more than"),
    ],
)
def test_what_has_no_exact_unit_is_an_error(con: ts.Connection, spans: np.ndarray, reason: str) -> None:
    with pytest.raises(ts.UserError, match=f"`spans`.*{reason}") as told:
        con.sql("SELECT spans FROM spans")
    assert told.value.code == "unsupported" and told.value.hint
    with pytest.raises(ts.UserError, match="`t.step`"):
        t = ts.tensor(np.zeros(len(spans)), dims="step", coords={"step": spans})  # noqa: F841
        con.sql("SELECT t FROM t")


def test_numbers_that_do_not_fit_are_an_error(con: ts.Connection) -> None:
    many = xr.DataArray([10**6], dims="x", attrs={"units": "days", "dtype": "timedelta64[ns]"}, name="many")
    floats = many.astype(float)
    for text in ("SELECT many FROM many", "SELECT floats FROM floats"):
        with pytest.raises(ts.UserError, match="(many|floats)`: 1000000.* days"):
            con.sql(text).to_xarray()
        assert con.sql(text).to_numpy() == 10**6


def test_attributes_say_what_numbers_are_as_in_xarray(con: ts.Connection) -> None:
    raw = xr.Dataset(
        {
            "a": ("x", [1, 2], {"units": "hours", "dtype": "timedelta64[s]"}),
            "b": ("x", [0.5, np.nan], {"units": "hours", "dtype": "timedelta64[ns]"}),
            "c": ("x", [1, 2], {"units": "hours"}),
            "d": ("x", [1, 2], {"units": "fortnights", "dtype": "timedelta64[ns]"}),
            "f": ("x", [1500, 2], {"units": "milliseconds", "dtype": "timedelta64[s]"}),
        }
    )
    got = con.sql("SELECT * FROM raw").to_xarray()
    want = xr.decode_cf(raw.drop_vars("d"), decode_timedelta=xr.coders.CFTimedeltaCoder(decode_via_units=False))
    for name in want.data_vars:
        xr.testing.assert_identical(got[name], want[name])
        assert got[name].values.dtype == want[name].values.dtype
    xr.testing.assert_identical(got.d, raw.d)


def test_parameters_are_numbers(con: ts.Connection) -> None:
    t = ts.tensor(np.arange(2), dims="step", coords={"step": np.array([0, 6]) * H})
    with pytest.raises(ts.UserError, match="timedelta64"):
        con.sql("SELECT t[step => ?] AS t FROM t", [6 * H])
    assert con.sql("SELECT t[step => ?] AS t FROM t", [6 * H / np.timedelta64(1, "h")]).to_numpy() == 1


def test_labels_that_cannot_be_read_are_never_lost_silently(con: ts.Connection) -> None:
    zoned = pd.date_range("2020-01-01", periods=2, tz="Europe/Oslo")
    odd = np.array([object(), object()])
    for name, labels in (("time", zoned), ("odd", odd)):
        ds = xr.Dataset({"t": (name, [1.0, 2.0])}, coords={name: labels})
        with pytest.warns(UserWarning, match=f"`{name}` of `ds`") as told:
            np.testing.assert_array_equal(con.sql("SELECT t FROM ds").to_numpy(), [1, 2])
        assert [w.filename for w in told if "left out" in str(w.message)] == [__file__]
        with pytest.warns(UserWarning), pytest.raises(ts.UserError, match=f"`{name}` of `ds`"):
            con.sql(f"SELECT {name} FROM ds").run()
        t = ts.tensor(np.zeros(2), dims=name, coords={name: labels})  # noqa: F841
        with pytest.raises(ts.UserError, match=f"`t.{name}`"):
            con.sql("SELECT t FROM t")


def test_views_read_no_variables(con: ts.Connection) -> None:
    x = np.arange(3.0)
    tab = pd.DataFrame({"a": [1]})
    for name in ("x", "tab"):
        for given in (None, {"x": x, "tab": tab}):
            with pytest.raises(ts.UserError, match=f"view `v` reads `{name}`") as told:
                con.sql(f"CREATE VIEW v AS SELECT * FROM {name}", locals=given)
            assert told.value.code == "unsupported" and "CREATE TEMP TENSOR" in (told.value.hint or "")
    con.sql("CREATE TENSOR kept AS SELECT x FROM x")
    con.sql("CREATE VIEW v AS SELECT x + 1 AS y FROM kept")
    kept = np.zeros(2)
    np.testing.assert_array_equal(con.sql("SELECT y FROM v", locals={"kept": kept}).to_numpy(), x + 1)
    # A view that was stored reads no variable of whoever reads it.
    con.sql("DROP TENSOR kept")
    with pytest.raises(ts.UserError, match="kept"):
        con.sql("SELECT v.y FROM v, kept").run()
