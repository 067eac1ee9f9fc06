//! The functions of a part as bytes.
//!
//! A function that the session registers crosses by its name. A function of another kind with a name that the session
//! knows would be swapped for the session's, so a function is compared before it is sent. Functions of ours that no
//! session registers cross in parts ([`Unnamed`]).

use crate::lift::Unnamed;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, Volatility, WindowUDF};
use datafusion_proto::protobuf::ArrowType;
use prost::Message;
use std::sync::Arc;

/// Upper bound on the bytes of the labels that a function ranks.
const RANK_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, PartialEq, Message)]
struct Sent {
    #[prost(oneof = "Function", tags = "1, 2, 3, 4")]
    function: Option<Function>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Function {
    /// The session's function of that name.
    #[prost(string, tag = "1")]
    Named(String),
    /// A function of this crate with that name, which has no state.
    #[prost(string, tag = "2")]
    Plain(String),
    #[prost(message, tag = "3")]
    Like(Like),
    #[prost(message, tag = "4")]
    Rank(Rank),
}

#[derive(Clone, PartialEq, Message)]
struct Like {
    #[prost(string, tag = "1")]
    start: String,
    #[prost(string, repeated, tag = "2")]
    middle: Vec<String>,
    #[prost(string, tag = "3")]
    end: String,
    #[prost(bool, tag = "4")]
    negated: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Rank {
    #[prost(message, repeated, tag = "1")]
    types: Vec<ArrowType>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    rows: Vec<Vec<u8>>,
    #[prost(uint64, repeated, tag = "3")]
    places: Vec<u64>,
}

/// A scalar function as bytes; the reason if it is not sent.
pub(super) fn scalar(
    function: &ScalarUDF,
    session: &TaskContext,
) -> std::result::Result<Vec<u8>, String> {
    let name = function.name();
    let sent = match session.scalar_functions().get(name) {
        Some(known) if **known == *function => {
            // A task that is sent again must have the same rows.
            if function.signature().volatility == Volatility::Volatile {
                return Err(format!("the function `{name}` has other values in each run"));
            }
            Function::Named(name.into())
        }
        _ => match Unnamed::of(function) {
            Some(parts) => of_parts(parts)?,
            None => return Err(format!("the function `{name}` is not one of the session's")),
        },
    };
    let bytes = Sent { function: Some(sent) }.encode_to_vec();
    match scalar_of(name, &bytes, session) {
        Ok(made) if *made == *function => Ok(bytes),
        Ok(_) => Err(format!("the function `{name}` would be another one")),
        Err(e) => Err(format!("the function `{name}` cannot be made again: {e}")),
    }
}

/// The scalar function of these bytes.
pub(super) fn scalar_of(name: &str, bytes: &[u8], session: &TaskContext) -> Result<Arc<ScalarUDF>> {
    let parts = match sent(name, bytes)? {
        Function::Named(known) => {
            let found = session.scalar_functions().get(&known).cloned();
            return found.ok_or_else(|| unknown(&known));
        }
        Function::Plain(name) => Unnamed::Plain(name),
        Function::Like(Like { start, middle, end, negated }) => {
            Unnamed::Like { start, middle, end, negated }
        }
        Function::Rank(Rank { types, rows, places }) => {
            if rows.len() != places.len() {
                return Err(broken(name));
            }
            let types = types.iter().map(|t| DataType::try_from(t).map_err(|_| broken(name)));
            Unnamed::Rank {
                types: types.collect::<Result<_>>()?,
                places: rows.into_iter().zip(places).collect(),
            }
        }
    };
    Ok(Arc::new(parts.function()?))
}

/// An aggregate function as bytes; the reason if it is not sent.
pub(super) fn aggregate(
    function: &AggregateUDF,
    session: &TaskContext,
) -> std::result::Result<Vec<u8>, String> {
    let name = function.name();
    match session.aggregate_functions().get(name) {
        Some(known) if **known == *function => Ok(named(name)),
        _ => Err(format!("the aggregate `{name}` is not one of the session's")),
    }
}

/// The aggregate function of these bytes.
pub(super) fn aggregate_of(
    name: &str,
    bytes: &[u8],
    session: &TaskContext,
) -> Result<Arc<AggregateUDF>> {
    let known = name_of(name, bytes)?;
    let found = session.aggregate_functions().get(&known).cloned();
    found.ok_or_else(|| unknown(&known))
}

/// A window function that is no aggregate as bytes; the reason if it is not sent.
pub(super) fn window(
    function: &WindowUDF,
    session: &TaskContext,
) -> std::result::Result<Vec<u8>, String> {
    let name = function.name();
    match session.window_functions().get(name) {
        Some(known) if **known == *function => Ok(named(name)),
        _ => Err(format!("the window function `{name}` is not one of the session's")),
    }
}

/// The window function of these bytes.
pub(super) fn window_of(name: &str, bytes: &[u8], session: &TaskContext) -> Result<Arc<WindowUDF>> {
    let known = name_of(name, bytes)?;
    let found = session.window_functions().get(&known).cloned();
    found.ok_or_else(|| unknown(&known))
}

fn named(name: &str) -> Vec<u8> {
    Sent { function: Some(Function::Named(name.into())) }.encode_to_vec()
}

/// The name of a function that the session registers.
fn name_of(name: &str, bytes: &[u8]) -> Result<String> {
    match sent(name, bytes)? {
        Function::Named(known) => Ok(known),
        _ => Err(broken(name)),
    }
}

fn of_parts(parts: Unnamed) -> std::result::Result<Function, String> {
    Ok(match parts {
        Unnamed::Plain(name) => Function::Plain(name),
        Unnamed::Like { start, middle, end, negated } => {
            Function::Like(Like { start, middle, end, negated })
        }
        Unnamed::Rank { types, places } => {
            let bytes: usize = places.iter().map(|(row, _)| row.len() + size_of::<u64>()).sum();
            if bytes > RANK_BYTES_MAX {
                return Err(format!(
                    "the labels of a dimension have {bytes} bytes, and at most {RANK_BYTES_MAX} are sent"
                ));
            }
            let types = types.iter().map(|t| ArrowType::try_from(t).map_err(|e| e.to_string()));
            let types = types.collect::<std::result::Result<_, _>>()?;
            let (rows, places) = places.into_iter().unzip();
            Function::Rank(Rank { types, rows, places })
        }
    })
}

fn sent(name: &str, bytes: &[u8]) -> Result<Function> {
    let sent = Sent::decode(bytes).map_err(|_| broken(name))?;
    sent.function.ok_or_else(|| broken(name))
}

fn broken(name: &str) -> datafusion::error::DataFusionError {
    internal_datafusion_err!("the function `{name}` of a part cannot be read")
}

fn unknown(name: &str) -> datafusion::error::DataFusionError {
    internal_datafusion_err!("no function has the name `{name}`")
}
