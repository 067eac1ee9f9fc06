//! The kinds of reductions, independent of function names.

/// The kind of a reduction, independent of the function's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::functions) enum Reduction {
    Sum,
    Prod,
    Mean,
    Var(u32),
    Std(u32),
    Min,
    Max,
    Ptp,
    Any,
    All,
    BoolOr,
    BoolAnd,
    Count,
    CountNonzero,
    ArgMin,
    ArgMax,
}

/// The reduction called `name` (without `nan`), with `ddof` for those that use it.
pub(in crate::functions) fn reduction(name: &str, ddof: Option<u32>) -> Option<Reduction> {
    Some(match name {
        "sum" => Reduction::Sum,
        "prod" => Reduction::Prod,
        "mean" | "avg" | "average" => Reduction::Mean,
        "var" => Reduction::Var(ddof.unwrap_or(0)),
        "std" => Reduction::Std(ddof.unwrap_or(0)),
        "var_pop" => Reduction::Var(0),
        "var_samp" => Reduction::Var(1),
        "stddev_pop" => Reduction::Std(0),
        "stddev" | "stddev_samp" => Reduction::Std(1),
        "min" => Reduction::Min,
        "max" => Reduction::Max,
        "ptp" => Reduction::Ptp,
        "any" => Reduction::Any,
        "all" => Reduction::All,
        "bool_or" => Reduction::BoolOr,
        "bool_and" => Reduction::BoolAnd,
        "count" => Reduction::Count,
        "count_nonzero" => Reduction::CountNonzero,
        "argmin" => Reduction::ArgMin,
        "argmax" => Reduction::ArgMax,
        _ => return None,
    })
}

/// The name of a reduction in errors.
pub(super) fn reduction_name(kind: Reduction) -> &'static str {
    match kind {
        Reduction::Sum => "sum",
        Reduction::Prod => "prod",
        Reduction::Mean => "mean",
        Reduction::Var(_) => "var",
        Reduction::Std(_) => "std",
        Reduction::Min => "min",
        Reduction::Max => "max",
        Reduction::Ptp => "ptp",
        Reduction::Any => "any",
        Reduction::All => "all",
        Reduction::BoolOr => "bool_or",
        Reduction::BoolAnd => "bool_and",
        Reduction::Count => "count",
        Reduction::CountNonzero => "count_nonzero",
        Reduction::ArgMin => "argmin",
        Reduction::ArgMax => "argmax",
    }
}
