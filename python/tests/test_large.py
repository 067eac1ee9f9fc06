"""A store larger than memory, through xarray: only what is touched is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
import zarr

import tessera_sql as ts


def test_only_the_chunks_of_a_selection_are_read(con: ts.Connection, tmp_path: Path) -> None:
    path = tmp_path / "large.zarr"
    # 10 GB, of which the chunks of the first ten days are there.
    group = zarr.open_group(path, mode="w")
    array = group.create_array(
        "t2m",
        shape=(5000, 500, 1000),
        chunks=(10, 250, 250),
        dtype="f4",
        fill_value=np.nan,
        dimension_names=("time", "lat", "lon"),
    )
    day = np.random.default_rng(1).normal(280, 5, (500, 1000)).astype("f4")
    array[:10] = day + np.arange(10, dtype="f4")[:, None, None]
    lat = group.create_array("lat", shape=(500,), dtype="f8", dimension_names=("lat",))
    lat[:] = np.linspace(-90, 90, 500)
    assert array.nbytes == 10_000_000_000

    ds = xr.open_dataset(path, engine="tessera", connection=con)
    assert ds.t2m.shape == (5000, 500, 1000) and ds.t2m.encoding["preferred_chunks"]["time"] == 10
    before = con._engine.counters()
    got = ds.t2m.isel(time=slice(0, 5)).sel(lat=slice(-90, 0)).mean()
    want = (day[:250].astype("f8") + np.arange(5)[:, None, None]).mean()
    np.testing.assert_allclose(float(got), want, rtol=1e-5)
    after = con._engine.counters()
    assert before is not None and after is not None
    # Four chunks, and the metadata.
    requests, read = after[0] - before[0], after[1] - before[1]
    assert 4 <= requests <= 8, requests
    stored = sum(f.stat().st_size for f in (path / "t2m/c/0/0").iterdir())
    assert stored <= read < stored + 20_000, (read, stored)
    # The mean is the engine's, too.
    by_sql = con.sql(f"SELECT mean(t2m[0:5, 0:250]) AS m FROM '{path}'").to_numpy()
    np.testing.assert_allclose(by_sql, want, rtol=1e-5)
    assert con._engine.counters() < (after[0] + 9, after[1] + stored + 20_000)
