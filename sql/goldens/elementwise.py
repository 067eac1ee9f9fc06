"""sql/cells/elementwise: NumPy's functions over cells and over tables, expected from NumPy and SciPy."""

import duckdb
import numpy as np
import pandas as pd
import scipy.special

from .core import DATA, Script, T

N, NAN, INF = None, float("nan"), float("inf")
V = [[0.5, NAN, -0.75, 2.0, N], [INF, -1.5, 0.25, -0.0, 3.0], [1.0, 1.0005, -2.5, N, 0.125]]
F = [[0.5, 1.5, N, -2.25, 0.75], [1.0, -3.0, 0.5, 2.0, NAN], [-0.5, 1.0, 0.25, 4.0, -1.0]]
K = [[1, 300, -7, N, 0], [5, -2, 12, 7, 3], [N, 2, -9, 200, 6]]
B = [[True, False, True, True, N], [False, True, N, False, True], [True, True, False, False, True]]


def literal(v):
    if v is None:
        return "NULL"
    return {"nan": "nan()", "inf": "inf()"}.get(str(v), str(v).lower() if isinstance(v, bool) else repr(v))


def array(rows, dtype):
    items = ", ".join("[" + ", ".join(map(literal, row)) + "]" for row in rows)
    return f"astype(rename([{items}], dim_0 => 'i', dim_1 => 'j'), '{dtype}')"


def column(rows, dtype):
    flat = [v for row in rows for v in row]
    return np.ma.array([0 if v is None else v for v in flat], mask=[v is None for v in flat], dtype=dtype)


SETUP = f"CREATE TEMP TENSOR t AS SELECT {array(V, 'float64')} AS v, {array(F, 'float32')} AS f, {array(K, 'int16')} AS k, {array(B, 'bool')} AS b"
v, f, k, b = column(V, "f8"), column(F, "f4"), column(K, "i2"), column(B, "?")
i, j = np.divmod(np.arange(15), 5)
np.seterr(all="ignore")

s = Script("cells/elementwise", "NumPy's elementwise functions in cell blocks, dense and over rows. Expected from NumPy and SciPy.", 1e-12, setup=[SETUP])


def call(function, *args):
    """A function of NumPy; a result is masked where an argument is."""
    plain = [np.ma.getdata(a) if isinstance(a, np.ma.MaskedArray) else a for a in args]
    mask = np.zeros(15, bool)
    for a in args:
        mask = mask | np.ma.getmaskarray(a) if isinstance(a, np.ma.MaskedArray) else mask
    return np.ma.array(function(*plain), mask=mask)


def values(column):
    return [N if hidden else v for v, hidden in zip(np.ma.getdata(column), np.ma.getmaskarray(column))]


def items(cases):
    """One statement of all calls, as tensors, which show their types."""
    sql = ", ".join(f"{text} AS c{n}" for n, (text, _) in enumerate(cases))
    tensors = {f"c{n}": T(call(*case).reshape(3, 5), ["i", "j"]) for n, (_, case) in enumerate(cases)}
    s.q(f"SELECT [i], [j], {sql} FROM t WHERE i > -1", **tensors)


s.note("Functions of one number.")
items([("log1p(v)", (np.log1p, v)), ("expm1(v)", (np.expm1, v)), ("exp2(f)", (np.exp2, f)), ("rint(v)", (np.rint, v)), ("square(v)", (np.square, v)), ("square(k)", (np.square, k)),
       ("reciprocal(f)", (np.reciprocal, f)), ("absolute(k)", (np.absolute, k)), ("negative(v)", (np.negative, v)), ("positive(k)", (np.positive, k)), ("sinc(v)", (np.sinc, v)),
       ("arcsin(v)", (np.arcsin, v)), ("arccos(f)", (np.arccos, f)), ("arctan(k)", (np.arctan, k)), ("arcsinh(v)", (np.arcsinh, v)), ("arccosh(v)", (np.arccosh, v)), ("arctanh(v)", (np.arctanh, v)),
       ("deg2rad(v)", (np.deg2rad, v)), ("rad2deg(f)", (np.rad2deg, f)), ("erf(v)", (scipy.special.erf, v)), ("erfc(v)", (scipy.special.erfc, v)),
       ("isinf(v)", (np.isinf, v)), ("isfinite(v)", (np.isfinite, v)), ("isfinite(k)", (np.isfinite, k)), ("signbit(k)", (np.signbit, k)), ("invert(k)", (np.invert, k)), ("bitwise_not(b)", (np.invert, b)),
       ("logical_not(v)", (np.logical_not, v)), ("nan_to_num(v, nan => -1, posinf => 9)", (lambda x: np.nan_to_num(x, nan=-1, posinf=9), v)), ("astype(k, 'float32')", (lambda x: x.astype("f4"), k))])
s.note("Functions of several: a number has the type of the column, two columns meet as in NumPy.")
items([("clip(v, -1, 1.5)", (lambda x: np.clip(x, -1, 1.5), v)), ("clip(f, 0, 1.5)", (lambda x: np.clip(x, 0, np.float32(1.5)), f)), ("clip(k, NULL, 5)", (lambda x: np.minimum(x, 5), k)), ("clip(k, -3000000000, 3000000000)", (lambda x: np.clip(x, -3000000000, 3000000000), k)),
       ("maximum(v, f)", (np.maximum, v, f)), ("minimum(f, 0.25)", (lambda x: np.minimum(x, np.float32(0.25)), f)), ("fmax(v, f)", (np.fmax, v, f)), ("fmin(v, 0)", (lambda x: np.fmin(x, 0.0), v)),
       ("maximum(k, 2)", (lambda x: np.maximum(x, 2), k)), ("maximum(k, f)", (np.maximum, k, f)), ("hypot(v, f)", (np.hypot, v, f)), ("hypot(k, 3)", (lambda x: np.hypot(x, 3), k)),
       ("copysign(k, v)", (np.copysign, k, v)), ("nextafter(f, 0)", (lambda x: np.nextafter(x, np.float32(0)), f)), ("logaddexp(v, 0)", (lambda x: np.logaddexp(x, 0.0), v)),
       ("fmod(k, 4)", (lambda x: np.fmod(x, 4), k)), ("mod(k, 4)", (lambda x: np.mod(x, 4), k)), ("remainder(v, -2)", (lambda x: np.remainder(x, -2.0), v)), ("mod(k, 0)", (lambda x: np.mod(x, 0), k)),
       ("floor_divide(k, -4)", (lambda x: np.floor_divide(x, -4), k)), ("divide(k, 4)", (lambda x: np.divide(x, 4), k)), ("add(k, k)", (np.add, k, k)), ("subtract(b::int, k)", (np.subtract, b.astype("i4"), k)),
       ("multiply(k, v)", (np.multiply, k, v)), ("true_divide(v, f)", (np.true_divide, v, f)), ("equal(k, f)", (np.equal, k, f)), ("not_equal(v, v)", (np.not_equal, v, v)), ("less(v, f)", (np.less, v, f)),
       ("greater_equal(f, 0.5)", (lambda x: np.greater_equal(x, np.float32(0.5)), f)), ("logical_xor(b, k)", (np.logical_xor, b, k)), ("bitwise_and(k, 6)", (lambda x: np.bitwise_and(x, 6), k)),
       ("bitwise_or(k, k + 1::smallint)", (lambda x: np.bitwise_or(x, x + np.int16(1)), k)), ("bitwise_xor(b, true)", (lambda x: np.bitwise_xor(x, True), b)), ("left_shift(k, 3)", (lambda x: np.left_shift(x, 3), k)),
       ("right_shift(k, 1)", (lambda x: np.right_shift(x, 1), k)), ("isclose(v, 1, rtol => 1e-3)", (lambda x: np.isclose(x, 1.0, rtol=1e-3), v)),
       ("clip(1 + log1p(square(v)), maximum(f, 0), inf())", (lambda x, y: np.minimum(np.maximum(1 + np.log1p(np.square(x)), np.maximum(y, np.float32(0))), INF), v, f))])

s.note("Lists of the query; a NULL among logical ones.")
edges, fall = [-1.0, 0.25, 2.0], [2, 0, -5]
wins = lambda x, y, value: [value if value in (p, q) else N if N in (p, q) else not value for p, q in zip(x, y)]
either, both = [[N if p is N else bool(p) for p in values(x)] for x in (b, k)]
rows = zip(values(call(np.digitize, v, edges)), values(call(lambda x: np.digitize(x, edges, right=True), v)), values(call(lambda x: np.digitize(x, fall), k)), values(call(lambda x: np.searchsorted(edges, x), v)),
           values(call(lambda x: np.searchsorted(edges, x, side="right"), f)), values(call(lambda x: np.isin(x, [1, 2, 3]), k)), values(call(lambda x: ~np.isin(x, [0.25, 0.5]), f)), [x is N for x in values(v)],
           [x is not N for x in values(b)], wins(either, both, False), wins(either, both, True))
s.rows("SELECT digitize(v, [-1, 0.25, 2]) AS a, digitize(v, [-1, 0.25, 2], right => true) AS b, digitize(k, [2, 0, -5]) AS c, searchsorted([-1, 0.25, 2], v) AS d, searchsorted([-1, 0.25, 2], f, side => 'right') AS e, "
       "isin(k, [1, 2, 3]) AS g, isin(f, [0.25, 0.5], invert => true) AS h, isnull(v) AS l, notnull(b) AS m, logical_and(b, k) AS n, logical_or(b, k) AS o FROM t WHERE i > -1 ORDER BY i, j", rows)

s.note("In conditions, groups, orders, aggregates and windows.")
frame = pd.DataFrame({"i": i, "j": j, "v": values(v), "f": values(f), "k": values(k), "b": values(b)}, dtype=object)
finite = frame[[x is not N and np.isfinite(x) for x in frame.v]]
s.rows("SELECT i, j FROM t WHERE isfinite(v) AND NOT isclose(v, 1.0, atol => 1e-2) AND less(hypot(v, 0), 2.5) ORDER BY mod(k, 5) NULLS LAST, absolute(k)",
       [list(r) for r in sorted(((r.i, r.j) for r in finite.itertuples() if abs(r.v - 1) > 0.02 and abs(r.v) < 2.5), key=lambda at: (lambda n: (n is N, n is not N and n % 5, n is not N and abs(n)))(K[at[0]][at[1]]))])
total = lambda column: N if all(x is N for x in column) else sum(x for x in column if x is not N)
known = lambda column: [x for x in column if x is not N]
groups = []
for key in (0, 1, 2):
    rest = frame[frame.i == key]
    positive = [x > 0 or x != x for x in known(rest.v)]
    numbers = [x for x in known(rest.f) if x == x]
    groups.append((key, total(positive), np.mean(positive), np.mean([np.log1p(np.square(np.float64(x))) for x in known(rest.k)]), total(rest.b), np.mean(known(rest.b)), total([np.isfinite(x) for x in known(rest.v)]),
                   float(np.sum(numbers)), float(np.mean(numbers)), np.float32(max(numbers)), np.int16(max(known(rest.k)) - min(known(rest.k)))))
s.rows("SELECT i, sum(v > 0) AS a, avg(v > 0) AS b, avg(log1p(square(k::double))) AS c, sum(b) AS d, mean(b) AS e, sum(isfinite(v)) AS g, nansum(f) AS h, nanmean(f) AS l, nanmax(f) AS m, ptp(k) AS n FROM t GROUP BY i ORDER BY i", groups)
whole = [x for x in known(frame.k)]
numbers = np.array([x for x in known(frame.f) if x == x], "f8")
s.rows("SELECT quantile(k, 0.9) AS a, percentile(k, 25) AS b, nanquantile(f::double, 0.3) AS c, nanmedian(f::double) AS d, nanstd(f::double) AS e, nanvar(f::double) AS g FROM t WHERE i > -1",
       [(np.quantile(whole, 0.9), np.percentile(whole, 25), np.quantile(numbers, 0.3), np.median(numbers), np.nanstd(numbers), np.nanvar(numbers))])
bins = {}
for x, y in zip(values(call(np.digitize, v, edges)), values(k)):
    bins.setdefault(x, []).append(y)
s.rows("SELECT digitize(v, [-1, 0.25, 2]) AS bin, count(*) AS n, sum(clip(k, -5, 5)) AS s FROM t GROUP BY digitize(v, [-1, 0.25, 2]) ORDER BY bin NULLS LAST",
       [(key, len(bins[key]), total([N if y is N else min(max(y, -5), 5) for y in bins[key]])) for key in sorted(bins, key=lambda x: (x is N, x))])
s.rows("SELECT i, j, sum(maximum(k, 0)) OVER (PARTITION BY i ORDER BY j) AS s FROM t WHERE j < 3 ORDER BY i, j", [(a, c, total([N if y is N else max(y, 0) for y in K[a][: c + 1]])) for a in range(3) for c in range(3)])

s.note("Tables of files: floats, integers, times, texts; decimals become floats, and other types are refused.")
stations = duckdb.sql(f"SELECT n, lat, wide, plain FROM '{DATA / 'tables/stations.parquet'}'").fetchnumpy()
day = np.datetime64("2020-07-01T03")
s.rows("SELECT n, rint(lat) AS a, clip(lat, 52.4, 52.9) AS b, mod(n, 3) AS c, hypot(n, wide) AS d, maximum(plain, '2020-07-01T03:00:00') AS e FROM 'tests/data/tables/stations.parquet' WHERE isfinite(wide) AND fmod(n, 2) = 0 ORDER BY n",
       [(m, np.rint(x), np.clip(x, np.float32(52.4), np.float32(52.9)), m % 3, np.hypot(np.float64(m), w), max(p, day)) for m, x, w, p in zip(*stations.values()) if m % 2 == 0 and np.isfinite(w)])
s.rows("SELECT name, isnull(lat0) AS a, notnull(name) AS b, copysign(lat1, lat0) AS c, clip(12.5::decimal(4, 1), 0, 10) AS d FROM 'tests/data/tables/regions.csv' ORDER BY name",
       [("empty", False, True, 81.0, 10.0), ("north", False, True, 70.0, 10.0), ("south", False, True, -39.9, 10.0)])
s.error("SELECT clip(name, 0, 1) AS c FROM 'tests/data/tables/regions.csv'", "dtype_mismatch: `clip` is not defined for text")
s.error("SELECT clip(lat0) AS c FROM 'tests/data/tables/regions.csv'", "argument_count")
s.error("SELECT isclose(lat0, lat1, rtol => lon0) AS c FROM 'tests/data/tables/regions.csv'", "invalid_argument: .*a constant")
