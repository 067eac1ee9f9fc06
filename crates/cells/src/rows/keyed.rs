//! Parquet read by rare keys of a join.
//!
//! ```text
//! condition of a scan   a > 5 AND keys of a join AND first rows of a sort
//! usual reader          each part leaves out groups of rows by their statistics
//! keyed reader          the same, and rows whose keys no other side has: of them it decodes the keys alone
//! ```
//! The reader of a file is chosen when the file is opened. Then the keys of joins are complete.

use super::splits::has_rare_keys;
use super::wrapped::wrapped;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion_datasource::morsel::Morselizer;
use object_store::ObjectStore;
use std::sync::Arc;

/// Upper bound on the bytes of decoded keys that a reader retains for its rows. They are not charged.
const KEPT_MAX: u64 = 8 << 20;

/// A scan of Parquet with a filter that may have the keys of a join.
#[derive(Debug)]
pub(super) struct Keyed {
    source: ParquetSource,
    condition: Arc<dyn PhysicalExpr>,
    store: Arc<dyn ObjectStore>,
    /// The options of the scan, without its files: a scan may have thousands.
    options: FileScanConfig,
    partition: usize,
}

impl Keyed {
    /// `None` if no join fills a filter of the scan. A reader keeps at most a quarter of `text_bytes` of keys.
    pub(super) fn of(
        source: &Arc<dyn FileSource>,
        store: Arc<dyn ObjectStore>,
        scan: &FileScanConfig,
        partition: usize,
        text_bytes: u64,
    ) -> Option<Self> {
        let parquet = source.downcast_ref::<ParquetSource>()?;
        let condition = parquet.filter()?;
        let is_filled =
            split_conjunction(&condition).iter().any(|part| part.is::<DynamicFilterPhysicalExpr>());
        // A limit counts the rows that are read.
        if !is_filled || scan.limit.is_some() {
            return None;
        }
        let mut options = parquet.table_parquet_options().clone();
        options.global.pushdown_filters = true;
        options.global.max_predicate_cache_size = Some((text_bytes / 4).min(KEPT_MAX) as usize);
        let parquet = parquet.clone().with_table_parquet_options(options);
        let options = FileScanConfigBuilder::new(scan.object_store_url.clone(), source.clone())
            .with_preserve_order(scan.preserve_order)
            .with_expr_adapter(scan.expr_adapter_factory.clone())
            .build();
        Some(Keyed { source: parquet, condition, store, options, partition })
    }

    /// The reader for rare keys; `None` if no keys are rare.
    pub(super) fn morselizer(&self) -> Result<Option<Box<dyn Morselizer>>> {
        let parts = split_conjunction(&self.condition).into_iter().cloned();
        let (rare, others): (Vec<_>, Vec<_>) = parts.partition(has_rare_keys);
        if rare.is_empty() {
            return Ok(None);
        }
        // True for each row, while statistics are compared with what is within. Its columns are read for few rows, and
        // operators above need them too.
        let others = others
            .into_iter()
            .map(|part| wrapped(part, |_, _| Ok(ColumnarValue::Scalar(true.into()))));
        let source = self.source.with_predicate(conjunction(rare.into_iter().chain(others)));
        source.create_morselizer(self.store.clone(), &self.options, self.partition).map(Some)
    }
}
