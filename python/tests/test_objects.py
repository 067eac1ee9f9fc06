"""Objects of the caller of every kind, beside what their own libraries say of them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
import xarray as xr

import tessera_sql as ts


def rows(con: ts.Connection, sql: str, **locals: Any) -> list[tuple[Any, ...]]:
    found = con.sql(sql, locals=locals).fetchall()
    assert isinstance(found, list)
    return found


# Arrays


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "25s", "3D"])
def test_datetimes_of_every_unit(con: ts.Connection, unit: str) -> None:
    t = np.array(["1969-03-05T07:00:00", "NaT", "2024-02-29T00:00:00"], dtype="datetime64[s]").astype(f"datetime64[{unit}]")
    for x in (t, t.astype(t.dtype.newbyteorder(">")), t[::-1], t[:2].reshape(2, 1)):
        got = con.sql("SELECT x FROM x").to_numpy()
        np.testing.assert_array_equal(got, x.astype("datetime64[us]"))


def test_structured_arrays_are_refused_with_a_field_to_take(con: ts.Connection) -> None:
    x = np.zeros(3, dtype=[("lat", "f4"), ("t", "f8")])
    with pytest.raises(ts.UserError) as told:
        con.sql("SELECT * FROM x")
    assert told.value.hint is not None and "x['lat']" in told.value.hint and told.value.code == "unsupported"
    np.testing.assert_array_equal(con.sql("SELECT t FROM t", locals={"t": x["t"]}).to_numpy(), x["t"])
    for other in (np.array(["a"]), np.array([b"a"]), np.array([None])):
        with pytest.raises(ts.UserError) as told:
            con.sql("SELECT * FROM other")
        assert told.value.hint is not None and "DataFrame" in told.value.hint


def test_half_floats_are_floats(con: ts.Connection) -> None:
    x = np.array([[1, 65504], [-0.5, np.nan]], dtype="f2")[:, ::-1]
    got = con.sql("SELECT x FROM x").to_numpy()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, x)


class Foreign:
    """An array of another library, which only has DLPack."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device != (1, 0):
            raise BufferError("the memory is that of a GPU")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_arrays_of_other_libraries_are_read_in_place(con: ts.Connection) -> None:
    y = np.arange(12.0).reshape(3, 4)
    x = Foreign(y.T)
    relation = con.sql("SELECT x FROM x")
    y[0, 0] = 7
    np.testing.assert_array_equal(relation.to_numpy(), y.T)
    x = Foreign(y, (2, 0))
    with pytest.raises(ts.UserError, match="GPU") as told:
        con.sql("SELECT x FROM x")
    assert told.value.code == "unsupported" and "CPU" in str(told.value.hint)


def test_dlpack_has_the_arguments_of_the_protocol(con: ts.Connection) -> None:
    x = np.arange(6.0).reshape(2, 3)
    relation = con.sql("SELECT x * 2 AS y FROM x")
    np.testing.assert_array_equal(np.from_dlpack(relation), x * 2)
    cells = relation.to_numpy()
    assert relation.__dlpack_device__() == (1, 0)
    assert np.shares_memory(np.from_dlpack(Held(relation.__dlpack__())), cells)
    assert np.shares_memory(np.from_dlpack(Held(relation.__dlpack__(dl_device=(1, 0), stream=None))), cells)
    assert not np.shares_memory(np.from_dlpack(Held(relation.__dlpack__(copy=True))), cells)
    relation.__dlpack__(max_version=(1, 1))
    with pytest.raises(BufferError, match="device"):
        relation.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        con.sql("SELECT x AS a, x AS b FROM x").__dlpack__()


class Held:
    """A capsule that is there already."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_numpy_has_no_mask_so_missing_cells_are_filled(con: ts.Connection) -> None:
    x = np.ma.masked_equal(np.arange(4), 2)
    relation = con.sql("SELECT x FROM x")
    with pytest.raises(ts.UserError, match="1 of 4") as told:
        np.asarray(relation)
    assert "to_numpy" in str(told.value.hint)
    np.testing.assert_array_equal(np.asarray(relation, dtype=float), [0, 1, np.nan, 3])
    some = pa.table({"v": [1.5, None], "n": [1, None], "t": pa.array([None, 5], pa.timestamp("us"))})
    np.testing.assert_array_equal(np.asarray(con.sql("SELECT v FROM some")), [1.5, np.nan])
    assert np.isnat(np.asarray(con.sql("SELECT t FROM some"))).tolist() == [True, False]
    with pytest.raises(ts.UserError):
        np.asarray(con.sql("SELECT n FROM some"))
    # NumPy before 2 does not ask.
    with pytest.raises(ValueError, match="copy"):
        con.sql("SELECT v FROM some").__array__(copy=False)
    with pytest.raises(ValueError, match="copy"):
        con.sql("SELECT n FROM some WHERE n = 1").__array__(dtype="f4", copy=False)
    plain = con.sql("SELECT 1.5 AS v FROM some")
    assert plain.__array__(copy=False).tolist() == [1.5, 1.5]


# Names


def test_bodies_of_classes_and_generators_see_the_function_around_them(con: ts.Connection) -> None:
    x = np.arange(4.0)

    class Model:
        total = float(con.sql("SELECT sum(x) AS s FROM x").to_numpy())
        scales = [float(con.sql(f"SELECT sum(x) * {k} AS s FROM x").to_numpy()) for k in (1, 2)]

    assert Model.total == x.sum() and Model.scales == [6, 12]
    assert sum(float(con.sql(f"SELECT sum(x) * {k} AS s FROM x").to_numpy()) for k in (1, 2)) == 18

    def closure() -> float:
        assert x.size
        return float(con.sql("SELECT sum(x) AS s FROM x").to_numpy())

    assert closure() == 6


def test_a_name_of_the_catalog_is_not_hidden_by_what_cannot_be_read(con: ts.Connection) -> None:
    con.sql("CREATE TENSOR x AS SELECT arange(5) AS x")
    x: Any = np.zeros(2, dtype=complex)
    assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == 10
    # What a reader has stays in it.
    x = pa.table({"x": [1, 2]}).to_reader()
    assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == 10
    assert x.read_all().num_rows == 2


@pytest.mark.parametrize(
    ("y", "way"),
    [
        ([1, 2], "tessera_sql.tensor"),
        ({"a": [1]}, "DataFrame"),
        ("data.zarr", "FROM 'data.zarr'"),
        (pd.Index([1, 2]), "tessera_sql.tensor"),
        (xr.Variable(("a",), [1]), "DataArray"),
        (3, "parameters"),
        (np.float32(3), "parameters"),
        (pd.Timestamp("2020"), "parameters"),
        (object(), "__arrow_c_stream__"),
    ],
)
def test_what_is_no_relation_has_a_way_out(con: ts.Connection, y: Any, way: str) -> None:
    with pytest.raises(ts.UserError, match="Python variable `y`") as told:
        con.sql("SELECT * FROM y").run()
    assert told.value.hint is not None and way in told.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "SELECT depth, place FROM frame NATURAL JOIN sites",
        "SELECT thirty FROM frame PIVOT (sum(depth) FOR level IN (30 AS thirty))",
        "SELECT depth FROM frame t(depth, second, third)",
        "SELECT depth FROM sites, frame AS t(depth, second, third)",
        "SELECT depth FROM frame WHERE (level > 30)",
        "FROM frame",
        "FROM frame SELECT depth WHERE level > 30",
        "SELECT station, 30, 2.5 FROM sites UNION ALL FROM frame",
        "WITH f AS (FROM frame) FROM f",
        "UNPIVOT frame ON depth, level",
        "SUMMARIZE frame",
        "SUMMARIZE FROM frame SELECT depth",
    ],
)
def test_columns_that_a_statement_reads_without_their_names(con: ts.Connection, query: str) -> None:
    whole = pl.DataFrame({"station": [1, 2, 1], "level": [30, 30, 40], "depth": [0.5, 1.5, 2.5]})
    sites = pl.DataFrame({"station": [1, 2], "place": ["Oslo", "Rome"]})
    rows = [con.sql(query, locals={"frame": f, "sites": sites}).fetchall() for f in (whole, whole.lazy())]
    assert sorted(rows[0]) == sorted(rows[1])


def test_a_name_in_another_case_has_a_hint(con: ts.Connection) -> None:
    air = np.zeros(3)
    with pytest.raises(ts.UserError, match="did you mean the Python variable `air`"):
        con.sql("SELECT air FROM AIR").run()
    assert con.sql("SELECT air FROM air").to_numpy().shape == air.shape


# Queries


def test_a_relation_is_a_relation_of_other_queries(con: ts.Connection, tmp_path: Any) -> None:
    ds = xr.Dataset(
        {"t": (("time", "lat"), np.arange(12.0).reshape(4, 3), {"units": "K"})},
        coords={"time": pd.date_range("2020-01-01", periods=4), "lat": [10.0, 20.0, 30.0], "name": ("lat", ["a", "b", "c"])},
    )
    warm = con.sql("SELECT t - mean(t, 'time') AS anomaly, max(t, 'time') AS top FROM ds")
    got = con.sql("SELECT anomaly[lat => 20] AS a FROM warm").to_xarray()
    np.testing.assert_array_equal(got, ds.t.sel(lat=20) - ds.t.sel(lat=20).mean("time"))
    np.testing.assert_array_equal(got.time, ds.time)
    assert con.sql("SELECT lat, avg(anomaly) AS a FROM warm GROUP BY lat ORDER BY lat").fetchall() == [
        (10.0, 0.0),
        (20.0, 0.0),
        (30.0, 0.0),
    ]
    # Rows are a table; without names of dimensions, and of other connections, too.
    table = con.sql("SELECT lat, max(t) AS m FROM ds GROUP BY lat")
    assert rows(con, "SELECT sum(m) AS s FROM r", r=table) == [(30.0,)]
    x = np.ma.masked_equal(np.arange(6).reshape(2, 3), 4)
    plain = con.sql("SELECT x, x + 1 AS y FROM x")
    with ts.connect(warehouse=tmp_path / "other") as other:
        assert other.sql("SELECT sum(x) AS s FROM plain").to_numpy() == x.sum()
        np.testing.assert_array_equal(other.sql("SELECT y FROM plain").to_numpy().mask, x.mask)
    scalar = con.sql("SELECT sum(x) AS s FROM x")
    assert con.sql("SELECT s * 2 AS d FROM scalar").to_numpy() == 2 * x.sum()
    time = xr.date_range("2001-02-27", periods=3, calendar="noleap", use_cftime=True)
    da = xr.DataArray(np.arange(3.0), dims="time", coords={"time": time}, name="da")
    later = con.sql("SELECT da + 1 AS v FROM da")
    assert con.sql("SELECT month(time) AS m FROM later").to_numpy().tolist() == [2, 2, 3]


# Tables


def test_readers_of_pyarrow_give_their_rows_to_every_statement(con: ts.Connection) -> None:
    table = pa.table({"a": [1, 2, 3], "s": ["x", "y", None]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=2))
    for _ in range(2):
        assert con.sql("SELECT sum(a) AS n, count(s) AS c FROM reader").fetchall() == [(6, 2)]
    batch = table.to_batches()[0]
    assert con.sql("SELECT sum(a) AS n FROM batch").fetchall() == [(6,)]
    ints, chunked = table["a"].chunk(0), table["a"]
    assert con.sql("SELECT sum(ints) AS n FROM ints").fetchall() == [(6,)]
    assert con.sql("SELECT sum(chunked) AS n FROM chunked").fetchall() == [(6,)]


def test_lazy_tables_are_read_by_the_columns_that_a_statement_names(con: ts.Connection, tmp_path: Any) -> None:
    table = pa.table({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "unused": ["x", "y", "z"]})
    pa.dataset.write_dataset(table, tmp_path / "parts", format="parquet")
    files = pa.dataset.dataset(tmp_path / "parts")

    lazy = pl.from_arrow(table).lazy().select("a", "b", "unused")  # type: ignore[union-attr]
    for name in ("files", "lazy"):
        assert con.sql(f"SELECT sum(a) AS n FROM {name} WHERE b > 1").fetchall() == [(5,)], name
        assert con.sql(f"SELECT * FROM {name} WHERE a = 1").fetchall() == [(1, 0.5, "x")], name
        assert con.sql(f"SELECT 1 AS one FROM {name}").fetchall() == [(1,)] * 3, name


def test_the_index_of_a_dataframe_is_columns_if_it_has_names(con: ts.Connection) -> None:
    df = pd.DataFrame({"v": [1.0, 2.0, 3.0]}, index=pd.Index([3, 5, 7], name="k"))
    assert con.sql("SELECT k, v FROM df WHERE k > 3").fetchall() == [(5, 2.0), (7, 3.0)]
    # pandas makes a range of such an index, and its Arrow stream leaves ranges out.
    counted = df.reset_index(drop=True).rename_axis("n")
    assert con.sql("SELECT n FROM counted WHERE v > 1").fetchall() == [(1,), (2,)]
    part = pd.DataFrame({"v": [1, 2, 3]})
    part = part[part.v > 1]
    assert con.sql("SELECT * FROM part").columns == ["v"]
    series = df.v
    assert con.sql("SELECT k, v FROM series WHERE v = 2").fetchall() == [(5, 2.0)]
    grouped = pd.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "v": [1, 2, 3]}).groupby(["a", "b"]).sum()
    assert con.sql("SELECT a, b, v FROM grouped ORDER BY a, b").fetchall() == [(1, "x", 1), (1, "y", 2), (2, "x", 3)]


def test_columns_of_pandas_of_every_dtype(con: ts.Connection) -> None:
    df = pd.DataFrame(
        {
            "n": pd.array([1, None, 3], dtype="Int16"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "f": pd.array([0.5, None, 2.5], dtype="Float64"),
            "s": pd.array(["x", None, "z"], dtype="string"),
            "c": pd.Categorical(["x", None, "x"]),
            "t": pd.to_datetime(["2020-01-01 12:00", None, "2020-07-01 00:00"]),
            "z": pd.to_datetime(["2020-01-01 12:00", None, "2020-07-01 00:00"]).tz_localize("Europe/Berlin"),
            "d": pd.to_timedelta([1, None, 3], unit="h"),
            "h": np.array([0.5, 1.5, 2.5], dtype="f2"),
        }
    )
    got = con.sql("SELECT * FROM df").df()
    assert list(got.columns) == list(df.columns)
    for name in df.columns:
        assert got[name].isna().tolist() == df[name].isna().tolist(), name
        known = df[name].notna()
        assert got[name][known].tolist() == df[name][known].tolist(), name
    assert got.n.dtype == "Int16" and got.b.dtype == "boolean"
    assert str(got.z.dt.tz) == "Europe/Berlin"
    assert con.sql("SELECT c, count(*) AS n FROM df WHERE c = 'x' GROUP BY c").fetchall() == [("x", 2)]
    summer = con.sql("SELECT z FROM df WHERE n = 3").fetchall()[0][0]
    assert summer == datetime.datetime(2020, 6, 30, 22, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("df", "reason"),
    [
        (pd.DataFrame({"a": [1j]}), "a with type complex128"),
        (pd.DataFrame({"a": [1, "x"]}), "column a"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names"),
        (pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}), "Sparse"),
    ],
)
def test_tables_that_arrow_has_no_form_for_are_refused(con: ts.Connection, df: pd.DataFrame, reason: str) -> None:
    with pytest.raises(ts.UserError, match="`df` is no table") as told:
        con.sql("SELECT * FROM df")
    assert reason in str(told.value) and told.value.hint


def test_values_of_columns_are_those_of_pyarrow(con: ts.Connection) -> None:
    table = pa.table(
        {
            "dec": pa.array([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
            "wide": pa.array([decimal.Decimal("-123456789012345678901234567890.5"), None], pa.decimal256(50, 1)),
            "ms": pa.array([datetime.time(1, 2, 3, 4000), None], pa.time32("ms")),
            "us": pa.array([datetime.time(23, 59, 59, 999999), None], pa.time64("us")),
            "span": pa.array([datetime.timedelta(days=-2, microseconds=5), None], pa.duration("us")),
            "half": pa.array(np.array([0.5, 1.5], dtype="f2")),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "large": pa.array([[0.5], None], pa.large_list(pa.float64())),
            "pair": pa.array([[1, 2], None], pa.list_(pa.int64(), 2)),
            "record": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int8()), ("b", pa.string())])),
            "day": pa.array([datetime.date(1960, 2, 29), None]),
            "day64": pa.array([datetime.date(2020, 2, 29), None], pa.date64()),
            "nanos": pa.array([1_600_000_000_123_456_000, None], pa.timestamp("ns")),
            "zoned": pa.array([0, None], pa.timestamp("s", "America/New_York")),
        }
    )
    for name in table.column_names:
        got = [row[0] for row in rows(con, f"SELECT {name} FROM t", t=table)]
        # pandas and NumPy have values of their own for nanoseconds and for half floats.
        want = [v.to_pydatetime() if hasattr(v, "to_pydatetime") else v for v in table[name].to_pylist()]
        want = [v.item() if isinstance(v, np.generic) else v for v in want]
        assert got == want, name
        assert [type(v) for v in got] == [type(v) for v in want], name


def test_long_results_become_tuples_page_by_page(con: ts.Connection) -> None:
    count = 3_000_000
    numbers = pa.table({"a": np.arange(count), "b": np.arange(count) * 0.5})
    # More than the part of the memory limit that results may have.
    relation = con.sql("SELECT a, b FROM numbers WHERE a >= 0")
    assert relation.fetchone() == (0, 0.0)
    assert relation.fetchmany(2000)[-1] == (2000, 1000.0)
    assert relation.row_count == count and len(relation) == count
    assert len(repr(relation).splitlines()) == 14 and "2999990 more" in repr(relation)
    reader = pa.RecordBatchReader.from_stream(relation) if hasattr(pa.RecordBatchReader, "from_stream") else None
    if reader is not None:
        assert sum(batch.num_rows for batch in reader) == count
    rest = relation.fetchall()
    assert len(rest) == count - 2001 and rest[0] == (2001, 1000.5)
    assert relation.fetchone() is None and relation.fetchmany(3) == []
    with pytest.raises(ts.UserError):
        relation.fetchmany(-1)


def test_columns_of_a_join_may_have_one_name(con: ts.Connection) -> None:
    a, b = pd.DataFrame({"k": [1, 2], "v": [0.5, 1.5]}), pd.DataFrame({"k": [2, 3], "v": [2.5, 3.5]})
    joined = con.sql("SELECT * FROM a JOIN b ON a.k = b.k", locals={"a": a, "b": b})
    assert joined.fetchall() == [(2, 1.5, 2, 2.5)]
    frame = joined.df()
    # DuckDB's names.
    assert list(frame.columns) == ["k", "v", "k_1", "v_1"] and frame.to_numpy().tolist() == [[2, 1.5, 2, 2.5]]
    assert {name: column.tolist() for name, column in joined.to_numpy().items()} == {
        "k": [2], "v": [1.5], "k_1": [2], "v_1": [2.5]
    }
    assert set(joined.to_xarray().data_vars) == {"k", "v", "k_1", "v_1"}


def test_columns_of_polars_of_nothing_but_null(con: ts.Connection) -> None:
    frame = pl.DataFrame({"a": [None, None], "n": [1, None]})
    assert con.sql("SELECT a, n FROM frame").fetchall() == [(None, 1), (None, None)]


def test_labels_of_a_dimension_are_a_relation(con: ts.Connection) -> None:
    ds = xr.Dataset({"v": ("lat", [1.0, 2.0])}, coords={"lat": ("lat", [10.0, 60.0], {"units": "degrees_north"})})
    lat = ds.lat
    got = con.sql("SELECT cos(radians(lat)) AS weight FROM lat").to_xarray()
    np.testing.assert_allclose(got, np.cos(np.radians(ds.lat)))
    np.testing.assert_array_equal(got.lat, ds.lat)
    lat = ds.lat + 1
    with pytest.raises(ts.UserError, match="coordinate of its own name"):
        con.sql("SELECT lat FROM lat")


def test_totals_are_along_row(con: ts.Connection) -> None:
    df = pd.DataFrame({"v": [1.0, 2.0]})
    got = con.sql("SELECT sum(v) AS s, count(*) AS n FROM df").to_xarray()
    assert dict(got.sizes) == {"row": 1} and got.s.values.tolist() == [3]
    with pytest.raises(ts.Error, match="rows of tables") as told:
        con.sql("SELECT v FROM df").estimate()
    assert told.value.code == "unsupported"


def test_describe_tells_of_variables(con: ts.Connection) -> None:
    x, df = np.zeros((2, 3)), pd.DataFrame({"a": [1]})
    assert con.sql("DESCRIBE x").fetchall() == [("x", "variable", "float64", "dim_0=2, dim_1=3", "2, 3", "")]
    assert con.sql("DESCRIBE df").fetchall()[0][:3] == ("a", "column", "int64")
    with pytest.raises(ts.UserError, match="`x`"):
        con.sql("DESCRIBE x", locals=False)


def test_periods_are_no_numbers(con: ts.Connection) -> None:
    df = pd.DataFrame({"p": pd.period_range("2020-01", periods=2, freq="M"), "v": [1, 2]})
    with pytest.raises(ts.UserError, match="`p` of `df`") as told:
        con.sql("SELECT p FROM df").run()
    assert "to_timestamp" in str(told.value)
