"""sql/queries/{fill, derivatives, arrange, resample}: neighbours along one dimension, cells at other places, periods."""

import numpy as np
import pandas as pd

from .core import CASES, ERA5, Cases, Script, T, da
from .labels import precip, t2m

d = Cases()
ma, nan = np.ma, np.nan
np.seterr(all="ignore")


def filled(v, name, axis, limit=None):
    """pandas' ffill or bfill of each line; masked cells are NaN."""
    frame = pd.DataFrame(np.moveaxis(ma.filled(v.astype("f8"), nan), axis, 0).reshape(v.shape[axis], -1))
    out = getattr(frame, name)(limit=limit).values.reshape(np.moveaxis(ma.getdata(v), axis, 0).shape)
    return np.moveaxis(out, 0, axis)


hidden = np.ma.masked_invalid


def as_it_was(v, filled):
    """What found nothing to take is masked where it was, and else the NaN that it was."""
    return ma.masked_array(filled, np.isnan(filled) & ma.getmaskarray(v))


f = Script("queries/fill", "ffill, bfill, first, last, ewm.", 1e-12, setup=(CASES, ERA5))
for name in ("ffill", "bfill"):
    for axis in (0, 1):
        f.q(f"{name}(m, axis => {axis}), {name}(m, axis => {axis}, limit => 1), {name}(mn, {axis})",
            *[as_it_was(v, filled(v, name, axis, limit)) for v, limit in ((d.m, None), (d.m, 1), (d.mn, None))])
        f.note("NaN is filled too, and stays NaN where there are no masks.")
        f.q(f"{name}(n, axis => {axis}), {name}(x, axis => {axis})", filled(d.n, name, axis), d.x)
f.q("ffill(mi, axis => 0), ffill(mi[::-1, ::2], axis => 1), ffill(allnull), ffill(allnan), ffill(z1), ffill(k)",
    hidden(filled(d.mi, "ffill", 0)).astype("i4"), hidden(filled(d.mi[::-1, ::2], "ffill", 1)).astype("i4"), d.allnull, d.allnan, d.z1, d.k)
f.q("first(m, axis => 0), last(m, axis => 1), first(x), last(cube, axis => 1), last(allnull)",
    hidden(filled(d.m, "bfill", 0)[0]), hidden(filled(d.m, "ffill", 1)[:, -1]), d.x[0], d.cube[:, -1], ma.masked_all(()))
ew = lambda v, axis, **k: pd.DataFrame(v if axis == 0 else v.T).ewm(**k).mean().values
f.q("ewm(x, axis => 0, alpha => 0.3), ewm(x, axis => 1, span => 4), ewm(x, axis => 0, halflife => 2), ewm(x, axis => 0, com => 1), ewm(i, axis => 0, alpha => 1)",
    ew(d.x, 0, alpha=0.3), ew(d.x, 1, span=4).T, ew(d.x, 0, halflife=2), ew(d.x, 0, com=1), d.i.astype("f8"))
f.q("ewm(m, axis => 0, alpha => 0.5)", ma.masked_invalid(ew(ma.filled(d.m, nan), 0, alpha=0.5)))
f.error("ewm(x, axis => 0)", "invalid_argument")
f.error("ewm(x, axis => 0, alpha => 0)", "invalid_argument")
f.error("ewm(x, axis => 0, alpha => 0.5, span => 3)", "invalid_argument")
f.error("ffill(x, axis => 0, limit => 0)", "invalid_argument")
f.error("first(s)", "axis_out_of_range")
f.error("first(z1)", "empty_reduction")

f = Script("queries/derivatives", "gradient, trapz, convolve, correlate, average with weights.", 1e-12, setup=(CASES, ERA5))
P = [0.0, 1.0, 1.5, 3.5, 4.0, 7.0, 7.5]
for order in (1, 2):
    f.q(f"gradient(v, edge_order => {order}), gradient(x, 0.5, axis => 0, edge_order => {order}), gradient(x, {P}, axis => 1, edge_order => {order}), gradient(i, 2, axis => 1, edge_order => {order})",
        np.gradient(d.v, edge_order=order), np.gradient(d.x, 0.5, axis=0, edge_order=order), np.gradient(d.x, P, axis=1, edge_order=order), np.gradient(d.i, 2, axis=1, edge_order=order))
f.q("gradient(x[::-1, ::2], axis => 1), gradient([1.0, 4.0]), gradient(x32, axis => 0), gradient(n, axis => 1)",
    np.gradient(d.x[::-1, ::2], axis=1), np.gradient([1.0, 4]), np.gradient(d.x32, axis=0), np.gradient(d.n, axis=1))
f.error("gradient(x)", "invalid_argument")
f.error("gradient([1.0])", "out_of_range")
f.error("gradient(v, [1.0, 2.0])", "invalid_argument")
f.q(f"trapz(v), trapz(x, axis => 0), trapz(x, dx => 0.25), trapz(x, {P}), trapz(i, axis => 0), trapz(z1), trapz(n, axis => 0)",
    np.trapezoid(d.v), np.trapezoid(d.x, axis=0), np.trapezoid(d.x, dx=0.25), np.trapezoid(d.x, P), np.trapezoid(d.i, axis=0), np.float64(0), np.trapezoid(d.n, axis=0))
for mode in ("full", "same", "valid"):
    for kernel in ([1.0, 2.0, -0.5], [0.5, 0.25], [2.0], [1.0, 0.0, -1.0, 3.0]):
        f.q(f"convolve(v, {kernel}, '{mode}'), convolve({kernel}, v, '{mode}'), correlate(v, {kernel}, '{mode}'), correlate({kernel}, v, '{mode}')",
            np.convolve(d.v, kernel, mode), np.convolve(kernel, d.v, mode), np.correlate(d.v, kernel, mode), np.correlate(kernel, d.v, mode))
f.q("convolve(k, [1, 2]), convolve(x[0, ::-2], [1.0, 1.0])", np.convolve(d.k, [1, 2]), np.convolve(d.x[0, ::-2], [1, 1]))
f.error("convolve(x, [1.0])", "shape_mismatch")
f.error("convolve(z1, [1.0])", "empty_reduction")
f.error("convolve(v, [1.0], 'wide')", "invalid_argument")
f.error("convolve(arange(1000), arange(300))", "invalid_argument")
f.q("average(x, weights => w), average(x, axis => 0, weights => w), average(x, axis => 1, weights => [1, 2, 3, 4, 5, 6, 7]), average(i, axis => 0), average(x, axis => 0, weights => w, keepdims => true)",
    np.average(d.x, weights=d.w), np.average(d.x, 0, d.w), np.average(d.x, 1, [1, 2, 3, 4, 5, 6, 7]), np.average(d.i, 0), np.average(d.x, 0, d.w, keepdims=True))
f.q("average(i::int16::float32, axis => 1, weights => [1, 2, 3, 4, 5, 6, 7])", np.average(d.i.astype("i2").astype("f4"), 1, [1, 2, 3, 4, 5, 6, 7]))
there = ~ma.getmaskarray(d.m)
of_m = np.where(there, ma.getdata(d.m) * d.w, 0).sum(0) / np.where(there, d.w, 0).sum(0)
f.q("average(m, axis => 0, weights => w), average(n, axis => 0, weights => w)", ma.array(of_m, mask=~there.any(0)) if not there.any(0).all() else of_m, np.average(d.n, 0, d.w))
weights = np.cos(np.deg2rad(t2m.lat))
f.q("SELECT average(t2m[0:3]::float64, axis => ['lat', 'lon'], weights => cos(radians(lat))) FROM era5", da(t2m[:3].astype("f8").weighted(weights).mean(["lat", "lon"])))

f = Script("queries/arrange", "pad, tile, repeat, rot90, hstack, vstack, dstack, diag, allclose, array_equal.", setup=(CASES, ERA5))
for mode in ("constant", "edge", "reflect", "symmetric", "wrap"):
    f.q(f"pad(x, 2, mode => '{mode}'), pad(v, [3, 9], mode => '{mode}'), pad(cube, [[1, 0], [0, 2], [7, 1]], mode => '{mode}'), pad(x, dim_1 => [0, 3], mode => '{mode}')",
        np.pad(d.x, 2, mode), np.pad(d.v, (3, 9), mode), np.pad(d.cube, ((1, 0), (0, 2), (7, 1)), mode), np.pad(d.x, ((0, 0), (0, 3)), mode))
f.q("pad(i, 1, value => 7), pad(k, 1, value => NULL), pad(m, [1, 0]), pad(z1, 2)", np.pad(d.i, 1, constant_values=7), ma.array(np.pad(d.k, 1), mask=[1, 0, 0, 0, 0, 0, 1]),
    ma.array(np.pad(ma.getdata(d.m), (1, 0)), mask=np.pad(ma.getmaskarray(d.m), (1, 0))), np.zeros(4))
f.q("tile(v, 2), tile(x, [2, 3]), tile(v, [2, 1, 2]), tile(x, 0), tile(z, 2)", np.tile(d.v, 2), np.tile(d.x, (2, 3)), np.tile(d.v, (2, 1, 2)), np.tile(d.x, 0), np.tile(d.z, 2))
f.q("repeat(x, 2), repeat(x, 3, axis => 1), repeat(m, 2, axis => 0), repeat(s, 3), repeat(v, 0)", np.repeat(d.x, 2), np.repeat(d.x, 3, 1), ma.repeat(d.m, 2, 0), np.repeat(d.s, 3), np.zeros(0))
for k in (-1, 0, 1, 2, 3):
    f.q(f"rot90(x, {k}), rot90(cube, {k}, [1, 2]), rot90(cube, {k}, [2, 0])", np.rot90(d.x, k), np.rot90(d.cube, k, (1, 2)), np.rot90(d.cube, k, (2, 0)))
f.q("fliplr(x), flipud(x), flipud(v)", np.fliplr(d.x), np.flipud(d.x), np.flipud(d.v))
f.q("hstack([v, k]), hstack([x, y]), vstack([v, v]), vstack([x, i]), dstack([x, y]), dstack([v, v]), hstack([s, s])",
    np.hstack([d.v, d.k]), np.hstack([d.x, d.y]), np.vstack([d.v, d.v]), np.vstack([d.x, d.i]), np.dstack([d.x, d.y]), np.dstack([d.v, d.v]), np.hstack([d.s, d.s]))
f.q("repeat(x, [1, 0, 2, 3, 1], axis => 0), roll(x, [1, 2], axis => [0, 1]), roll(x, [3, 4]), clip(x, 0), max(x, dim => 1)",
    np.repeat(d.x, [1, 0, 2, 3, 1], 0), np.roll(d.x, [1, 2], (0, 1)), np.roll(d.x, [3, 4]), np.clip(d.x, 0, None), d.x.max(1))
f.error("repeat(x, [1, 2], axis => 0)", "invalid_argument")
f.q("SELECT r.time FROM (SELECT vstack([t2m[0:1, :, 0], t2m[3:5, :, 0]]) AS v FROM era5) r", ("time", da(t2m.time[[0, 3, 4]], masked=False)))
for k in (-2, 0, 3):
    f.q(f"diag(k, {k}), diag(x, {k}), diag(transpose(x), {k})", np.diag(d.k, k), np.diag(d.x, k), np.diag(d.x.T, k))
f.q("diag(x, 9), diag(x, -9), diag(allnull)", np.zeros(0), np.zeros(0), ma.array(np.zeros((3, 3)), mask=np.eye(3)))
f.q("allclose(x, x), allclose(x, x + 1e-9), allclose(x, y), allclose(n, n), allclose(n, n, equal_nan => true), allclose(m, m), allclose(z1, z1), allclose(x, x + 0.1, atol => 1)",
    True, True, False, False, True, True, True, True)
f.q("isclose(x, x + 1e-9), isclose(n, n, equal_nan => true), isclose([1e308 * 10, 1.0], [1e308 * 10, -1e308 * 10])", np.ones((5, 7), bool), np.ones((5, 7), bool), np.array([True, False]))
f.q("array_equal(x, x), array_equal(x, y), array_equal(x, v), array_equal(n, n), array_equal(n, n, equal_nan => true), array_equal(i, i::float64)", True, False, False, False, True, True)
f.error("pad(x, -1)", "invalid_argument")
f.error("pad(x, 1, mode => 'mirror')", "invalid_argument")
f.error("pad(z1, 1, mode => 'edge')", "empty_reduction")
f.error("rot90(v)", "shape_mismatch")
f.error("repeat(x, -1)", "invalid_argument")
f.error("diag(cube)", "shape_mismatch")

f = Script("queries/resample", "resample: periods of a time coordinate.", 1e-6, setup=(ERA5,))
one = t2m.sel(lat=45, lon=0.5)
for text, freq in (("1 day", "1D"), ("7 days", "7D"), ("12 hours", "12h"), ("1 month", "MS"), ("1 quarter", "QS"), ("1 year", "YS"), ("MS", "MS"), ("2D", "2D")):
    for op in ("mean", "max"):
        f.q(f"SELECT resample(t2m[lat => 45, lon => 0.5], '{op}', time => '{text}') FROM era5", da(getattr(one.resample(time=freq), op)()))
f.q("SELECT r.time FROM (SELECT resample(t2m, 'mean', time => '1 month') AS v FROM era5) r", ("time", da(one.resample(time="MS").mean().time, masked=False)))
f.q("SELECT resample(t2m, 'mean', time => '1 year') FROM era5", da(t2m.resample(time="YS").mean().transpose("time", ...)))
warm = (one > 273).to_series().resample("2D")
f.q("SELECT resample(t2m[lat => 45, lon => 0.5] > 273, 'any', time => '2 days')[0:9], resample(t2m[lat => 45, lon => 0.5] > 273, 'all', time => '2 days')[0:9] FROM era5",
    *(T(ma.array(v.fillna(False).astype(bool), mask=warm.count() == 0)[:9], ["time"]) for v in (warm.max(), warm.min())))
f.error("SELECT resample(t2m, 'mean', lat => '1 day') FROM era5", "invalid_argument")
f.error("SELECT resample(t2m, 'mean', time => 'fortnight') FROM era5", "invalid_argument")
f.error("SELECT resample(t2m, 'mean', time => 6) FROM era5", "invalid_argument")
f.error("SELECT resample(t2m, 'middle', time => '1 day') FROM era5", "invalid_argument")
