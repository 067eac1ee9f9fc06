"""The Python package beside xarray (with flox) and Dask, on the same arrays in one process; and what a call costs.

    pip install . xarray flox dask numbagg
    python benches/python.py [--gib 0.8] [--turns 7]

Prints, as medians: the time of a trivial statement from Python and in the engine alone; the memory that an array of 800 MB
takes on its way in and out; a climatology and an anomaly by `ds.tessera.sql`, xarray and Dask, alternating.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import tessera_sql as ts

TRIVIAL = "SELECT 1 AS x"


def median_time(run, turns):
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def overhead(con, turns=2000):
    """Microseconds of a statement from Python, and of them those in the engine: from its own clock."""
    for _ in range(200):
        con.sql(TRIVIAL).run()
    whole = median_time(lambda: con.sql(TRIVIAL).run(), turns)
    native = median_time(lambda: con._engine.run(TRIVIAL, [], None), turns)
    fetched = median_time(lambda: con.sql(TRIVIAL).fetchall(), turns)
    x = np.arange(10.0)
    local = median_time(lambda: con.sql("SELECT x + 1 AS y FROM x", locals={"x": x}).to_numpy(), turns)
    print(f"statement: {native * 1e6:6.1f} us by the native module alone (engine, threads, wake-up)")
    print(f"           {whole * 1e6:6.1f} us by con.sql(…).run(): {(whole - native) * 1e6:.1f} us for Python")
    print(f"           {fetched * 1e6:6.1f} us with fetchall(); {local * 1e6:.1f} us for x + 1 of a local array")


SLOW = "SELECT sum(sin(random_normal([200000, 20000], seed => 1, chunks => [500, 500]))) AS s"


def interrupts(con, turns=25):
    """Milliseconds from the signal of a Ctrl-C to `KeyboardInterrupt`, in the middle of a long statement."""
    waits = []
    for _ in range(turns):
        sent = []

        def send(sent=sent):
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.3, send)
        timer.start()
        try:
            con.sql(SLOW).to_numpy()
        except KeyboardInterrupt:
            waits.append(time.perf_counter() - sent[0])
        timer.join()
    print(f"Ctrl-C:    {statistics.median(waits) * 1e3:6.1f} ms to KeyboardInterrupt, at most {max(waits) * 1e3:.1f} ms of {turns}")


MEMORY = """
import numpy as np, resource, sys, time
import tessera_sql as ts
con = ts.connect(warehouse=sys.argv[1])
con.sql("SELECT sum(arange(10)) AS s").run()
rows = int(sys.argv[2]) // 8 // 1000
x = np.ones((rows, 1000))
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
base = peak()
start = time.perf_counter(); assert con.sql("SELECT sum(x) AS s FROM x").to_numpy() == x.size
into = peak() - base, time.perf_counter() - start
start = time.perf_counter(); np.sum(x); numpy_in = time.perf_counter() - start
start = time.perf_counter(); y = con.sql("SELECT x * 2 AS y FROM x").to_numpy()
out = peak() - base, time.perf_counter() - start
assert y[-1, -1] == 2 and y.nbytes == x.nbytes
del y
start = time.perf_counter(); y = x * 2; numpy_out = time.perf_counter() - start
mb = x.nbytes / 1e6
print(f"array of {mb:.0f} MB: in {into[0] / 1e6:.0f} MB beside it, {into[1] * 1e3:.0f} ms (NumPy's sum {numpy_in * 1e3:.0f} ms)")
print(f"             in and out {out[0] / 1e6:.0f} MB beside it, {out[1] * 1e3:.0f} ms (NumPy {numpy_out * 1e3:.0f} ms)")
"""


def recipes(con, gib, turns):
    import dask
    import pandas as pd
    import xarray as xr

    import tessera_sql._accessor  # noqa: F401

    days = int(gib * 2**30 / 4 / (181 * 360))
    time_axis = pd.date_range("2000-01-01", periods=days)
    cells = np.random.default_rng(1).standard_normal((days, 181, 360), dtype=np.float32)
    ds = xr.Dataset(
        {"t2m": (("time", "lat", "lon"), cells)},
        coords={"time": time_axis, "lat": np.linspace(-90, 90, 181), "lon": np.arange(360)},
    )
    lazy = ds.chunk({"time": 100})
    workloads = {
        "climatology by month": (
            "SELECT groupby(t2m, 'mean', by => month(time)) AS t2m FROM ds",
            lambda d: d.t2m.groupby("time.month").mean("time"),
        ),
        "anomaly from it": (
            "SELECT t2m - groupby(t2m, 'mean', by => month(time)) AS t2m FROM ds",
            lambda d: d.t2m.groupby("time.month") - d.t2m.groupby("time.month").mean("time"),
        ),
        "mean over time": ("SELECT mean(t2m, 'time') AS t2m FROM ds", lambda d: d.t2m.mean("time")),
        "standardised": (
            "SELECT (t2m - mean(t2m, 'time')) / std(t2m, 'time') AS t2m FROM ds",
            lambda d: (d.t2m - d.t2m.mean("time")) / d.t2m.std("time"),
        ),
    }
    print(f"ds: {cells.nbytes / 1e9:.2f} GB, {days} x 181 x 360 float32")
    for name, (sql, peer) in workloads.items():
        sides = {
            "tessera": lambda sql=sql: ds.tessera.sql(sql, connection=con),
            "xarray": lambda peer=peer: peer(ds).compute(),
            "dask": lambda peer=peer: peer(lazy).compute(scheduler="threads"),
        }
        results = {side: run() for side, run in sides.items()}
        got, want = results["tessera"].values.ravel()[::97], results["xarray"].values.ravel()[::97]
        np.testing.assert_allclose(got, want, atol=2e-4)
        del results
        times = {side: [] for side in sides}
        for turn in range(turns):
            for side in list(sides)[turn % 3 :] + list(sides)[: turn % 3]:
                start = time.perf_counter()
                sides[side]()
                times[side].append(time.perf_counter() - start)
        medians = {side: statistics.median(of) for side, of in times.items()}
        ratio = min(medians["xarray"], medians["dask"]) / medians["tessera"]
        text = "  ".join(f"{side} {value * 1e3:8.1f} ms" for side, value in medians.items())
        print(f"{name:<22} {text}   best peer / tessera {ratio:.2f}")
    _ = dask


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--gib", type=float, default=0.8)
    options.add_argument("--turns", type=int, default=7)
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, ts.connect(warehouse=Path(folder) / "w") as con:
        overhead(con)
        interrupts(con)
        subprocess.run(
            [sys.executable, "-c", MEMORY, folder + "/m", "800000000"], check=True, env=os.environ
        )
        recipes(con, options.gib, options.turns)


if __name__ == "__main__":
    main()
