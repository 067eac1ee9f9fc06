"""The source distribution, and the examples of the docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tessera_sql as ts

ROOT = Path(__file__).resolve().parents[2]
#: Modules that import packages which need not be there.
OPTIONAL = {"_lazy": "xarray", "magic": "IPython", "xarray_backend": "xarray"}


def test_the_source_distribution_has_what_a_build_needs_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("maturin")
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    made = subprocess.run(
        [sys.executable, "-m", "maturin", "sdist", "-o", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    assert archive.stat().st_size < 5_000_000
    shutil.unpack_archive(archive, tmp_path / "whole")
    (project,) = (tmp_path / "whole").iterdir()
    files = {str(p.relative_to(project)) for p in project.rglob("*") if p.is_file()}
    assert {"Cargo.lock", "Cargo.toml", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} <= files
    package = {str(p.relative_to(ROOT)) for p in (ROOT / "python/tessera_sql").iterdir() if p.suffix in (".py", ".pyi", ".typed")}
    assert package | {"python/tessera_sql/py.typed"} <= files
    stray = [f for f in files if re.match(r"(target|tests|benches|docs|sql)/", f) or f.endswith((".so", ".pyc"))]
    assert not stray
    # Every file that the sources embed, and every crate that the build needs.
    for source in project.rglob("crates/*/src/**/*.rs"):
        for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', source.read_text()):
            assert (source.parent / name).exists() or "tests" in source.parts, f"{source}: {name}"
    checked = subprocess.run(
        ["cargo", "metadata", "--offline", "--format-version", "1", "--manifest-path", "crates/python/Cargo.toml"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert checked.returncode == 0, checked.stderr


def test_the_examples_of_docstrings_are_right() -> None:
    ran = 0
    for module in pkgutil.iter_modules(ts.__path__, "tessera_sql."):
        needed = OPTIONAL.get(module.name.rpartition(".")[2])
        if needed is not None:
            pytest.importorskip(needed)
        found = doctest.testmod(importlib.import_module(module.name))
        assert not found.failed
        ran += found.attempted
    found = doctest.testmod(ts)
    assert not found.failed and found.attempted + ran >= 4


def test_every_public_name_says_what_it_is() -> None:
    from tessera_sql import dbapi

    silent = [name for name in ts.__all__ if not getattr(ts, name).__doc__]
    for kind in (ts.Relation, ts.Connection, ts.LocalTensor, dbapi.Connection, dbapi.Cursor):
        for name, value in vars(kind).items():
            told = value.fget if isinstance(value, property) else value
            if not name.startswith("_") and callable(told) and not told.__doc__:
                silent.append(f"{kind.__name__}.{name}")
    assert not silent
