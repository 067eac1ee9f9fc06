"""sql/queries/accuracy: sums and variances of what cancels, to the last digits. Exact rational arithmetic says what they are."""

from fractions import Fraction

import numpy as np

from .core import Script, T


def fractions(x):
    return [Fraction(float(v)) for v in np.ravel(x)]


def total(x):
    return float(sum(fractions(x)))


def var(x, ddof=0):
    x = fractions(x)
    mean = sum(x) / len(x)
    return float(sum((v - mean) ** 2 for v in x) / (len(x) - ddof))


def along(f, x, axis):
    return np.apply_along_axis(f, axis, x)


f = Script("queries/accuracy", "Sums of many cells, and variances far from zero.", 4e-15, source=None)
MANY = "CREATE TEMP TENSOR {} AS SELECT {} AS {}"
f.note("A million times 0.1: a running sum is off by 10^-11 of itself, pairwise and compensated ones by 3 * 10^-16.")
n = 1_000_000
tenth = np.full(n, 0.1)
f.q("sum(full([1000000], 0.1)) AS s, mean(full([1000000], 0.1)) AS m", ("s", total(tenth)), ("m", total(tenth) / n))
f.q("sum(full([1000, 1000], 0.1)) AS s, sum(full([4, 250000], 0.1), 1) AS rows", ("s", total(tenth)), ("rows", np.full(4, total(tenth[: n // 4]))))
f.q("sum(full([1000003], 0.1)[3:]) AS s, sum(full([9, 111111], 0.1), 1)[8] AS last", ("s", total(tenth)), ("last", total(tenth[:111111])))
f.q("sum(full([1000000], 0.1) * 0.5) AS half, std(full([1000000], 0.1)) AS none", ("half", total(tenth * 0.5)), ("none", 0.0))
f.note("Infinities and NaN stay what they are in sums of many cells.")
for text, value in (("1e308 * 10.0", np.inf), ("-1e308 * 10.0", -np.inf), ("0.0 / 0.0", np.nan)):
    f.q(f"sum(where(arange(100000) = 70000, {text}, 0.1)) AS s", ("s", value))

f.note("Cells of 10^8 and a half: the mean is 10^8 times the deviations.")
i = np.arange(700 * 9).reshape(700, 9)
x = 1e8 + (i * 7919 % 997) / 997.0
f.ok(MANY.format("far", "100000000.0 + ((arange(6300) * 7919) % 997) / 997.0", "line"))
f.ok(MANY.format("grid", "rename(reshape(line, [700, 9]), dim_0 => 't', dim_1 => 'k')", "x") + " FROM far")
by_k, by_t = along(var, x, 0), along(var, x, 1)
f.q("SELECT var(x, 't') AS by_k, var(x, 'k') AS by_t, var(x) AS v, std(x, ddof => 1) AS s FROM grid",
    ("by_k", T(by_k, ["k"])), ("by_t", T(by_t, ["t"])), ("v", var(x)), ("s", np.sqrt(var(x, 1))))
f.q("SELECT var(where(x > 0, x, NULL), 't') AS by_k, var(where(x > 0, x, NULL), 'k') AS by_t, var(where(x > 0, x, NULL)) AS v FROM grid",
    ("by_k", T(by_k, ["k"])), ("by_t", T(by_t, ["t"])), ("v", var(x)))
f.q("SELECT var(rechunk(x, t => 37, k => 4), 't') AS by_k, var(rechunk(x, t => 37, k => 4)) AS v FROM grid", ("by_k", T(by_k, ["k"])), ("v", var(x)))
f.q("SELECT var(concat([x, x - 1.0], axis => 't'), 't') AS two FROM grid", ("two", T(along(var, np.concatenate([x, x - 1]), 0), ["k"])))
week = np.stack([along(lambda v: var(v, 1), x[j : j + 7], 0) for j in range(694)])
f.q("SELECT rolling(x, 'var', t => 7, ddof => 1)[6:] AS w, rolling(x, 'std', t => 7, min_periods => 1)[0:3] AS first FROM grid",
    ("w", T(week, ["t", "k"])), ("first", T(np.sqrt(np.stack([along(var, x[: j + 1], 0) for j in range(3)])), ["t", "k"])))
blocks = np.stack([along(var, x[j : j + 50], 0) for j in range(0, 700, 50)])
f.q("SELECT coarsen(x, 'var', t => 50) AS b FROM grid", ("b", T(blocks, ["t", "k"])))
