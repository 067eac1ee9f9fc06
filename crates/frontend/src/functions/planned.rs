//! Functions that later versions bring, so that they are told apart from misspellings.

/// Whether a function of that name is to come.
pub(super) fn is_planned(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    PLANNED.contains(&name.as_str())
}

const PLANNED: &[&str] = &[
    "allclose", "angle", "argpartition", "argsort", "argtopk", "argwhere", "array_equal",
    "average_weighted", "beta", "bfill", "bincount", "binomial", "cdist", "chisquare", "choice",
    "cholesky", "coarsen", "compress", "conj", "convolve", "corrcoef", "correlate", "cov", "det",
    "diag", "digamma", "digitize", "dstack", "eigh", "einsum", "erf", "erfc", "erfinv", "ewm",
    "exponential", "ffill", "fft", "fft2", "fftfreq", "fftn", "fftshift", "first", "fromfunction",
    "gamma", "gammaln", "gather", "generate", "gradient", "histogram", "histogram2d", "hstack",
    "ifft", "ifft2", "ifftn", "ifftshift", "imag", "indices", "inner", "interp", "intersect1d",
    "inv", "irfft", "irfftn", "isin", "kron", "last", "ldexp", "lognormal", "lstsq", "lu",
    "matrix_power", "median", "meshgrid", "nanmedian", "nanpercentile", "nanquantile", "nonzero",
    "norm", "pad", "partition", "pdist", "percentile", "permutation", "pinv", "poisson", "qr",
    "quantile", "randint", "real", "repeat", "resample", "rfft", "rfftfreq", "rfftn", "rolling",
    "rot90", "searchsorted", "setdiff1d", "setxor1d", "shuffle", "solve", "solve_triangular",
    "sort", "split", "svd", "take", "tensordot", "tile", "topk", "trace", "trapz", "union1d",
    "unique", "value_counts", "vstack", "xlogy",
];
