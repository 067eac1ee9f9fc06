"""Every Python example of docs/python.md runs, in order and in one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_examples_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 10
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)


def test_the_tables_of_the_guide_are_right() -> None:
    import numpy as np
    import pandas as pd
    import xarray as xr

    import tessera_sql as ts

    x = np.random.default_rng(1).normal(size=(12, 11))
    ds = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), np.random.default_rng(2).normal(280, 8, (730, 5, 8)))},
        coords={
            "time": pd.date_range("2019-01-01", periods=730),
            "lat": [-60.0, -30.0, 0.0, 30.0, 60.0],
            "lon": np.arange(8),
        },
    )
    text = (ROOT / "docs/python.md").read_text()
    rows = re.findall(r"^\| `(.*?)` \| `(SELECT .*?)` \|$", text, re.MULTILINE)
    assert len(rows) >= 12
    for python, sql in rows:
        want = eval(python, {"x": x, "ds": ds, "np": np})
        item = sql.replace(" FROM", " AS v FROM", 1)
        got = ts.sql(item, locals={"x": x, "ds": ds})
        if "GROUP BY" in sql:
            got = got.to_xarray()["v"]
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-9, err_msg=sql)
