"""One function of each cell, kept: arithmetic where the function is dear, memory where it is cheap."""

import numpy as np

from ..cells import array, empty, sql, temp
from ..peers import bound, everywhere, jax, jit, loops
from ..workload import Limit, Workload

# SQL, what NumPy and JAX call it, the loop of numba if it has one.
FUNCTIONS = (
    ("exp(x)", "exp", "exp"),
    ("log(x + 0.5)", None, None),
    ("sin(x)", "sin", "sin"),
    ("cos(x)", "cos", "cos"),
    ("tanh(x)", "tanh", "tanh"),
    ("sqrt(x)", "sqrt", "sqrt"),
    ("expm1(x)", "expm1", None),
    ("arctan(x)", "arctan", None),
)


def workloads(context):
    n = context.cells(3e7)
    for dtype in ("float64", "float32"):
        size = np.dtype(dtype).itemsize
        x = lambda dtype=dtype: array((n,), 7, dtype)  # noqa: E731
        common = dict(
            setup=temp("x", sql((n,), 7, dtype)), limit=Limit("memory", size * n, size * n), held=2 * size * n,
            rtol=1e-14 if dtype == "float64" else 1e-6,
        )
        for text, name, loop in FUNCTIONS:
            if name is None:
                f = lambda xp, x: xp.log(x + 0.5)  # noqa: E731
                ready = lambda x, out: np.log(np.add(x, x.dtype.type(0.5), out=out), out=out)  # noqa: E731
            else:
                f = lambda xp, x, name=name: getattr(xp, name)(x)  # noqa: E731
                ready = lambda x, out, name=name: getattr(np, name)(x, out=out)  # noqa: E731
            own = {"numpy, out=": lambda ready=ready, x=x: bound(ready, x(), empty((n,), x().dtype))}
            if loop:
                own["numba, out="] = lambda loop=loop, x=x: bound(getattr(loops(), loop), x(), empty((n,), x().dtype))
            yield Workload(f"{text}, {dtype}", f"SELECT {text} AS r FROM x", peers=everywhere(f, x) | own, **common)

        def power(x=x):
            y = x() + 1
            out = np.empty_like(y)
            return lambda: np.power(y, x(), out=out)

        yield Workload(
            f"(x + 1) ^ x, {dtype}", "SELECT (x + 1)^x AS r FROM x", **common,
            peers=everywhere(lambda xp, x: (x + 1) ** x, x) | {"numpy power, out=": power},
        )

        def erf(x=x):
            from scipy.special import erf

            return bound(erf, x())

        def erf_jax(x=x):
            from jax.scipy.special import erf

            jax()
            return jit(lambda xp, x: erf(x), x())

        yield Workload(
            f"erf(x), {dtype}", "SELECT erf(x) AS r FROM x", peers={"scipy": erf, "jax": erf_jax}, **common,
        )

    d = lambda: array((n,), 7)  # noqa: E731
    yield Workload(
        "float64 to float32", "SELECT x::float32 AS r FROM x",
        setup=temp("x", sql((n,))), limit=Limit("memory", 8.0 * n, 4.0 * n), held=12.0 * n, rtol=1e-7,
        peers=everywhere(lambda xp, x: x.astype("float32"), d) | {
            "numba, out=": lambda: bound(loops().cast, d(), empty((n,), "float32")),
        },
    )
    i = lambda: (array((n,), 7) * 1000).astype("int32")  # noqa: E731
    yield Workload(
        "int32 to float64", "SELECT x::float64 AS r FROM x",
        setup=temp("x", f"trunc({sql((n,))} * 1000.0)::int32"), limit=Limit("memory", 4.0 * n, 8.0 * n), held=12.0 * n,
        peers=everywhere(lambda xp, x: x.astype("float64"), i) | {
            "numba, out=": lambda: bound(loops().cast, i(), empty((n,), "float64")),
        },
    )
