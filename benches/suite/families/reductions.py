"""Reductions over each axis and type: a pass over the memory, if nothing is in the way."""

import numpy as np

from ..cells import array, shuffled, shuffled_sql, sql, temp
from ..peers import bound, everywhere, loops
from ..workload import Limit, Workload


def workloads(context):
    side = context.side(10_000)
    square = (side, side)
    n = side * side
    for dtype, ops in (("float64", ("sum", "max", "std", "argmax")), ("float32", ("mean", "var"))):
        x = lambda dtype=dtype: array(square, 7, dtype)  # noqa: E731
        size = np.dtype(dtype).itemsize
        for op in ops:
            for axis in (0, 1):
                own = {}
                if op == "sum":
                    loop = ("sum_rows", "sum_columns")[axis]
                    own = {"numba": lambda loop=loop: bound(getattr(loops(), loop), array(square, 7))}
                yield Workload(
                    f"{op}(x, {axis}), {dtype}", f"SELECT {op}(x, {axis}) AS r FROM x",
                    setup=temp("x", sql(square, 7, dtype)), limit=Limit("memory", size * n), held=size * n,
                    rtol=1e-9 if dtype == "float64" else 1e-3,
                    peers=everywhere(lambda xp, x, op=op, axis=axis: getattr(xp, op)(x, axis=axis), x) | own,
                )

    cube = (context.side(400, 3), context.side(500, 3), context.side(500, 3))
    cells = int(np.prod(cube))
    x3 = lambda: array(cube, 7, "float32")  # noqa: E731
    for axis in (0, 1, 2, (0, 2)):
        where = axis if isinstance(axis, int) else list(axis)
        yield Workload(
            f"mean(cube, {where}), float32", f"SELECT mean(x, {where}) AS r FROM x",
            setup=temp("x", sql(cube, 7, "float32")), limit=Limit("memory", 4.0 * cells), held=4.0 * cells, rtol=1e-4,
            peers=everywhere(lambda xp, x, axis=axis: xp.mean(x, axis=axis), x3),
        )

    flat = (context.cells(1e8),)
    for dtype in ("int32", "int64"):
        x = lambda dtype=dtype: shuffled(flat, 1, dtype)  # noqa: E731
        size = np.dtype(dtype).itemsize
        yield Workload(
            f"sum(x), {dtype}", "SELECT sum(x) AS r FROM x",
            setup=temp("x", shuffled_sql(flat, 1, dtype)), limit=Limit("memory", size * flat[0]), held=size * flat[0], rtol=0,
            peers=everywhere(lambda xp, x: xp.sum(x, dtype="int64"), x) | {"numba": lambda x=x: bound(loops().sum_all, x())},
        )
    x = lambda: shuffled(flat, 1, "int32")  # noqa: E731
    ints = temp("x", shuffled_sql(flat, 1, "int32"))
    for name, text, f in (
        ("min and max, int32", "SELECT min(x) AS r0, max(x) AS r1 FROM x", lambda xp, x: (xp.min(x), xp.max(x))),
        ("count of x > 1000, int32", "SELECT sum(x > 1000) AS r FROM x", lambda xp, x: xp.sum(x > 1000)),
        ("any(x < 0), int32", "SELECT any(x < 0) AS r FROM x", lambda xp, x: xp.any(x < 0)),
    ):
        yield Workload(
            name, text, setup=ints, limit=Limit("memory", 4.0 * flat[0]), held=4.0 * flat[0], rtol=0,
            peers=everywhere(f, x),
        )
