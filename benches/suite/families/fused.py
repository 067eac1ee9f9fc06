"""Expressions over arrays in memory: fused into one pass here, one pass for each operation in NumPy."""

import numpy as np

from ..cells import array, empty, sql, temp
from ..peers import bound, everywhere, loops
from ..workload import Limit, Workload


def workloads(context):
    n = context.cells(1e8)
    a, b, c = (lambda k=k: array((n,), k) for k in (7, 11, 13))
    one = temp("a", sql((n,), 7))
    two = one + temp("b", sql((n,), 11))
    three = two + temp("c", sql((n,), 13))

    def whole(xp, a, b, c):
        return xp.sum(xp.sqrt(a * a + b * b) * xp.exp(-c))

    yield Workload(
        "sum(sqrt(a*a+b*b)*exp(-c))", "SELECT sum(sqrt(a*a+b*b)*exp(-c)) AS r FROM a, b, c",
        setup=three, limit=Limit("memory", 24.0 * n), held=24.0 * n,
        peers=everywhere(whole, a, b, c) | {"numba": lambda: bound(loops().fused_sum, a(), b(), c())},
    )

    def fma_reused():
        x, y, z, out = a(), b(), c(), empty((n,), "float64")
        return lambda: np.add(np.multiply(x, y, out=out), z, out=out)

    yield Workload(
        "a*b+c kept", "SELECT a*b+c AS r FROM a, b, c",
        setup=three, limit=Limit("memory", 24.0 * n, 8.0 * n), held=32.0 * n,
        peers=everywhere(lambda xp, a, b, c: a * b + c, a, b, c) | {
            "numpy, out=": fma_reused,
            "numba, out=": lambda: bound(loops().fma, a(), b(), c(), empty((n,), "float64")),
        },
    )

    def moments(xp, x):
        return xp.sum(x), xp.mean(x), xp.std(x)

    yield Workload(
        "sum, mean, std in one", "SELECT sum(a) AS r0, mean(a) AS r1, std(a) AS r2 FROM a",
        setup=one, limit=Limit("memory", 8.0 * n), held=8.0 * n,
        peers=everywhere(moments, a) | {"numba": lambda: bound(loops().moments, a())},
    )

    side = context.side(10_000)
    square = (side, side)
    x = lambda: array(square, 7)  # noqa: E731
    yield Workload(
        "standardise columns", "SELECT (x - mean(x, 0)) / std(x, 0) AS r FROM x",
        setup=temp("x", sql(square)), limit=Limit("memory", 16.0 * side**2, 8.0 * side**2), held=16.0 * side**2,
        peers=everywhere(lambda xp, x: (x - xp.mean(x, 0)) / xp.std(x, 0), x) | {
            "numba, out=": lambda: bound(loops().standardise, x(), empty(square, "float64")),
        },
    )
    yield Workload(
        "sum(a*b)", "SELECT sum(a*b) AS r FROM a, b",
        setup=two, limit=Limit("memory", 16.0 * n), held=16.0 * n,
        peers=everywhere(lambda xp, a, b: xp.sum(a * b), a, b) | {
            "numpy dot": lambda: bound(np.dot, a(), b()),
            "numba": lambda: bound(loops().dot, a(), b()),
        },
    )
    a4, b4 = (lambda k=k: array((n,), k, "float32") for k in (7, 11))
    singles = temp("a", sql((n,), 7, "float32")) + temp("b", sql((n,), 11, "float32"))
    yield Workload(
        "mean((a-b)^2), float32", "SELECT mean(square(a-b)) AS r FROM a, b",
        setup=singles, limit=Limit("memory", 8.0 * n), held=8.0 * n, rtol=1e-4,
        peers=everywhere(lambda xp, a, b: xp.mean(xp.square(a - b)), a4, b4) | {
            "numba": lambda: bound(loops().mean_square_difference, a4(), b4()),
        },
    )
    yield Workload(
        "max(abs(a-b))", "SELECT max(abs(a-b)) AS r FROM a, b",
        setup=two, limit=Limit("memory", 16.0 * n), held=16.0 * n,
        peers=everywhere(lambda xp, a, b: xp.max(xp.abs(a - b)), a, b),
    )

    def polynomial(xp, a):
        return (((0.5 * a - 1.25) * a + 2.0) * a - 0.75) * a + 1.5

    yield Workload(
        "polynomial of degree 4 kept", "SELECT (((0.5*a - 1.25)*a + 2.0)*a - 0.75)*a + 1.5 AS r FROM a",
        setup=one, limit=Limit("memory", 8.0 * n, 8.0 * n), held=16.0 * n,
        peers=everywhere(polynomial, a) | {
            "numba, out=": lambda: bound(loops().polynomial, a(), empty((n,), "float64")),
        },
    )
    yield Workload(
        "where(a > 0.5, b, c) kept", "SELECT where(a > 0.5, b, c) AS r FROM a, b, c",
        setup=three, limit=Limit("memory", 24.0 * n, 8.0 * n), held=32.0 * n,
        peers=everywhere(lambda xp, a, b, c: xp.where(a > 0.5, b, c), a, b, c) | {
            "numba, out=": lambda: bound(loops().choose, a(), b(), c(), empty((n,), "float64")),
        },
    )
    yield Workload(
        "sum(where(a > 0.5, b, 0))", "SELECT sum(where(a > 0.5, b, 0.0)) AS r FROM a, b",
        setup=two, limit=Limit("memory", 16.0 * n), held=16.0 * n,
        peers=everywhere(lambda xp, a, b: xp.sum(xp.where(a > 0.5, b, 0.0)), a, b) | {
            "numpy, where=": lambda: bound(lambda x, y: np.sum(y, where=x > 0.5), a(), b()),
            "numba": lambda: bound(loops().sum_where, a(), b()),
        },
    )
    yield Workload(
        "sum of b where a > 0.5, masked", "SELECT sum(where(a > 0.5, b, NULL)) AS r FROM a, b",
        setup=two, limit=Limit("memory", 16.0 * n), held=16.0 * n,
        peers={
            "numpy.ma": lambda: bound(lambda x, y: np.ma.masked_where(x <= 0.5, y).sum(), a(), b()),
            "numpy, where=": lambda: bound(lambda x, y: np.sum(y, where=x > 0.5), a(), b()),
            "numba": lambda: bound(loops().sum_where, a(), b()),
        },
    )
