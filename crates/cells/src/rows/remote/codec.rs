//! Parts of plans as bytes.
//!
//! DataFusion encodes most of a plan; this codec encodes our operators, functions and scans of files. A part stays on
//! the server if the encoding does not support an operator or an expression, or would lose a property of it. The server
//! decodes what it has encoded, and compares it.
//!
//! Invariant: a decoded part has the same batches as the part on the server, bit by bit.

mod checks;
mod parts;

use self::checks::{Strict, difference, stays};
use super::{functions, scans};
use crate::error::Error;
use crate::rows::concat::ConcatExec;
use crate::rows::per_value::{PerValueExpr, per_value};
use crate::rows::runtime::RowsRuntime;
use crate::rows::splits::{FirstExec, GatherExec, Keys, KeysExec, PartsExec, gathered};
use crate::tables::{Places, Registered};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::internal_datafusion_err;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::{SessionState, TaskContext};
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_expr_common::physical_expr::proto_encode::PhysicalExprEncodeCtx;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_proto_converter, physical_plan_to_bytes_with_proto_converter,
};
use datafusion_proto::physical_plan::from_proto::parse_physical_sort_exprs;
use datafusion_proto::physical_plan::to_proto::serialize_physical_sort_exprs;
use datafusion_proto::physical_plan::{
    DeduplicatingProtoConverter, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf;
use prost::Message;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::error::Error as ExecError;
use tessera_storage::source::{Noted, Stores, Versions};

/// Upper bound on the bytes of an encoded plan, which each worker gets.
const PLAN_BYTES_MAX: usize = 1 << 20;

/// Upper bound on the bytes of a reason.
const REASON_BYTES_MAX: usize = 300;

/// The reason why a part stays on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stays(pub(super) String);

pub(super) struct Decoded {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    /// The stores of its files, registered until this is dropped.
    pub(super) _stores: Vec<Registered>,
}

/// The template as bytes, proved by decoding it again.
///
/// # Errors
/// Why the part stays on the server.
pub(super) fn encode(
    template: &Arc<dyn ExecutionPlan>,
    state: &SessionState,
    runtime: &RowsRuntime,
) -> std::result::Result<Vec<u8>, Stays> {
    if let Some(reason) = stays(template) {
        return Err(Stays(reason));
    }
    let codec = RowsCodec {
        session: state.task_ctx(),
        places: runtime.places.clone(),
        side: Side::Server(Mutex::default()),
    };
    let strict = Strict(&codec);
    let bytes = physical_plan_to_bytes_with_proto_converter(template.clone(), &codec, &strict)
        .map_err(|e| codec.reason(&e))?;
    if bytes.len() > PLAN_BYTES_MAX {
        let reason = format!("it has {} bytes, and at most {PLAN_BYTES_MAX} are sent", bytes.len());
        return Err(Stays(reason));
    }
    let again = codec.plan(&bytes).map_err(|e| codec.reason(&e))?;
    match difference(template, &again) {
        None => Ok(bytes.to_vec()),
        Some(what) => Err(Stays(format!("its encoding would lose something: {what}"))),
    }
}

/// The plan of these bytes. The result keeps its stores registered.
///
/// # Errors
/// The errors of the storage; bytes that do not encode a part.
pub(super) fn decode(
    bytes: &[u8],
    state: &SessionState,
    runtime: &Arc<RowsRuntime>,
    stores: &Stores,
) -> Result<Decoded> {
    let opening = Opening {
        places: runtime.places.clone(),
        stores: stores.clone(),
        versions: Versions::new(false),
        opened: Mutex::default(),
    };
    let codec = RowsCodec {
        session: state.task_ctx(),
        places: runtime.places.clone(),
        side: Side::Worker(opening),
    };
    let plan = codec.plan(bytes)?;
    Ok(Decoded { plan, _stores: codec.into_stores() })
}

/// Encodes and decodes what DataFusion cannot.
pub(super) struct RowsCodec {
    /// Has the functions by their names.
    session: Arc<TaskContext>,
    places: Arc<Places>,
    side: Side,
}

enum Side {
    /// Encodes, and records the first reason why the part stays.
    Server(Mutex<Option<String>>),
    /// Decodes.
    Worker(Opening),
}

pub(super) struct Opening {
    places: Arc<Places>,
    stores: Stores,
    versions: Arc<Versions>,
    /// The stores, by their recipes.
    opened: Mutex<BTreeMap<Vec<u8>, (ObjectStoreUrl, Registered)>>,
}

impl fmt::Debug for RowsCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowsCodec").finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error about bytes that are not those of a part.
pub(super) fn broken(what: &str) -> DataFusionError {
    internal_datafusion_err!("{what} of a part cannot be read")
}

impl Opening {
    /// The name of the store of that recipe, which from now on has these versions of files.
    pub(super) fn url(
        &self,
        recipe: &[u8],
        noted: &[Noted],
        session: &TaskContext,
    ) -> Result<ObjectStoreUrl> {
        self.versions.expect(noted);
        let mut opened = lock(&self.opened);
        if let Some((url, _)) = opened.get(recipe) {
            return Ok(url.clone());
        }
        let environment = session.runtime_env();
        let store = scans::recipe_of(recipe)?.register(
            &environment,
            &self.places,
            &self.stores,
            &self.versions,
        );
        let (url, registered) = store.map_err(external)?;
        opened.insert(recipe.to_vec(), (url.clone(), registered));
        Ok(url)
    }
}

/// The error in its own type, for DataFusion to pass on.
fn external(error: Error) -> DataFusionError {
    DataFusionError::External(match error {
        Error::Inner(inner) => inner,
        Error::Storage(storage) => Box::new(storage),
        other => Box::new(ExecError::Reported(Box::new(other.report()))),
    })
}

impl RowsCodec {
    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    pub(super) fn opening(&self) -> Option<&Opening> {
        match &self.side {
            Side::Server(_) => None,
            Side::Worker(opening) => Some(opening),
        }
    }

    /// The error of something that is not sent.
    pub(super) fn refuse(&self, reason: String) -> DataFusionError {
        if let Side::Server(first) = &self.side {
            lock(first).get_or_insert_with(|| reason.clone());
        }
        DataFusionError::NotImplemented(reason)
    }

    /// Why the part stays: the first reason, or the error.
    fn reason(&self, error: &DataFusionError) -> Stays {
        let first = match &self.side {
            Side::Server(first) => lock(first).take(),
            Side::Worker(_) => None,
        };
        // DataFusion adds the whole plan to an error.
        let reason = first.unwrap_or_else(|| error.strip_backtrace());
        Stays(short(&reason))
    }

    fn plan(&self, bytes: &[u8]) -> Result<Arc<dyn ExecutionPlan>> {
        let converter = DeduplicatingProtoConverter {};
        physical_plan_from_bytes_with_proto_converter(bytes, &self.session, self, &converter)
    }

    fn into_stores(self) -> Vec<Registered> {
        match self.side {
            Side::Server(_) => Vec::new(),
            Side::Worker(opening) => {
                let opened = opening.opened.into_inner().unwrap_or_else(PoisonError::into_inner);
                opened.into_values().map(|(_, registered)| registered).collect()
            }
        }
    }
}

fn short(reason: &str) -> String {
    let line = reason.lines().next().unwrap_or_default();
    let end = line.char_indices().map(|(at, _)| at).find(|at| *at >= REASON_BYTES_MAX);
    match end {
        Some(end) => format!("{} …", &line[..end]),
        None => line.to_string(),
    }
}

/// An operator of this crate.
#[derive(Clone, PartialEq, Message)]
struct Operator {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(bool, tag = "1")]
    Gather(bool),
    #[prost(message, tag = "2")]
    Concat(Concat),
    #[prost(message, tag = "3")]
    First(FirstRows),
    #[prost(message, tag = "4")]
    Keys(Box<JoinKeys>),
    #[prost(message, tag = "5")]
    Scan(Box<scans::Scan>),
    #[prost(message, tag = "6")]
    Parts(Box<parts::GroupParts>),
    #[prost(message, tag = "7")]
    SortedParts(Box<parts::SortedParts>),
}

#[derive(Clone, PartialEq, Message)]
struct Concat {
    #[prost(message, optional, tag = "1")]
    schema: Option<protobuf::Schema>,
    #[prost(bool, tag = "2")]
    is_split: bool,
}

#[derive(Clone, PartialEq, Message)]
struct FirstRows {
    #[prost(message, repeated, tag = "1")]
    order: Vec<protobuf::PhysicalSortExprNode>,
    #[prost(uint64, tag = "2")]
    rows: u64,
}

#[derive(Clone, PartialEq, Message)]
struct JoinKeys {
    #[prost(message, repeated, tag = "1")]
    build: Vec<protobuf::PhysicalExprNode>,
    #[prost(message, repeated, tag = "2")]
    probe: Vec<protobuf::PhysicalExprNode>,
    #[prost(message, optional, tag = "3")]
    schema: Option<protobuf::Schema>,
    #[prost(message, optional, tag = "4")]
    filter: Option<protobuf::PhysicalExprNode>,
    #[prost(bool, tag = "5")]
    is_null_equal: bool,
    #[prost(uint64, optional, tag = "6")]
    rare_max: Option<u64>,
}

impl RowsCodec {
    fn order_of(
        &self,
        sent: &[protobuf::PhysicalSortExprNode],
        input: &Arc<dyn ExecutionPlan>,
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<LexOrdering> {
        let context = PhysicalPlanDecodeContext::new(session, self);
        let order = parse_physical_sort_exprs(sent, &context, &input.schema(), converter)?;
        LexOrdering::new(order).ok_or_else(|| broken("an order"))
    }

    fn first(
        &self,
        first: &FirstExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<FirstRows> {
        let sort = first.sort();
        let rows = sort.fetch().ok_or_else(|| self.refuse("a sort of all rows".into()))?;
        let order = sort.expr().iter().cloned();
        let order = serialize_physical_sort_exprs(order, self, converter)?;
        Ok(FirstRows { order, rows: rows as u64 })
    }

    fn keys(
        &self,
        keys: &Keys,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<JoinKeys> {
        let of = |expr: &Arc<dyn PhysicalExpr>| converter.physical_expr_to_proto(expr, self);
        // The given converter knows the filter by its id, which the scan's predicate has too.
        let filter: Arc<dyn PhysicalExpr> = keys.filter.clone();
        Ok(JoinKeys {
            build: keys.build.iter().map(of).collect::<Result<_>>()?,
            probe: keys.probe.iter().map(of).collect::<Result<_>>()?,
            schema: Some(schema_to(&keys.schema)?),
            filter: Some(of(&filter)?),
            is_null_equal: keys.is_null_equal,
            rare_max: keys.rare_max,
        })
    }

    fn first_of(
        &self,
        sent: FirstRows,
        input: Arc<dyn ExecutionPlan>,
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let order = self.order_of(&sent.order, &input, session, converter)?;
        let rows = usize::try_from(sent.rows).map_err(|_| broken("a limit"))?;
        Ok(Arc::new(FirstExec::new(SortExec::new(order, input).with_fetch(Some(rows)))))
    }

    fn keys_of(
        &self,
        sent: JoinKeys,
        input: Arc<dyn ExecutionPlan>,
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let context = PhysicalPlanDecodeContext::new(session, self);
        let schema = schema_of(sent.schema.as_ref())?;
        let build_schema = input.schema();
        let build = sent.build.iter();
        let build = build.map(|key| converter.proto_to_physical_expr(key, &build_schema, &context));
        let build = build.collect::<Result<_>>()?;
        let of_probe = |key: &protobuf::PhysicalExprNode| {
            converter.proto_to_physical_expr(key, &schema, &context)
        };
        let probe = sent.probe.iter().map(of_probe).collect::<Result<_>>()?;
        let filter = of_probe(sent.filter.as_ref().ok_or_else(|| broken("a filter"))?)?;
        let filter = (filter as Arc<dyn Any + Send + Sync>)
            .downcast::<DynamicFilterPhysicalExpr>()
            .map_err(|_| broken("a filter"))?;
        let (is_null_equal, rare_max) = (sent.is_null_equal, sent.rare_max);
        let schema = Arc::new(schema);
        let keys = Keys { build, probe, schema, filter, is_null_equal, rare_max };
        Ok(Arc::new(KeysExec::new(input, keys)))
    }
}

fn schema_to(schema: &Schema) -> Result<protobuf::Schema> {
    Ok(schema.try_into()?)
}

fn schema_of(sent: Option<&protobuf::Schema>) -> Result<Schema> {
    let sent = sent.ok_or_else(|| broken("columns"))?;
    Ok(sent.try_into()?)
}

fn one(inputs: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
    match inputs {
        [input] => Ok(input.clone()),
        _ => Err(broken("an operator")),
    }
}

impl PhysicalExtensionCodec for RowsCodec {
    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let kind = if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
            Kind::Scan(Box::new(scans::encoded(self, scan, converter)?))
        } else if node.is::<GatherExec>() {
            Kind::Gather(true)
        } else if let Some(concat) = node.downcast_ref::<ConcatExec>() {
            let schema = Some(schema_to(&node.schema())?);
            Kind::Concat(Concat { schema, is_split: concat.is_split() })
        } else if let Some(first) = node.downcast_ref::<FirstExec>() {
            Kind::First(self.first(first, converter)?)
        } else if let Some(keys) = node.downcast_ref::<KeysExec>() {
            Kind::Keys(Box::new(self.keys(keys.keys(), converter)?))
        } else if let Some(parts) = node.downcast_ref::<PartsExec>() {
            self.parts(parts, converter)?
        } else {
            return Err(self.refuse(node.name().to_string()));
        };
        bytes.extend(Operator { kind: Some(kind) }.encode_to_vec());
        Ok(())
    }

    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let operator = Operator::decode(bytes).map_err(|_| broken("an operator"))?;
        match operator.kind.ok_or_else(|| broken("an operator"))? {
            Kind::Gather(_) => Ok(gathered(one(inputs)?)),
            Kind::Concat(Concat { schema, is_split }) => {
                let schema = Arc::new(schema_of(schema.as_ref())?);
                Ok(Arc::new(ConcatExec::of(schema, inputs.to_vec(), is_split)))
            }
            Kind::First(sent) => self.first_of(sent, one(inputs)?, session, converter),
            Kind::Keys(sent) => self.keys_of(*sent, one(inputs)?, session, converter),
            Kind::Scan(sent) => scans::decoded(self, *sent, session, converter),
            Kind::Parts(sent) => self.parts_of(&sent, one(inputs)?, session, converter),
            Kind::SortedParts(sent) => {
                self.sorted_parts_of(&sent, one(inputs)?, session, converter)
            }
        }
    }

    /// The encoding of a [`PerValueExpr`] is that of its input.
    fn try_encode_expr(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        _: &mut Vec<u8>,
        _: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        match expr.is::<PerValueExpr>() {
            true => Ok(()),
            false => Err(self.refuse(format!("the expression `{expr}`"))),
        }
    }

    fn try_decode_expr(
        &self,
        _: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        _: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match inputs {
            [inner] => per_value(inner.clone()),
            _ => Err(broken("an expression")),
        }
    }

    fn try_encode_udf(&self, function: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let sent = functions::scalar(function, &self.session);
        bytes.extend(sent.map_err(|reason| self.refuse(reason))?);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        functions::scalar_of(name, bytes, &self.session)
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let sent = functions::aggregate(function, &self.session);
        bytes.extend(sent.map_err(|reason| self.refuse(reason))?);
        Ok(())
    }

    fn try_decode_udaf(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        functions::aggregate_of(name, bytes, &self.session)
    }

    fn try_encode_udwf(&self, function: &WindowUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let sent = functions::window(function, &self.session);
        bytes.extend(sent.map_err(|reason| self.refuse(reason))?);
        Ok(())
    }

    fn try_decode_udwf(&self, name: &str, bytes: &[u8]) -> Result<Arc<WindowUDF>> {
        functions::window_of(name, bytes, &self.session)
    }

    fn try_encode_higher_order_function(
        &self,
        function: &HigherOrderUDF,
        _: &mut Vec<u8>,
    ) -> Result<()> {
        Err(self.refuse(format!("the function `{}` of functions", function.name())))
    }
}

#[cfg(test)]
mod tests;
