"""What the machine can do: the limits that workloads are held against, measured in the same run."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import peers
from .report import OURS, Row

HERE = Path(__file__).parent
GEMM = """
import numpy as np, time, sys
for dtype in ("float64", "float32"):
    a = np.random.default_rng(0).random((3072, 3072)).astype(dtype); b = a.T.copy(); c = a @ b
    best = 1e9
    for _ in range(4):
        t = time.perf_counter(); np.matmul(a, b, out=c); best = min(best, time.perf_counter() - t)
    print(2 * 3072**3 / best)
"""
DECODE = """
import numpy as np, time, sys, os
from concurrent.futures import ThreadPoolExecutor
from numcodecs import Blosc, Zstd
from suite.files import cube_block
x = np.ascontiguousarray(cube_block(0, (10, 250, 500)))
for codec in (Blosc("zstd", 1, 1), Zstd(1)):
    packed = codec.encode(x)
    threads = os.cpu_count()
    def work(_):
        out = np.empty_like(x)
        for _ in range(10):
            codec.decode(packed, out)
    best = 1e9
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        for _ in range(5):
            t = time.perf_counter(); list(pool.map(work, range(threads))); best = min(best, time.perf_counter() - t)
    print(x.nbytes * 10 * threads / best)
"""


class Limits:
    """Measured when first asked for."""

    def __init__(self, say=print):
        self.say = say

    @functools.cached_property
    def memory(self) -> dict | None:
        """Bytes a second: read and triad, on one and on all threads; None without a C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            self.say("no C compiler: the memory's bandwidth is not measured")
            return None
        with tempfile.TemporaryDirectory() as top:
            binary = Path(top) / "stream"
            flags = ["-O3", "-march=native", "-ffast-math", "-pthread"]
            subprocess.run([compiler, *flags, str(HERE / "stream.c"), "-o", str(binary)], check=True)
            out = subprocess.run([str(binary), str(os.cpu_count())], capture_output=True, text=True, check=True)
        return json.loads(out.stdout)

    @functools.cached_property
    def gemm(self) -> dict:
        """Operations a second of OpenBLAS, by type: the better of its kernels."""
        found = {"float64": 0.0, "float32": 0.0}
        for env in [peers.DEFAULT, *peers.ENVIRONMENTS.values()]:
            out = python(GEMM, env).split()
            found = {k: max(v, float(new)) for (k, v), new in zip(found.items(), out, strict=True)}
        return found

    @functools.cached_property
    def decode(self) -> dict:
        """Decoded bytes a second of all threads, by codec, of the chunks that the scans read."""
        blosc, zstd = python(DECODE, {}).split()
        return {"blosc-zstd": float(blosc), "zstd": float(zstd)}

    def rate(self, row: Row) -> float | None:
        """The limit of a row's kind, in its unit a second."""
        kind, _, which = row.limit.kind.partition(" ")
        if kind == "memory":
            m = self.memory
            return m and (max(m["triad_all"], m["triad_streamed_all"]) if row.limit.written else m["read_all"])
        return {"gemm": self.gemm, "decode": self.decode}[kind][which]

    def judge(self, row: Row):
        """Says which share of its limit a row reached."""
        if row.limit is None or OURS not in row.sides:
            return
        if (rate := self.rate(row)) is not None:
            row.share = (row.limit.read + row.limit.written) / row.sides[OURS].median() / rate

    def told(self) -> dict[str, str]:
        """What was measured, in words."""
        got, mine = {}, self.__dict__
        if mine.get("memory"):
            m = {k: f"{v / 1e9:.1f}" for k, v in mine["memory"].items()}
            got["read"] = f"{m['read_one']} GB/s on one thread, {m['read_all']} on all"
            got["triad"] = f"{m['triad_one']} and {m['triad_all']} GB/s"
            got["triad with streaming stores"] = f"{m['triad_streamed_one']} and {m['triad_streamed_all']} GB/s"
        if "gemm" in mine:
            got["OpenBLAS"] = ", ".join(f"{k} {v / 1e9:.0f} GFLOP/s" for k, v in mine["gemm"].items())
        if "decode" in mine:
            got["decoding on all threads"] = ", ".join(f"{k} {v / 1e9:.2f} GB/s" for k, v in mine["decode"].items())
        return got


def python(text: str, env: dict) -> str:
    """What a script prints."""
    env = {**os.environ, **env, "PYTHONPATH": str(HERE.parent)}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=env).stdout
