"""Connections for the tests: each with a warehouse of its own, and little memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera_sql as ts


@pytest.fixture
def con(tmp_path: Path) -> Iterator[ts.Connection]:
    with ts.connect(warehouse=tmp_path / "warehouse", memory_limit="256MiB", threads=2) as con:
        yield con


@pytest.fixture(autouse=True)
def _own_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``ts.sql`` opens a session in an empty directory."""
    monkeypatch.setenv("TESSERA_WAREHOUSE", str(tmp_path / "default"))
    yield
    from tessera_sql import _connection

    if _connection._default is not None:
        _connection._default.close()
