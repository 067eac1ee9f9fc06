"""Tessera beside NumPy and Dask, in one run: seconds and ratios.

Each workload is a set-up that is not timed and a statement that is. Both sides get cells made by the same formula and
run on all cores, warm. The two sides take turns, and the best run of each counts: whatever else the machine does only
ever adds time.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def has_avx512():
    try:
        return "avx512f" in open("/proc/cpuinfo").read()
    except OSError:
        return False


if has_avx512():
    # NumPy's OpenBLAS takes Haswell kernels on some AVX-512 machines and runs at half speed.
    os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")

import numpy as np  # noqa: E402  (the variable above must be set before)


def timed(work, runs):
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - start)
        del result
    return times


def tessera(binary, setup, sql, runs, warehouse, extra=()):
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as f:
        f.write(setup)
        f.flush()
        command = [binary, "--warehouse", str(warehouse), *extra, "bench", sql, "-n", str(runs), "--setup", f.name, "--json"]
        out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode != 0:
        raise SystemExit(f"{sql}\n{out.stderr}")
    return json.loads(out.stdout)


def bandwidth(n):
    """Bytes a second that NumPy's sum of a float64 array reads on one thread: the yardstick of the share column."""
    x = np.ones(n)
    return x.nbytes / min(timed(lambda: x.sum(), 5))


def temp(name, expression):
    return f"CREATE TEMP TENSOR {name} AS SELECT {expression} AS {name};\n"


def generated(n, k):
    """Cells that both sides make alike, in [0, 1): NumPy's expression and ours."""
    ours = f"(arange({n})::float64 * {k}.0) % 1009.0 / 1009.0"
    return lambda: (np.arange(n, dtype=np.float64) * k) % 1009.0 / 1009.0, ours


def workloads(scale, directory):
    n = int(1e8 * scale)
    side = int(round((1e8 * scale) ** 0.5))
    k = int(4096 * scale ** (1 / 3)) if scale < 1 else 4096
    (a, sa), (b, sb), (c, sc) = generated(n, 7), generated(n, 11), generated(n, 13)
    three = temp("a", sa) + temp("b", sb) + temp("c", sc)

    def sum_fused():
        x, y, z = a(), b(), c()
        return lambda: np.sum(np.sqrt(x * x + y * y) * np.exp(-z))

    def fma():
        x, y, z = a(), b(), c()
        return lambda: x * y + z

    def moments():
        x = a()
        return lambda: (x.sum(), x.mean(), x.std())

    yield "sum(sqrt(a*a+b*b)*exp(-c))", n * 24, three, "SELECT sum(sqrt(a*a+b*b)*exp(-c)) FROM a, b, c", sum_fused
    yield "a*b+c, kept", n * 32, three, "SELECT a*b+c AS r FROM a, b, c", fma
    yield "sum, mean, std in one", n * 8, temp("a", sa), "SELECT sum(a), mean(a), std(a) FROM a", moments

    (_, s2) = generated(side * side, 7)
    square = temp("x", f"reshape({s2}, [{side}, {side}])")

    def matrix():
        return ((np.arange(side * side, dtype=np.float64) * 7) % 1009.0 / 1009.0).reshape(side, side)

    for op in ("mean", "max"):
        for axis in (0, 1):
            def reduce(op=op, axis=axis):
                x = matrix()
                return lambda: getattr(x, op)(axis)

            yield f"{op}(x, {axis})", side * side * 8, square, f"SELECT {op}(x, {axis}) FROM x", reduce

    def standardise():
        x = matrix()
        return lambda: (x - x.mean(0)) / x.std(0)

    yield "standardise columns", side * side * 24, square, "SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x", standardise

    for dtype in ("float64", "float32"):
        setup = temp("p", f"random_uniform([{k}, {k}], seed => 1)::{dtype}") + temp(
            "q", f"random_uniform([{k}, {k}], seed => 2)::{dtype}"
        )

        def product(dtype=dtype):
            rng = np.random.default_rng(0)
            p, q = rng.random((k, k)).astype(dtype), rng.random((k, k)).astype(dtype)
            return lambda: p @ q

        yield f"p @ q, {k}, {dtype}", None, setup, "SELECT p @ q AS r FROM p, q", product

    store = directory / "scan.zarr"
    shape = (max(int(1000 * scale), 10), 500, 1000)
    write_zarr(store, shape)

    def scan():
        import zarr

        z = zarr.open(str(store))["v"]
        import dask.array as da

        return lambda: da.from_zarr(z).mean(0).compute()

    cells = shape[0] * shape[1] * shape[2] * 4
    yield "time mean of a Zarr (zstd), Dask", cells, "", f"SELECT mean(v, 0) FROM '{store}'", scan
    yield "avg by lat, cell query, Dask", cells, "", f"SELECT lat, avg(v) AS m FROM '{store}' GROUP BY lat", lambda: (
        lambda f=scan(): f()
    )


def write_zarr(path, shape):
    import zarr

    root = zarr.open_group(str(path), mode="w")
    v = root.create_array(
        "v", shape=shape, chunks=(10, 250, 500), dtype="float32", dimension_names=["time", "lat", "lon"]
    )
    rng = np.random.default_rng(1)
    base = rng.integers(0, 1000, size=(10,) + shape[1:]).astype(np.float32) / 8
    for t in range(0, shape[0], 10):
        v[t : t + 10] = base[: min(10, shape[0] - t)] + t
    for i, name in enumerate(["time", "lat", "lon"]):
        root.create_array(name, shape=(shape[i],), dtype="float64", dimension_names=[name])[:] = np.arange(shape[i])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--only", default="")
    p.add_argument("--write", action="store_true")
    p.add_argument("--no-build", action="store_true")
    args = p.parse_args()
    if not args.no_build:
        subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
    binary = str(ROOT / "target" / "release" / "tessera")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    rows = []
    try:
        peak = bandwidth(int(1e8 * args.scale))
        for name, nbytes, setup, sql, peer in workloads(args.scale, directory):
            if args.only not in name:
                continue
            ours, theirs, rss = [], [], 0
            work = peer()
            for _ in range(args.rounds):
                theirs += timed(work, args.runs)
                figures = tessera(binary, setup, sql, args.runs, directory / "warehouse")
                ours += figures["times"]
                rss = max(rss, figures["rss_peak_bytes"])
            del work
            a, b = min(ours), min(theirs)
            share = "" if nbytes is None else f"{nbytes / a / peak:.2f}"
            row = (name, f"{a:.4f}", f"{b:.4f}", f"{b / a:.2f}", share, f"{rss / 2**20:.0f}")
            rows.append(row)
            print("  ".join(row), flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    head = ["workload", "Tessera s", "NumPy s", "NumPy / Tessera", "bytes/s over one thread's read", "peak RSS MiB"]
    table = "\n".join(["| " + " | ".join(r) + " |" for r in [head, ["---"] * len(head), *rows]])
    if args.write:
        path = ROOT / "docs" / "performance.md"
        text = path.read_text() if path.exists() else "# Performance\n\n<!-- table -->\n<!-- end -->\n"
        start, rest = text.split("<!-- table -->")
        end = rest.split("<!-- end -->")[1]
        path.write_text(f"{start}<!-- table -->\n{table}\n<!-- end -->{end}")
    else:
        print(table)
    print(f"one thread reads {peak / 1e9:.1f} GB/s; {os.cpu_count()} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
