"""sql/queries/{sort, quantile}: cells in order and order statistics, from NumPy."""

import numpy as np

from .core import CASES, ERA5, Cases, Script, T, da
from .labels import t2m

d = Cases()
ma, nan = np.ma, np.nan
np.seterr(all="ignore")


def lines(x, f, axis):
    """`f` of each line's masked array."""
    moved = np.moveaxis(ma.asarray(x), axis, -1)
    out = [f(moved[at]) for at in np.ndindex(moved.shape[:-1])]
    back = np.moveaxis(ma.stack(out).reshape(moved.shape[:-1] + out[0].shape), -1, axis)
    return back if ma.is_masked(back) else ma.getdata(back)


def ordered(line, descending=False):
    """Stable positions: numbers, NaN, masked."""
    def key(i):
        if ma.getmaskarray(line)[i]:
            return (2, 0)
        v = line.data[i]
        return (1, 0) if v != v else (0, -v if descending else v)
    return np.array(sorted(range(len(line)), key=key), "i8")


def argsort(x, axis=-1, descending=False):
    return lines(x, lambda line: ordered(line, descending), axis)


def sort(x, axis=-1, descending=False):
    return lines(x, lambda line: line[ordered(line, descending)], axis)


f = Script("queries/sort", "sort, argsort, topk, argtopk, partition: NaN after the numbers, masked cells last.", setup=(CASES, ERA5))
for name in ("x", "i", "n", "m", "mn", "mi", "x32", "b"):
    v = getattr(d, name)
    down = not name == "b"
    f.q(f"sort({name}), sort({name}, axis => 0), argsort({name}), argsort({name}, axis => 0)", sort(v), sort(v, 0), argsort(v), argsort(v, 0))
    if down:
        f.q(f"sort({name}, axis => 1, descending => true), argsort({name}, axis => 0, descending => true)", sort(v, 1, True), argsort(v, 0, True))
for name in ("t_i1", "t_u1", "t_i2", "t_u2", "t_i4", "t_u4", "t_i8", "t_u8", "t_f4", "t_f8"):
    f.q(f"sort({name}), argsort({name}, axis => 0)", np.sort(getattr(d, name)), np.argsort(getattr(d, name), 0, kind="stable"))
f.q("sort(uedge), sort(edge, descending => true), sort(uedge, descending => true)", np.sort(d.uedge), np.sort(d.edge)[::-1], np.sort(d.uedge)[::-1])
f.q("sort(cube, axis => 1), argsort(icube, axis => 0)", np.sort(d.cube, 1), np.argsort(d.icube, 0, kind="stable"))
f.q("sort(x, axis => NULL), sort(x[::-1, ::2], axis => 0), sort(transpose(x), axis => 0)", np.sort(d.x, None), np.sort(d.x[::-1, ::2], 0), np.sort(d.x.T, 0))
f.q("sort(z), sort(z, axis => 0), sort(z1), argsort(z1), sort(allnull), sort(allnan), argsort(allnull)",
    d.z, d.z, d.z1, np.zeros(0, "i8"), d.allnull, d.allnan, np.arange(3))
f.note("Equal cells keep their order, -0.0 and 0.0 too.")
f.q("sort([0.0, -0.0, 0.0, -0.0]), argsort([0.0, -0.0, 0.0, -0.0]), topk([0.0, -0.0, 0.0, -0.0], 3), argtopk([0.0, -0.0, 0.0, -0.0], 3), topk([1.0, -0.0, 0.0, -0.0], 2, largest => false)",
    np.array([0.0, -0.0, 0.0, -0.0]), np.arange(4), np.array([0.0, -0.0, 0.0]), np.arange(3), np.array([-0.0, 0.0]))
at = np.arange(300)
zeros = np.where(at % 3 == 1, -0.0, np.where(at % 5 == 0, 0.0, at - 150.0))
ZEROS = "where(arange(300) % 3 = 1, -0.0, where(arange(300) % 5 = 0, 0.0, arange(300) - 150.0))"
f.q(f"1 / sort({ZEROS}), argsort({ZEROS}), 1 / sort({ZEROS}::float32, descending => true), 1 / topk({ZEROS}, 180), 1 / topk({ZEROS}, 90, largest => false)",
    1 / np.sort(zeros, kind="stable"), np.argsort(zeros, kind="stable"), 1 / sort(zeros.astype("f4"), 0, True), 1 / sort(zeros, 0, True)[:180], 1 / np.sort(zeros, kind="stable")[:90])
f.q(f"all(1 / take({ZEROS}, argsort({ZEROS})) = 1 / sort({ZEROS}))", np.bool_(np.array_equal(1 / zeros[np.argsort(zeros, kind="stable")], 1 / np.sort(zeros, kind="stable"))))
f.q("argsort([2, 1, 2, 1, 2]), argsort([2, 1, 2, 1, 2], descending => true)", np.array([1, 3, 0, 2, 4]), np.array([0, 2, 4, 1, 3]))
f.q("topk(x, 3), topk(x, 2, axis => 0), topk(x, 2, largest => false), topk(i, 100, axis => 0), topk(x, 0)",
    sort(d.x, 1, True)[:, :3], sort(d.x, 0, True)[:2], np.sort(d.x, 1)[:, :2], sort(d.i, 0, True), np.zeros((5, 0)))
f.q("topk(n, 3), topk(m, 2, axis => 0), topk(mn, 6, largest => false)", sort(d.n, 1, True)[:, :3], sort(d.m, 0, True)[:2], sort(d.mn, 1)[:, :6])
f.q("argtopk(x, 3), argtopk(m, 2, axis => 0), argtopk(x, 2, largest => false)", argsort(d.x, 1, True)[:, :3], argsort(d.m, 0, True)[:2], argsort(d.x, 1)[:, :2])
f.q("partition(x, 2, axis => 0)[2], argpartition(x, -1)[:, -1]", np.partition(d.x, 2, 0)[2], d.x.argmax(1))
f.q("sort(random([1000], seed => 3, chunks => [64]))[1:] >= sort(random([1000], seed => 3, chunks => [64]))[:-1]", np.ones(999, bool))
f.q("SELECT topk(t2m[lat => 45, lon => 0.5], 5, axis => 'time') FROM era5", T(np.sort(t2m.sel(lat=45, lon=0.5).dropna("time").values)[::-1][:5], ["time"]))
f.q("SELECT sort(time, descending => true)[0:2] FROM era5", T(t2m.time.values[::-1][:2], ["time"]))
f.error("sort(x, axis => 2)", "axis_out_of_range")
f.error("sort(s)", "axis_out_of_range")
f.error("topk(x, -1)", "invalid_argument")
f.error("partition(x, 9)", "invalid_argument")
f.error("topk(x)", "argument_count")

METHODS = ["inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "linear",
           "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest"]


def quantile(x, q, axis, method="linear"):
    """NumPy's of the cells that are not masked."""
    def one(line):
        v = ma.compressed(line)
        n = np.shape(q) or (1,)
        return ma.masked_all(n, line.dtype if line.dtype.kind == "f" else "f8") if len(v) == 0 else ma.asarray(np.quantile(v, np.reshape(q, -1), method=method))
    out = np.moveaxis(lines(x, one, axis), axis, 0)
    return out if np.ndim(q) else out[0]


f = Script("queries/quantile", "quantile, percentile, median: every method of NumPy's, several axes, masks and NaN.", 1e-12, setup=(CASES, ERA5))
Q = [0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0]
label = lambda v, *dims: T(v, ["quantile", *(dims or [f"dim_{k + 1}" for k in range(np.ndim(v) - 1)])])
for method in METHODS:
    f.q(f"quantile(x, {Q}, axis => 1, method => '{method}'), quantile(line, {Q}, method => '{method}')",
        label(np.quantile(d.x, Q, 1, method=method)), label(np.quantile(d.line, Q, method=method)))
    f.q(f"quantile(x, 0.3, axis => 0, method => '{method}')", np.quantile(d.x, 0.3, 0, method=method))
for method in ("lower", "higher", "nearest", "inverted_cdf", "closest_observation"):
    f.q(f"quantile(i, 0.4, axis => 0, method => '{method}'), quantile(uedge, 1.0, method => '{method}')", np.quantile(d.i, 0.4, 0, method=method), d.uedge.max())
f.q("quantile(x, 0.25), quantile(x, [0.25], axis => 0), quantile(i, 0.5, axis => 1)", np.quantile(d.x, 0.25), label(np.quantile(d.x, [0.25], 0)), np.quantile(d.i, 0.5, 1))
f.q("quantile(cube, 0.9, axis => [0, 2]), quantile(cube, [0.1, 0.9], axis => [1, 0]), quantile(cube, 0.5)",
    np.quantile(d.cube, 0.9, (0, 2)), label(np.quantile(d.cube, [0.1, 0.9], (0, 1))), np.quantile(d.cube, 0.5))
f.q("quantile(x, 0.5, axis => 0, keepdims => true), quantile(x, [0.1, 0.2], axis => 1, keepdims => true), median(cube, axis => [0, 1], keepdims => true)",
    np.quantile(d.x, 0.5, 0, keepdims=True), label(np.quantile(d.x, [0.1, 0.2], 1, keepdims=True)), np.median(d.cube, (0, 1), keepdims=True))
f.q("percentile(x, 95, axis => 0), percentile(x, [5, 50]), nanpercentile(n, 30, axis => 0)", np.percentile(d.x, 95, 0), label(np.percentile(d.x, [5, 50])), np.nanpercentile(d.n, 30, 0))
f.q("median(x), median(x, axis => 0), median(x, axis => 1), median(i, axis => 0), median(b, axis => 1), median(s)",
    np.median(d.x), np.median(d.x, 0), np.median(d.x, 1), np.median(d.i, 0), np.median(d.b.astype("f8"), 1), np.median(d.s))
f.q("median(x[::-1, ::2], axis => 0), median(transpose(x), axis => 0), median(x32, axis => 0)", np.median(d.x[::-1, ::2], 0), np.median(d.x.T, 0), np.median(d.x32, 0))
f.note("NaN propagates unless it is skipped; masked cells are skipped.")
f.q("median(n, axis => 0), nanmedian(n, axis => 0), median(n, axis => 1, skipna => true), nanquantile(n, 0.2), nanmedian(allnan)",
    np.median(d.n, 0), np.nanmedian(d.n, 0), np.nanmedian(d.n, 1), np.nanquantile(d.n, 0.2), np.float64(nan))
f.q("median(m, axis => 0), quantile(m, 0.3, axis => 1), quantile(m, [0.3, 0.8], axis => 0)", quantile(d.m, 0.5, 0), quantile(d.m, 0.3, 1), label(quantile(d.m, [0.3, 0.8], 0)))
f.q("median(mi, axis => 0), median(allnull), median(mn, axis => 0, skipna => true)", quantile(d.mi, 0.5, 0), ma.masked_all(()), quantile(ma.masked_invalid(d.mn), 0.5, 0))
f.q("median(z1), median(z, axis => 0), median(z, axis => 1)", np.float64(nan), np.full(3, nan), np.zeros(0))
f.note("Infinities stay what they are.")
f.q("median([1e308 * 10, 1e308 * 10, 1.0]), median([1.0, 1e308 * 10])", np.float64(np.inf), np.float64(np.inf))
f.q("SELECT quantile(t2m, 0.9, axis => 'time') FROM era5", da(t2m.quantile(0.9, "time", skipna=True)))
f.q("SELECT q.quantile FROM (SELECT quantile(t2m, [0.05, 0.5], axis => 'time') AS v FROM era5) q", ("quantile", T(np.array([0.05, 0.5]), ["quantile"])))
f.error("quantile(x, 1.5)", "invalid_argument")
f.error("quantile(x, NULL)", "invalid_argument")
f.error("quantile(x, 0.5, method => 'middle')", "invalid_argument")
f.q("quantile(x, abs(v) / 100, axis => 0)", label(np.quantile(d.x, abs(d.v) / 100, 0)))
f.error("quantile(x, x)", "invalid_argument")
f.error("percentile(x, 101)", "invalid_argument")
f.error("median(x, axis => 3)", "axis_out_of_range")
f.error("quantile(zi, 0.5, axis => 1, method => 'lower')", "empty_reduction")
