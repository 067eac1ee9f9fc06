//! Sums and means of Booleans: true counts as 1, as in NumPy.

use datafusion::common::types::{LogicalTypeRef, logical_boolean};
use datafusion::logical_expr::{Coercion, Signature, TypeSignature, TypeSignatureClass};

/// The signature of an aggregate that takes Booleans too, which become numbers of that type.
pub(super) fn with_booleans(inner: &Signature, number: LogicalTypeRef) -> Signature {
    let mut all = match &inner.type_signature {
        TypeSignature::OneOf(all) => all.clone(),
        one => vec![one.clone()],
    };
    let native = number.native().clone();
    all.push(TypeSignature::Coercible(vec![Coercion::new_implicit(
        TypeSignatureClass::Native(number),
        vec![TypeSignatureClass::Native(logical_boolean())],
        native,
    )]));
    Signature::one_of(all, inner.volatility)
}
