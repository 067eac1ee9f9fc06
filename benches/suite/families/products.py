"""Products: operations a second against the best kernels of OpenBLAS."""

import numpy as np

from ..cells import shuffled, shuffled_sql, temp
from ..peers import bound, dask, jit
from ..workload import Limit, Workload


def product(name, text, f, shapes, result, flops, dtype, peers_too=("numpy", "numpy, Zen kernels", "jax"), memory=None, rtol=None):
    """A workload over inputs called `p`, `q`, …, without order; `result` is the shape of what it gives."""
    names = "pqst"[: len(shapes)]
    made = lambda: [shuffled(shape, 1 + 17 * i, dtype) for i, shape in enumerate(shapes)]  # noqa: E731
    size = np.dtype(dtype).itemsize
    held = size * sum(float(np.prod(s)) for s in [*shapes, result])
    every = {
        "numpy": lambda: bound(lambda *xs: f(np, *xs), *made()),
        "numpy, Zen kernels": lambda: bound(lambda *xs: f(np, *xs), *made()),
        "jax": lambda: jit(f, *made()),
        "dask": lambda: dask(f, *made()),
    }
    return Workload(
        f"{name}, {dtype}", f"SELECT {text} AS r FROM {', '.join(names)}",
        setup="".join(temp(x, shuffled_sql(s, 1 + 17 * i, dtype)) for i, (x, s) in enumerate(zip(names, shapes))),
        limit=Limit("memory", memory) if memory else Limit(f"gemm {dtype}", flops),
        held=held, rtol=rtol or (1e-11 if dtype == "float64" else 1e-4),
        peers={k: every[k] for k in peers_too},
    )


def workloads(context):
    k = context.side(4096, 3)
    for dtype in ("float64", "float32"):
        yield product(f"p @ q, {k}³", "p @ q", lambda xp, p, q: p @ q, [(k, k), (k, k)], (k, k), 2.0 * k**3, dtype,
                      ("numpy", "numpy, Zen kernels", "jax", "dask"))
    k = context.side(2000, 3)
    yield product(f"p @ transpose(q), {k}³", "p @ transpose(q)", lambda xp, p, q: p @ q.T, [(k, k), (k, k)], (k, k), 2.0 * k**3, "float64")
    m = context.cells(512_000) // 1000
    yield product(f"{m} products of 128³", "p @ q", lambda xp, p, q: p @ q, [(m, 128, 128)] * 2, (m, 128, 128), 2.0 * m * 128**3, "float64")
    m = context.cells(20_000_000) // 1000
    yield product(f"{m} products of 16³", "p @ q", lambda xp, p, q: p @ q, [(m, 16, 16)] * 2, (m, 16, 16), 2.0 * m * 16**3, "float32")
    yield product(
        "einsum bij,bjk->bik, 64 × 256³", "einsum('bij,bjk->bik', p, q)",
        lambda xp, p, q: xp.einsum("bij,bjk->bik", p, q, optimize=True),
        [(context.cells(64_000) // 1000 + 1, 256, 256)] * 2, (context.cells(64_000) // 1000 + 1, 256, 256), 2.0 * (context.cells(64_000) // 1000 + 1) * 256**3, "float32",
    )
    m = context.cells(1e6)
    yield product(f"transpose(p) @ q, {m} × 64", "transpose(p) @ q", lambda xp, p, q: p.T @ q, [(m, 64), (m, 64)], (64, 64), 2.0 * m * 64 * 64, "float64")
    yield product(f"p @ q, {m} × 64, 64 × 64", "p @ q", lambda xp, p, q: p @ q, [(m, 64), (64, 64)], (m, 64), 2.0 * m * 64 * 64, "float64")
    side = context.side(10_000)
    yield product(f"p @ q, {side}² and a vector", "p @ q", lambda xp, p, q: p @ q, [(side, side), (side,)], (side,),
                  2.0 * side**2, "float64", memory=8.0 * side**2)
    m = context.side(1500, 3)
    yield product(
        "einsum ij,jk,kl->il", "einsum('ij,jk,kl->il', p, q, s)",
        lambda xp, p, q, s: xp.einsum("ij,jk,kl->il", p, q, s, optimize=True), [(m, m)] * 3, (m, m), 4.0 * m**3, "float64",
    )
    m = context.side(300, 3)
    yield product(
        "tensordot of cubes, 2 axes", "tensordot(p, q, 2)", lambda xp, p, q: xp.tensordot(p, q, 2),
        [(m, m, m), (m, m, m)], (m, m), 2.0 * m**4, "float64",
    )
    m = context.side(3000, 3)
    yield product(f"cov of {m} × {m // 2}", "cov(p)", lambda xp, p: xp.cov(p), [(m // 2, m)], (m // 2, m // 2), 1.0 * (m // 2) ** 2 * m, "float64")
