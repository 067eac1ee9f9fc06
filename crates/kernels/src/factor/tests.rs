#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

/// Unstructured values in [-1, 1].
fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut next = crate::noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..n).map(|_| (next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0).collect()
}

fn rows(cells: &[f64], m: usize, n: usize) -> Matrix<'_, f64> {
    Matrix { cells, offset: 0, steps: [n as i64, 1], rows: m, columns: n }
}

fn run(
    kind: Factor,
    a: Matrix<'_, f64>,
    c: Option<Matrix<'_, f64>>,
    lengths: &[usize],
) -> Result<Vec<Vec<f64>>, Refusal> {
    let cells = kind.work_cells(a.rows as u64, a.columns as u64) as usize;
    let mut work = vec![f64::NAN; cells];
    let mut outputs: Vec<Vec<f64>> = lengths.iter().map(|&n| vec![f64::NAN; n]).collect();
    let mut views: Vec<&mut [f64]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
    let parts: Vec<usize> = (0..lengths.len()).collect();
    factor(Problem { kind, a, c, work: &mut work, cancelled: &|| false }, &parts, &mut views)?;
    Ok(outputs)
}

/// Row-major `a [m, k] @ b [k, n]`.
fn times(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + l] * b[l * n + j];
            }
        }
    }
    c
}

fn flip(a: &[f64], m: usize, n: usize) -> Vec<f64> {
    (0..n * m).map(|i| a[(i % m) * n + i / m]).collect()
}

fn close(a: &[f64], b: &[f64], tolerance: f64, what: &str) {
    assert_eq!(a.len(), b.len());
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() <= tolerance, "{what}: {x} {y}");
    }
}

fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect()
}

#[test]
fn qr_gives_the_matrix_back() {
    for (m, n) in [(1, 1), (5, 3), (3, 5), (17, 17), (40, 9), (9, 40), (130, 70), (64, 100)] {
        let mut a = noise(m * n, (m * 100 + n) as u64);
        // Linearly dependent and zero columns.
        for i in 0..m {
            if n > 3 {
                a[i * n + 3] = a[i * n] - 2.0 * a[i * n + 1];
            }
            if n > 8 {
                a[i * n + 8] = 0.0;
            }
        }
        let k = m.min(n);
        let out = run(Factor::Qr, rows(&a, m, n), None, &[m * k, k * n]).unwrap();
        close(&times(&out[0], &out[1], m, k, n), &a, 1e-13 * m as f64, "q r");
        let gram = times(&flip(&out[0], m, k), &out[0], k, m, k);
        close(&gram, &identity(k), 1e-13 * m as f64, "qᵀ q");
        for i in 0..k {
            assert!(out[1][i * n + i] >= 0.0);
            assert!((0..i).all(|j| out[1][i * n + j] == 0.0));
        }
        // A transposed matrix is read in place.
        let t = flip(&a, m, n);
        let a = Matrix { cells: &t, offset: 0, steps: [1, m as i64], rows: m, columns: n };
        assert_eq!(run(Factor::Qr, a, None, &[m * k, k * n]).unwrap(), out);
    }
}

#[test]
fn a_short_block_leaves_zeros() {
    for (m, n) in [(3, 5), (5, 3), (20, 12)] {
        let a = noise(m * n, 3);
        let r = run(Factor::QrBlocks { rows: 30 }, rows(&a, m, n), None, &[n * n]).unwrap();
        assert!((m.min(n)..n).all(|i| (0..n).all(|j| r[0][i * n + j] == 0.0)));
        // q times r is a, and q times the identity is q.
        let apply = |x: &[f64], k: usize| {
            let kind = Factor::QrApply { rows: 30 };
            run(kind, rows(&a, m, n), Some(rows(x, n, k)), &[m * k]).unwrap().remove(0)
        };
        close(&apply(&r[0], n), &a, 1e-14, "q r");
        let whole = run(Factor::Qr, rows(&a, m, n), None, &[m * m.min(n), m.min(n) * n]).unwrap();
        let q = apply(&identity(n), n);
        for i in 0..m {
            for j in 0..n {
                let want = if j < m.min(n) { whole[0][i * m.min(n) + j] } else { 0.0 };
                assert!((q[i * n + j] - want).abs() < 1e-14);
            }
        }
    }
}

#[test]
fn huge_and_tiny_columns_neither_overflow_nor_vanish() {
    for scale in [1e200, 1e-200, 1e-310] {
        let a: Vec<f64> = noise(12, 9).iter().map(|x| x * scale).collect();
        let out = run(Factor::Qr, rows(&a, 4, 3), None, &[12, 9]).unwrap();
        close(&times(&out[0], &out[1], 4, 3, 3), &a, scale * 1e-12, "q r");
        let square = rows(&a[..9], 3, 3);
        let out = run(Factor::Svd, square, None, &[9, 3, 9]).unwrap();
        let us: Vec<f64> = (0..9).map(|i| out[0][i] * out[1][i % 3]).collect();
        close(&times(&us, &out[2], 3, 3, 3), &a[..9], scale * 1e-12, "u s vh");
    }
}

#[test]
fn lu_solves_and_inverts() {
    for (m, n) in [(1, 1), (4, 4), (7, 3), (3, 7), (33, 33), (60, 20), (20, 60)] {
        let a = noise(m * n, (m + 31 * n) as u64);
        let k = m.min(n);
        let out = run(Factor::Lu, rows(&a, m, n), None, &[m * m, m * k, k * n]).unwrap();
        let pl = times(&out[0], &out[1], m, m, k);
        close(&times(&pl, &out[2], m, k, n), &a, 1e-13 * m as f64, "p l u");
        assert!(out[1].iter().all(|x| x.abs() <= 1.0));
        if m == n {
            let x = noise(n * 2, 5);
            let c = times(&a, &x, n, n, 2);
            let out = run(Factor::Solve, rows(&a, n, n), Some(rows(&c, n, 2)), &[n * 2]).unwrap();
            close(&out[0], &x, 1e-10, "x");
            let inverse = run(Factor::Inv, rows(&a, n, n), None, &[n * n]).unwrap();
            close(&times(&a, &inverse[0], n, n, n), &identity(n), 1e-11, "a⁻¹");
        }
    }
}

#[test]
fn determinants_are_numpys() {
    // np.linalg.det, np.linalg.slogdet
    let a = [0.0, 2.0, 1.0, 3.0, 1.0, 0.0, 1.0, 1.0, 4.0];
    let out = run(Factor::Det, rows(&a, 3, 3), None, &[1, 1, 1]).unwrap();
    close(&out[0], &[-22.0], 1e-13, "det");
    assert_eq!(out[1], [-1.0]);
    close(&out[2], &[22f64.ln()], 1e-14, "logabsdet");
    let out = run(Factor::Det, rows(&[1.0, 2.0, 2.0, 4.0], 2, 2), None, &[1, 1, 1]).unwrap();
    assert_eq!((out[0][0], out[1][0], out[2][0]), (0.0, 0.0, f64::NEG_INFINITY));
    assert_eq!(run(Factor::Det, rows(&[], 0, 0), None, &[1, 1, 1]).unwrap()[0], [1.0]);
}

#[test]
fn cholesky_reads_the_lower_triangle() {
    let n = 50;
    let b = noise(n * n, 8);
    let mut a = times(&b, &flip(&b, n, n), n, n, n);
    let whole = a.clone();
    for i in 0..n {
        a[i * n + i] += 1.0;
        for j in i + 1..n {
            a[i * n + j] = f64::NAN;
        }
    }
    let l = run(Factor::Cholesky, rows(&a, n, n), None, &[n * n]).unwrap().remove(0);
    let mut back = times(&l, &flip(&l, n, n), n, n, n);
    (0..n).for_each(|i| back[i * n + i] -= 1.0);
    close(&back, &whole, 1e-12, "l lᵀ");
}

#[test]
fn svd_and_eigh_give_the_matrix_back() {
    for n in [1, 2, 3, 16, 45, 150] {
        let mut a = noise(n * n, n as u64 + 70);
        if n > 2 {
            // Rank 2.
            let (x, y) = (noise(n * 2, 1), noise(n * 2, 2));
            a = times(&x, &y, n, 2, n);
        }
        let out = run(Factor::Svd, rows(&a, n, n), None, &[n * n, n, n * n]).unwrap();
        let us: Vec<f64> = (0..n * n).map(|i| out[0][i] * out[1][i % n]).collect();
        close(&times(&us, &out[2], n, n, n), &a, 1e-12, "u s vh");
        close(&times(&flip(&out[0], n, n), &out[0], n, n, n), &identity(n), 1e-12, "uᵀ u");
        close(&times(&out[2], &flip(&out[2], n, n), n, n, n), &identity(n), 1e-12, "vh v");
        assert!(out[1].windows(2).all(|w| w[0] >= w[1]) && out[1].iter().all(|s| *s >= 0.0));
        let symmetric: Vec<f64> = (0..n * n).map(|i| a[i] + a[(i % n) * n + i / n]).collect();
        for lower in [true, false] {
            let half: Vec<f64> = (0..n * n)
                .map(|i| {
                    if (i / n >= i % n) == lower || i / n == i % n {
                        symmetric[i]
                    } else {
                        f64::NAN
                    }
                })
                .collect();
            let out = run(Factor::Eigh { lower }, rows(&half, n, n), None, &[n, n * n]).unwrap();
            let vw: Vec<f64> = (0..n * n).map(|i| out[1][i] * out[0][i % n]).collect();
            close(&times(&vw, &flip(&out[1], n, n), n, n, n), &symmetric, 1e-12, "v w vᵀ");
            assert!(out[0].windows(2).all(|w| w[0] <= w[1]));
        }
    }
}

#[test]
fn matrices_without_a_factorisation_are_refused() {
    let refused = |kind, a: &[f64], lengths: &[usize]| {
        let c = [1.0, 1.0];
        let c = (kind == Factor::Solve).then(|| rows(&c, 2, 1));
        run(kind, rows(a, 2, 2), c, lengths).unwrap_err()
    };
    let singular = Refusal::Matrix(MatrixFault::Singular);
    assert_eq!(refused(Factor::Inv, &[1.0, 2.0, 2.0, 4.0], &[4]), singular);
    assert_eq!(refused(Factor::Solve, &[0.0; 4], &[2]), singular);
    let indefinite = Refusal::Matrix(MatrixFault::NotPositiveDefinite);
    assert_eq!(refused(Factor::Cholesky, &[1.0, 2.0, 2.0, 1.0], &[4]), indefinite);
    assert_eq!(refused(Factor::Cholesky, &[f64::NAN, 0.0, 0.0, 1.0], &[4]), indefinite);
    let odd = Refusal::Matrix(MatrixFault::NotFinite);
    assert_eq!(refused(Factor::Svd, &[1.0, f64::NAN, 0.0, 1.0], &[4, 2, 4]), odd);
    assert_eq!(
        refused(Factor::Eigh { lower: true }, &[f64::INFINITY, 0.0, 0.0, 1.0], &[2, 4]),
        odd
    );
}

#[test]
fn the_planner_knows_how_much_faer_takes() {
    for n in (1..700).chain([1000, 1024, 1025, 2047, 2048, 2049, 4096, 8192, 8193, 20_000]) {
        let bound = Factor::spectral_cells(n as u64) as usize;
        let (s, e) = spectral::stack_bytes::<f64>(n);
        assert!(s.max(e) <= bound * 8, "f64 {n}: {s} {e} {}", bound * 8);
        let (s, e) = spectral::stack_bytes::<f32>(n);
        assert!(s.max(e) <= bound * 4, "f32 {n}: {s} {e} {}", bound * 4);
    }
}
