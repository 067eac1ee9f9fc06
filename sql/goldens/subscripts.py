"""sql/queries/subscripts, sql/queries/mask_subscripts: positions (rules 1 and 3), expected from NumPy."""

import numpy as np

from .core import CASES, Cases, Script

d = Cases()
f = Script("queries/subscripts", "Positional subscripts: 0-based, end-exclusive, negatives, steps, ellipsis, NEWAXIS, gathers.", setup=(CASES,))


def index(text, name="x"):
    """One subscript in both languages: the SQL text, and the same text evaluated on the NumPy array."""
    array = getattr(d, name)
    f.q(f"{name}[{text}]", np.asarray(eval(f"array[{text.replace('NEWAXIS', 'None').replace(': :', '::')}]", {"array": array})))


for text in ["0", "-1", "2, 3", "-5, -7", "0, :", ":, 0", "1:3", "1:3, 2:5", "-2:", ":-2, -3:", "::2", "::2, ::3", "1::2, :5:2",
             "::-1", "::-1, ::-1", "3:0:-1", "3::-2, 5:1:-2", ":1:-1", "-1:-4:-1, 0",
             "...", "..., 0", "0, ...", "..., -1:", "NEWAXIS", ":, NEWAXIS", "..., NEWAXIS", "0, NEWAXIS, :", "NEWAXIS, 1, 2", ":, NEWAXIS, ::-2",
             "1:1", "3:1", "100:", ":100", "-100:2", "2:100, -100:100", "::100", "4:4:-1", ": :2", "1: :2"]:
    index(text)
f.note("Slices clamp; the results of a subscript can be subscripted.")
for text in ["0", "..., 0", "1, 2, 3", "1, :, ::-2", "::2, 1:, 3", ":, NEWAXIS, 0", "-1, ..., -1", "0:2, ..., 1:3", "::-1, ::-1, ::-1"]:
    index(text, "cube")
f.q("x[1:4][0], x[1:4, :][:, ::-1][2], (x + 1)[0, 0:3], transpose(x)[0], x[0][1], (x * 2)[::-2, 1][0]",
    d.x[1:4][0], d.x[1:4, :][:, ::-1][2], (d.x + 1)[0, :3], d.x.T[0], d.x[0][1], (d.x * 2)[::-2, 1][0])
f.q("x[0:10, :], x[-1, ::2], x[..., NEWAXIS][0], x[::-1]", d.x[0:10, :], d.x[-1, ::2], d.x[..., None][0], d.x[::-1])
f.q("x[1 + 1, 2 * 2 - 1], x[2 - 3], v[7 - 1]", d.x[2, 3], d.x[-1], d.v[6])
f.note("Every dtype keeps its dtype.")
for t in ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]:
    f.q(f"t_{t}[1, ::-2]", getattr(d, f"t_{t}")[1, ::-2])
f.q("z[:, 1], z[0:0], zi[1], z[::-1], z1[:]", d.z[:, 1], d.z[0:0], d.zi[1], d.z[::-1], d.z1)
f.q("s[...], s[NEWAXIS], one[0, ::-1, 0]", np.asarray(d.s), d.s.reshape(1), d.one[0, ::-1, 0])
f.q("m[0], m[1, 3], m[::-1, 3], mi[1:3, 2:5]", d.m[0], np.ma.array(0.0, mask=True), d.m[::-1, 3], d.mi[1:3, 2:5])
f.note("Integer tensors gather; several of them go together, as NumPy's.")
f.q("x[[0, 2]], x[[3, -1], :], x[:, [6, 0, 0]], x[[1, 2], [3, 4]]", d.x[[0, 2]], d.x[[3, -1]], d.x[:, [6, 0, 0]], d.x[[1, 2], [3, 4]])
f.q("v[[[0, 1], [2, 3]]], cube[[2, 0], :, 1]", d.v[np.array([[0, 1], [2, 3]])], d.cube[[2, 0], :, 1])
f.note("`...` between arrays sets them apart, even where it stands for no dimension.")
for text in [":, [0, 1, 2], ..., 1", "[0, 2], ..., [0, 1], :", "[0, 2], [0, 1], ..., 0", "..., [0, 1], 2", "[0, 1], ..., 1, [2, 3]"]:
    index(text, "cube")
f.note("Out of range is an error for an index, never for a slice.")
for sql in ["x[5]", "x[-6]", "x[0, 7]", "cube[0, 0, 5]", "z[0]", "x[[0, 9]]"]:
    f.error(sql, "index_out_of_range")
for sql, code in [("x[0, 0, 0]", "too_many_subscripts"), ("s[0]", "too_many_subscripts"), ("x[..., ...]", "invalid_argument"), ("x[::0]", "invalid_argument"),
                  ("x[1.5]", "dtype_mismatch"), ("x['a']", "dtype_mismatch"), ("x[nope => 1]", "unknown_dimension")]:
    f.error(sql, code)

f = Script("queries/mask_subscripts", "Subscripts that depend on stored data: the shape is known only when they ran.", setup=(CASES,))
f.q("x[k], x[:, k], v[k]", d.x[d.k], d.x[:, d.k], d.v[d.k])
f.q("m[k], x[k][::-1, 0]", d.m[d.k], d.x[d.k][::-1, 0])
f.q("x[k, k]", d.x[d.k, d.k])
f.error("x[k + 5]", "index_out_of_range")
f.q("x[b]", d.x[d.b])
f.q("x[x > 2], i[i < 0]", d.x[d.x > 2], d.i[d.i < 0])
f.q("x[r > 0], x[:, v > 0]", d.x[d.r > 0], d.x[:, d.v > 0])
f.q("x[x > 100], sum(x[x > 2]), v[[true, false, true, false, false, false, true]]", d.x[d.x > 100], d.x[d.x > 2].sum(), d.v[[0, 2, 6]])
f.error("x[v > 0]", "shape_mismatch")
