"""sql/queries/kept: CREATE TENSOR and DROP, read back; expected from NumPy as if nothing had been kept."""

import numpy as np

from .core import CASES, Cases, Script

d = Cases()
ma = np.ma
KINDS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
names = [f"t_{k}" for k in KINDS]

f = Script("queries/kept", "Tensors of the warehouse hold what was computed: types, masks beside NaN, empty and 0-d.", 1e-12, setup=(CASES,))
f.ok(f"CREATE TENSOR types AS SELECT {', '.join(names)} FROM cases")
f.q(f"SELECT {', '.join(names)} FROM types", **{n: getattr(d, n) for n in names})
f.ok("CREATE TENSOR masks AS SELECT m, mn, mi, n FROM cases")
f.q("SELECT m, mn, mi, n FROM masks", m=d.m, mn=d.mn, mi=d.mi, n=d.n)
f.q("SELECT mn + m AS s FROM masks", s=d.mn + d.m)
f.ok("CREATE OR REPLACE TENSOR masks AS SELECT mi * 2 AS twice FROM masks")
f.q("SELECT twice FROM masks", twice=d.mi * np.int32(2))
f.ok("CREATE TENSOR IF NOT EXISTS masks AS SELECT 1")
f.q("SELECT twice FROM masks", twice=d.mi * np.int32(2))
f.ok("CREATE TENSOR odd AS SELECT [true, NULL, false] AS b, zeros([0, 3]) AS nothing, full([], 3.5) AS one, [1, NULL, 3] AS i")
f.q("SELECT b, nothing, one, i FROM odd", b=ma.array([True, False, False], mask=[0, 1, 0]), nothing=np.zeros((0, 3)),
    one=np.array(3.5), i=ma.array([1, 0, 3], mask=[0, 1, 0]))
every = ma.array(np.arange(300) % 256, mask=np.arange(300) == 7, dtype="u1")
f.ok("CREATE TENSOR every AS SELECT where(arange(300) = 7, NULL, arange(300) % 256)::uint8 AS e")
f.q("SELECT e[0:10] AS e, count(e) AS n FROM every", e=every[:10], n=np.int64(299))
f.ok("CREATE VIEW doubled AS SELECT twice + twice AS four FROM masks")
f.q("SELECT four FROM doubled", four=d.mi * np.int32(4))
for name in ("types", "masks", "odd", "every"):
    f.ok(f"DROP TENSOR {name}")
f.ok("DROP VIEW doubled")
f.error("SELECT twice FROM masks", "unknown_name")
