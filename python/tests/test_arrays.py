"""NumPy arrays in and out."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera_sql as ts

DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]


def test_a_local_array_is_a_relation() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 40)).astype(np.float32)
    z = ts.sql("SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x").to_numpy()
    np.testing.assert_allclose(z, (x - x.mean(0)) / x.std(0), rtol=1e-5, atol=1e-6)
    assert type(z) is np.ndarray and z.dtype == np.float32 and z.shape == (50, 40)


def test_a_comprehension_sees_the_names_around_it(con: ts.Connection) -> None:
    x = np.arange(4.0)
    assert [float(con.sql(f"SELECT sum(x) * {k} AS s FROM x").to_numpy()) for k in (1, 2)] == [6, 12]
    assert {k: con.sql("SELECT sum(x) AS s FROM x").to_numpy() for k in range(2)} == {0: 6, 1: 6}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_in_and_out(con: ts.Connection, dtype: str) -> None:
    x = (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(4, 6)
    out = con.sql("SELECT x FROM x").to_numpy()
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out, x)
    # Big-endian memory is copied.
    swapped = x.astype(x.dtype.newbyteorder(">"))
    np.testing.assert_array_equal(con.sql("SELECT x FROM x", locals={"x": swapped}).to_numpy(), x)


def test_every_layout_is_read(con: ts.Connection) -> None:
    base = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5)
    packed = np.zeros(7, dtype=[("a", "u1"), ("b", "<f8")])
    packed["b"] = np.arange(7.0)
    layouts = {
        "transposed": base.T,
        "fortran": np.asfortranarray(base),
        "reversed": base[::-1, :, ::-1],
        "stepped": base[:, ::2, 1::3],
        "repeated": np.broadcast_to(base[:, :1], base.shape),
        "scalar": np.array(7.5),
        "empty": np.zeros((0, 3)),
        "field of packed records": packed["b"],
        "read-only": np.frombuffer(b"\x01\x02\x03", dtype=np.uint8),
        "unaligned": np.frombuffer(b"\0" + np.arange(3.0).tobytes(), dtype="<f8", offset=1),
    }
    for name, x in layouts.items():
        out = con.sql("SELECT x FROM x").to_numpy()
        assert out.shape == x.shape, name
        np.testing.assert_array_equal(out, x, err_msg=name)


def test_truth_values_of_other_memory_are_0_and_1(con: ts.Connection) -> None:
    x = np.frombuffer(b"\x00\x02\x01\xff", dtype=bool)
    assert con.sql("SELECT sum(x) AS n FROM x").to_numpy() == 3


def test_masks_go_in_and_out(con: ts.Connection) -> None:
    x = np.ma.masked_where(np.arange(12).reshape(3, 4) % 5 == 0, np.arange(12).reshape(3, 4))
    out = con.sql("SELECT x FROM x").to_numpy()
    np.testing.assert_array_equal(out.mask, x.mask)
    assert out.dtype == x.dtype and out.sum() == x.sum()
    np.testing.assert_allclose(con.sql("SELECT mean(x, 0) AS m FROM x").to_numpy(), x.mean(0))
    # Without a masked cell it is a plain array.
    plain = con.sql("SELECT x FROM x", locals={"x": np.ma.MaskedArray([1, 2])}).to_numpy()
    assert type(plain) is np.ndarray


def test_times_are_datetimes(con: ts.Connection) -> None:
    t = np.array(["2020-01-01", "NaT", "1970-01-01T00:00:01.5"], dtype="datetime64[ns]")
    out = con.sql("SELECT t FROM t").to_numpy()
    assert out.dtype == "datetime64[us]"
    np.testing.assert_array_equal(out, t.astype("datetime64[us]"))
    # A time that is missing is masked, as in files.
    assert np.ma.getmaskarray(out).tolist() == [False, True, False]
    count, least = con.sql("SELECT count(t) AS n, min(t) AS t FROM t").fetchone()
    assert count == 2 and np.datetime64(least) == t[2]
    assert con.sql("SELECT isnan(t) AS m FROM t").to_numpy().tolist() == [False, True, False]
    never = np.array("NaT", dtype="datetime64[s]")
    assert con.sql("SELECT count(never) AS n FROM never").to_numpy() == 0
    days = np.arange("2020-02-27", "2020-03-03", dtype="datetime64[D]")
    months = con.sql("SELECT month(days) AS m FROM days").to_numpy()
    np.testing.assert_array_equal(months, [2, 2, 2, 3, 3])


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (np.zeros(2, dtype=complex), "complex"),
        (np.zeros(2, dtype="timedelta64[M]"), "timedelta64"),
        (np.array(["a"]), "<U1"),
        (np.zeros(2, dtype=np.longdouble), "float128"),
        (np.array([object()]), "object"),
        (np.ma.array([(1, 2.0)], dtype=[("a", int), ("b", float)], mask=[(True, False)]), "'a'"),
    ],
)
def test_other_dtypes_are_refused_with_a_way_out(
    con: ts.Connection, x: np.ndarray, reason: str
) -> None:
    with pytest.raises(ts.UserError, match=reason) as told:
        con.sql("SELECT x FROM x")
    assert told.value.code == "unsupported" and told.value.hint


def test_names_of_dimensions_and_labels_are_given(con: ts.Connection) -> None:
    t = ts.tensor(
        np.arange(6.0).reshape(2, 3),
        dims=["lat", "lon"],
        coords={"lat": [50.0, 60.0], "lon": ["a", "b", "c"]},
    )
    rows = con.sql("SELECT lat, lon, t FROM t WHERE lat > 55 ORDER BY lon").fetchall()
    assert rows == [(60.0, "a", 3.0), (60.0, "b", 4.0), (60.0, "c", 5.0)]
    np.testing.assert_array_equal(con.sql("SELECT t[lat => 50] AS v FROM t").to_numpy(), [0, 1, 2])
    for arguments in (
        {"dims": ["lat"]},
        {"dims": ["lat", "lat"]},
        {"dims": ["lat", "lon"], "coords": {"x": [1]}},
        {"dims": ["lat", "lon"], "coords": {"lat": [1]}},
    ):
        with pytest.raises(ts.UserError):
            ts.tensor(np.zeros((2, 3)), **arguments)  # type: ignore[arg-type]


def test_the_catalog_goes_first_and_locals_can_be_turned_off(con: ts.Connection) -> None:
    x = np.arange(3.0)
    con.sql("CREATE TENSOR x AS SELECT arange(5) AS x")
    assert con.sql("SELECT x FROM x").to_numpy().shape == (5,)
    assert con.sql("SELECT x FROM x", locals={"x": x}).to_numpy().shape == (3,)
    con.sql("DROP TENSOR x")
    assert con.sql("SELECT x FROM x").to_numpy().shape == (3,)
    with pytest.raises(ts.UserError, match="`x`") as told:
        con.sql("SELECT x FROM x", locals=False).run()
    assert told.value.code == "unknown_name" and told.value.position == (1, 15)
    assert "SELECT x FROM x\n" in str(told.value) and "^" in str(told.value)


def test_a_variable_of_another_kind_is_named(con: ts.Connection) -> None:
    y = [1, 2, 3]
    with pytest.raises(ts.UserError, match="Python variable `y` is a list"):
        con.sql("SELECT y FROM y").run()
    del y


def test_globals_and_outer_names(con: ts.Connection) -> None:
    assert con.sql("SELECT sum(OUTSIDE) AS s FROM OUTSIDE").to_numpy() == 6

    def inner() -> float:
        return float(con.sql("SELECT sum(OUTSIDE) AS s FROM OUTSIDE").to_numpy())

    assert inner() == 6


OUTSIDE = np.array([1.0, 2.0, 3.0])


def test_a_result_may_be_written_and_outlives_its_connection(con: ts.Connection) -> None:
    x = np.arange(4.0)
    relation = con.sql("SELECT x FROM x")
    out = relation.to_numpy()
    con.close()
    out[0] = 9
    assert x[0] == 0 and relation.to_numpy()[0] == 9
    del relation
    gc.collect()
    assert out.tolist() == [9, 1, 2, 3]


def test_an_array_is_freed_after_its_last_reader(con: ts.Connection) -> None:
    class Array(np.ndarray):
        pass

    def read() -> weakref.ref[Array]:
        # A function of its own: before Python 3.13 a frame keeps what was looked up in it until it ends.
        x = np.arange(1000.0).view(Array)
        relation = con.sql("SELECT sum(x) AS s FROM x")
        gone = weakref.ref(x)
        del x
        assert relation.to_numpy() == 499500.0 and gone() is not None
        return gone

    gone = read()
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None
    assert con._engine.memory_used() == 0


def test_several_items_are_a_dict_and_numpy_takes_one(con: ts.Connection) -> None:
    x = np.arange(6.0).reshape(2, 3)
    both = con.sql("SELECT sum(x, 0) AS a, mean(x, 1) AS b FROM x").to_numpy()
    assert sorted(both) == ["a", "b"]
    np.testing.assert_array_equal(both["a"], [3, 5, 7])
    one = con.sql("SELECT x * 2 AS y FROM x")
    np.testing.assert_array_equal(np.asarray(one), x * 2)
    assert np.asarray(one, dtype=np.int32).dtype == np.int32
    np.testing.assert_array_equal(np.from_dlpack(one), x * 2)
    with pytest.raises(ts.UserError, match="2 items"):
        np.asarray(con.sql("SELECT sum(x, 0) AS a, mean(x, 1) AS b FROM x"))


def test_a_large_array_is_read_in_place_and_returned_once(con: ts.Connection) -> None:
    x = np.ones((4096, 8192), dtype=np.float64)
    # 256 MiB, as much as the memory limit.
    assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == x.size
    del x
    out = con.sql("SELECT full([2048, 4096], 1.5) AS y").to_numpy()
    assert out.shape == (2048, 4096) and (out == 1.5).all()
    assert con._engine.memory_used() == 0


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((1500, 1001), (128, 1001)), ((3, 700, 700), (3, 64, 700)), ((1_500_000,), (70_001,)), ((2, 900, 901), (1, 333, 100))],
)
def test_a_large_result_is_computed_in_one_piece(
    con: ts.Connection, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    x = np.random.default_rng(2).integers(-1000, 1000, shape)
    sql = f"SELECT rechunk(x, {list(chunks)}) * 2 AS y, rechunk(nullif(x, 7), {list(chunks)}) AS m FROM x"
    relation = con.sql(sql)
    relation.run()
    held = con._engine.memory_used()
    y, m = relation.to_numpy().values()
    np.testing.assert_array_equal(y, x * 2)
    np.testing.assert_array_equal(np.ma.getmaskarray(m), x == 7)
    np.testing.assert_array_equal(m.filled(7), x)
    # What belongs to the caller is not charged, and is changed by nobody else.
    assert held is not None and held - con._engine.memory_used() >= x.nbytes * 2
    y[:] = 0
    again = con.sql(sql).to_numpy()["y"]
    np.testing.assert_array_equal(again, x * 2)
    assert not y.any()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("x", lambda x: x),
        ("x[7:1200]", lambda x: x[7:1200]),
        ("x[:, 3:990]", lambda x: x[:, 3:990]),
        ("x[::-1]", lambda x: x[::-1]),
        ("x[[5, 6, 7, 1000, 2, 2]]", lambda x: x[[5, 6, 7, 1000, 2, 2]]),
        ("transpose(x)", lambda x: x.T),
        ("rechunk(x, [100, 1001]) + 1", lambda x: x + 1),
        ("cumsum(rechunk(x, [100, 1001]), 0)", lambda x: np.cumsum(x, 0)),
        ("sort(rechunk(x, [100, 1001]), 1)", lambda x: np.sort(x, 1)),
        ("concat([rechunk(x, [100, 1001]), x])", lambda x: np.concatenate([x, x])),
        ("where(x > 0, x, 0)", lambda x: np.where(x > 0, x, 0)),
        ("x @ transpose(x)", lambda x: x @ x.T),
        ("CAST(rechunk(x, [100, 1001]) AS float64)", lambda x: x.astype(np.float64)),
        ("stack([rechunk(x, [100, 1001]), -x])", lambda x: np.stack([x, -x])),
    ],
)
def test_large_results_are_those_of_numpy(con: ts.Connection, sql: str, expected: Any) -> None:
    x = np.random.default_rng(3).integers(-50, 50, (1237, 1001)).astype(np.float32)
    once = con.sql(f"SELECT {sql} AS y FROM x").to_numpy()
    # Both items are the output of one operand.
    twice = con.sql(f"SELECT {sql} AS y, {sql} AS z FROM x").to_numpy()
    for got in (once, twice["y"], twice["z"]):
        np.testing.assert_array_equal(got, expected(x))
        assert got.dtype == expected(x).dtype
    twice["y"][:] = 0
    np.testing.assert_array_equal(twice["z"], expected(x))
    np.testing.assert_array_equal(con.sql("SELECT sum(x) AS s FROM x").to_numpy(), x.sum(dtype=np.float64))


@pytest.mark.parametrize("rows", [3, 3000])
def test_masked_cells_are_nan_in_xarray(con: ts.Connection, rows: int) -> None:
    """Small results and those in one piece alike."""
    import xarray as xr

    x = ts.tensor(np.arange(rows * 700.0).reshape(rows, 700) % 11, dims=["y", "x"])
    t = ts.tensor(np.full(rows * 700, np.datetime64("2020-01-01", "us")).reshape(rows, 700), dims=["y", "x"])
    sql = (
        "SELECT rechunk(nullif(x, 3), [100, 700]) AS f, rechunk(nullif(CAST(x AS integer), 3), [100, 700]) AS i, "
        "rechunk(where(x = 3, NULL, t), [100, 700]) AS t, rechunk(nullif(x, 99), [100, 700]) AS full FROM x, t"
    )
    got = con.sql(sql, locals={"x": x, "t": t}).to_xarray()
    cells = np.arange(rows * 700.0).reshape(rows, 700) % 11
    np.testing.assert_array_equal(got.f, np.where(cells == 3, np.nan, cells))
    np.testing.assert_array_equal(np.isnat(got.t), cells == 3)
    np.testing.assert_array_equal(got.i_mask, cells == 3)
    assert got.i.dtype == np.int64 or got.i.dtype == np.int32
    np.testing.assert_array_equal(got.full, cells)
    assert isinstance(got, xr.Dataset) and "full_mask" not in got.coords
    numbers = con.sql(sql, locals={"x": x, "t": t}).to_numpy()
    assert not np.ma.isMaskedArray(numbers["full"])
    np.testing.assert_array_equal(np.ma.getmaskarray(numbers["f"]), cells == 3)


PEAK = """
import resource
import numpy as np
import tessera_sql as ts

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

with ts.connect(warehouse={warehouse!r}, memory_limit="2GiB", threads=2) as con:
    x = np.ones((25_000, 1000))
    con.sql("SELECT sum(x) AS s FROM x").to_numpy()
    before = peak()
    y = con.sql("SELECT x * 2 AS y FROM x").to_numpy()
    assert (y[::500] == 2).all()
    print((peak() - before) / y.nbytes)
"""


def test_a_result_is_in_memory_once(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PEAK.format(warehouse=str(tmp_path / "w"))],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 1.3, run.stdout


@pytest.mark.parametrize(
    "positions",
    [[*range(30, 60), *range(20)], [*range(5, 40)], [*range(50, 60), *range(8, 30), *range(10)], [59, 3, 3, 0]],
)
def test_runs_of_positions_are_read_as_numpy_reads_them(con: ts.Connection, positions: list[int]) -> None:
    x = np.random.default_rng(4).normal(size=(7, 60, 5)).astype(np.float32)
    m = np.ma.masked_greater(x, 1)
    listed = f"[{', '.join(map(str, positions))}]"
    for name, array in {"x": x, "swapped": x.transpose(2, 1, 0), "m": m}.items():
        got = con.sql(f"SELECT x[1:4, {listed}] AS v FROM x", locals={"x": array}).to_numpy()
        np.testing.assert_array_equal(got, array[1:4, positions], err_msg=name)
    got = con.sql(f"SELECT mean(x[:, {listed}], 1) AS v FROM x", locals={"x": x}).to_numpy()
    np.testing.assert_allclose(got, x[:, positions].mean(1, dtype="f8"), rtol=1e-5)


@pytest.mark.parametrize("unit", ["Y", "D", "s"])
def test_datetimes_out_of_reach_are_refused(con: ts.Connection, unit: str) -> None:
    x = np.array(["300000-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    with pytest.raises(ts.UserError, match="292277") as told:
        con.sql("SELECT x FROM x").run()
    assert "int64" in str(told.value)
    t = ts.tensor(np.zeros(2), dims=["x"], coords={"x": x})
    with pytest.raises(ts.UserError, match="292277"):
        con.sql("SELECT t FROM t").run()
    reached = np.array(["290000-01-01", "NaT"], dtype=f"datetime64[{unit}]")
    got = con.sql("SELECT x FROM x", locals={"x": reached}).to_numpy()
    np.testing.assert_array_equal(got, reached.astype("datetime64[us]"))


def test_labels_of_uint64_may_be_beyond_int64(con: ts.Connection) -> None:
    labels = np.array([1, 2**63 + 5], dtype=np.uint64)
    t = ts.tensor(np.array([1.0, 2.0]), dims=["x"], coords={"x": labels})
    got = con.sql("SELECT t FROM t").to_xarray()
    assert got.x.dtype == np.uint64
    np.testing.assert_array_equal(got.x, labels)
    assert float(con.sql("SELECT t[x => 9223372036854775813] AS v FROM t").to_numpy()) == 2.0


def test_labels_without_a_form_are_refused(con: ts.Connection) -> None:
    cells = np.zeros(2)
    floats = ts.tensor(cells, dims=["x"], coords={"x": np.ma.masked_array([1.0, 2.0], mask=[False, True])})
    got = con.sql("SELECT floats FROM floats").to_xarray()
    np.testing.assert_array_equal(got.x, [1.0, np.nan])
    for labels, reason in [
        (np.ma.masked_array([1, 2], mask=[False, True]), "masked labels"),
        (np.array([1, 2], dtype=np.longdouble), "dtype"),
    ]:
        t = ts.tensor(cells, dims=["x"], coords={"x": labels})
        with pytest.raises(ts.UserError, match=reason):
            con.sql("SELECT t FROM t").run()
