"""The same objects against a server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tessera_sql as ts


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the binary that cargo built; its address is in what it prints."""
    binary = os.environ.get("TESSERA_BINARY")
    if binary is None or not Path(binary).exists():
        assert "CI" not in os.environ, "TESSERA_BINARY names no binary"
        pytest.skip("TESSERA_BINARY names no binary")
    home = tmp_path_factory.mktemp("server")
    arguments = ["--warehouse", str(home / "w"), "--threads", "2", "serve", "--no-token", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen([binary, *arguments], stderr=subprocess.PIPE, text=True, cwd=home)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found.group()
                break
        else:
            pytest.fail("the server does not say where it listens")
    finally:
        server.terminate()
        server.wait(30)


def test_local_arrays_are_sent(url: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 40)).astype(np.float32)
    with ts.connect(url) as con:
        relation = con.sql("SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x")
        assert "z  float32  [dim_0: 300, dim_1: 40]" in repr(relation)
        np.testing.assert_allclose(relation.to_numpy(), (x - x.mean(0)) / x.std(0), atol=1e-5)
        # The same bits as in this process.
        with ts.connect(warehouse=tmp_path) as own:
            here = own.sql("SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x").to_numpy()
        assert here.tobytes() == relation.to_numpy().tobytes()
        masked = np.ma.masked_greater(x.T, 1)
        got = con.sql("SELECT sum(masked) AS s, count(masked) AS n FROM masked").to_numpy()
        assert int(got["n"]) == masked.count()
        assert con.sql("SHOW TENSORS").fetchall() == []


def test_datasets_and_tables_are_sent(url: str) -> None:
    ds = xr.Dataset(
        {"t": (("time", "lat"), np.arange(12.0).reshape(4, 3), {"units": "K"})},
        coords={
            "time": pd.date_range("2020-01-01", periods=4),
            "lat": [10.0, 20.0, 30.0],
            "area": (("time", "lat"), np.ones((4, 3))),
        },
    )
    table = pd.DataFrame({"lat": [10.0, 20.0], "name": ["a", "b"]})
    rows = table
    with ts.connect(url) as con:
        out = con.sql("SELECT t + 0 AS t FROM ds").to_xarray()
        np.testing.assert_array_equal(out, ds.t)
        np.testing.assert_array_equal(out.time, ds.time)
        assert con.sql("SELECT count(*) AS n FROM ds").fetchone() == (12,)
        got = con.sql(
            "SELECT r.name, avg(d.t) AS v FROM ds d JOIN rows r ON d.lat = r.lat GROUP BY r.name ORDER BY r.name"
        )
        assert got.fetchall() == [("a", 4.5), ("b", 5.5)]
        grouped = con.sql("SELECT lat, max(t) AS m FROM ds GROUP BY lat").to_xarray()
        np.testing.assert_array_equal(grouped.m, ds.t.max("time"))


def test_stored_tensors_go_first_and_errors_are_the_same(url: str) -> None:
    x = np.arange(3.0)
    with ts.connect(url) as con:
        con.sql("CREATE TENSOR x AS SELECT arange(5) AS x")
        assert con.sql("SELECT x FROM x").to_numpy().shape == (5,)
        with pytest.raises(ts.UserError, match="another name"):
            con.sql("SELECT x FROM x", locals={"x": x}).run()
        con.sql("DROP TENSOR x")
        assert con.sql("SELECT x FROM x").to_numpy().shape == (3,)
        with pytest.raises(ts.UserError) as told:
            con.sql("SELECT meen(x) AS m FROM x").run()
        assert told.value.position == (1, 8) and "did you mean" in str(told.value)
    with pytest.raises(ts.Error, match="closed"):
        con.sql("SELECT 1 AS x")


def test_a_large_array_is_sent_in_pieces(url: str) -> None:
    x = np.ones((4000, 4000))
    with ts.connect(url) as con:
        assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == x.size
