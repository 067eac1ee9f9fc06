"""The magics of IPython."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tessera_sql as ts

pytest.importorskip("IPython", reason="IPython is not installed")

from IPython.core.error import UsageError  # noqa: E402
from IPython.core.interactiveshell import InteractiveShell  # noqa: E402


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    ip = InteractiveShell.instance()
    ip.run_line_magic("load_ext", "tessera_sql")
    con = ts.connect(warehouse=str(tmp_path / "warehouse"))
    ip.user_ns.update(con=con, x=np.arange(6.0).reshape(2, 3))
    ip.run_line_magic("tessera", "--connect con")
    yield ip
    con.close()
    InteractiveShell.clear_instance()


def test_a_line_runs_on_the_variables_of_the_notebook(shell: InteractiveShell) -> None:
    out = shell.run_line_magic("tessera", "SELECT sum(x, 0) AS s FROM x")
    np.testing.assert_array_equal(out.to_numpy(), [3, 5, 7])
    assert "dim_0" in out._repr_html_() or "3" in out._repr_html_()


def test_a_cell_runs_and_returns_its_relation(shell: InteractiveShell) -> None:
    result = shell.run_cell("%%tessera\nSELECT max(x) AS top\nFROM x -- 'a comment' $nothing\n")
    assert result.success
    assert float(result.result.to_numpy()) == 5


@pytest.mark.parametrize("line", ["out <<", "--out out", "-o out", "--out=out", "out <<  "])
def test_a_cell_gives_its_result_a_name(shell: InteractiveShell, line: str) -> None:
    result = shell.run_cell(f"%%tessera {line}\nSELECT x + 1 AS y FROM x")
    assert result.success
    assert result.result is None
    out = shell.user_ns["out"]
    assert isinstance(out, ts.Relation)
    np.testing.assert_array_equal(out.to_numpy(), shell.user_ns["x"] + 1)


def test_a_line_gives_its_result_a_name(shell: InteractiveShell) -> None:
    assert shell.run_line_magic("tessera", "out << SELECT count(x) AS n FROM x") is None
    assert int(shell.user_ns["out"].to_numpy()) == 6
    shell.run_cell("n = %tessera SELECT count(x) + 1 AS n FROM x")
    assert int(shell.user_ns["n"].to_numpy()) == 7


def test_names_with_a_dollar_are_parameters(shell: InteractiveShell) -> None:
    shell.user_ns["k"] = 10
    shell.user_ns["who"] = "it's"
    out = shell.run_line_magic("tessera", "SELECT x * $k AS y FROM x")
    np.testing.assert_array_equal(out.to_numpy(), shell.user_ns["x"] * 10)
    rows = shell.run_cell("%%tessera\nSELECT $who AS a, '$k {k}' AS b, \"c$k\" FROM (SELECT 1 AS \"c$k\") t").result
    assert rows.fetchall() == [("it's", "$k {k}", 1)]
    with pytest.raises(UsageError, match="missing"):
        shell.run_line_magic("tessera", "SELECT $missing AS a")


def test_statements_without_a_result_show_nothing(shell: InteractiveShell) -> None:
    assert shell.run_line_magic("tessera", "CREATE TENSOR kept AS SELECT x FROM x") is None
    assert float(shell.user_ns["con"].sql("SELECT sum(x) AS s FROM kept").to_numpy()) == 15


def test_errors_are_those_of_the_package(shell: InteractiveShell) -> None:
    with pytest.raises(ts.Error) as caught:
        shell.run_line_magic("tessera", "SELECT nothing FROM x")
    assert caught.value.code == "unknown_name"
    result = shell.run_cell("%%tessera out <<\nSELEC")
    assert not result.success
    assert "out" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "cell", "match"),
    [
        ("--nothing x SELECT 1", None, "unknown option"),
        ("--out", None, "needs a value"),
        ("", None, "no SQL"),
        ("out <<", None, "no SQL"),
        ("--out 1x SELECT 1", None, "name of a variable"),
        ("SELECT 1", "SELECT 2", "below the line"),
        ("--connect nowhere SELECT 1", None, "neither a URL"),
    ],
)
def test_wrong_lines_are_refused(shell: InteractiveShell, line: str, cell: str | None, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        if cell is None:
            shell.run_line_magic("tessera", line)
        else:
            shell.run_cell_magic("tessera", line, cell)


def test_the_connection_is_kept_until_another_is_chosen(shell: InteractiveShell, tmp_path: Path) -> None:
    magic: Any = shell.magics_manager.registry["TesseraMagics"]
    assert magic.connection is shell.user_ns["con"]
    shell.run_line_magic("tessera", "CREATE TENSOR here AS SELECT x FROM x")
    with ts.connect(warehouse=str(tmp_path / "other")) as other:
        shell.user_ns["other"] = other
        out = shell.run_line_magic("tessera", "--connect other SHOW TENSORS")
        assert out.fetchall() == []
        shell.run_line_magic("tessera", "--connect 'con'")
        assert [r[0] for r in shell.run_line_magic("tessera", "SHOW TENSORS").fetchall()] == ["here"]
    shell.run_line_magic("tessera", "--connect default")
    assert magic.connection is None
    with pytest.raises(ts.Error):
        shell.run_line_magic("tessera", "--connect http://127.0.0.1:9 SELECT 1")
    assert magic.connection is None
