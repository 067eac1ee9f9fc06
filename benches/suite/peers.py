"""The peers: short ways to say the same work in each, and the process that runs them."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

# A peer that is the same program in another environment. OpenBLAS takes Haswell kernels on some machines with AVX-512,
# and is then at half its speed: both of the kernels that are worth trying are tried.
ENVIRONMENTS = {"numpy, Zen kernels": {"OPENBLAS_CORETYPE": "Zen"}}
AVX512 = "avx512f" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "")
DEFAULT = {"OPENBLAS_CORETYPE": "SkylakeX"} if AVX512 else {}


def jax():
    """JAX and its NumPy, with 64-bit types, on the processor."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    j = importlib.import_module("jax")
    j.config.update("jax_enable_x64", True)
    return j, importlib.import_module("jax.numpy")


def jit(function, *arrays, **options):
    """`function(jnp, *arrays)` compiled by JAX."""
    j, jnp = jax()
    held = [jnp.asarray(a) for a in arrays]
    compiled = j.jit(lambda *xs: function(jnp, *xs), **options)
    return lambda: j.block_until_ready(compiled(*held))


def dask(function, *arrays, chunks=None):
    """`function(da, *arrays)` by Dask on its threads, in blocks of some 32 MiB along the first axis."""
    da = importlib.import_module("dask.array")
    compute = importlib.import_module("dask").compute

    def blocks(a):
        rows = max((32 << 20) // max(a.nbytes // a.shape[0], 1), 1)
        return (min(rows, a.shape[0]), *a.shape[1:])

    held = [da.from_array(a, chunks=chunks or blocks(a), name=False) for a in arrays]

    def work():
        got = function(da, *held)
        return compute(*got) if isinstance(got, tuple) else got.compute()

    return work


def loops():
    """The loops that numba compiles."""
    return importlib.import_module("suite.loops")


def bound(function, *arrays):
    """The call of a function with inputs that are made beforehand."""
    return lambda: function(*arrays)


def everywhere(f, *inputs):
    """The peers that take an expression as NumPy does."""
    return {
        "numpy": lambda: bound(lambda *xs: f(importlib.import_module("numpy"), *xs), *(i() for i in inputs)),
        "jax": lambda: jit(f, *(i() for i in inputs)),
        "dask": lambda: dask(f, *(i() for i in inputs)),
    }


class Absent(Exception):
    """A peer that is not installed."""


class Failed(Exception):
    """A side that failed, with its last words."""


class Worker:
    """A process of Python that makes and runs the peers' work of one family."""

    def __init__(self, family: str, context, env: dict[str, str]):
        arguments = [family, str(context.scale), str(context.data), str(context.binary)]
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__).parent / "worker.py"), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **DEFAULT, **env},
        )

    def ask(self, **request):
        """Sends a request and gives the answer."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process of the peers ended with {self.process.wait()}")
        answer = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def close(self):
        """Ends it."""
        self.process.stdin.close()
        self.process.wait()
