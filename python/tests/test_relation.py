"""Relations: lazy, described without running, in every form."""

from __future__ import annotations

import datetime
import decimal
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import tessera_sql as ts


def test_nothing_runs_before_it_is_needed(con: ts.Connection) -> None:
    x = np.zeros((1000, 500), dtype=np.float32)
    relation = con.sql("SELECT x - mean(x, 0) AS y, std(x) AS s FROM x")
    text = repr(relation)
    assert "has not run" in text and "y  float32  [dim_0: 1000, dim_1: 500]" in text
    assert "1.9 MiB" in text
    assert relation.columns == ["y", "s"]
    assert relation.dtypes == ["float32", "float32"]
    estimate = relation.estimate()
    assert estimate.peak_bytes > 0 and estimate.result_bytes >= x.nbytes and estimate.operands > 0
    assert "reduce" in relation.explain()
    assert "<table>" in relation._repr_html_()
    assert relation._reply is None
    assert relation.run() is relation and "has run" in repr(relation)
    assert "ran" in relation.explain(analyze=True) or "measured" in relation.explain(analyze=True)


def test_statements_that_change_something_run_at_once(con: ts.Connection) -> None:
    assert con.sql("CREATE TENSOR a AS SELECT arange(3) AS a") is None
    results = con.sql("SET tessera.threads = 1; SELECT a + 1 AS b FROM a; SHOW TENSORS")
    assert results[0] is None
    np.testing.assert_array_equal(results[1].to_numpy(), [1, 2, 3])
    assert results[2].fetchall()[0][0] == "a"
    lazy = con.sql("SELECT a FROM a; SELECT a * 2 AS b FROM a")
    assert [r._reply for r in lazy] == [None, None]
    assert con.sql("") == []
    assert str(con.sql("EXPLAIN SELECT a FROM a")).startswith("surface: tensor")


def test_parameters(con: ts.Connection) -> None:
    assert con.sql("SELECT $k * 2 AS v", {"k": 4}).to_numpy() == 8
    assert con.sql("SELECT ? + ? AS v", [1, np.int64(2)]).to_numpy() == 3
    when = datetime.date(2020, 2, 3)
    assert con.sql("SELECT month($t::timestamp) AS m", {"t": when}).fetchall() == [(2,)]
    assert con.sql("SELECT ? AS v", [np.array(4)]).to_numpy() == 4
    assert con.sql("SELECT ? AS v", [decimal.Decimal("1.10")]).to_numpy() == 1.1
    for nothing in (np.datetime64("NaT"), pd.NaT, None):
        assert con.sql("SELECT ? AS v FROM (VALUES (1)) t(k)", [nothing]).fetchall() == [(None,)]
    for wrong in ([np.zeros(3)], "ab", [float("nan")], [np.float32("inf")], [datetime.timedelta(1)], [decimal.Decimal("NaN")], [decimal.Decimal("0.12345678901234567890")]):
        with pytest.raises(ts.UserError):
            con.sql("SELECT ? AS v", wrong)  # type: ignore[arg-type]
    with pytest.raises(ts.UserError, match="k"):
        con.sql("SELECT $k AS v", {})


def test_tables_go_in_and_out(con: ts.Connection) -> None:
    df = pd.DataFrame({"city": ["Oslo", "Rome", "Oslo"], "n": [1, 2, 3], "v": [0.5, np.nan, 2.0]})
    rows = pa.table({"city": ["Oslo", "Rome", "Oslo"], "n": [1, 2, 3], "v": [0.5, None, 2.0]})
    frame = pl.from_arrow(rows)
    for relation in ("df", "rows", "frame"):
        got = con.sql(
            f"SELECT city, sum(n) AS n, sum(v) AS v FROM {relation} GROUP BY city ORDER BY city"
        )
        assert got.fetchall()[0] == ("Oslo", 4, 2.5), relation
        assert got.columns == ["city", "n", "v"]
        columns = got.to_numpy()
        assert columns["city"].tolist() == ["Oslo", "Rome"] and columns["n"].tolist() == [4, 2]
    assert got.arrow().to_pydict() == {"city": ["Oslo", "Rome"], "n": [4, 2], "v": [2.5, None]}
    assert pa.table(got).num_rows == 2
    assert got.pl().shape == (2, 3)
    out = got.df()
    assert list(out.columns) == ["city", "n", "v"] and np.isnan(out.v[1])
    series, other = df.n, frame["n"]
    assert con.sql("SELECT sum(n) AS s FROM series").fetchone() == (6,)
    assert con.sql("SELECT sum(n) AS s FROM other").fetchone() == (6,)
    column_ = rows["n"]
    assert con.sql("SELECT sum(column_) AS s FROM column_").fetchone() == (6,)


def test_values_are_those_of_python(con: ts.Connection) -> None:
    row = con.sql(
        "SELECT 1 AS i, 2.5 AS f, true AS b, 'x' AS s, NULL AS n, date '2020-01-02' AS d, "
        "timestamp '2020-01-02T03:04:05.678' AS t, [1, 2] AS l, 1.10::decimal(10, 2) AS c "
        "FROM (VALUES (1)) v(k)"
    ).fetchall()
    assert row[0][:7] == (
        1,
        2.5,
        True,
        "x",
        None,
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2, 3, 4, 5, 678000),
    )
    assert row[0][7] == [1, 2] and str(row[0][8]) == "1.10"


def test_tensors_are_tables_with_a_row_for_each_cell(con: ts.Connection) -> None:
    t = ts.tensor(np.arange(4.0).reshape(2, 2), dims=["y", "x"], coords={"y": [10, 20]})
    relation = con.sql("SELECT t * 2 AS v FROM t")
    assert relation.fetchall() == [(10, 0, 0.0), (10, 1, 2.0), (20, 0, 4.0), (20, 1, 6.0)]
    assert relation.fetchall() == [] and relation.row_count == 4
    assert relation.df().columns.tolist() == ["y", "x", "v"]
    # After the cells have left as an array, too.
    relation.to_numpy()
    assert relation.arrow().num_rows == 4


def test_rows_that_were_read_show_themselves(con: ts.Connection) -> None:
    df = pd.DataFrame({"city": ["Oslo", None, "a\nb"], "n": [1, 22, 333]})
    relation = con.sql("SELECT city, n FROM df ORDER BY n")
    assert "has not run" in repr(relation)
    lines = repr(relation.run()).splitlines()
    assert lines[0] == "<tessera_sql.Relation: 3 rows>"
    types = [kind for _, kind in relation.schema]
    assert [line.split() for line in lines[1:]] == [["city", "n"], types, ["Oslo", "1"], ["NULL", "22"], ["a", "b", "333"]]
    # Numbers are at the right.
    assert len({len(line) for line in lines[1:]}) == 1
    # Looking at rows takes none of them.
    assert relation._repr_html_().count("<tr>") == 4
    assert len(relation.fetchall()) == 3
    con.sql("CREATE TENSOR kept AS SELECT arange(3) AS v")
    assert "kept" in repr(con.sql("SHOW TENSORS"))
    assert repr(con.sql("SELECT n FROM df WHERE n = 1").run()).startswith("<tessera_sql.Relation: 1 row>")


def test_a_relation_is_appended_to_a_store(con: ts.Connection, tmp_path: Path) -> None:
    time = pd.date_range("2020-01-01", periods=4)
    ds = xr.Dataset({"v": (("time", "x"), np.arange(8.0).reshape(4, 2))}, coords={"time": time})
    store = tmp_path / "out.zarr"
    con.sql("SELECT v[0:3] AS v FROM ds").to_zarr(store)
    con.sql("SELECT v[3:4] AS v FROM ds").to_zarr(store, append_dim="time")
    xr.testing.assert_equal(xr.open_zarr(store, chunks=None).load(), ds)
    for wrong in ({"mode": "a"}, {"mode": "w", "append_dim": "time"}, {"mode": "r+"}):
        with pytest.raises(ts.UserError, match="mode"):
            con.sql("SELECT v FROM ds").to_zarr(store, **wrong)  # type: ignore[arg-type]


def test_a_relation_is_written_to_a_store(con: ts.Connection, tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(2, 3)
    store = tmp_path / "out.zarr"
    relation = con.sql("SELECT x * 2 AS y FROM x")
    relation.to_zarr(store)
    np.testing.assert_array_equal(con.sql(f"SELECT y FROM '{store}'").to_numpy(), x * 2)
    with pytest.raises(ts.Error) as told:
        relation.to_zarr(store)
    assert told.value.code == "exists" or "exist" in str(told.value)
    relation.to_zarr(store, mode="w")
    with pytest.raises(ts.UserError):
        relation.to_zarr(store, mode="a")


def test_errors_say_what_and_where(con: ts.Connection) -> None:
    with pytest.raises(ts.UserError) as told:
        con.sql("SELECT 1 +")
    assert told.value.code == "syntax" and told.value.position is not None
    with pytest.raises(ts.UserError) as told:
        con.sql("SELECT meen(x) AS m FROM (SELECT arange(3) AS x) t").run()
    assert "did you mean" in str(told.value) and told.value.hint
    again = pickle.loads(pickle.dumps(told.value))
    assert (again.code, str(again), type(again)) == (told.value.code, str(told.value), ts.UserError)
    with pytest.raises(ts.LimitError) as limit:
        con.sql("SELECT random_normal([100000, 100000], seed => 1) AS x").run()
    assert limit.value.code in ("result_too_large", "memory_exceeded", "no_place")
    with pytest.raises(ts.Error) as told2:
        con.sql("SELECT x FROM '/no/such/file.npy'").run()
    assert "/no/such/file.npy" in str(told2.value)
    with pytest.raises(TypeError):
        con.sql(1)  # type: ignore[arg-type]


def test_settings_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ts.UserError, match="did you mean `memory-limit`"):
        ts.connect(warehouse=tmp_path, memory_limitt="1GiB")
    with pytest.raises(ts.UserError, match="memory-limit"):
        ts.connect(warehouse=tmp_path, memory_limit="much")
    with pytest.raises(ts.RetryError):
        ts.connect("http://127.0.0.1:9")
    for place in ("lab", "localhost:8080", "ftp://127.0.0.1"):
        with pytest.raises(ts.UserError, match="no URL of a server") as told:
            ts.connect(place)
        assert "warehouse=" in str(told.value.hint)
    with pytest.raises(ts.UserError, match="log `what") as told:
        ts.connect(warehouse=tmp_path, log="what=?")
    assert told.value.hint
    with ts.connect(warehouse=tmp_path, threads=1) as con:
        assert con.sql("SELECT 1 AS x").fetchone() == (1,)
        again = con.settings
    assert con.closed
    with pytest.raises(ts.UserError, match="closed"):
        con.sql("SELECT 1 AS x")
    with ts.connect(**again) as con:
        assert con.sql("SELECT 2 AS x").fetchone() == (2,)


def test_what_is_surely_tensors_is_planned_once(con: ts.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = xr.Dataset({"v": (("y", "x"), np.arange(6.0).reshape(2, 3))}, coords={"y": [5, 7]})
    pairs = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    texts: list[str] = []
    run = ts.Connection._run

    def watched(self: ts.Connection, statement: Any, text: str | None = None, **options: bool) -> object:
        texts.append(text or statement.text)
        return run(self, statement, text, **options)

    monkeypatch.setattr(ts.Connection, "_run", watched)
    assert con.sql("SELECT v * 2 AS w FROM ds").to_xarray().dims == ("y", "x")
    assert con.sql("SELECT [y], [x], v FROM ds WHERE y > 5").to_xarray().shape == (1, 3)
    assert len(texts) == 2
    # Rows of a table are rows, although only the catalog tells.
    np.testing.assert_array_equal(con.sql("SELECT a, b FROM pairs").to_xarray()["b"], [0.5, 1.5])
    texts.clear()
    got = con.sql("SELECT y, avg(v) AS m FROM ds GROUP BY y").to_xarray()
    np.testing.assert_array_equal(got["m"].sel(y=7), 4)
    assert len(texts) == 1


def test_places_of_errors_are_those_in_the_query(con: ts.Connection, tmp_path: Path) -> None:
    relation = con.sql("SELECT arange(3) AS a,\n  meen([1, 2]) AS b")
    calls = [
        relation.run,
        relation.explain,
        relation.estimate,
        lambda: relation.columns,
        lambda: relation.to_zarr(tmp_path / "a.zarr"),
    ]
    for call in calls:
        with pytest.raises(ts.UserError, match="unknown function") as told:
            call()
        assert told.value.position == (2, 3)
    assert "\n2 |   meen([1, 2]) AS b\n      ^^^^" in repr(relation)
    tenth = con.sql("SELECT" + 8 * "\n" + "\nmeen([1, 2]) AS b")
    assert "\n10 | meen([1, 2]) AS b\n     ^^^^" in repr(tenth)
    ninth = con.sql("SELECT" + 8 * "\n" + "meen([1, 2]) AS b")
    assert "\n9  | meen([1, 2]) AS b\n     ^^^^" in repr(ninth)


def test_a_relation_is_not_pickled(con: ts.Connection) -> None:
    with pytest.raises(TypeError, match="pickle its result"):
        pickle.dumps(con.sql("SELECT 1 AS a"))
