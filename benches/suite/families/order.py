"""Order, bins and sets."""

import importlib

import numpy as np

from ..cells import shuffled, shuffled_sql, temp
from ..peers import bound, everywhere, jit, loops
from ..workload import Limit, Workload


def workloads(context):
    n = context.cells(1e7)
    for dtype in ("float64", "float32", "int32"):
        x = lambda dtype=dtype: shuffled((n,), 1, dtype)  # noqa: E731
        size = np.dtype(dtype).itemsize
        yield Workload(
            f"sort 10^7, {dtype}", "SELECT sort(x) AS r FROM x", setup=temp("x", shuffled_sql((n,), 1, dtype)),
            held=2 * size * n, rtol=0, peers=numpy_jax(lambda xp, x: xp.sort(x), x) | {"polars": polars_sort(x)},
        )
    x = lambda: shuffled((n,))  # noqa: E731
    flat = temp("x", shuffled_sql((n,)))
    yield Workload(
        "argsort 10^7", "SELECT argsort(x) AS r FROM x", setup=flat, held=16.0 * n, rtol=None,
        peers=numpy_jax(lambda xp, x: xp.argsort(x, stable=True), x) | {
            "numpy, not stable": lambda: bound(lambda x: np.argsort(x), x()),
        },
    )
    yield Workload(
        "median of 10^7", "SELECT median(x) AS r FROM x", setup=flat, held=8.0 * n,
        peers=numpy_jax(lambda xp, x: xp.median(x), x) | {
            "duckdb": duckdb(x, "SELECT median(x) FROM t"),
            "polars": lambda: bound(lambda s: s.median(), importlib.import_module("polars").Series(x())),
        },
    )
    yield Workload(
        "10 largest of 10^7", "SELECT topk(x, 10) AS r FROM x", setup=flat, held=8.0 * n, limit=Limit("memory", 8.0 * n), rtol=0,
        peers={
            "numpy": lambda: bound(lambda x: np.sort(np.partition(x, x.size - 10)[-10:])[::-1], x()),
            "jax": lambda: jit(lambda jnp, x: __import__("jax").lax.top_k(x, 10)[0], x()),
            "polars": lambda: bound(lambda s: s.top_k(10).sort(descending=True), importlib.import_module("polars").Series(x())),
        },
    )
    rows = context.side(10_000)
    wide = (rows, max(rows // 10, 8))
    m = lambda: shuffled(wide)  # noqa: E731
    matrix = temp("m", shuffled_sql(wide))
    for axis in (0, 1):
        yield Workload(
            f"sort along axis {axis}", f"SELECT sort(m, {axis}) AS r FROM m", setup=matrix, held=16.0 * n, rtol=0,
            peers=numpy_jax(lambda xp, m, axis=axis: xp.sort(m, axis=axis), m),
        )
        yield Workload(
            f"median along axis {axis}", f"SELECT median(m, {axis}) AS r FROM m", setup=matrix, held=8.0 * n,
            peers=numpy_jax(lambda xp, m, axis=axis: xp.median(m, axis=axis), m),
        )
    yield Workload(
        "quantiles 0.05, 0.5, 0.95 along axis 0", "SELECT quantile(m, [0.05, 0.5, 0.95], 0) AS r FROM m", setup=matrix, held=8.0 * n,
        peers=numpy_jax(lambda xp, m: xp.quantile(m, np.array([0.05, 0.5, 0.95]), axis=0), m),
    )
    big = context.cells(1e8)
    b = lambda: shuffled((big,))  # noqa: E731
    yield Workload(
        "histogram of 10^8 in 100 bins", "SELECT histogram(x, bins => 100, range => [0.0, 1.0]).counts AS r FROM x",
        setup=temp("x", shuffled_sql((big,))), held=8.0 * big, limit=Limit("memory", 8.0 * big), rtol=1e-5,
        peers={
            "numpy": lambda: bound(lambda x: np.histogram(x, 100, (0.0, 1.0))[0], b()),
            "numba": lambda: bound(loops().histogram, b(), 100, 0.0, 1.0),
        },
    )
    i = lambda: shuffled((n,), 1, "int64") % 1000  # noqa: E731
    ints = temp("x", f"{shuffled_sql((n,), 1, 'int64')} % 1000")
    yield Workload(
        "bincount of 10^7 in 1000", "SELECT bincount(x, minlength => 1000) AS r FROM x", setup=ints, held=8.0 * n,
        limit=Limit("memory", 8.0 * n), rtol=0,
        peers={"numpy": lambda: bound(lambda x: np.bincount(x, minlength=1000), i())},
    )
    yield Workload(
        "unique of 10^7 in 1000", "SELECT unique(x) AS r FROM x", setup=ints, held=8.0 * n, rtol=0,
        peers={
            "numpy": lambda: bound(np.unique, i()),
            "polars": lambda: bound(lambda s: s.unique().sort(), importlib.import_module("polars").Series(i())),
        },
    )
    edges = np.linspace(0.0, 1.0, 101)
    yield Workload(
        "searchsorted of 10^7 in 101", "SELECT searchsorted(linspace(0.0, 1.0, 101), x) AS r FROM x", setup=flat, held=16.0 * n,
        rtol=None, peers=numpy_jax(lambda xp, x: xp.searchsorted(xp.asarray(edges), x), x),
    )


def numpy_jax(f, *inputs):
    """NumPy and JAX."""
    return {k: v for k, v in everywhere(f, *inputs).items() if k != "dask"}


def polars_sort(x):
    return lambda: bound(lambda s: s.sort(), importlib.import_module("polars").Series(x()))


def duckdb(x, text):
    """A query of DuckDB over the column `x` of the table `t`."""
    def make():
        db = importlib.import_module("duckdb").connect()
        import pandas

        frame = pandas.DataFrame({"x": x()})  # noqa: F841  (DuckDB finds it by its name)
        db.execute("CREATE TABLE t AS SELECT x FROM frame")
        return lambda: np.array(db.execute(text).fetchall(), dtype=float)

    return make
