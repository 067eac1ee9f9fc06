"""sql/queries/mixtures: operands of different types, masks and lengths in one expression, from NumPy."""

import numpy as np

from .core import Script

ma = np.ma

f = Script("queries/mixtures", "Operands of different types, masks and lengths in one expression.", source=None)
f.note("Beside a negative integer a masked uint64 stays masked.")
u, i = ma.masked_equal(np.array([5, 7, 9], "u8"), 7), np.array([-1, -1, 9], "i4")
U, I = "nullif([5, 7, 9]::uint64, 7)", "[-1, -1, 9]::int32"
for symbol, compare in {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal, "<>": np.not_equal}.items():
    f.q(f"{U} {symbol} {I}, {I} {symbol} {U}", *(ma.MaskedArray(compare(a, b), u.mask) for a, b in [(u.data, i), (i, u.data)]))
mi = ma.masked_equal(i, 9)
f.q(f"{U} > nullif({I}, 9), sum({U} > nullif({I}, 9))", ma.MaskedArray(u.data > i, [False, True, True]), np.int64(1))
