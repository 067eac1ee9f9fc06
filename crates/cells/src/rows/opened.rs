//! File sources of this crate, with the columns of DataFusion's.

use datafusion::datasource::physical_plan::{FileOpener, FileScanConfig, FileSource};
use datafusion::error::Result;
use datafusion_datasource::projection::SplitProjection;
use object_store::ObjectStore;
use std::sync::Arc;

/// The methods of a `FileSource` that wraps another one in its field `inner`: they delegate to it.
macro_rules! as_inner {
    () => {
        fn table_schema(&self) -> &::datafusion::datasource::table_schema::TableSchema {
            self.inner.table_schema()
        }

        fn projection(&self) -> Option<&::datafusion::physical_expr::projection::ProjectionExprs> {
            self.inner.projection()
        }

        fn metrics(&self) -> &::datafusion::physical_plan::metrics::ExecutionPlanMetricsSet {
            self.inner.metrics()
        }

        fn file_type(&self) -> &str {
            self.inner.file_type()
        }

        fn fmt_extra(
            &self,
            format: ::datafusion::physical_plan::DisplayFormatType,
            f: &mut ::std::fmt::Formatter<'_>,
        ) -> ::std::fmt::Result {
            self.inner.fmt_extra(format, f)
        }

        fn apply_expressions(
            &self,
            visit: &mut dyn FnMut(
                &::std::sync::Arc<dyn ::datafusion::physical_plan::PhysicalExpr>,
            ) -> ::datafusion::error::Result<
                ::datafusion::common::tree_node::TreeNodeRecursion,
            >,
        ) -> ::datafusion::error::Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            self.inner.apply_expressions(visit)
        }
    };
}

pub(super) use as_inner;

/// Makes the opener of a partition's files.
pub(super) trait Open: Send + Sync + 'static {
    fn opener(&self, scan: Scan) -> Result<Arc<dyn FileOpener>>;

    /// False if the reader has to know the ranges that files are cut into.
    fn is_whole(&self) -> bool {
        true
    }
}

#[derive(Clone)]
pub(super) struct Scan {
    /// DataFusion's reader.
    pub(super) inner: Arc<dyn FileSource>,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) batch_rows: usize,
}

impl Scan {
    /// The columns that are read from a file, and their projection.
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
    as_inner!();

    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _: &FileScanConfig,
        _: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let inner = self.inner.clone();
        self.open.opener(Scan { inner, store, batch_rows: self.batch_rows })
    }

    fn with_batch_size(&self, batch_rows: usize) -> Arc<dyn FileSource> {
        let inner = self.inner.with_batch_size(batch_rows);
        Arc::new(Opened { inner, open: self.open.clone(), batch_rows })
    }
}
