"""sql/cells/shifts: `<<` and `>>` over rows, over cells and in tensors, by more than the width too; expected from NumPy."""

import numpy as np

from .core import Script

f = Script("cells/shifts", "Shifts by any distance are the same on both surfaces, dense or as rows. Expected values from NumPy.")
values = np.arange(-2, 3)
for lift in ("auto", "off"):
    f.ok(f"SET tessera.lift = '{lift}'")
    for by in (0, 1, 3, 62, 63, 64, 65, 1000, -1, -64):
        left, right = np.left_shift(values, by), np.right_shift(values, by)
        f.rows(f"SELECT x, x << {by} AS l, x >> {by} AS r FROM CELLS(arange(-2, 3)) AS t(i, x)", [list(row) for row in zip(values, left, right)])
        listed = ", ".join(f"({v})" for v in values)
        f.rows(f"SELECT x << {by} AS l, x >> {by} AS r FROM (VALUES {listed}) AS v(x)", [list(row) for row in zip(left, right)])
        f.rows(f"SELECT i, sum(x << {by}) AS s FROM CELLS(arange(-2, 3)) AS t(i, x) GROUP BY i", [[i, v] for i, v in enumerate(left)])
        f.q(f"SELECT arange(-2, 3) << {by} AS l, arange(-2, 3) >> {by} AS r", l=left, r=right)
        f.rows(f"SELECT 3 << {by} AS l, -3 >> {by} AS r", [[np.left_shift(3, by), np.right_shift(-3, by)]])
f.note("The width is that of the type.")
for dtype, sql in ((np.int16, "smallint"), (np.int32, "int")):
    for by in (7, 15, 16, 31, 32, 40):
        by = dtype(by)
        f.rows(f"SELECT x::{sql} << {by}::{sql} AS l, (-x)::{sql} >> {by}::{sql} AS r FROM (VALUES (3)) AS v(x)", [[np.left_shift(dtype(3), by), np.right_shift(dtype(-3), by)]])
