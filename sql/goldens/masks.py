"""sql/queries/masks: data that declare a missing value, of which some chunks have masked cells and others none, from
NumPy's masked arrays."""

import numpy as np
import pandas as pd
import zarr

from .core import DATA, Script, T

ma = np.ma
DIMS = ["time", "lat", "lon"]
MASKS = "CREATE EXTERNAL TABLE masks STORED AS ZARR LOCATION 'tests/data/masks.zarr'"
group = zarr.open_group(str(DATA / "masks.zarr"), mode="r")
raw = {name: group[name][...] for name in ("some", "whole", "packed", "none")}
cubes = {
    "some": ma.masked_invalid(raw["some"]),
    "whole": ma.masked_equal(raw["whole"], -9999.0),
    "packed": ma.masked_equal(raw["packed"], -32767) * 0.25 + 10.0,
    "none": ma.masked_invalid(raw["none"]),
}
months = pd.to_datetime("2019-01-01") + pd.to_timedelta(np.arange(12) * 20, "D")
months = months.month.to_numpy()


def result(values, dims, like=None):
    """A result, in the type of the cells; its mask goes where nothing is masked, as it prints the same."""
    values = ma.asarray(values)
    if like is not None:
        values = values.astype(like)
    return T(values if ma.is_masked(values) else ma.getdata(values), dims)


def wide(v):
    return v.astype("f8")


def rolled(v, n, axis, f, least):
    """`f` of the last n cells, masked where fewer than `least` are there."""
    moved = ma.asarray(np.moveaxis(wide(v).filled(np.nan), axis, -1))
    out = ma.masked_all(moved.shape)
    for i in range(moved.shape[-1]):
        cells = ma.masked_invalid(moved[..., max(0, i - n + 1):i + 1])
        enough = cells.count(-1) >= least
        at = ma.masked_where(~enough, ma.asarray(f(cells)))
        out[..., i] = at
    return ma.masked_invalid(np.moveaxis(out.filled(np.nan), -1, axis))


def ordered(v, axis):
    """Sorted lines, the masked cells last."""
    moved = np.moveaxis(v, axis, -1)
    out = ma.masked_all(moved.shape, v.dtype)
    for at in np.ndindex(moved.shape[:-1]):
        cells = np.sort(moved[at].compressed())
        out[at][: len(cells)] = cells
    return np.moveaxis(out, -1, axis)


def quantiles(v, q, axis):
    moved = np.moveaxis(wide(v), axis, -1)
    out = ma.masked_all(moved.shape[:-1])
    for at in np.ndindex(out.shape):
        cells = moved[at].compressed()
        if len(cells):
            out[at] = np.quantile(cells, q)
    return out


f = Script("queries/masks", "Cubes that declare a missing value: chunks with masked cells and without.", 1e-12, source="masks", setup=(MASKS,))
for name, v in cubes.items():
    t, w = v.dtype, wide(v)
    rest = {0: DIMS[1:], 1: [DIMS[0], DIMS[2]], 2: DIMS[:2]}
    f.q(f"count({name}), sum({name}), mean({name}), min({name}), max({name}), sum(isnull({name}))", np.int64(v.count()), t.type(w.sum()), t.type(w.mean()),
        v.min(), v.max(), np.int64(ma.getmaskarray(v).sum()))
    for axis, dims in rest.items():
        f.q(f"count({name}, {axis}), sum({name}, {axis}), mean({name}, {axis})", result(v.count(axis), dims, "i8"), result(w.sum(axis), dims, t), result(w.mean(axis), dims, t))
        f.q(f"min({name}, {axis}), max({name}, {axis}), std({name}, {axis})", result(v.min(axis), dims), result(v.max(axis), dims), result(w.std(axis), dims, t))
    cum = ma.masked_array(np.cumsum(w.filled(0), 0), ma.getmaskarray(v))
    top = ma.masked_array(np.maximum.accumulate(v.filled(-1e9), 2), ma.getmaskarray(v))
    f.q(f"cummax({name}, 2), cumsum({name}::float64, 0)", result(top, DIMS, t), result(cum, DIMS))
    f.q(f"rolling({name}::float64, 'mean', time => 3, min_periods => 2), rolling({name}::float64, 'max', lon => 4)",
        result(rolled(v, 3, 0, lambda c: c.mean(-1), 2), DIMS), result(rolled(v, 4, 2, lambda c: c.max(-1), 4), DIMS))
    f.q(f"sort({name}, 2), sort({name}, 0)", result(ordered(v, 2), DIMS), result(ordered(v, 0), DIMS))
    f.q(f"median({name}::float64, 0), quantile({name}::float64, 0.25, 2)", result(quantiles(v, 0.5, 0), rest[0]), result(quantiles(v, 0.25, 2), rest[2]))
    cells = w.compressed()
    f.q(f"histogram({name}, [-100, -50, 0, 10, 100]).counts", counts=T(np.histogram(cells, [-100, -50, 0, 10, 100])[0], ["dim_0"]))
    groups = np.unique(months)
    by = ma.stack([w[months == m].mean(0) for m in groups])
    f.q(f"sum(groupby({name}::float64, 'count', by => month(time)))", np.int64(v.count()))
    f.q(f"max(abs(groupby({name}::float64, 'mean', by => month(time))))", np.float64(abs(by).max()))
    f.q(f"{name}[2:9, ::-1, 6:10]", result(v[2:9, ::-1, 6:10], DIMS))
    f.q(f"concat([{name}, none], axis => 1)[4:9, 2:6]", result(ma.concatenate([w.astype(np.result_type(t, "f4")), cubes["none"]], 1)[4:9, 2:6], DIMS, np.result_type(t, "f4")))
    f.q(f"reshape({name}, [12, 60])[5:9, 6:20]", result(v.reshape(12, 60)[5:9, 6:20], ["dim_0", "dim_1"]))
    f.q(f"take({name}, [9, 0, 6], axis => 0)[:, 1]", result(v[[9, 0, 6], 1], ["time", "lon"]))
    f.q(f"coalesce({name}, 7)[6], {name} + none[0]", result(v.filled(7)[6], DIMS[1:], t), result(v + cubes["none"][0], DIMS, np.result_type(t, "f4")))
    product = ma.masked_array(w[:, 0].filled(0) @ w[:, 1].filled(0).T)
    some = (~ma.getmaskarray(v)[:, 0]).astype(int) @ (~ma.getmaskarray(v)[:, 1]).astype(int).T
    f.q(f"sum({name}::float64[:, 0] @ transpose({name}::float64[:, 1]))", np.float64(ma.masked_where(some == 0, product).sum()))
f.note("What takes no masked cell takes data that only declare them.")
f.q("svd(none[:, 0]::float64).s AS s", s=T(np.linalg.svd(raw["none"][:, 0].astype("f8"))[1], ["dim_0"]))
f.q("corrcoef(none[:, 0]::float64)", T(np.corrcoef(raw["none"][:, 0].astype("f8")), ["time", "dim_1"]))
f.q("solve(none[0:4, :, 0:4][0]::float64, none[0, :, 5]::float64)", T(np.linalg.solve(raw["none"][0, :, 0:4].astype("f8"), raw["none"][0, :, 5].astype("f8")), ["lon"]))
f.q("svd(some[0:4, 0]::float64).s AS s", s=T(np.linalg.svd(raw["some"][0:4, 0].astype("f8"))[1], ["dim_0"]))
f.error("svd(some[:, 0]).s", "masked_input")
f.error("corrcoef(whole[:, 0])", "masked_input")
f.error("solve(packed[0, :, 0:4], packed[1, :, 5])", "masked_input")
f.note("What is kept without a masked cell is kept without a mask.")
f.ok("CREATE TEMP TENSOR held AS SELECT max(some[0:4], 0) AS a, some[:, 0, 8:] AS b, none AS c FROM masks")
f.q("SELECT sum(a::float64) AS a, count(b) AS b, max(c) AS c FROM held", a=np.float64(raw["some"][0:4].max(0).astype("f8").sum()), b=np.int64(cubes["some"][:, 0, 8:].count()), c=raw["none"].max())
