"""Cells that move: transposes, casts, joins, picks, and from one chunking on disk to another."""

import shutil

import numpy as np

from .. import files
from ..cells import array, empty, shuffled, shuffled_sql, sql, temp
from ..peers import bound, everywhere, loops
from ..workload import Limit, Workload


def workloads(context):
    side = context.side(10_000)
    square, n = (side, side), float(side * side)
    x = lambda: array(square)  # noqa: E731
    kept = dict(setup=temp("x", sql(square)), held=16.0 * n)
    yield Workload(
        "x + transpose(x)", "SELECT x + transpose(x) AS r FROM x", **kept,
        limit=Limit("memory", 16.0 * n, 8.0 * n),
        peers=everywhere(lambda xp, x: x + x.T, x) | {
            "numba, out=": lambda: bound(loops().add_transposed, x(), empty(square, "float64")),
        },
    )
    yield Workload(
        "transpose kept", "SELECT transpose(x) + 0.0 AS r FROM x", **kept, limit=Limit("memory", 8.0 * n, 8.0 * n),
        peers=everywhere(lambda xp, x: x.T.copy(), x) | {
            "numba, out=": lambda: bound(loops().transpose, x(), empty(square, "float64")),
        },
    )
    cube = (context.side(300, 3), context.side(400, 3), context.side(500, 3))
    cells = float(np.prod(cube))
    c = lambda: array(cube, 7, "float32")  # noqa: E731
    yield Workload(
        "transpose(cube, [2, 0, 1]), float32", "SELECT transpose(x, [2, 0, 1]) + 0 AS r FROM x",
        setup=temp("x", sql(cube, 7, "float32")), held=8.0 * cells, limit=Limit("memory", 4.0 * cells, 4.0 * cells),
        peers={
            "numpy": lambda: bound(lambda x: np.ascontiguousarray(x.transpose(2, 0, 1)), c()),
            **{k: v for k, v in everywhere(lambda xp, x: x.transpose(2, 0, 1) + 0, c).items() if k != "numpy"},
        },
    )
    yield Workload(
        "x[::-1, ::2] kept", "SELECT x[::-1, ::2] + 0.0 AS r FROM x", setup=kept["setup"], held=12.0 * n,
        limit=Limit("memory", 8.0 * n, 4.0 * n), peers=everywhere(lambda xp, x: x[::-1, ::2] + 0.0, x),
    )
    yield Workload(
        "concat of two, axis 1", "SELECT concat([x, x], axis => 1) AS r FROM x", setup=kept["setup"], held=24.0 * n,
        limit=Limit("memory", 8.0 * n, 16.0 * n),
        peers=everywhere(lambda xp, x: xp.concatenate([x, x], axis=1), x),
    )
    yield Workload(
        "pad by 8 on all sides", "SELECT pad(x, 8) AS r FROM x", **kept, limit=Limit("memory", 8.0 * n, 8.0 * n),
        peers=everywhere(lambda xp, x: xp.pad(x, 8), x),
    )
    yield Workload(
        "roll(x, 100, axis 1)", "SELECT roll(x, 100, 1) AS r FROM x", **kept, limit=Limit("memory", 8.0 * n, 8.0 * n),
        peers=everywhere(lambda xp, x: xp.roll(x, 100, 1), x),
    )
    yield Workload(
        "repeat each row 2 times", "SELECT repeat(x, 2, 0) AS r FROM x", setup=kept["setup"], held=24.0 * n,
        limit=Limit("memory", 8.0 * n, 16.0 * n), peers=everywhere(lambda xp, x: xp.repeat(x, 2, 0), x),
    )
    m = context.cells(3e7)
    y = lambda: shuffled((m,))  # noqa: E731
    flat = temp("y", shuffled_sql((m,)))
    yield Workload(
        "y[y > 0.9]", "SELECT y[y > 0.9] AS r FROM y", setup=flat, held=8.0 * m, limit=Limit("memory", 16.0 * m),
        peers={"numpy": lambda: bound(lambda y: y[y > 0.9], y())},
    )
    rows = context.cells(1e6)
    picks = context.cells(1e6)
    t = lambda: array((rows, 32))  # noqa: E731
    at = lambda: (shuffled((picks,), 3, "int64") * 31) % rows  # noqa: E731
    yield Workload(
        "take 10^6 rows of 32 cells", "SELECT take(t, i, 0) AS r FROM t, i",
        setup=temp("t", sql((rows, 32))) + temp("i", f"({shuffled_sql((picks,), 3, 'int64')} * 31) % {rows}"),
        held=8.0 * 32 * (rows + picks), limit=Limit("memory", 256.0 * picks, 256.0 * picks),
        peers={
            "numpy": lambda: bound(lambda t, i: np.take(t, i, 0), t(), at()),
            **{k: v for k, v in everywhere(lambda xp, t, i: xp.take(t, i, 0), t, at).items() if k == "jax"},
        },
    )
    many = context.cells(3e6)
    z, j = lambda: shuffled((many,)), lambda: (shuffled((many,), 3, "int64") * 31) % many  # noqa: E731
    yield Workload(
        "take cells at listed positions", "SELECT take(z, j) AS r FROM z, j",
        setup=temp("z", shuffled_sql((many,))) + temp("j", f"({shuffled_sql((many,), 3, 'int64')} * 31) % {many}"),
        held=24.0 * many, limit=Limit("memory", 16.0 * many, 8.0 * many), peers={"numpy": lambda: bound(lambda z, j: np.take(z, j), z(), j())},
    )
    yield rechunk(context)


def rechunk(context):
    """From row chunks to column chunks, disk to disk; a result that is there already is replaced."""
    side = context.side(10_000)
    block = max(side // 100, 1)
    source, target = context.data / f"rows-{side}.zarr", context.data / f"columns-{side}"

    def prepare():
        files.rows(source, side, block)

    def fresh(name):
        path = target.with_name(f"{target.name}-{name}.zarr")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def zarr_python():
        import zarr

        old = zarr.open_array(str(source / "x"), mode="r")

        def work():
            new = zarr.create_array(str(fresh("zarr")), shape=(side, side), chunks=(side, block), dtype="float64",
                                    compressors=zarr.codecs.ZstdCodec(level=1))
            band = block * 10
            for j in range(0, side, band):
                new[:, j : j + band] = old[:, j : j + band]
            return new

        return work

    def whole():
        import zarr

        old = zarr.open_array(str(source / "x"), mode="r")

        def work():
            new = zarr.create_array(str(fresh("whole")), shape=(side, side), chunks=(side, block), dtype="float64",
                                    compressors=zarr.codecs.ZstdCodec(level=1))
            new[:] = old[:]
            return new

        return work

    def dask():
        import dask.array as da
        import zarr

        x = da.from_zarr(str(source / "x"), chunks=(block * 4, side))

        def work():
            new = zarr.create_array(str(fresh("dask")), shape=(side, side), chunks=(side, block), dtype="float64",
                                    compressors=zarr.codecs.ZstdCodec(level=1))
            da.store(x.rechunk((side, block * 4)), new, lock=False)
            return new

        return work

    def tensorstore():
        import tensorstore as ts

        old = ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(source / "x")}}).result()
        chunk = {"name": "regular", "configuration": {"chunk_shape": [side, block]}}
        codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]

        def work():
            new = ts.open(
                {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(fresh("tensorstore"))},
                 "metadata": {"shape": [side, side], "data_type": "float64", "chunk_grid": chunk, "codecs": codecs}},
                create=True,
            ).result()
            new.write(old.read().result()).result()
            return new

        return work

    out = target.with_name(f"{target.name}-tessera.zarr")
    # Each column has cells of every row: of rows that are decoded once, all wait until the last one is there.
    held = 8.0 * side**2
    return Workload(
        "rows to column chunks, Zarr to Zarr",
        f"COPY (SELECT rechunk(x, [{side}, {block}]) AS r FROM '{source}') TO '{out}' STORED AS ZARR OPTIONS (overwrite true, codec 'zstd:1')",
        look=f"SELECT r FROM '{out}'", prepare=prepare, limit=Limit("memory", 8.0 * side**2, 8.0 * side**2), held=held,
        peers={"zarr-python": zarr_python, "zarr-python, whole": whole, "dask": dask, "tensorstore": tensorstore},
    )
