//! The reductions that there are, whatever they are called.

/// What is computed, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::functions) enum Kind {
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

/// The reduction called `name` (without `nan`), with `ddof` where it has one.
pub(in crate::functions) fn kind(name: &str, ddof: Option<u32>) -> Option<Kind> {
    Some(match name {
        "sum" => Kind::Sum,
        "prod" => Kind::Prod,
        "mean" | "avg" | "average" => Kind::Mean,
        "var" => Kind::Var(ddof.unwrap_or(0)),
        "std" => Kind::Std(ddof.unwrap_or(0)),
        "var_pop" => Kind::Var(0),
        "var_samp" => Kind::Var(1),
        "stddev_pop" => Kind::Std(0),
        "stddev" | "stddev_samp" => Kind::Std(1),
        "min" => Kind::Min,
        "max" => Kind::Max,
        "ptp" => Kind::Ptp,
        "any" => Kind::Any,
        "all" => Kind::All,
        "bool_or" => Kind::BoolOr,
        "bool_and" => Kind::BoolAnd,
        "count" => Kind::Count,
        "count_nonzero" => Kind::CountNonzero,
        "argmin" => Kind::ArgMin,
        "argmax" => Kind::ArgMax,
        _ => return None,
    })
}

/// What errors call a reduction.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Sum => "sum",
        Kind::Prod => "prod",
        Kind::Mean => "mean",
        Kind::Var(_) => "var",
        Kind::Std(_) => "std",
        Kind::Min => "min",
        Kind::Max => "max",
        Kind::Ptp => "ptp",
        Kind::Any => "any",
        Kind::All => "all",
        Kind::BoolOr => "bool_or",
        Kind::BoolAnd => "bool_and",
        Kind::Count => "count",
        Kind::CountNonzero => "count_nonzero",
        Kind::ArgMin => "argmin",
        Kind::ArgMax => "argmax",
    }
}
