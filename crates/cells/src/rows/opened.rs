//! Files that a reader of ours opens, with the columns of DataFusion's.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::physical_plan::{FileOpener, FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, PhysicalExpr};
use datafusion_datasource::projection::SplitProjection;
use object_store::ObjectStore;
use std::fmt;
use std::sync::Arc;

/// Makes the opener of a partition's files.
pub(super) trait Open: Send + Sync + 'static {
    /// # Errors
    /// DataFusion's.
    fn opener(&self, scan: Scan) -> Result<Arc<dyn FileOpener>>;

    /// False if the reader has to know the ranges that files are cut into.
    fn is_whole(&self) -> bool {
        true
    }
}

/// A scan whose files are opened.
#[derive(Clone)]
pub(super) struct Scan {
    /// DataFusion's reader.
    pub(super) inner: Arc<dyn FileSource>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) batch_rows: usize,
}

impl Scan {
    /// The columns that are read of a file, and what is made of them.
    pub(super) fn split(&self) -> SplitProjection {
        let table = self.inner.table_schema();
        match self.inner.projection() {
            Some(projection) => SplitProjection::new(table.file_schema(), projection),
            None => SplitProjection::unprojected(table),
        }
    }
}

/// Rows of a batch until DataFusion sets them.
const BATCH_ROWS: usize = 8192;

/// A reader whose files are opened by `open`.
#[derive(Clone)]
pub(super) struct Opened {
    inner: Arc<dyn FileSource>,
    open: Arc<dyn Open>,
    batch_rows: usize,
}

impl Opened {
    pub(super) fn new(inner: Arc<dyn FileSource>, open: impl Open) -> Self {
        Opened { inner, open: Arc::new(open), batch_rows: BATCH_ROWS }
    }

    /// DataFusion's reader.
    pub(super) fn inner(&self) -> &Arc<dyn FileSource> {
        &self.inner
    }

    /// False if the reader has to know the ranges that files are cut into.
    pub(super) fn is_whole(&self) -> bool {
        self.open.is_whole()
    }
}

impl FileSource for Opened {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let inner = self.inner.clone();
        self.open.opener(Scan { inner, store, batch_rows: self.batch_rows })
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_rows: usize) -> Arc<dyn FileSource> {
        let inner = self.inner.with_batch_size(batch_rows);
        Arc::new(Opened { inner, open: self.open.clone(), batch_rows })
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_extra(t, f)
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}
