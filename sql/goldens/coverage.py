"""sql/coverage: functions that no other module calls, expected from NumPy, SciPy and xarray.

Each gets ordinary input in chunks that do not divide the shape, masked cells, NaN and infinities, no cells, 0-d and every
dtype it takes. tests/coverage.rs fails when a function of `SHOW FUNCTIONS` is called in no golden script at all.
"""

import numpy as np

from .core import CASES, DATA, ERA5, EXTERNAL, Cases, Script, T, da
from .labels import air

d = Cases()
ma, nan, inf = np.ma, np.nan, np.inf
INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
DTYPES = ["bool", *INTS, "f4", "f8"]
t = {name: getattr(d, f"t_{name}") for name in DTYPES}
NAMES = {"bool": "bool", "f4": "float32", "f8": "float64", **{k: str(np.dtype(k)) for k in INTS}}
np.seterr(all="ignore")


def script(name, about, tolerance=None, setup=(CASES,)):
    return Script(f"coverage/{name}", about, tolerance, setup=setup)


def floats(a):
    """The type in which functions of floats work: 16-bit integers give float32, other integers and bool float64."""
    a = np.asanyarray(a)
    return a if a.dtype.kind == "f" else a.astype("f4" if a.dtype.itemsize == 2 else "f8")


def over(function, *arrays):
    """A NumPy function of cells; masked where an argument is."""
    hidden = np.zeros((), bool)
    for a in arrays:
        hidden = hidden | ma.getmaskarray(a)
    got = function(*[ma.getdata(a) for a in arrays])
    return ma.array(got, mask=np.broadcast_to(hidden, np.shape(got))) if hidden.any() else got


# ---------------------------------------------------------------- one float
f = script("floats_of_one", "Functions of one number in floats: aliases, angles, sinc.", 1e-13)
ANGLES = {"deg2rad": np.deg2rad, "rad2deg": np.rad2deg, "sinc": np.sinc}
INVERSE = {"acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atanh": np.arctanh, "acosh": np.arccosh, "asinh": np.arcsinh}
for name, g in {**ANGLES, **INVERSE}.items():
    within = "pos + 1" if name == "acosh" else "unit"
    values = d.pos + 1 if name == "acosh" else d.unit
    # float32 is computed in float64 and rounded, but for NumPy's sinc, which rounds pi x.
    small = lambda a, g=g, name=name: g(a.astype("f4")) if name == "sinc" else g(a.astype("f4").astype("f8")).astype("f4")
    def as_done(a, small=small, g=g, name=name):
        # NumPy's sinc of integers is computed in float64.
        a = a.astype("f8") if name == "sinc" and a.dtype.kind in "iub" else floats(a)
        return small(a) if a.dtype == "f4" else g(a)

    f.q(f"{name}({within}), {name}(({within})::REAL)", g(values), small(values))
    f.note("NaN outside the domain, infinities, a zero's sign; masked cells stay masked.")
    f.q(f"{name}(w), {name}(mn)", g(d.w), over(g, d.mn))
    f.q(f"{name}(z), {name}(zi), {name}(z1), {name}(s), {name}(sb)", d.z, d.zi.astype("f8"), d.z1, g(d.s), g(floats(d.sb)))
    f.q(", ".join(f"{name}(t_{a})" for a in DTYPES), *[as_done(t[a]) for a in DTYPES])
    f.error(f"{name}()", "argument_count")
f.q("atan2(x, y), atan2(m, y), atan2(n, x), atan2(w, w), atan2(x32, x32[::-1, :]), atan2(i, j), atan2(z, z), atan2(s, v), atan2(t_i2, t_i2), atan2(t_u8, t_i1)",
    np.arctan2(d.x, d.y), over(np.arctan2, d.m, d.y), np.arctan2(d.n, d.x), np.arctan2(d.w, d.w), np.arctan2(d.x32.astype("f8"), d.x32[::-1].astype("f8")).astype("f4"),
    np.arctan2(d.i, d.j), d.z, np.arctan2(d.s, d.v), np.arctan2(t["i2"], t["i2"]), np.arctan2(t["u8"].astype("f8"), t["i1"].astype("f8")))
f.note("The signs of zeros choose the half plane.")
f.q("atan2([0.0, -0.0, 0.0, -0.0], [1.0, 1.0, -1.0, -1.0])", np.arctan2([0.0, -0.0, 0.0, -0.0], [1.0, 1.0, -1.0, -1.0]))
f.q("sinc(t_i1), sinc(t_u2), sinc(t_i2), sinc(t_i8), sinc(t_f4 + 0.25)", np.sinc(d.t_i1), np.sinc(d.t_u2), np.sinc(d.t_i2), np.sinc(d.t_i8), np.sinc(d.t_f4 + np.float32(0.25)))
f.q("sinc([0.0, -0.0, 1.0, 0.5, -2.5]), deg2rad(180), rad2deg(pi())", np.sinc([0.0, -0.0, 1.0, 0.5, -2.5]), np.asarray(np.pi), np.asarray(180.0))
f.q("x * pi(), pi(), pi() / 2 + v", d.x * np.pi, np.asarray(np.pi), np.pi / 2 + d.v)
f.q("x32 * pi(), z1 * pi(), m * pi(), pi() * s", d.x32 * np.float32(np.pi), d.z1, d.m * np.pi, np.pi * d.s)

# ---------------------------------------------------------------- arithmetic by name
f = script("arithmetic_by_name", "Arithmetic by NumPy's names gives what the operators give.", 1e-14)
PAIRS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.true_divide, "true_divide": np.true_divide,
         "floor_divide": np.floor_divide, "mod": np.mod, "remainder": np.remainder}
for name, g in PAIRS.items():
    f.q(f"{name}(x, y), {name}(i, j), {name}(x32, y), {name}(i, y)", g(d.x, d.y), g(d.i, d.j), g(d.x32, d.y), g(d.i, d.y))
    f.q(f"{name}(m, x), {name}(mi, j), {name}(n, y), {name}(x, v)", over(g, d.m, d.x), over(g, d.mi, d.j), g(d.n, d.y), g(d.x, d.v))
    f.q(f"{name}(z, z), {name}(z, s), {name}(s, s), {name}(si, si), {name}(2, v)", d.z, d.z, g(d.s, d.s), g(d.si, d.si), g(2, d.v))
    f.q(", ".join(f"{name}(t_{a}, t_{a})" for a in DTYPES[1:]), *[g(t[a], t[a]) for a in DTYPES[1:]])
    f.q(f"{name}(t_i1, t_u1), {name}(t_u4, t_i4), {name}(t_u8, t_i8), {name}(t_i2, t_f4)", g(t["i1"], t["u1"]), g(t["u4"], t["i4"]), g(t["u8"], t["i8"]), g(t["i2"], t["f4"]))
    f.error(f"{name}(x, cube)", "shape_mismatch")
    f.error(f"{name}(x)", "argument_count")
f.note("Infinities, NaN and zeros.")
f.q("divide(w, x - x), floor_divide(w, y), remainder(w, y), mod(x, w)", d.w / (d.x - d.x), d.w // d.y, d.w % d.y, d.x % d.w)
f.q("pow(pos, y), pow(i, abs(j)), pow(v, 2), pow(2, abs(iv)), pow(m, 2), pow(t_u1, t_u1), pow(z, s), pow(s, 2)",
    d.pos**d.y, d.i ** np.abs(d.j), d.v**2, 2 ** np.abs(d.iv), d.m**2, t["u1"] ** t["u1"], d.z, d.s**2)
f.q("pow(w, 2), pow(w, 0), pow(n, 0.5), pow(x32, 3)", d.w**2, d.w**0, d.n**0.5, d.x32**3)
f.q("negative(x), negative(i), negative(mn), negative(w), negative(z), negative(si)", -d.x, -d.i, -d.mn, -d.w, -d.z, -d.si)
f.q("positive(x), positive(i), positive(mn), positive(w), positive(z), positive(s)", +d.x, +d.i, +d.mn, +d.w, +d.z, +d.s)
f.q("absolute(x), absolute(i), absolute(mn), absolute(w), absolute(z), absolute(si), absolute(b)", abs(d.x), abs(d.i), abs(d.mn), abs(d.w), d.z, abs(d.si), d.b)
f.note("Integers wrap; the least one has no opposite.")
for name, g in (("negative", np.negative), ("positive", np.positive), ("absolute", np.absolute)):
    f.q(", ".join(f"{name}(t_{a})" for a in DTYPES[1:]), *[g(t[a]) for a in DTYPES[1:]])
f.q("negative(-edge - 1), absolute(-edge - 1)", -(-d.edge - 1), abs(-d.edge - 1))
f.error("negative(b)", "dtype_mismatch")
f.q("logaddexp(x, y), logaddexp(x32, x32), logaddexp(i, j), logaddexp(m, y), logaddexp(z, z), logaddexp(s, s)",
    np.logaddexp(d.x, d.y), np.logaddexp(d.x32.astype("f8"), d.x32.astype("f8")).astype("f4"), np.logaddexp(d.i, d.j), over(np.logaddexp, d.m, d.y), d.z, np.logaddexp(d.s, d.s))
f.q("logaddexp(w, w), logaddexp(n, y), logaddexp(x * 1000, y), logaddexp(-inf(), v)",
    np.logaddexp(d.w, d.w), np.logaddexp(d.n, d.y), np.logaddexp(d.x * 1000, d.y), np.logaddexp(-inf, d.v))
f.q("nextafter(x, y), nextafter(x32, -x32), nextafter(w, 0.0), nextafter(m, y), nextafter(z, z), nextafter(s, 100.0)",
    np.nextafter(d.x, d.y), np.nextafter(d.x32, -d.x32), np.nextafter(d.w, 0.0), over(np.nextafter, d.m, d.y), d.z, np.nextafter(d.s, 100.0))
f.q("nextafter(0.0 * v, 1.0) > 0, nextafter(v, v)", np.ones(7, bool), d.v)

# ---------------------------------------------------------------- comparisons and bits
f = script("comparisons_and_bits", "Comparisons and bits by NumPy's names.")
for name, g in (("equal", np.equal), ("not_equal", np.not_equal), ("less", np.less), ("less_equal", np.less_equal), ("greater", np.greater), ("greater_equal", np.greater_equal)):
    f.q(f"{name}(x, y), {name}(i, j), {name}(x, x), {name}(b, c), {name}(x, v)", g(d.x, d.y), g(d.i, d.j), g(d.x, d.x), g(d.b, d.c), g(d.x, d.v))
    f.q(f"{name}(m, x), {name}(mn, mn), {name}(n, n), {name}(w, x), {name}(mi, i)", over(g, d.m, d.x), over(g, d.mn, d.mn), g(d.n, d.n), g(d.w, d.x), over(g, d.mi, d.i))
    f.q(f"{name}(z, z), {name}(zi, zi), {name}(s, 2.5), {name}(si, s), {name}(i, 2)", d.z > 0, d.zi > 0, g(d.s, 2.5), g(d.si, d.s), g(d.i, 2))
    f.q(", ".join(f"{name}(t_{a}, t_i4[::-1])" for a in DTYPES[1:]), *[g(t[a], t["i4"][::-1]) for a in DTYPES[1:]])
    f.note("Integers of 64 bits with and without sign compare exactly.")
    f.q(f"{name}(uedge, edge[0:2]), {name}(edge, edge[::-1])", g(d.uedge, d.edge[:2]), g(d.edge, d.edge[::-1]))
    f.error(f"{name}(x, cube)", "shape_mismatch")
for name, g in (("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor)):
    f.q(f"{name}(i, j), {name}(b, c), {name}(mi, j), {name}(zi, zi), {name}(si, si), {name}(i, 3)", g(d.i, d.j), g(d.b, d.c), over(g, d.mi, d.j), d.zi, g(d.si, d.si), g(d.i, 3))
    f.q(", ".join(f"{name}(t_{a}, t_{a}[:, ::-1])" for a in ["bool", *INTS]), *[g(t[a], t[a][:, ::-1]) for a in ["bool", *INTS]])
    f.q(f"{name}(t_u1, t_i1), {name}(t_u4, t_i8), {name}(b, i)", g(t["u1"], t["i1"]), g(t["u4"], t["i8"]), g(d.b, d.i))
    f.error(f"{name}(x, y)", "dtype_mismatch")
for name in ("bitwise_not", "invert"):
    f.q(f"{name}(i), {name}(b), {name}(mi), {name}(zi), {name}(si), {name}(sb)", ~d.i, ~d.b, ~d.mi, d.zi, ~d.si, ~d.sb)
    f.q(", ".join(f"{name}(t_{a})" for a in ["bool", *INTS]), *[~t[a] for a in ["bool", *INTS]])
    f.error(f"{name}(x)", "dtype_mismatch")
for name, g in (("left_shift", np.left_shift), ("right_shift", np.right_shift)):
    f.q(f"{name}(i, abs(j)), {name}(i, 2), {name}(mi, 1), {name}(zi, zi), {name}(si, 1)", g(d.i, np.abs(d.j)), g(d.i, 2), over(lambda a: g(a, 1), d.mi), d.zi, g(d.si, 1))
    f.q(", ".join(f"{name}(t_{a}, t_{a})" for a in INTS), *[g(t[a], t[a]) for a in INTS])
    f.note("By as many bits as there are, and more.")
    f.q(f"{name}(edge, 63), {name}(edge, 64), {name}(-edge, 64), {name}(edge, 100)", g(d.edge, 63), g(d.edge, 64), g(-d.edge, 64), g(d.edge, 100))
    f.error(f"{name}(x, 1)", "dtype_mismatch")

# ---------------------------------------------------------------- masks and NaN
f = script("masks_and_nan", "Masks as booleans, NULL and NaN as values.")
f.q("isnull(x), isnull(m), isnull(mn), isnull(allnull), isnull(n)", np.zeros((5, 7), bool), d.m.mask, d.mn.mask, np.ones(3, bool), np.zeros((5, 7), bool))
f.q("notnull(x), notnull(m), notnull(mn), notnull(allnull), notnull(n)", np.ones((5, 7), bool), ~d.m.mask, ~d.mn.mask, np.zeros(3, bool), np.ones((5, 7), bool))
f.q("isnull(z), notnull(zi), isnull(s), notnull(sb), isnull(m + x), notnull(mi)", d.z > 0, d.zi > 0, np.asarray(False), np.asarray(True), d.m.mask, ~d.mi.mask)
f.q("ifnull(m, x), ifnull(m, 0.0), ifnull(mi, j), ifnull(mi, 7), ifnull(x, y)", ma.where(d.m.mask, d.x, d.m).filled(0), d.m.filled(0.0), ma.where(d.mi.mask, d.j, d.mi).filled(0), d.mi.filled(7), d.x)
f.q("ifnull(mn, 1.5), ifnull(allnull, allnull), ifnull(z, s), ifnull(s, 1.0), ifnull(m, mcol)",
    d.mn.filled(1.5), ma.masked_all(3), d.z, d.s, ma.array(np.where(d.m.mask, d.mcol.data, d.m.data), mask=d.m.mask & d.mcol.mask))
f.q("nan_to_num(w), nan_to_num(n), nan_to_num(x32), nan_to_num(i), nan_to_num(z), nan_to_num(s)", np.nan_to_num(d.w), np.nan_to_num(d.n), d.x32, d.i, d.z, d.s)
f.q("nan_to_num(w, nan => -1.5), nan_to_num(w, posinf => 9.0, neginf => -9.0), nan_to_num(w, nan => 2, posinf => 1, neginf => 0)",
    np.nan_to_num(d.w, nan=-1.5), np.nan_to_num(d.w, posinf=9.0, neginf=-9.0), np.nan_to_num(d.w, nan=2, posinf=1, neginf=0))
f.q("nan_to_num(w::REAL), nan_to_num(n32), nan_to_num(mn), nan_to_num(allnan)", np.nan_to_num(d.w.astype("f4")), np.nan_to_num(d.n32), over(np.nan_to_num, d.mn), np.zeros(3))
for a in DTYPES:
    f.q(", ".join(f"astype(t_{k}, '{NAMES[a]}')" for k in DTYPES), *[t[k].astype(a) for k in DTYPES])
f.q("astype(x, 'int64'), astype(m, 'int32'), astype(z, 'int16'), astype(s, 'int8'), astype(x, 'float32'), astype(i, 'bool')",
    d.x.astype("i8"), ma.array(d.m.data.astype("i4"), mask=d.m.mask), d.z.astype("i2"), d.s.astype("i1"), d.x.astype("f4"), d.i.astype(bool))
f.q("astype(edge, 'int8'), astype(uedge, 'int64'), astype(i, 'uint8')", d.edge.astype("i1"), d.uedge.astype("i8"), d.i.astype("u1"))
f.error("astype(x, 'float80')", "dtype_mismatch")

# ---------------------------------------------------------------- reductions without NaN
f = script("reductions_by_name", "Reductions without NaN, the range, the sample's deviation.", 1e-12)
valid = lambda a: ma.masked_invalid(a)
clean = valid(d.n)
AGAINST = {"nansum": np.nansum, "nanprod": np.nanprod, "nanmean": np.nanmean, "nanvar": np.nanvar, "nanstd": np.nanstd, "nanmin": np.nanmin, "nanmax": np.nanmax,
           "nanargmin": np.nanargmin, "nanargmax": np.nanargmax}
for name, g in AGAINST.items():
    f.q(f"{name}(n), {name}(n, axis => 0), {name}(n, axis => 1), {name}(x, axis => -1), {name}(v)", g(d.n), g(d.n, 0), g(d.n, 1), g(d.x, -1), g(d.v))
    f.q(f"{name}(n, axis => 0, keepdims => true), {name}(n[::2, ::-1], axis => 1), {name}(one, axis => 1)", g(d.n, 0, keepdims=True), g(d.n[::2, ::-1], 1), g(d.one, 1))
    f.q(f"{name}(i), {name}(i, axis => 0), {name}(s), {name}(si)", g(d.i), g(d.i, 0), g(d.s), g(d.si))
    f.note("Masked cells and NaN are both skipped.")
    if "arg" not in name:
        both = valid(d.mn)
        h = getattr(ma, name[3:])
        f.q(f"{name}(mn), {name}(mn, axis => 1), {name}(m, axis => 0)", h(both), h(both, axis=1), h(d.m, axis=0))
        wide = lambda a, **k: np.float32(g(a.astype("f8"), **k)) if name not in ("nanmin", "nanmax") else g(a, **k)
        f.q(f"{name}(n32), {name}(x32)", wide(d.n32), wide(d.x32))
    else:
        far = inf if name == "nanargmin" else -inf
        h = lambda a, **k: getattr(np, name[3:])(ma.filled(valid(a), far), **k)
        f.q(f"{name}(mn), {name}(mn, axis => 1), {name}(m, axis => 0), {name}(n32)", h(d.mn), h(d.mn, axis=1), h(d.m, axis=0), g(d.n32))
    f.error(f"{name}(n, axis => 2)", "axis_out_of_range")
f.q("nansum(z), nansum(z, axis => 0), nanprod(z), nansum(zi, axis => 1), nansum(allnan), nanprod(allnan), nansum(z1)",
    0.0, np.zeros(3), 1.0, np.zeros(3, "i8"), 0.0, 1.0, 0.0)
f.q("nanmean(w[0:2, 0:3]), nanmax(w), nanmin(w), nansum(w[0]), nanvar(n, ddof => 1), nanstd(n, axis => 0, ddof => 1)",
    np.nanmean(d.w[:2, :3]), inf, -inf, np.nansum(d.w[0]), np.nanvar(d.n, ddof=1), np.nanstd(d.n, 0, ddof=1))
f.error("nanmax(z)", "empty_reduction")
f.error("nanargmin(z1)", "empty_reduction")
f.q("ptp(x), ptp(x, axis => 0), ptp(x, axis => 1, keepdims => true), ptp(i), ptp(i, axis => 1), ptp(x32), ptp(s)",
    np.ptp(d.x), np.ptp(d.x, 0), np.ptp(d.x, 1, keepdims=True), np.ptp(d.i), np.ptp(d.i, 1), np.ptp(d.x32), np.asarray(0.0))
f.q("ptp(m), ptp(mcol, axis => 0), ptp(n, axis => 1), ptp(mn, axis => 0, skipna => true), ptp(allnull)",
    ma.ptp(d.m), ma.ptp(d.mcol, 0), np.ptp(d.n, 1), ma.ptp(valid(d.mn), 0), ma.masked_all(()))
f.q(", ".join(f"ptp(t_{a})" for a in DTYPES[1:]), *[np.ptp(t[a]) for a in DTYPES[1:]])
f.error("ptp(z)", "empty_reduction")
f.q("stddev_samp(x), stddev_samp(x, axis => 0), stddev_samp(i, axis => 1), stddev_samp(m), stddev_samp(m, axis => 1), stddev_samp(n, axis => 1), stddev_samp(n, axis => 1, skipna => true)",
    d.x.std(ddof=1), d.x.std(0, ddof=1), d.i.std(1, ddof=1), d.m.std(ddof=1), d.m.std(1, ddof=1), d.n.std(1, ddof=1), np.nanstd(d.n, 1, ddof=1))
f.q("stddev_samp(x32), stddev_samp(v, keepdims => true), stddev_samp(t_u1)", np.float32(d.x32.astype("f8").std(ddof=1)), d.v.std(ddof=1, keepdims=True), t["u1"].std(ddof=1))

# ---------------------------------------------------------------- scans
f = script("scans_by_name", "Running extremes, running sums without NaN, roll.", 1e-13)


def running(g, a, axis, neutral):
    """Masked cells are skipped and stay masked."""
    data, hidden = ma.getdata(a), ma.getmaskarray(a)
    got = g.accumulate(np.where(hidden, np.array(neutral, data.dtype), data), axis=axis)
    return ma.array(got, mask=hidden) if hidden.any() else got


LEAST, GREATEST = np.iinfo("i4").min, np.iinfo("i4").max
for name, g, low, least in (("cummax", np.maximum, -inf, LEAST), ("cummin", np.minimum, inf, GREATEST)):
    f.q(f"{name}(x, axis => 0), {name}(x, axis => 1), {name}(x), {name}(v), {name}(x32, axis => 1)",
        g.accumulate(d.x, 0), g.accumulate(d.x, 1), g.accumulate(d.x.ravel()), g.accumulate(d.v), g.accumulate(d.x32, 1))
    f.q(f"{name}(i, axis => 0), {name}(icube, axis => 2), {name}(cube, axis => 1), {name}(b, axis => 0)",
        g.accumulate(d.i, 0), g.accumulate(d.icube, 2), g.accumulate(d.cube, 1), g.accumulate(d.b, 0))
    f.note("Masked cells stay masked, NaN goes on; nothing of no cells.")
    f.q(f"{name}(m, axis => 0), {name}(m, axis => 1), {name}(mi, axis => 1), {name}(n, axis => 1), {name}(mn, axis => 0), {name}(allnull)",
        running(g, d.m, 0, low), running(g, d.m, 1, low), running(g, d.mi, 1, least), g.accumulate(d.n, 1), running(g, d.mn, 0, low), ma.masked_all(3))
    f.q(f"{name}(z, axis => 0), {name}(z, axis => 1), {name}(z1), {name}(w, axis => 0), {name}(x[::-1, ::2], axis => 0)",
        d.z, d.z, d.z1, g.accumulate(d.w, 0), g.accumulate(d.x[::-1, ::2], 0))
    f.q(", ".join(f"{name}(t_{a}, axis => 1)" for a in DTYPES), *[g.accumulate(t[a], 1) for a in DTYPES])
    f.error(f"{name}(x, axis => 2)", "axis_out_of_range")
for name, g, u in (("nancumsum", np.nancumsum, np.add), ("nancumprod", np.nancumprod, np.multiply)):
    one = u.identity
    f.q(f"{name}(n, axis => 0), {name}(n, axis => 1), {name}(n), {name}(x, axis => 0), {name}(allnan)", g(d.n, 0), g(d.n, 1), g(d.n), g(d.x, 0), g(d.allnan))
    f.q(f"{name}(mn, axis => 0), {name}(m, axis => 1), {name}(z, axis => 1), {name}(z1), {name}(iv)",
        running(u, ma.array(np.where(np.isnan(d.mn.data), one, d.mn.data), mask=d.mn.mask), 0, one), running(u, d.m, 1, one), d.z, d.z1, g(d.iv))
    f.q(f"{name}(n32, axis => 1), {name}(t_i2, axis => 0), {name}(t_u1), {name}(x[::2, ::-1], axis => 0)",
        g(d.n32.astype("f8"), 1).astype("f4"), g(t["i2"], 0), g(t["u1"]), g(d.x[::2, ::-1], 0))
    f.q(f"{name}(n, axis => 0, dtype => 'float32')", g(d.n, 0).astype("f4"))
f.q("roll(x, 1, axis => 0), roll(x, -2, axis => 1), roll(x, 3), roll(x, 100, axis => 1), roll(x, 0, axis => 0), roll(v, 2)",
    np.roll(d.x, 1, 0), np.roll(d.x, -2, 1), np.roll(d.x, 3), np.roll(d.x, 100, 1), d.x, np.roll(d.v, 2))
shifted = lambda a, *k: ma.array(np.roll(a.data, *k), mask=np.roll(a.mask, *k))
f.q("roll(m, 1, axis => 1), roll(mi, -1, axis => 0), roll(n, 2, axis => 0), roll(i, 4, axis => 1), roll(cube, -1, axis => 1), roll(b, 1)",
    shifted(d.m, 1, 1), shifted(d.mi, -1, 0), np.roll(d.n, 2, 0), np.roll(d.i, 4, 1), np.roll(d.cube, -1, 1), np.roll(d.b, 1))
f.q("roll(z, 1, axis => 0), roll(zi, 1, axis => 1), roll(z1, 5), roll(x[::2, ::-1], 1, axis => 1)", d.z, d.zi, d.z1, np.roll(d.x[::2, ::-1], 1, 1))
f.q(", ".join(f"roll(t_{a}, 1, axis => 1)" for a in DTYPES), *[np.roll(t[a], 1, 1) for a in DTYPES])
f.error("roll(x, 1, axis => 2)", "axis_out_of_range")

# ---------------------------------------------------------------- making and layout
f = script("layout_by_name", "Tensors like others, and their cells in other places.")
f.q("empty([2, 3]), empty([2], dtype => 'int32'), empty([0, 3]), empty([]), empty([3], dims => ['y'])",
    np.zeros((2, 3)), np.zeros(2, "i4"), np.zeros((0, 3)), np.asarray(0.0), T(np.zeros(3), "y"))
f.q("identity(3), identity(1), identity(0), identity(2, dtype => 'int64'), identity(2, dims => ['y', 'x'])",
    np.eye(3), np.eye(1), np.zeros((0, 0)), np.eye(2, dtype="i8"), T(np.eye(2), "yx"))
f.q("identity(5, chunks => [2, 3]) @ x", d.x)
f.error("identity(-1)", "invalid_argument")
for name, value in (("zeros_like", 0), ("ones_like", 1)):
    g = getattr(np, name)
    f.q(f"{name}(x), {name}(i), {name}(x32), {name}(b), {name}(m), {name}(n)", g(d.x), g(d.i), g(d.x32), g(d.b), g(d.x), g(d.n))
    f.q(f"{name}(z), {name}(zi), {name}(s), {name}(si), {name}(sb), {name}(x, dtype => 'int16'), {name}(x[::2, ::-1])",
        d.z, d.zi, g(d.s), g(d.si), g(d.sb), g(d.x, dtype="i2"), g(d.x[::2, ::-1]))
    f.q(", ".join(f"{name}(t_{a})" for a in DTYPES), *[g(t[a]) for a in DTYPES])
f.q("full_like(x, 7), full_like(i, 7), full_like(x32, 1.5), full_like(b, true), full_like(i, 2.9), full_like(x, 7, dtype => 'int8'), full_like(s, 3)",
    np.full_like(d.x, 7), np.full_like(d.i, 7), np.full_like(d.x32, 1.5), np.full_like(d.b, True), np.full_like(d.i, 2.9), np.full((5, 7), 7, "i1"), np.asarray(3.0))
f.q("full_like(z, 1), full_like(zi, 1), full_like(m, 2), full_like(x, nan()), full_like(v, NULL), full_like(t_u1, 5)",
    d.z, d.zi, np.full((5, 7), 2.0), np.full((5, 7), nan), ma.masked_all(7), np.full((2, 3), 5, "u1"))
f.error("full_like(x, v)", "invalid_argument")
for name in ("ravel", "flatten"):
    f.q(f"{name}(x), {name}(icube), {name}(m), {name}(mi), {name}(b), {name}(n)", d.x.ravel(), d.icube.ravel(), d.m.ravel(), d.mi.ravel(), d.b.ravel(), d.n.ravel())
    f.q(f"{name}(z), {name}(zi), {name}(s), {name}(si), {name}(v), {name}(transpose(x)), {name}(x[::2, ::-3])",
        np.zeros(0), np.zeros(0, "i4"), d.s.ravel(), d.si.ravel(), d.v, d.x.T.ravel(), d.x[::2, ::-3].ravel())
    f.q(", ".join(f"{name}(t_{a})" for a in DTYPES), *[t[a].ravel() for a in DTYPES])
f.q("moveaxis(x, 0, -1), moveaxis(cube, 0, 2), moveaxis(cube, -1, 0), moveaxis(cube, 1, 1), moveaxis(m, 1, 0)",
    np.moveaxis(d.x, 0, -1), np.moveaxis(d.cube, 0, 2), np.moveaxis(d.cube, -1, 0), d.cube, d.m.T)
f.q("moveaxis(cube, [0, 1], [2, 0]), moveaxis(cube, [2, 0], [0, -1]), moveaxis(z, 0, 1), moveaxis(zi, 1, 0)",
    np.moveaxis(d.cube, [0, 1], [2, 0]), np.moveaxis(d.cube, [2, 0], [0, -1]), d.z.T, d.zi.T)
f.error("moveaxis(x, 2, 0)", "axis_out_of_range")
f.q("concatenate([x, y]), concatenate([x, y], axis => 1), concatenate([m, x], axis => 0), concatenate([i, x]), concatenate([cube, cube], axis => -1)",
    np.concatenate([d.x, d.y]), np.concatenate([d.x, d.y], 1), ma.concatenate([d.m, d.x]), np.concatenate([d.i, d.x]), np.concatenate([d.cube, d.cube], -1))
f.q("concatenate([z, z]), concatenate([z1, v]), concatenate([v, z1, v]), concatenate([zi, icube[0, 0:3, 0:2]], axis => 1), concatenate([v])",
    d.z, d.v, np.concatenate([d.v, d.v]), np.concatenate([d.zi, d.icube[0, :3, :2]], 1), d.v)
f.q(", ".join(f"concatenate([t_{a}, t_i2])" for a in DTYPES), *[np.concatenate([t[a], t["i2"]]) for a in DTYPES])
f.error("concatenate([x, cube])", "shape_mismatch")
for name, g in (("tril", np.tril), ("triu", np.triu)):
    f.q(f"{name}(x), {name}(x, k => 1), {name}(x, k => -2), {name}(i, 2), {name}(b), {name}(x32)", g(d.x), g(d.x, 1), g(d.x, -2), g(d.i, 2), g(d.b), g(d.x32))
    f.q(f"{name}(bp), {name}(cube, k => -1), {name}(z), {name}(zi), {name}(x, k => 100), {name}(x, k => -100), {name}(w)",
        g(d.bp), g(d.cube, -1), d.z, d.zi, g(d.x, 100), g(d.x, -100), g(d.w))
    inside = g(np.ones((5, 7), bool))
    f.note("A masked cell that is set to zero is masked no longer.")
    f.q(f"{name}(m), {name}(n)", ma.array(np.where(inside, d.m.data, 0.0), mask=inside & d.m.mask), g(d.n))
    f.q(", ".join(f"{name}(t_{a})" for a in DTYPES), *[g(t[a]) for a in DTYPES])
    f.error(f"{name}(s)", "(shape_mismatch|invalid_argument)")

# ---------------------------------------------------------------- drawn by NumPy's arguments
f = script("drawn_by_name", "uniform and normal take NumPy's order of arguments; a seed gives the same cells as the functions by shape.", setup=())
f.source = None
f.q("all(uniform(-1, 1, [30, 40], seed => 7) = random_uniform([30, 40], -1, 1, seed => 7)), all(normal(2, 3, [30, 40], seed => 7) = random_normal([30, 40], 2, 3, seed => 7))", True, True)
f.q("min(uniform(-3, 5, [100000], seed => 1)) >= -3, max(uniform(-3, 5, [100000], seed => 1)) < 5", True, True)
f.note("Mean and variance of the distributions: (a + b) / 2, (b - a)² / 12; loc, scale².")
f.q("abs(mean(uniform(-3, 5, [100000], seed => 1)) - 1) < 0.05, abs(var(uniform(-3, 5, [100000], seed => 1)) - 64 / 12) < 0.1", True, True)
f.q("abs(mean(normal(10, 2, [100000], seed => 1)) - 10) < 0.05, abs(var(normal(10, 2, [100000], seed => 1)) - 4) < 0.1", True, True)
f.q("count(uniform(size => [3, 4], seed => 1)), sum(uniform(0, 1, [0, 3], seed => 1)), sum(normal(0, 1, [3, 0], seed => 1)), count(normal(5, 2, [2, 3, 4], seed => 1))",
    np.int64(12), 0.0, 0.0, np.int64(24))
f.q("uniform(2, 2, [3], seed => 1), normal(4, 0, [2, 2], seed => 1), uniform(2, 2, [2], seed => 1, dtype => 'float32')", np.full(3, 2.0), np.full((2, 2), 4.0), np.full(2, 2, "f4"))
f.note("Chunks change no cell.")
f.q("all(uniform(-1, 1, [31, 47], seed => 7) = uniform(-1, 1, [31, 47], seed => 7, chunks => [5, 9])), all(normal(0, 1, [31, 47], seed => 7) = normal(0, 1, [31, 47], seed => 7, chunks => [5, 9]))", True, True)

# ---------------------------------------------------------------- parts of times
import xarray as xr  # noqa: E402

f = script("parts_of_times", "Parts of times in every calendar, of masked times, of none.",
           setup=(ERA5, EXTERNAL.format("noleap", "ZARR", "cf/noleap.zarr"), EXTERNAL.format("day360", "ZARR", "cf/day360.zarr"), EXTERNAL.format("units", "ZARR", "cf/units.zarr")))
f.source = "era5"
SEASONS = {"DJF": 0, "MAM": 1, "JJA": 2, "SON": 3}
long = lambda a: T(np.asarray(a.values).astype("i8"), a.dims)
season = lambda time: T(np.array([SEASONS[s] for s in time.dt.season.values.ravel()], "i8").reshape(time.shape), time.dims)
part = {"dayofweek": lambda time: long(time.dt.dayofweek), "dayofyear": lambda time: long(time.dt.dayofyear), "minute": lambda time: long(time.dt.minute),
        "second": lambda time: long(time.dt.second), "quarter": lambda time: long((time.dt.month - 1) // 3 + 1), "season": season,
        "week": lambda time: long(time.dt.isocalendar().week)}
units = xr.open_zarr(DATA / "cf/units.zarr", consolidated=False).load()
others = {name: xr.open_zarr(DATA / f"cf/{name}.zarr", consolidated=False).load().time for name in ("noleap", "day360")}
for name, g in part.items():
    f.q(f"{name}(time), {name}(time[0]), {name}(time[5:5]), {name}(time[::-7])", g(air.time), g(air.time[0]), T(np.zeros(0, "i8"), ["time"]), g(air.time[::-7]))
    f.q(f"SELECT {name}(ts), {name}(tm), {name}(td), {name}(tms) FROM units", g(units.ts), g(units.tm), g(units.td), g(units.tms))
    hidden = air.time.values[:6] < np.datetime64("2019-01-10")
    f.q(f"{name}(where(time[0:6] < '2019-01-10', NULL, time[0:6]))", T(ma.array(g(air.time[:6]).values, mask=hidden), ["time"]))
    if name != "week":
        for calendar, time in others.items():
            f.q(f"SELECT {name}(time) FROM {calendar}", g(time))
    f.error(f"{name}(lat)", "dtype_mismatch")
