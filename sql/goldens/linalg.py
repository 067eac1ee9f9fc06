"""sql/queries/linalg_*, sql/queries/einsum, sql/dialect/q14 to q16: linear algebra, expected from NumPy and SciPy.

Signs that a factorisation leaves open are set here as docs/sql.md fixes them: the diagonal of r is not negative; of each
singular vector of the shorter side (vh's rows of a square matrix), and of each eigenvector, the cell of the largest magnitude
is positive.
"""

import numpy as np
import scipy.linalg

from .core import CASES, Cases, Script, T

d = Cases()
ma, nan = np.ma, np.nan
np.seterr(all="ignore")


def script(name, about, tolerance=1e-12, setup=(CASES,)):
    return Script(f"queries/{name}", about, tolerance, setup=setup)


def qr(a):
    q, r = np.linalg.qr(a)
    s = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return q * s[..., None, :], r * s[..., :, None]


def svd(a):
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    short = vh if a.shape[-2] >= a.shape[-1] else np.swapaxes(u, -1, -2)
    at = np.abs(short).argmax(-1, keepdims=True)
    sign = np.where(np.take_along_axis(short, at, -1) < 0, -1.0, 1.0)
    return u * np.swapaxes(sign, -1, -2), s, vh * sign


def eigh(a, uplo="L"):
    w, v = np.linalg.eigh(a, uplo)
    at = np.abs(v).argmax(-2, keepdims=True)
    return w, v * np.where(np.take_along_axis(v, at, -2) < 0, -1.0, 1.0)


wave = lambda *shape: np.sin(np.arange(np.prod(shape)) ** 2 * 0.37).reshape(shape)
WAVE = lambda *shape: f"reshape(sin(arange({int(np.prod(shape))}) ^ 2 * 0.37), {list(shape)})"

# ---------------------------------------------------------------- records
f = script("records", "Fields of records: by name, through CTEs and subqueries, spread over a dataset.")
f.q("qr(p).q, qr(p).r", q=qr(d.p)[0], r=qr(d.p)[1])
f.note("A record as an item is its fields; with AS they are called alias.field.")
f.q("qr(p)", q=qr(d.p)[0], r=qr(d.p)[1])
f.q("qr(p) AS d", **{"d.q": qr(d.p)[0], "d.r": qr(d.p)[1]})
f.q("qr(p) AS d, qr(p).r AS other", **{"d.q": qr(d.p)[0], "d.r": qr(d.p)[1], "other": qr(d.p)[1]})
f.q("WITH f AS (SELECT qr(p) AS d FROM cases) SELECT d.q, d.r FROM f", q=qr(d.p)[0], r=qr(d.p)[1])
f.q("WITH f AS (SELECT qr(p) AS d FROM cases) SELECT f.d.q @ f.d.r AS p, d.r[0] AS top, d FROM f",
    p=d.p, top=qr(d.p)[1][0], **{"d.q": qr(d.p)[0], "d.r": qr(d.p)[1]})
f.q("WITH f AS (SELECT qr(p) FROM cases) SELECT f.q @ f.r AS p FROM f", p=d.p)
f.q("SELECT d.R AS r FROM (SELECT qr(p) AS d FROM cases)", r=qr(d.p)[1])
f.q("svd(p).u.T AS ut, svd(p).s[0:2] AS s", ut=svd(d.p)[0].T, s=svd(d.p)[1][:2])
f.note("Other libraries' names of fields.")
f.q("svd(p).vt AS a, svd(p).v AS b, svd(p).VH AS c", a=svd(d.p)[2], b=svd(d.p)[2], c=svd(d.p)[2])
f.error("qr(p).x", "unknown_name")
f.error("qr(p) + 1", "dtype_mismatch|type_mismatch|types")
f.error("sum(qr(p))", "dtype_mismatch|type_mismatch|types")
f.error("qr(p).q.r", "unknown_name")

# ---------------------------------------------------------------- einsum
f = script("einsum", "einsum and its special cases, in every form that NumPy has.")
e = np.einsum
f.q("einsum('ij,jk->ik', p, q), einsum('ij,jk', p, q)", d.p @ d.q, d.p @ d.q)
f.q("einsum('bij,bjk->bik', bp, bq)", e("bij,bjk->bik", d.bp, d.bq))
f.q("einsum('bij,bjk->ikb', bp, bq), einsum('bij,bjk->ik', bp, bq)", e("bij,bjk->ikb", d.bp, d.bq), e("bij,bjk->ik", d.bp, d.bq))
f.q("einsum('ij->ji', x), einsum('ij->i', x), einsum('ij->j', x), einsum('ij->', x), einsum('ij', x)",
    d.x.T, d.x.sum(1), d.x.sum(0), np.asarray(d.x.sum()), d.x)
f.q("einsum('ba', x)", e("ba", d.x))
f.note("Repeated letters: diagonals and traces.")
f.q("einsum('ii->i', x[:, 0:5]), einsum('ii', x[:, 0:5]), einsum('iij->ij', cube[:, 0:3]), einsum('iji->j', cube[:, :, 0:3])",
    e("ii->i", d.x[:, :5]), np.asarray(e("ii", d.x[:, :5])), e("iij->ij", d.cube[:, :3]), e("iji->j", d.cube[:, :, :3]))
f.q("einsum('iii->i', cube[:, 0:3, 0:3]), einsum('iii', cube[:, 0:3, 0:3])", e("iii->i", d.cube[:, :3, :3]), np.asarray(e("iii", d.cube[:, :3, :3])))
f.note("Products without sums, sums of products without a free letter.")
f.q("einsum('i,j->ij', v, r), einsum('i,i->i', v, v), einsum('i,i', v, v), einsum('ij,ij->', x, y), einsum('ij,ij->i', x, y)",
    np.outer(d.v, d.r), d.v * d.v, np.asarray(d.v @ d.v), np.asarray((d.x * d.y).sum()), (d.x * d.y).sum(1))
f.q("einsum('ij,j->i', x, v), einsum('i,ij->j', r, x), einsum('i,ij,j->', r, x, v)", d.x @ d.v, d.r @ d.x, np.asarray(d.r @ d.x @ d.v))
f.note("Three and four operands, two summed letters at once, letters of one operand alone.")
f.q("einsum('ij,jk,kl->il', p, q, transpose(q)), einsum('ij,jk,kl,lm->im', p, q, transpose(q), transpose(p))",
    d.p @ d.q @ d.q.T, d.p @ d.q @ d.q.T @ d.p.T)
f.q("einsum('bij,bkj->ik', bp, bp), einsum('bij,bij->b', bp, bp), einsum('bij,bij,b->i', bp, bp, [2.0, 3.0])",
    e("bij,bkj->ik", d.bp, d.bp), e("bij,bij->b", d.bp, d.bp), e("bij,bij,b->i", d.bp, d.bp, [2.0, 3.0]))
f.q("einsum('ij,kl->i', p, q), einsum('ij,kl->', p, q)", e("ij,kl->i", d.p, d.q), np.asarray(e("ij,kl->", d.p, d.q)))
nine = ",".join(a + b for a, b in zip("abcdefghi", "bcdefghij"))
f.q(f"einsum('{nine}', {', '.join(['x[:, 0:5] / 10'] * 9)})", np.linalg.matrix_power(d.x[:, :5] / 10, 9))
f.note("The dots: axes that have no letter.")
f.q("einsum('...ij,...jk->...ik', bp, bq), einsum('...ij,...jk', bp, bq), einsum('...j->...', cube), einsum('i...->...', cube), einsum('...', v)",
    d.bp @ d.bq, d.bp @ d.bq, d.cube.sum(-1), d.cube.sum(0), d.v)
f.q("einsum('...ij,jk->...ik', bp, q[0:4]), einsum('i...,i->...', cube, [1.0, 2.0, 3.0]), einsum('...i,...i', cube, cube[0])",
    d.bp @ d.q[:4], np.tensordot([1.0, 2, 3], d.cube, 1), e("...i,...i", d.cube, d.cube[0]))
f.note("Length 1 is repeated.")
f.q("einsum('ij,ij->ij', x, x[0:1]), einsum('ij,jk->ik', x, ones([1, 2]))", d.x * d.x[:1], e("ij,jk->ik", d.x, np.broadcast_to(np.ones((1, 2)), (7, 2))))
f.note("Types: NumPy's promotion, integers keep theirs.")
f.q("einsum('ij,jk', ip, iq), einsum('ij->', mi::BIGINT * 0 + 1) AS ones, einsum('ij,jk->', ip, q)",
    d.ip @ d.iq, ("ones", np.asarray(np.int64((~ma.getmaskarray(d.mi)).sum()))), np.asarray(e("ij,jk->", d.ip, d.q)))
f.q("einsum('ij,ij->', x32, x32)", np.asarray(np.float32((d.x32.astype("f8") ** 2).sum())))
f.q("einsum('ij,ij->j', t_i1, t_i1), einsum('ij->', t_i2)", e("ij,ij->j", d.t_i1, d.t_i1), np.asarray(e("ij->", d.t_i2)))
f.note("Masked factors are skipped; NaN propagates; nothing sums to 0.")
f.q("einsum('ij->j', coalesce(m, 0.0)), einsum('ij,ij->i', m, m), einsum('ij,kj->ik', n, y)",
    ma.filled(d.m, 0.0).sum(0), (d.m * d.m).sum(1), d.n @ d.y.T)
f.q("einsum('ij->j', z), einsum('ij->i', z), einsum('ij,ik->jk', z, z), einsum('ij,kj->ik', ones([2, 0]), ones([3, 0])), einsum('i,j->ij', z1, v)",
    np.zeros(3), np.zeros(0), np.zeros((3, 3)), np.zeros((2, 3)), np.zeros((0, 7)))
f.q("einsum(',ij->ij', s, x), einsum(',', s, s), einsum('', s)", d.s * d.x, np.asarray(d.s * d.s), np.asarray(d.s))
f.q("einsum('ij,kj->ik', x[::-1, ::2], y[1:4, ::2])", d.x[::-1, ::2] @ d.y[1:4, ::2].T)
f.note("Special cases.")
f.q("dot(cube, x[:, 0:3]), dot(x[:, 0:4], bq), dot(cube[:, :, 0:4], bq), dot(bp, v[0:4])", np.dot(d.cube, d.x[:, :3]), np.dot(d.x[:, :4], d.bq), np.dot(d.cube[:, :, :4], d.bq), np.dot(d.bp, d.v[:4]))
f.error("dot(cube, bq)", "shape_mismatch")
f.q("tensordot(p, q, 1), tensordot(x, y, axes => [[0, 1], [0, 1]]), tensordot(x, y, axes => [[1], [1]]), tensordot(v, r, 0)",
    np.tensordot(d.p, d.q, 1), np.asarray(np.tensordot(d.x, d.y, 2)), np.tensordot(d.x, d.y, ([1], [1])), np.tensordot(d.v, d.r, 0))
f.q("tensordot(cube, cube, axes => [[2, 0], [2, 0]]), tensordot(x, y), tensordot(bp, bq, axes => [2, 1])",
    np.tensordot(d.cube, d.cube, ([2, 0], [2, 0])), np.asarray(np.tensordot(d.x, d.y)), np.tensordot(d.bp, d.bq, (2, 1)))
f.q("inner(v, v), inner(x, v), inner(x, y), inner(cube, x[:, 0:5]), inner(s, x), inner(2, v)",
    np.asarray(np.inner(d.v, d.v)), np.inner(d.x, d.v), np.inner(d.x, d.y), np.inner(d.cube, d.x[:, :5]), np.inner(d.s, d.x), 2 * d.v)
f.q("outer(v, r), vdot(x, y)", np.outer(d.v, d.r), np.asarray(np.vdot(d.x, d.y)))
f.q("kron(p[0:2, 0:2], q), kron([1, 2], [3, 4, 5]), kron(v, p), kron(cube[:, 0:2, 0:2], p[0:2])",
    np.kron(d.p[:2, :2], d.q), np.kron([1, 2], [3, 4, 5]), np.kron(d.v, d.p), np.kron(d.cube[:, :2, :2], d.p[:2]))
f.q("kron(2.0, x)", np.kron(2.0, d.x))
f.q("trace(x), trace(x, 1), trace(x, -2), trace(x, 9), trace(i), trace(cube), trace(cube, axis1 => 2, axis2 => 0, offset => 1)",
    np.asarray(np.trace(d.x)), np.asarray(np.trace(d.x, 1)), np.asarray(np.trace(d.x, -2)), np.asarray(0.0), np.asarray(np.trace(d.i)), np.trace(d.cube),
    np.trace(d.cube, 1, 2, 0))
f.q("diagonal(x), diagonal(x, 2), diagonal(x, -4), diagonal(x, 7), diagonal(cube), diagonal(cube, -1, 2, 1), diagonal(b)",
    np.diagonal(d.x), np.diagonal(d.x, 2), np.diagonal(d.x, -4), np.zeros(0), np.diagonal(d.cube), np.diagonal(d.cube, -1, 2, 1), np.diagonal(d.b))
f.q("diagonal(m), diagonal(n), trace(m)", d.m.diagonal(), np.diagonal(d.n), np.asarray(d.m.trace()))
f.q("matrix_power(x[:, 0:5], 3), matrix_power(ip[:, 0:4], 2), matrix_power(x[:, 0:5], 0), matrix_power(x[:, 0:5], -2), matrix_power(cube[:, :, 0:4], 5)",
    np.linalg.matrix_power(d.x[:, :5], 3), np.linalg.matrix_power(d.ip[:, :4], 2), np.eye(5), np.linalg.matrix_power(d.x[:, :5], -2),
    np.linalg.matrix_power(d.cube[:, :, :4], 5))
f.error("einsum('ij,jk->ik', p)", "invalid_argument")
f.error("einsum('ij,jk->ik', p, p)", "shape_mismatch")
f.error("einsum('ijk->i', p)", "invalid_argument")
f.error("einsum('i->i', p)", "invalid_argument")
f.error("einsum('ij->iz', p)", "invalid_argument")
f.error("einsum('ij->ii', p)", "invalid_argument")
f.error("einsum('i1->i', p)", "invalid_argument")
f.error("einsum('ii', p)", "shape_mismatch")
f.error("einsum('...j->j', p)", "invalid_argument")
f.error("einsum('ij->i', b)", "unsupported")
f.error("einsum(p)", "invalid_argument")
f.error("einsum('ij')", "invalid_argument")
f.error("tensordot(p, q, 3)", "invalid_argument")
f.error("tensordot(p, p, 1)", "shape_mismatch")
f.error("tensordot(p, q, axes => [[0, 0], [0, 1]])", "invalid_argument")
f.error("inner(p, q)", "shape_mismatch")
f.error("trace(v)", "shape_mismatch")
f.error("diagonal(x, axis1 => 1)", "invalid_argument")
f.error("matrix_power(p, 2)", "shape_mismatch")
f.error("matrix_power(x[:, 0:5], 1.5)", "invalid_argument")

# ---------------------------------------------------------------- factorisations
f = script("linalg_factor", "qr, svd, cholesky, lu, eigh: the factors, and what they give back.", 1e-10)
A, B, S = d.p, d.q, d.x[:, :5]
SPD = "(transpose(p) @ p + eye(6))"
spd = d.p.T @ d.p + np.eye(6)
for text, a in [("p", d.p), ("q", d.q), ("x[:, 0:5]", S), ("x[::-1, ::2]", d.x[::-1, ::2]), ("bp", d.bp), ("[[5.0]]", np.array([[5.0]])), ("[[-5.0]]", np.array([[-5.0]]))]:
    f.q(f"qr({text}).q AS q, qr({text}).r AS r", q=qr(a)[0], r=qr(a)[1])
    f.q(f"svd({text}).u AS u, svd({text}).s AS s, svd({text}).vh AS vh", u=svd(a)[0], s=svd(a)[1], vh=svd(a)[2])
f.q("svd(p, k => 2).u AS u, svd(p, k => 2).s AS s, svd(p, k => 2).vh AS vh, svd(q, k => 9).s AS all_of_them",
    u=svd(d.p)[0][:, :2], s=svd(d.p)[1][:2], vh=svd(d.p)[2][:2], all_of_them=svd(d.q)[1])
f.q("cholesky(" + SPD + "), cholesky([[4.0]]), cholesky(stack([" + SPD + ", 2 * " + SPD + "]))",
    np.linalg.cholesky(spd), np.array([[2.0]]), np.linalg.cholesky(np.stack([spd, 2 * spd])))
f.q("eigh(" + SPD + ").eigenvalues, eigh(" + SPD + ").w, max(abs(eigh(" + SPD + ").v)) <= 1",
    ("eigenvalues", eigh(spd)[0]), ("v1", eigh(spd)[0]), ("v2", True))
sym = d.x[:, :5] + d.x[:, :5].T
f.q("eigh(x[:, 0:5] + x[:, 0:5].T).eigenvalues AS w, eigh(x[:, 0:5] + x[:, 0:5].T).eigenvectors AS v", w=eigh(sym)[0], v=eigh(sym)[1])
f.note("One triangle is read.")
f.q("eigh(x[:, 0:5]).w AS low, eigh(x[:, 0:5], uplo => 'U').w AS up, eigh(x[:, 0:5], 'U').v AS v",
    low=np.linalg.eigvalsh(S), up=np.linalg.eigvalsh(S, "U"), v=eigh(S, "U")[1])
for text, a in [("x[:, 0:5]", S), ("q", d.q), ("p", d.p), ("[[0.0, 1], [0, 0]]", np.array([[0.0, 1], [0, 0]]))]:
    p_, l_, u_ = scipy.linalg.lu(a)
    f.q(f"lu({text}).p AS p, lu({text}).l AS l, lu({text}).u AS u", p=p_, l=l_, u=u_)
f.q("lu(cube[:, :, 0:4]).l @ lu(cube[:, :, 0:4]).u AS lu", lu=np.stack([np.swapaxes(scipy.linalg.lu(a)[0], 0, 1) @ a for a in d.cube[:, :, :4]]))
f.note("Types: float32 stays, integers and bools become float64.")
f.q("qr(x32).r AS r, svd(x32).s AS s", r=qr(d.x32.astype("f8"))[1].astype("f4"), s=svd(d.x32.astype("f8"))[1].astype("f4"))
f.q("qr(i).r AS r, svd(ip).s AS s, det([[true, true], [false, true]])", r=qr(d.i.astype("f8"))[1], s=svd(d.ip.astype("f8"))[1], v2=np.asarray(1.0))
f.note("Empty matrices.")
f.q("qr(z).q AS q, qr(z).r AS r, svd(z).u AS u, svd(z).s AS s, svd(z).vh AS vh", q=np.zeros((0, 0)), r=np.zeros((0, 3)), u=np.zeros((0, 0)), s=np.zeros(0), vh=np.zeros((0, 3)))
f.q("qr(zi).q AS q, qr(zi).r AS r, svd(zi).s AS s, det(zeros([0, 0])), inv(zeros([0, 0])), cholesky(zeros([0, 0])), solve(zeros([0, 0]), zeros([0, 2]))",
    q=np.zeros((3, 0)), r=np.zeros((0, 0)), s=np.zeros(0), v3=np.asarray(1.0), v4=np.zeros((0, 0)), v5=np.zeros((0, 0)), v6=np.zeros((0, 2)))
f.q("svd(zeros([0, 2, 3])).s AS s, det(zeros([0, 2, 2]))", s=np.zeros((0, 2)), v1=np.zeros(0))
f.note("Rank-deficient and ill-conditioned: what the factors give back, and how orthonormal they are.")
low = "(p[:, 0:2] @ q[0:2])"
hilbert = "(1.0 / (reshape(arange(8), [8, 1]) + arange(8) + 1))"
for a, k in [(low, 3), (hilbert, 8), ("zeros([3, 2])", 2), ("ones([5, 5])", 5), ("(bp * 0)", 3)]:
    turned = lambda m: f"swapaxes({m}, -1, -2)"
    f.q(f"max(abs(qr({a}).q @ qr({a}).r - {a})) < 1e-13, max(abs((svd({a}).u * expand_dims(svd({a}).s, -2)) @ svd({a}).vh - {a})) < 1e-13", True, True)
    f.q(f"max(abs({turned(f'qr({a}).q')} @ qr({a}).q - eye({k}))) < 1e-13, max(abs({turned(f'svd({a}).u')} @ svd({a}).u - eye({k}))) < 1e-13, "
        f"max(abs(svd({a}).vh @ {turned(f'svd({a}).vh')} - eye({k}))) < 1e-13", True, True, True)
h = 1.0 / (np.arange(8)[:, None] + np.arange(8) + 1)
f.q(f"svd({hilbert}).s AS s, svd({low}).s[0:2] AS two, svd({low}).s[2] < 1e-14", s=svd(h)[1], two=svd(d.p[:, :2] @ d.q[:2])[1][:2], v2=True)
f.q(f"matrix_rank({low}), matrix_rank(p), matrix_rank(zeros([3, 2])), matrix_rank(bp), matrix_rank({hilbert}, rcond => 1e-6), matrix_rank(z)",
    np.asarray(2), np.asarray(4), np.asarray(0), np.array([3, 3]), np.asarray(np.linalg.matrix_rank(h, rtol=1e-6)), np.asarray(0))
f.note("Masked cells and what is not finite are refused.")
f.error("qr(m)", "masked_input")
f.error("svd(m).s", "masked_input")
f.error("solve(m[:, 0:5], x[:, 0])", "masked_input")
f.q("svd(coalesce(m, 0.0)).s AS s", s=svd(ma.filled(d.m, 0.0))[1])
f.error("svd(n).s", "not_finite")
f.error("eigh(n[:, 0:5]).w", "not_finite")
f.q("isnan(qr(n[:, 0:2]).r[1, 1]), isnan(det(n[:, 0:5]))", np.asarray(True), np.asarray(bool(np.isnan(np.linalg.det(d.n[:, :5])))))
f.error("cholesky(-eye(3))", "not_positive_definite")
f.error("cholesky([[1.0, 2.0], [2.0, 1.0]])", "not_positive_definite")
f.error("cholesky(zeros([2, 2]))", "not_positive_definite")
f.error("cholesky(p)", "shape_mismatch")
f.error("qr(v)", "shape_mismatch")
f.error("eigh(p).w", "shape_mismatch")
f.note("A matrix that does not fit is refused before anything is read.")
f.error("svd(random_normal([20000, 20000], seed => 1)).s", "memory_exceeded")
f.error("svd(p, k => 0).s", "invalid_argument")
f.error("eigh(x[:, 0:5], 'X').w", "invalid_argument")
f.error("qr('p').q", "types|dtype_mismatch|type_mismatch")

# ---------------------------------------------------------------- tall matrices
f = script("linalg_tall", "Tall matrices are factored in blocks of rows: any cuts, a short last block, columns that depend on each other.", 1e-10, setup=())
f.source = None
for shape in [(150, 4), (97, 3), (41, 1), (33, 8)]:
    a, text = wave(*shape), WAVE(*shape)
    f.q(f"qr({text}).q AS q, qr({text}).r AS r", q=qr(a)[0], r=qr(a)[1])
    f.q(f"svd({text}).u AS u, svd({text}).s AS s, svd({text}).vh AS vh", u=svd(a)[0], s=svd(a)[1], vh=svd(a)[2])
    f.q(f"svd(transpose({text})).s AS s, svd(transpose({text}), k => 1).vh AS vh", s=svd(a)[1], vh=svd(a.T)[2][:1])
f.q(f"svd({WAVE(150, 4)}, k => 2).u[:, 0:1] AS u", u=svd(wave(150, 4))[0][:, :1])
f.q(f"qr(rechunk({WAVE(150, 4)}, chunks => [7, 2])).r AS r, qr(rechunk({WAVE(150, 4)}, chunks => [150, 4])).r AS whole, qr({WAVE(150, 4)}[::-1, ::-1]).r AS back",
    r=qr(wave(150, 4))[1], whole=qr(wave(150, 4))[1], back=qr(wave(150, 4)[::-1, ::-1])[1])
dependent = lambda t: f"concat([{t}, {t}[:, 0:2] * 2, zeros([150, 1])], axis => 1)"
vander = "(reshape(linspace(0, 1, 120), [120, 1]) ^ arange(9))"
for a, n in [(dependent(WAVE(150, 4)), 7), (vander, 9), ("ones([70, 3])", 3), ("zeros([70, 3])", 3), (f"({WAVE(60, 3)} * 1e200)", 3)]:
    f.q(f"max(abs(qr({a}).q @ qr({a}).r - {a})) <= 1e-13 * max(abs({a})), max(abs(transpose(qr({a}).q) @ qr({a}).q - eye({n}))) < 1e-13", True, True)
    f.q(f"max(abs((svd({a}).u * svd({a}).s) @ svd({a}).vh - {a})) <= 1e-13 * max(abs({a})), max(abs(transpose(svd({a}).u) @ svd({a}).u - eye({n}))) < 1e-13", True, True)
b = wave(150, 2)[:, ::-1]
a = wave(150, 4)
x, res, rank, s = np.linalg.lstsq(a, b)
f.q(f"lstsq({WAVE(150, 4)}, {WAVE(150, 2)}[:, ::-1])", x=x, residuals=res, rank=np.asarray(4), s=s)
f.q(f"solve(transpose({WAVE(150, 4)}) @ {WAVE(150, 4)}, transpose({WAVE(150, 4)}) @ {WAVE(150, 2)})", np.linalg.solve(a.T @ a, a.T @ wave(150, 2)))
f.q(f"pinv({WAVE(150, 4)}), matrix_rank({dependent(WAVE(150, 4))})", np.linalg.pinv(a), np.asarray(4))
f.q(f"norm({WAVE(150, 4)}, 2), norm({WAVE(150, 4)}, 'nuc')", np.asarray(np.linalg.norm(a, 2)), np.asarray(np.linalg.norm(a, "nuc")))

# ---------------------------------------------------------------- solutions
f = script("linalg_solve", "solve, inv, det and the like.", 1e-10)
f.q("solve(x[:, 0:5], y), solve(x[:, 0:5], r), solve(x[:, 0:5], x[:, 0:5])", np.linalg.solve(S, d.y), np.linalg.solve(S, d.r), np.eye(5))
f.q("solve(transpose(p) @ p + eye(6), q), solve([[2.0]], [4.0])", np.linalg.solve(spd, d.q), np.array([2.0]))
C = d.cube[:, :, :4]
f.q("solve(cube[:, :, 0:4], cube), solve(cube[:, :, 0:4], p), solve(x[0:4, 0:4], cube), solve(cube[:, :, 0:4], p[:, 0])",
    np.linalg.solve(C, d.cube), np.linalg.solve(C, d.p), np.linalg.solve(d.x[:4, :4], d.cube), np.linalg.solve(C, d.p[:, 0]))
f.q("solve(ip[:, 0:4], ip), solve(x32[:, 0:5], x32[:, 5:7])", np.linalg.solve(d.ip[:, :4], d.ip), np.linalg.solve(d.x32[:, :5].astype("f8"), d.x32[:, 5:].astype("f8")).astype("f4"))
f.q("inv(x[:, 0:5]), inv(cube[:, :, 0:4]), inv([[4]]), inv(x[:, 0:5][::-1, ::-1])", np.linalg.inv(S), np.linalg.inv(C), np.array([[0.25]]), np.linalg.inv(S[::-1, ::-1]))
f.q("det(x[:, 0:5]), det(cube[:, :, 0:4]), det(ip[:, 0:4]), det([[3.0]]), det([[1, 2], [2, 4]])",
    np.asarray(np.linalg.det(S)), np.linalg.det(C), np.asarray(np.linalg.det(d.ip[:, :4])), np.asarray(3.0), np.asarray(0.0))
sign, log = np.linalg.slogdet(C)
f.q("slogdet(cube[:, :, 0:4]), slogdet([[1, 2], [2, 4]]).logabsdet AS none, slogdet(eye(400) * 1e-3).logabsdet AS tiny", sign=sign, logabsdet=log, none=np.asarray(-np.inf),
    tiny=np.asarray(400 * np.log(1e-3)))
f.q("solve_triangular(x[:, 0:5], y), solve_triangular(x[:, 0:5], y, lower => true), solve_triangular(x[:, 0:5], r, lower => true, unit_diagonal => true)",
    scipy.linalg.solve_triangular(S, d.y), scipy.linalg.solve_triangular(S, d.y, lower=True), scipy.linalg.solve_triangular(S, d.r, lower=True, unit_diagonal=True))
f.q("solve_triangular(x[:, 0:5], r, unit_diagonal => true)", scipy.linalg.solve_triangular(S, d.r, unit_diagonal=True))
f.q("pinv(p), pinv(q), pinv(cube), pinv(p[:, 0:2] @ q[0:2]), pinv(z), pinv(zeros([2, 3]))",
    np.linalg.pinv(d.p), np.linalg.pinv(d.q), np.linalg.pinv(d.cube), np.linalg.pinv(d.p[:, :2] @ d.q[:2], rcond=1e-12), np.zeros((3, 0)), np.zeros((3, 2)))
x, res, rank, s = np.linalg.lstsq(d.q, d.x[:5, :6].T)
f.q("lstsq(q, transpose(x[:, 0:6]))", x=x, residuals=res, rank=np.asarray(3), s=s)
x, res, rank, s = np.linalg.lstsq(d.q, d.p[0])
f.q("lstsq(q, p[0])", x=x, residuals=res, rank=np.asarray(3), s=s)
f.note("Too few rows, and columns that depend on each other: no residuals.")
x, res, rank, s = np.linalg.lstsq(d.p, d.p @ d.q)
f.q("lstsq(p, p @ q)", x=x, residuals=ma.masked_all(3), rank=np.asarray(4), s=s)
x = np.linalg.lstsq(d.q[:, [0, 1, 0]], d.p[0])[0]
f.q("lstsq(q[:, [0, 1, 0]], p[0]).x AS x, lstsq(q[:, [0, 1, 0]], p[0]).rank AS rank, lstsq(q[:, [0, 1, 0]], p[0]).residuals IS NULL", x=x, rank=np.asarray(2), v2=np.asarray([True]))
f.note("Norms.")
N = np.linalg.norm
f.q("norm(v), norm(x), norm(cube), norm(s), norm(i), norm(z)", *[np.asarray(N(a)) for a in (d.v, d.x, d.cube.ravel(), d.s, d.i)], np.asarray(0.0))
f.q("norm(v, 1), norm(v, 'inf'), norm(v, '-inf'), norm(v, 0), norm(v, 3), norm(v, -1), norm(v, 0.5)", *[np.asarray(N(d.v, o)) for o in (1, np.inf, -np.inf, 0, 3, -1, 0.5)])
f.q("norm(x, 'fro'), norm(x, 1), norm(x, -1), norm(x, 'inf'), norm(x, '-inf'), norm(x, 2), norm(x, -2), norm(x, 'nuc')",
    *[np.asarray(N(d.x, o)) for o in ("fro", 1, -1, np.inf, -np.inf, 2, -2, "nuc")])
f.q("norm(x, axis => 0), norm(x, 1, axis => 1), norm(x, axis => 1, keepdims => true), norm(cube, axis => [0, 2]), norm(cube, 2, axis => [2, 0]), norm(cube, 1, axis => [0, 1])",
    N(d.x, axis=0), N(d.x, 1, axis=1), N(d.x, axis=1, keepdims=True), N(d.cube, axis=(0, 2)), N(d.cube, 2, axis=(2, 0)), N(d.cube, 1, axis=(0, 1)))
f.q("norm(cube, 'inf', axis => [1, 2], keepdims => true), norm(x32), norm(n, axis => 0), norm(m, axis => 1)",
    N(d.cube, np.inf, axis=(1, 2), keepdims=True), np.asarray(np.float32(N(d.x32.astype("f8")))), N(d.n, axis=0), np.sqrt((d.m ** 2).sum(1)))
f.note("Covariance and correlation.")
f.q("cov(x), cov(x, rowvar => false), cov(v), cov(x, y), cov(v, v[::-1]), cov(x, bias => true), cov(x, ddof => 3)",
    np.cov(d.x), np.cov(d.x, rowvar=False), np.asarray(np.cov(d.v)), np.cov(d.x, d.y), np.cov(d.v, d.v[::-1]), np.cov(d.x, bias=True), np.cov(d.x, ddof=3))
f.q("cov(x32), cov(i), cov(n)", np.cov(d.x32), np.cov(d.i), np.cov(d.n))
f.q("cov(m)", np.ma.cov(d.m, allow_masked=True))
f.q("corrcoef(x), corrcoef(x, rowvar => false), corrcoef(x, y), corrcoef(v), corrcoef(v, v[::-1])",
    np.corrcoef(d.x), np.corrcoef(d.x, rowvar=False), np.corrcoef(d.x, d.y), np.asarray(1.0), np.corrcoef(d.v, d.v[::-1]))
f.note("Names of dimensions: a solution has the matrix's columns, then those of the right side.")
named = "WITH d AS (SELECT rename(x[:, 0:5], dim_0 => 'row', dim_1 => 'col') AS a, rename(x[:, 0:5], dim_0 => 'row', dim_1 => 'k') AS b FROM cases)"
f.q(named + " SELECT solve(a, b), inv(a), det(a), cov(b), svd(a).u AS u, qr(a).r AS r, pinv(a), einsum('ij,kj->ik', a, b) FROM d",
    T(np.eye(5), ["col", "k"]), T(np.linalg.inv(S), ["col", "row"]), np.asarray(np.linalg.det(S)), T(np.cov(S), ["row", "dim_1"]),
    ("u", T(svd(S)[0], ["row", "dim_1"])), ("r", T(qr(S)[1], ["dim_0", "col"])), T(np.linalg.pinv(S), ["col", "row"]), T(S @ S.T, ["row", "dim_1"]))
f.error("solve([[1, 2], [2, 4]], [1, 1])", "singular_matrix")
f.error("inv(zeros([3, 3]))", "singular_matrix")
f.error("inv(stack([eye(2), ones([2, 2])]))", "singular_matrix")
f.error("solve_triangular(zeros([2, 2]), [1, 1])", "singular_matrix")
f.error("inv(p)", "shape_mismatch")
f.error("solve(p, p)", "shape_mismatch")
f.error("solve(x[:, 0:5], v)", "shape_mismatch")
f.error("solve(x[:, 0:5], 2)", "shape_mismatch")
f.error("lstsq(q, r)", "shape_mismatch")
f.error("det(v)", "shape_mismatch")
f.error("pinv(p, rcond => -1)", "invalid_argument")
f.error("norm(cube, 1)", "invalid_argument")
f.error("norm(v, 'fro')", "invalid_argument")
f.error("norm(x, 3)", "invalid_argument")
f.error("norm(x, 'big')", "invalid_argument")
f.error("norm(m, 2)", "masked_input")
f.error("cov(cube)", "shape_mismatch")
f.error("corrcoef(m)", "masked_input")

# ---------------------------------------------------------------- the dialect's queries
A_ = lambda name, text: f"CREATE TEMP TENSOR {name} AS SELECT {text}"
f = Script("dialect/q14", "A matrix product and a sum of products.", 1e-12,
           setup=(CASES, A_("a", "p AS a FROM cases"), A_("b", "q AS b FROM cases"), A_("p", "bp AS p FROM cases"), A_("q", "bq AS q FROM cases")))
f.q("SELECT a @ b AS c, einsum('bij,bjk->bik', p, q) FROM a, b, p, q", ("c", d.p @ d.q), d.bp @ d.bq)
f.ok("CREATE TEMP TENSOR e AS SELECT p FROM cases")
f.note("A bare variable keeps its own name through CREATE: the tensor `e` has the variable `p`, and its name stands for it.")
f.q("SELECT e @ b AS c FROM e, b", c=d.p @ d.q)
f = Script("dialect/q15", "Leading singular vectors, and the normal equations.", 1e-8, setup=(A_("a", WAVE(60, 7) + " AS a"), A_("b", WAVE(60, 2) + " AS b")))
a, b = wave(60, 7), wave(60, 2)
f.q("SELECT abs(svd(a, k => 20).u[:, 0:3]), solve(transpose(a) @ a, transpose(a) @ b) FROM a, b", np.abs(svd(a)[0][:, :3]), np.linalg.solve(a.T @ a, a.T @ b))
f.q("SELECT max(abs(svd(a, k => 20).u[:, 0:3] * svd(a).s[0:3] - a @ transpose(svd(a).vh[0:3]))) < 1e-12 FROM a", True)
f.q("SELECT count(svd(a, k => 20).u[:, 0:3], axis => 1)[0:3] FROM a", np.full(3, 3))
f = Script("dialect/q16", "A record through a CTE.", 1e-12, setup=(CASES, A_("a", "p FROM cases")))
f.q("WITH f AS (SELECT qr(a) AS d FROM a) SELECT d.q, d.r FROM f", q=qr(d.p)[0], r=qr(d.p)[1])
