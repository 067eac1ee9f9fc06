"""The DB-API module (PEP 249)."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tessera_sql as ts
from tessera_sql import dbapi

AIR = Path(__file__).resolve().parents[2] / "tests" / "data" / "cf" / "air.zarr"


@pytest.fixture
def con(tmp_path: Path) -> Iterator[dbapi.Connection]:
    with dbapi.connect(warehouse=str(tmp_path / "warehouse")) as connection:
        yield connection


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    assert issubclass(dbapi.Warning, Exception)
    assert issubclass(dbapi.Error, ts.Error)
    for name in ("InterfaceError", "DatabaseError"):
        assert issubclass(getattr(dbapi, name), dbapi.Error)
        assert getattr(dbapi.Connection, name) is getattr(dbapi, name)
    for name in ("Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"):
        assert issubclass(getattr(dbapi, f"{name}Error"), dbapi.DatabaseError)


def test_rows_are_fetched_in_the_three_ways(con: dbapi.Connection) -> None:
    cur = con.cursor()
    assert cur.description is None
    assert cur.rowcount == -1
    assert cur.execute("SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'd'), (5, 'e')) t(n, s) ORDER BY n") is cur
    assert cur.description is not None
    assert [d[0] for d in cur.description] == ["n", "s"]
    assert all(len(d) == 7 for d in cur.description)
    assert cur.rowcount == 5
    assert cur.fetchone() == (1, "a")
    assert cur.rownumber == 1
    assert cur.arraysize == 1
    assert cur.fetchmany() == [(2, "b")]
    assert cur.fetchmany(2) == [(3, None), (4, "d")]
    assert list(cur) == [(5, "e")]
    assert cur.rowcount == 5
    assert cur.fetchone() is None
    assert cur.fetchmany(3) == []
    assert cur.fetchall() == []
    with pytest.raises(dbapi.ProgrammingError):
        cur.fetchmany(-1)


def test_long_results_are_fetched_page_by_page(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT arange(5000) AS a")
    assert cur.rowcount == 5000 and cur.fetchone() == (0, 0)
    assert [row[1] for row in cur.fetchmany(1500)] == list(range(1, 1501))
    assert cur.rownumber == 1501
    assert [row[1] for row in cur] == list(range(1501, 5000))
    assert cur.rownumber == 5000 and cur.fetchall() == [] and cur.fetchone() is None


def test_decimals_and_times_are_those_of_python(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT 1.10::decimal(10, 2) AS c, time '01:02:03' AS t FROM (VALUES (1)) v(k)")
    assert cur.description is not None
    assert cur.description[0][1] == dbapi.NUMBER and cur.description[1][1] == dbapi.DATETIME
    assert cur.fetchall() == [(decimal.Decimal("1.10"), datetime.time(1, 2, 3))]


def test_a_tensor_is_rows_of_its_dimensions_and_values(con: dbapi.Connection) -> None:
    cur = con.execute(f"SELECT mean(orog, 1) AS m, max(orog, 1) AS top FROM '{AIR}'")
    assert cur.description is not None
    assert [d[0] for d in cur.description] == ["lat", "m", "top"]
    assert all(d[1] == dbapi.NUMBER for d in cur.description)
    rows = cur.fetchall()
    assert [r[0] for r in rows] == [65, 60, 45, 30, 25]
    assert all(m <= top for _, m, top in rows)


def test_plans_are_rows_of_text(con: dbapi.Connection) -> None:
    cur = con.execute("EXPLAIN SELECT arange(4) + 1 AS a")
    assert cur.description == [("plan", "text", None, None, None, None, None)]
    rows = cur.fetchall()
    assert len(rows) == cur.rowcount > 1
    assert any("peak" in line for (line,) in rows)
    ((document,),) = con.execute("EXPLAIN (FORMAT json) SELECT arange(4) AS a").fetchall()
    assert isinstance(json.loads(document), dict)


def test_tensors_that_share_no_rows_are_refused(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT 1 AS a")
    with pytest.raises(dbapi.DatabaseError, match="do not share their dimensions"):
        cur.execute("SELECT arange(3) AS a, arange(5) AS b")
    with pytest.raises(dbapi.InterfaceError, match="no result"):
        cur.fetchone()


def test_type_objects_equal_the_codes_of_their_columns(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT 1 AS i, 2.5 AS f, true AS b, 'x' AS s, DATE '2020-01-02' AS d, TIMESTAMP '2020-01-02 03:04:05' AS t")
    assert cur.description is not None
    types = [dbapi.NUMBER, dbapi.NUMBER, dbapi.NUMBER, dbapi.STRING, dbapi.DATETIME, dbapi.DATETIME]
    every = [dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID]
    for column, expected in zip(cur.description, types, strict=True):
        assert [t for t in every if column[1] == t] == [expected], column
    lists = con.execute("SELECT * FROM (VALUES ([1], ['x'], [DATE '2020-01-02'])) v(n, s, d)").description
    assert lists is not None and not any(column[1] == t for column in lists for t in every)
    row = cur.fetchone()
    assert row is not None
    assert row[:4] == (1, 2.5, True, "x")
    assert row[4] == datetime.date(2020, 1, 2)
    assert row[5] == datetime.datetime(2020, 1, 2, 3, 4, 5)


def test_constructors_make_values_that_are_parameters(con: dbapi.Connection) -> None:
    now = 1_600_000_000
    assert dbapi.DateFromTicks(now) == datetime.date.fromtimestamp(now)
    assert dbapi.TimestampFromTicks(now) == datetime.datetime.fromtimestamp(now)
    assert dbapi.TimeFromTicks(now) == datetime.datetime.fromtimestamp(now).time()
    assert dbapi.Binary(b"x") == b"x"
    assert dbapi.Time(1, 2, 3) == datetime.time(1, 2, 3)
    cur = con.execute(
        f"SELECT count(*) FROM (SELECT time FROM '{AIR}' WHERE time >= ? AND time < ?) t",
        (dbapi.Date(2019, 1, 1), dbapi.Timestamp(2019, 1, 7)),
    )
    assert cur.fetchall() == [(2,)]


def test_parameters_are_a_sequence_or_a_mapping(con: dbapi.Connection) -> None:
    assert con.execute("SELECT ? + ? AS s", [1, 2]).fetchall() == [(3,)]
    assert con.execute("SELECT $a || $b AS s", {"a": "x'", "b": "y"}).fetchall() == [("x'y",)]
    with pytest.raises(dbapi.ProgrammingError):
        con.execute("SELECT ? + ? AS s", [1])


def test_statements_without_a_result_have_no_description(con: dbapi.Connection) -> None:
    cur = con.execute("CREATE TENSOR t AS SELECT arange(4) AS v")
    assert cur.description is None
    assert cur.rownumber is None
    assert cur.rowcount == -1
    with pytest.raises(dbapi.InterfaceError, match="no result"):
        cur.fetchone()
    con.commit()
    assert cur.execute("SELECT sum(v) AS s FROM t").fetchone() == (6,)


def test_executemany_runs_statements_without_a_result(con: dbapi.Connection, tmp_path: Path) -> None:
    cur = con.cursor()
    copy = f"COPY (SELECT arange(3) AS v) TO '{tmp_path}/%s.npy' STORED AS NPY"
    for name in ("a", "b"):
        cur.executemany(copy % name, [()])
    assert sorted(p.name for p in tmp_path.glob("*.npy")) == ["a.npy", "b.npy"]
    with pytest.raises(dbapi.ProgrammingError, match="without a result"):
        cur.executemany("SELECT ? AS x", [[1], [2]])
    assert cur.description is None


def test_scripts_have_a_set_for_each_result(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT 1 AS a; CREATE TENSOR t AS SELECT arange(2) AS v; SELECT 'x' AS b, 2 AS c")
    assert cur.fetchall() == [(1,)]
    assert cur.nextset() is True
    assert cur.fetchall() == [("x", 2)]
    assert cur.nextset() is None
    assert cur.description is None


@pytest.mark.parametrize(
    ("sql", "cls", "code"),
    [
        ("SELEC 1", "ProgrammingError", "syntax"),
        ("SELECT nothing FROM 'DATA'", "ProgrammingError", "unknown_name"),
        ("SELECT * FROM nothing", "ProgrammingError", "unknown_name"),
        ("SELECT t2m[lat => 45.5] AS x FROM 'DATA'", "DataError", "label_not_found"),
        ("SELECT 1 // 0 AS x", "DataError", "division_by_zero"),
        ("CREATE TEMP TENSOR t AS SELECT [k], v FROM (VALUES (1, 2), (1, 3)) t(k, v)", "IntegrityError", "duplicate_key"),
        ("SELECT v FROM 'nowhere.zarr'", "OperationalError", "not_found"),
        ("FROM 'DATA' POSITIONAL JOIN 'DATA'", "NotSupportedError", "unsupported"),
    ],
)
def test_errors_have_the_classes_of_pep_249(con: dbapi.Connection, sql: str, cls: str, code: str) -> None:
    with pytest.raises(dbapi.DatabaseError) as caught:
        con.execute(sql.replace("DATA", str(AIR))).fetchall()
    error = caught.value
    assert (type(error).__name__, error.code) == (cls, code)
    assert isinstance(error.__cause__, ts.Error)
    assert str(error) == str(error.__cause__)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, str(again)) == (type(error), code, str(error))


def test_limits_and_faults_are_not_the_query(con: dbapi.Connection) -> None:
    assert dbapi._class_of(ts.LimitError("x", code="memory_exceeded")) is dbapi.OperationalError
    assert dbapi._class_of(ts.RetryError("x", code="connect")) is dbapi.OperationalError
    assert dbapi._class_of(ts.Cancelled("x", code="cancelled")) is dbapi.OperationalError
    assert dbapi._class_of(ts.InternalError("x", code="internal")) is dbapi.InternalError
    with pytest.raises(dbapi.OperationalError):
        dbapi.connect("http://127.0.0.1:9")


def test_a_failed_statement_leaves_no_old_result(con: dbapi.Connection) -> None:
    cur = con.execute("SELECT 1 AS a")
    with pytest.raises(dbapi.ProgrammingError):
        cur.execute("SELEC")
    assert cur.description is None
    assert cur.execute("SELECT 2 AS a").fetchall() == [(2,)]


def test_there_are_no_transactions(con: dbapi.Connection) -> None:
    con.commit()
    with pytest.raises(dbapi.NotSupportedError):
        con.rollback()


def test_what_is_closed_refuses_work(tmp_path: Path) -> None:
    con = dbapi.connect(warehouse=str(tmp_path / "w"))
    with con.cursor() as cur:
        cur.execute("SELECT 1 AS a")
        cur.setinputsizes([1])
        cur.setoutputsize(10)
    for call in (cur.fetchone, cur.fetchall, cur.nextset, lambda: cur.execute("SELECT 1"), lambda: cur.setinputsizes([])):
        with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
            call()
    cur.close()
    other = con.execute("SELECT 1 AS a")
    con.close()
    con.close()
    for call in (con.cursor, con.commit, other.fetchone, con.__enter__):
        with pytest.raises(dbapi.InterfaceError, match="connection is closed"):
            call()


def test_threads_share_a_connection(con: dbapi.Connection) -> None:
    sums: list[int] = []

    def work(k: int) -> None:
        rows = con.execute("SELECT sum(arange(1000) * ?) AS s", [k]).fetchall()
        sums.append(rows[0][0])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    deadline = time.monotonic() + 120
    for t in threads:
        t.join(max(0.0, deadline - time.monotonic()))
    assert sorted(sums) == [499500 * k for k in range(8)]


def test_variables_of_the_caller_are_not_relations(con: dbapi.Connection) -> None:
    import numpy as np

    x = np.arange(3)
    assert x.sum() == 3
    with pytest.raises(dbapi.ProgrammingError) as caught:
        con.execute("SELECT sum(x) AS s FROM x")
    assert caught.value.code == "unknown_name"


def test_pandas_reads_through_it(con: dbapi.Connection) -> None:
    pd = pytest.importorskip("pandas")
    with pytest.warns(UserWarning, match="SQLAlchemy"):
        frame = pd.read_sql(f"SELECT lat, avg(t2m) AS t2m FROM '{AIR}' GROUP BY lat", con)
    assert list(frame.columns) == ["lat", "t2m"]
    assert len(frame) == 5
