"""sql/islands: results whose shape is known only when a part of the statement has run, expected from NumPy and pandas."""

import numpy as np
import pandas as pd

from .core import CASES, ERA5, Cases, Script, T
from .labels import air

d = Cases()
x, i, b, m, n, r, v, k, j, cube, icube, t_u1 = d.x, d.i, d.b, d.m, d.n, d.r, d.v, d.k, d.j, d.cube, d.icube, d.t_u1

f = Script("islands/masks", "Masks of several dimensions, and what is computed from their cells.", 1e-12, setup=(CASES,))
f.q("x[x > 2] - mean(x[x > 2])", x[x > 2] - x[x > 2].mean())
f.q("x[x > mean(x)], sum(x[x > mean(x)])", x[x > x.mean()], x[x > x.mean()].sum())
f.q("cube[cube > 0]", cube[cube > 0])
first = cube[:, :, 0] > 0
f.q("cube[cube[:, :, 0] > 0]", cube[first])
f.q("cube[cube[:, :, 0] > 0, 1]", cube[first, 1])
last = cube[0] > 0
f.q("cube[:, cube[0] > 0], cube[1, cube[0] > 0]", cube[:, last], cube[1, last])
f.q("cube[..., cube[0] > 0]", cube[..., last])
f.note("A masked condition is false, a masked cell that is kept stays masked, NaN is not greater.")
f.q("m[m > 0], m[b], n[n > 0]", np.ma.getdata(m)[(np.ma.getdata(m) > 0) & ~np.ma.getmaskarray(m)], m[b], n[n > 0])
f.q("sum(x[b]), count(m[b]), x[b][0:3], x[b][-1]", x[b].sum(), np.int64(m[b].count()), x[b][:3], x[b][-1])
f.q("x[x > 100], count(x[x > 100]), mean(x[x > 100]) IS NULL OR isnan(mean(x[x > 100]))", np.zeros(0), np.int64(0), np.bool_(True))
f.q("x[x > 2][x[x > 2] < 4]", x[(x > 2) & (x < 4)])
f.q("x[0:argmax(v) - 3], x[k[0], k[1]]", x[0 : np.argmax(v) - 3], x[k[0], k[1]])
f.q("WITH big AS (SELECT x[x > 2] AS w FROM cases) SELECT w * 2 AS twice, sum(w) AS total FROM big", twice=x[x > 2] * 2, total=x[x > 2].sum())
f.q("zeros([count_nonzero(x > 2)])", np.zeros((x > 2).sum()))
f.error("x[cube > 0]", "(shape_mismatch|too_many_subscripts)")
f.error("x[b, 0]", "too_many_subscripts")
f.error("cube[cube[0] > 0]", "shape_mismatch")
f.error("x[1.5 * k]", "dtype_mismatch")

f = Script("islands/positions", "take, gather, compress, nonzero and argwhere.", setup=(CASES,))
f.q("take(x, [2, 0, -1]), take(x, k, axis => 0), take(x, [[0, 1], [6, 3]], axis => 1)", np.take(x, [2, 0, -1]), np.take(x, k, axis=0), np.take(x, [[0, 1], [6, 3]], axis=1))
f.q("take(m, 3, axis => 1), take(v, [0])", m[:, 3], np.take(v, [0]))
top = np.argmax(x, axis=1)[:, None]
f.q("gather(x, expand_dims(argmax(x, axis => 1), 1), axis => 1)", np.take_along_axis(x, top, 1))
order = np.argsort(x, axis=0)[:3]
f.q("gather(x, abs(j) % 5, axis => 0)", np.take_along_axis(x, np.abs(j) % 5, 0))
f.q("gather(v, [6, -7, 0], axis => 0)", np.take_along_axis(v, np.array([6, -7, 0]), 0))
f.q("compress(r > 0, x, axis => 0), compress([true, false, true], x), compress([0, 1], x, axis => 1)", np.compress(r > 0, x, axis=0), np.compress([True, False, True], x), np.compress([0, 1], x, axis=1))
f.q("nonzero(x > 2), argwhere(x > 2), argwhere(i), nonzero(v > 2)", np.stack(np.nonzero(x > 2)), np.argwhere(x > 2), np.argwhere(i), np.stack(np.nonzero(v > 2)))
f.q("argwhere(cube > 1), argwhere(x > 100), argwhere(m > 3)", np.argwhere(cube > 1), np.argwhere(x > 100), np.argwhere(np.ma.filled(m > 3, False)))
f.error("take(x, 99)", "index_out_of_range")
f.error("take(x, x, axis => 0)", "dtype_mismatch")
f.error("take(x, [0], axis => 2)", "(axis|out_of_range)")
f.error("gather(x, [0, 1], axis => 0)", "shape_mismatch")
f.error("gather(v, [7], axis => 0)", "index_out_of_range")
f.error("compress(x > 0, x, axis => 0)", "shape_mismatch")
f.error("compress([true, false, true, false, true, false], x, axis => 0)", "shape_mismatch")
f.error("argwhere(s)", "shape_mismatch")


def counts(values):
    """pandas' value_counts, ties by value: the labels stand in `coords`, which these scripts do not print."""
    series = pd.Series(np.ma.compressed(values) if isinstance(values, np.ma.MaskedArray) else values.ravel())
    table = series.value_counts(dropna=False).rename_axis("v").reset_index()
    return table.sort_values(["count", "v"], ascending=[False, True])["count"].to_numpy()


f = Script("islands/unique", "Different values and how often they occur.", setup=(CASES, ERA5))
f.q("unique(i), unique(b), unique(icube), unique(t_u1)", np.unique(i), np.unique(b), np.unique(icube), np.unique(t_u1))
f.q("unique(x), unique(n), unique(m)", np.unique(x), np.unique(n), np.unique(np.ma.compressed(m)))
f.q("unique(x[x > 100]), unique(allnull), unique(s)", np.zeros(0), np.zeros(0), np.unique(d.s))
f.q("unique(i)[-1], sum(unique(i)), unique(i // 3)", np.unique(i)[-1], np.unique(i).sum(), np.unique(i // 3))
f.q("value_counts(i), value_counts(b), value_counts(n), value_counts(m)", *[T(counts(a), ["value"]) for a in (i, b, n, m)])
years = air["time"].dt.month.values
f.q("SELECT unique(month(time)) AS u, value_counts(month(time)) AS c FROM era5", u=np.unique(years), c=T(counts(years), ["value"]))
f.q("SELECT value_counts(i)[value => -8] AS n FROM cases", n=np.int64((i == -8).sum()))
