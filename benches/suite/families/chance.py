"""Random numbers, and cells that are made on the fly and never stored."""

import numpy as np

from ..peers import bound, jax, loops
from ..workload import Workload


def workloads(context):
    n = context.cells(1e8)

    def numpy_normals():
        rng = np.random.default_rng(1)

        def work():
            x = rng.standard_normal(n)
            return x.mean(), x.std()

        return work

    def jax_made(make, reduce):
        def maker():
            j, jnp = jax()
            key = j.random.key(1)
            f = j.jit(lambda key: reduce(jnp, make(j.random, key)))
            return lambda: j.block_until_ready(f(key))

        return maker

    def dask_normals():
        import dask
        import dask.array as da

        def work():
            x = da.random.default_rng(1).standard_normal(n, chunks=1 << 22)
            return dask.compute(x.mean(), x.std())

        return work

    yield Workload(
        "10^8 normals: mean, std",
        f"SELECT mean(x) AS r0, std(x) AS r1 FROM (SELECT random_normal([{n}], seed => 1) AS x)",
        rtol=None,
        peers={
            "numpy": numpy_normals,
            "numba": lambda: bound(loops().normal_moments, n),
            "jax": jax_made(lambda r, key: r.normal(key, (n,), "float64"), lambda jnp, x: (x.mean(), x.std())),
            "dask": dask_normals,
        },
    )
    yield Workload(
        "10^8 uniform numbers: sum", f"SELECT sum(random_uniform([{n}], seed => 1)) AS r", rtol=None,
        peers={
            "numpy": lambda: bound(lambda rng: rng.random(n).sum(), np.random.default_rng(1)),
            "numba": lambda: bound(loops().uniform_sum, n),
            "jax": jax_made(lambda r, key: r.uniform(key, (n,), "float64"), lambda jnp, x: x.sum()),
        },
    )
    m = context.cells(3e7)
    yield Workload(
        "3 · 10^7 normals kept", f"SELECT random_normal([{m}], seed => 1) AS r", rtol=None, held=8.0 * m,
        peers={
            "numpy, out=": lambda: bound(lambda rng, out: rng.standard_normal(out=out), np.random.default_rng(1), np.empty(m)),
            "jax": jax_made(lambda r, key: r.normal(key, (m,), "float64"), lambda jnp, x: x),
        },
    )
    yield Workload(
        "3 · 10^7 random integers kept", f"SELECT (random_uniform([{m}], seed => 1) * 100.0)::int64 AS r", rtol=None, held=8.0 * m,
        peers={
            "numpy": lambda: bound(lambda rng: rng.integers(0, 100, m), np.random.default_rng(1)),
            "jax": jax_made(lambda r, key: r.randint(key, (m,), 0, 100, "int64"), lambda jnp, x: x),
        },
    )
    rows, columns = context.cells(1.5e9) // 10_000, 10_000

    def numpy_blocks():
        def work():
            s, step = np.zeros(columns), 500
            for i in range(0, rows, step):
                many = min(step, rows - i)
                s += np.sqrt(np.arange(i * columns, (i + many) * columns, dtype=np.float64)).reshape(many, columns).sum(0)
            return s / rows

        return work

    def dask_blocks():
        import dask.array as da

        return lambda: da.sqrt(da.arange(rows * columns, chunks=columns * 500, dtype="float64")).reshape(rows, columns).mean(0).compute()

    yield Workload(
        "12 GB made on the fly, mean over axis 0, 4 GiB",
        f"SELECT mean(sqrt(reshape(arange({rows * columns})::float64, [{rows}, {columns}])), 0) AS r",
        args=("--memory-limit", "4GiB"),
        peers={"numpy, in blocks": numpy_blocks, "numba": lambda: bound(loops().generated_mean, rows, columns), "dask": dask_blocks},
    )
