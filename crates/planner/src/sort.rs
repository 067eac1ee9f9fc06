//! Sort orders and order statistics of lines: the `Sort` and `Quantile` nodes.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Order of the cells of a line. By default numbers come first, then NaN, then masked cells. Sorting is stable (-0.0
/// and 0.0 are equal).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SortOrder {
    /// True to sort from the greatest number to the least.
    pub descending: bool,
    /// True if NaN precedes the numbers.
    pub nan_first: bool,
    /// True if masked cells precede all others.
    pub masked_first: bool,
}

/// Result of a sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SortWhat {
    /// The cells in sorted order.
    Values,
    /// The positions of the sorted cells along the axis, `int64`.
    Positions,
}

/// Order statistics of lines: probabilities and the method of interpolation.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quantiles {
    /// Bits of each probability, a `float64` in [0, 1].
    pub bits: Arc<[u64]>,
    /// Method of interpolation.
    pub method: QuantileMethod,
}

impl Quantiles {
    /// Order statistics for probabilities in [0, 1].
    pub fn new(probabilities: &[f64], method: QuantileMethod) -> Self {
        Quantiles { bits: probabilities.iter().map(|q| q.to_bits()).collect(), method }
    }

    /// Probabilities as floats.
    pub fn probabilities(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        self.bits.iter().map(|b| f64::from_bits(*b))
    }

    /// Result type for cells of type `dtype`: the same type for methods that return a cell, else a float.
    pub fn result(&self, dtype: DType) -> Option<DType> {
        (self.method.is_discrete() || dtype.is_float()).then_some(dtype)
    }
}

/// Method for a quantile between two cells.
///
/// # Source
/// R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50(4), 1996; the
/// last four are NumPy's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are NumPy's; `place` has the formulas")]
pub enum QuantileMethod {
    InvertedCdf,
    AveragedInvertedCdf,
    ClosestObservation,
    InterpolatedInvertedCdf,
    Hazen,
    Weibull,
    Linear,
    MedianUnbiased,
    NormalUnbiased,
    Lower,
    Higher,
    Midpoint,
    Nearest,
}

/// Names of the methods in NumPy.
const METHODS: [(&str, QuantileMethod); 13] = [
    ("inverted_cdf", QuantileMethod::InvertedCdf),
    ("averaged_inverted_cdf", QuantileMethod::AveragedInvertedCdf),
    ("closest_observation", QuantileMethod::ClosestObservation),
    ("interpolated_inverted_cdf", QuantileMethod::InterpolatedInvertedCdf),
    ("hazen", QuantileMethod::Hazen),
    ("weibull", QuantileMethod::Weibull),
    ("linear", QuantileMethod::Linear),
    ("median_unbiased", QuantileMethod::MedianUnbiased),
    ("normal_unbiased", QuantileMethod::NormalUnbiased),
    ("lower", QuantileMethod::Lower),
    ("higher", QuantileMethod::Higher),
    ("midpoint", QuantileMethod::Midpoint),
    ("nearest", QuantileMethod::Nearest),
];

impl QuantileMethod {
    /// Parses NumPy's name of a method.
    pub fn parse(name: &str) -> Option<Self> {
        METHODS.iter().find(|(n, _)| *n == name).map(|(_, m)| *m)
    }

    /// NumPy's names of all methods.
    pub fn names() -> impl Iterator<Item = &'static str> {
        METHODS.iter().map(|(n, _)| *n)
    }

    /// Name of the method in NumPy.
    pub fn name(self) -> &'static str {
        METHODS.iter().find(|(_, m)| *m == self).map_or("linear", |(n, _)| n)
    }

    /// True if the result is always one of the cells.
    pub fn is_discrete(self) -> bool {
        use QuantileMethod::*;
        matches!(self, InvertedCdf | ClosestObservation | Lower | Higher | Nearest)
    }

    /// Returns the position of the quantile `q` of `n` sorted cells (n at least 1): the cell below, and the fraction of
    /// the way to the next cell (0 for the cell itself).
    pub fn place(self, n: u64, q: f64) -> (u64, f64) {
        use QuantileMethod::*;
        let cells = n as f64;
        let general = |alpha: f64, beta: f64| cells * q + (alpha + q * (1.0 - alpha - beta)) - 1.0;
        let linear = (cells - 1.0) * q;
        let last = n - 1;
        // The cell itself if `at` holds, else the next one.
        let discrete = |index: f64, at: fn(f64, f64) -> bool| {
            let low = index.floor();
            let to = if at(index - low, low) { low } else { low + 1.0 };
            ((to.max(0.0) as u64).min(last), 0.0)
        };
        let index = match self {
            InvertedCdf => return discrete(cells * q - 1.0, |gamma, _| gamma == 0.0),
            ClosestObservation => {
                return discrete(cells * q - 1.5, |gamma, low| {
                    gamma == 0.0 && low.rem_euclid(2.0) == 1.0
                });
            }
            Lower => return ((linear.floor() as u64).min(last), 0.0),
            Higher => return ((linear.ceil() as u64).min(last), 0.0),
            Nearest => return ((linear.round_ties_even() as u64).min(last), 0.0),
            AveragedInvertedCdf => cells * q - 1.0,
            InterpolatedInvertedCdf => general(0.0, 1.0),
            Hazen => general(0.5, 0.5),
            Weibull => general(0.0, 0.0),
            Linear => linear,
            MedianUnbiased => general(1.0 / 3.0, 1.0 / 3.0),
            NormalUnbiased => general(3.0 / 8.0, 3.0 / 8.0),
            Midpoint => 0.5 * (linear.floor() + linear.ceil()),
        };
        if index < 0.0 {
            return (0, 0.0);
        }
        let low = index.floor();
        if low >= last as f64 {
            return (last, 0.0);
        }
        let gamma = index - low;
        let gamma = match self {
            AveragedInvertedCdf => {
                if gamma == 0.0 {
                    0.5
                } else {
                    1.0
                }
            }
            Midpoint => {
                if gamma == 0.0 {
                    0.0
                } else {
                    0.5
                }
            }
            _ => gamma,
        };
        (low as u64, gamma)
    }
}

impl fmt::Display for QuantileMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for SortOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.descending, " descending"),
            (self.nan_first, " nan_first"),
            (self.masked_first, " masked_first"),
        ];
        flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| f.write_str(name))
    }
}
