"""sql/queries/{histogram, tables} and query 19 of the dialect: NumPy's bins, counts, searches and interpolation."""

import numpy as np

from .core import CASES, ERA5, EXTERNAL, Cases, Script, T, da
from .labels import t2m

d = Cases()
ma, nan = np.ma, np.nan
np.seterr(all="ignore")

f = Script("queries/histogram", "histogram, histogram2d, bincount: NumPy's edge rules, masks, NaN, weights.", 1e-12, setup=(CASES, ERA5))


def histogram(sql, x, **k):
    counts, edges = np.histogram(x, **k)
    f.q(f"histogram({sql}).counts, histogram({sql}).edges", ("counts", counts), ("edges", edges))


for sql, x in [("x", d.x), ("x32", d.x32), ("i", d.i), ("cube", d.cube), ("x[::-1, ::2]", d.x[::-1, ::2]), ("line", d.line), ("t_u1", d.t_u1)]:
    histogram(sql, x)
    histogram(f"{sql}, bins => 4", x, bins=4)
    histogram(f"{sql}, bins => 5, range => [-2.0, 2.0]", x, bins=5, range=(-2, 2))
histogram("x, bins => [-3.0, -1.0, 0.5, 4.0]", d.x, bins=[-3.0, -1.0, 0.5, 4.0])
histogram("i, bins => [-2, 0, 1, 3]", d.i, bins=[-2, 0, 1, 3])
histogram("x, density => true", d.x, density=True)
histogram("x, bins => 3, weights => w", d.x, bins=3, weights=d.w)
histogram("x, bins => [0.0, 0.0, 1.0, 1.0]", d.x, bins=[0.0, 0.0, 1.0, 1.0])
f.note("The edges themselves: a lower edge is in its bin, the last bin has its upper edge too.")
histogram("[0.0, 0.1, 0.2, 0.3, 0.7, 1.0], bins => 10, range => [0.0, 1.0]", np.array([0, .1, .2, .3, .7, 1]), bins=10, range=(0, 1))
histogram("[1, 2, 3, 3, 4, 5, 5], bins => 4", np.array([1, 2, 3, 3, 4, 5, 5]), bins=4)
histogram("arange(1000) / 1000.0, bins => 7", np.arange(1000) / 1000, bins=7)
f.note("One value, none, a scalar, and cells that are not there.")
histogram("[3.0, 3.0], bins => 2", np.array([3.0, 3]), bins=2)
histogram("z1, bins => 3", d.z1, bins=3)
histogram("s, bins => 2", d.s.reshape(1), bins=2)
histogram("m, bins => 6", ma.compressed(d.m), bins=6)
histogram("n, bins => 4, range => [-3.0, 3.0]", d.n[~np.isnan(d.n)], bins=4, range=(-3, 3))
f.q("SELECT h.counts FROM (SELECT histogram(x, bins => 3) AS h FROM cases) q", ("counts", np.histogram(d.x, 3)[0]))
f.error("histogram(n)", "domain_error")
f.error("histogram(x, bins => 0)", "invalid_argument")
f.error("histogram(x, bins => [1.0])", "invalid_argument")
f.error("histogram(x, bins => [1.0, 0.0])", "domain_error")
f.error("histogram(x, range => [1.0, 0.0])", "invalid_argument")
f.error("histogram(x, bins => 'auto')", "unsupported")
f.error("histogram(x).middle", "unknown_name")
f.error("histogram(x) + 1", "dtype_mismatch")
H, ex, ey = np.histogram2d(d.x.ravel(), d.y.ravel(), bins=3)
f.q("histogram2d(x, y, bins => 3).counts, histogram2d(x, y, bins => 3).x_edges, histogram2d(x, y, bins => 3).y_edges", ("counts", H), ("x_edges", ex), ("y_edges", ey))
H, ex, ey = np.histogram2d(d.x.ravel(), d.y.ravel(), bins=(2, 4), range=((-2, 2), (-1, 3)), weights=d.w.ravel())
f.q("histogram2d(x, y, bins => [2, 4], range => [[-2.0, 2.0], [-1.0, 3.0]], weights => w).counts", ("counts", H))
f.q("bincount(k - min(k) + 0, minlength => 30)[0:1] >= 0, bincount([0, 1, 1, 3]), bincount([0, 1, 1, 3], minlength => 6), bincount([0, 1, 1, 3], weights => [0.5, 1.0, 2.0, -1.0])",
    np.array([True]), np.bincount([0, 1, 1, 3]), np.bincount([0, 1, 1, 3], minlength=6), np.bincount([0, 1, 1, 3], [0.5, 1, 2, -1]))
f.q("bincount(abs(i), minlength => 100), bincount(abs(icube), minlength => 100)", np.bincount(abs(d.i).ravel(), minlength=100), np.bincount(abs(d.icube).ravel(), minlength=100))
f.q("bincount(abs(mi), minlength => 100)", np.bincount(abs(ma.compressed(d.mi)), minlength=100))
f.note("The length is known when the greatest value has been read.")
f.q("bincount(abs(i)), bincount(abs(icube[:, 0, :])), bincount(abs(i), minlength => 2, weights => x), bincount(zi, minlength => 2)",
    np.bincount(abs(d.i).ravel()), np.bincount(abs(d.icube[:, 0, :]).ravel()), np.bincount(abs(d.i).ravel(), d.x.ravel()), np.zeros(2, "i8"))
f.error("bincount(i)", "domain_error")
f.error("bincount(x, minlength => 9)", "dtype_mismatch")

f = Script("dialect/q19", "A histogram, and quantiles over time.", 1e-6, setup=(EXTERNAL.format("xs", "ZARR", "cases.zarr"), ERA5, "CREATE TEMP TENSOR x AS SELECT x FROM xs"))
counts, edges = np.histogram(d.x, 100, (-5, 5))
q = t2m.quantile([0.05, 0.5, 0.95], "time", skipna=True)
f.q("SELECT histogram(x, bins => 100, range => [-5.0, 5.0]), quantile(t2m, [0.05, 0.5, 0.95], axis => 'time') FROM x, era5",
    ("counts", counts), ("edges", edges), ("v2", T(np.ma.masked_invalid(q.values), q.dims)))

f = Script("queries/tables", "digitize, searchsorted, isin, interp.", 1e-12, setup=(CASES, ERA5))
E = [-2.0, -0.5, 0.0, 1.5]
for right in (False, True):
    f.q(f"digitize(x, {E}, right => {str(right).lower()}), digitize(x, {E[::-1]}, right => {str(right).lower()})", np.digitize(d.x, E, right), np.digitize(d.x, E[::-1], right))
    f.q(f"digitize(i, [0, 2, 4], {str(right).lower()}), digitize(n, {E}, {str(right).lower()})", np.digitize(d.i, [0, 2, 4], right), np.digitize(d.n, E, right))
f.q("digitize(x, sort(v)), digitize(x, sort(v, descending => true))", np.digitize(d.x, np.sort(d.v)), np.digitize(d.x, np.sort(d.v)[::-1]))
f.q("searchsorted([-1.0, 0.0, 0.0, 2.0], x), searchsorted([-1.0, 0.0, 0.0, 2.0], x, 'right'), searchsorted(sort(v), v), searchsorted([1, 3], 2)",
    np.searchsorted([-1., 0, 0, 2], d.x), np.searchsorted([-1., 0, 0, 2], d.x, "right"), np.searchsorted(np.sort(d.v), d.v), np.searchsorted([1, 3], 2))
f.q("searchsorted([0, 1, 2], t_f8), searchsorted([0.0, 0.5], i), searchsorted(sort(k), m[:, 0])",
    np.searchsorted([0, 1, 2], d.t_f8), np.searchsorted([0.0, 0.5], d.i), ma.array(np.searchsorted(np.sort(d.k), ma.getdata(d.m)[:, 0]), mask=ma.getmaskarray(d.m)[:, 0]) if ma.is_masked(d.m[:, 0]) else np.searchsorted(np.sort(d.k), ma.getdata(d.m)[:, 0]))
f.q("isin(i, [1, 3, -2]), isin(i, [1, 3, -2], invert => true), isin(x, x[0]), isin(n, n), isin(s, x), isin(i, j[:, 0:2])",
    np.isin(d.i, [1, 3, -2]), ~np.isin(d.i, [1, 3, -2]), np.isin(d.x, d.x[0]), np.isin(d.n, d.n), np.isin(d.s, d.x), np.isin(d.i, d.j[:, :2]))
f.q("isin(mi, [1, 2]), isin(z1, [1.0]), isin(x, z1)", ma.array(np.isin(ma.getdata(d.mi), [1, 2]), mask=ma.getmaskarray(d.mi)), np.zeros(0, bool), np.zeros((5, 7), bool))
XP, FP = [-2.0, -1.0, 0.5, 3.0], [1.0, 4.0, -2.0, 0.0]
f.q(f"interp(x, {XP}, {FP}), interp(x, {XP}, {FP}, left => -9, right => 9.0), interp(n, {XP}, {FP}), interp(i, {XP}, {FP}), interp(0.25, {XP}, {FP})",
    np.interp(d.x, XP, FP), np.interp(d.x, XP, FP, -9, 9), np.interp(d.n, XP, FP), np.interp(d.i, XP, FP), np.interp(0.25, XP, FP))
f.note("Of a labelled tensor at other labels: xarray's.")
at = t2m.isel(time=slice(0, 3))
lat, lon = t2m.lat.values, t2m.lon.values
A, B = [float(lat[0]), float((lat[1] + lat[2]) / 2), float(lat[-1] - 50)], float((lon[0] + 3 * lon[1]) / 4)
one = lambda a: np.ma.masked_invalid(a.transpose("time", ...).values)
w = at.astype("f8").interp(lat=A).interp(lon=B)
f.q(f"SELECT interp(t2m[0:3], lat => {A}, lon => {B!r}) FROM era5", T(one(w), ["time", "lat"]))
first, second = at.time.values[:2]
noon = first + (second - first) // 4
N = str(noon.astype("M8[s]"))
f.q(f"SELECT interp(t2m[0:3, 0], time => '{N}'), interp(t2m[0:3, 0], time => ['{N}']) FROM era5",
    T(at[:, 0].astype("f8").interp(time=noon).values, ["lon"]), T(at[:, 0].astype("f8").interp(time=[noon]).values, ["time", "lon"]))
for of in ["time => [5]", "time => 1.5", "lat => time[0:2]", "lat => ['2020-01-01']"]:
    f.error(f"SELECT interp(t2m, {of}) FROM era5", "invalid_argument")
f.error("interp(x, [0.0, -1.0], [1.0, 2.0])", "invalid_argument")
f.error("interp(x, [0.0], [1.0, 2.0])", "shape_mismatch")
f.error("interp(x)", "invalid_argument")
f.error("interp(x, dim_0 => 0.5)", "invalid_argument")
f.error("digitize(x, [0.0, 2.0, 1.0])", "invalid_argument")
f.error("searchsorted(x, v)", "shape_mismatch")
f.error("searchsorted([1, 2], x, 'middle')", "invalid_argument")
