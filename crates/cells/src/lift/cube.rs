//! What a tensor relation of a cell block is made of.

use std::sync::Arc;

use tessera_frontend::Lowered;
use tessera_planner::build::Builder;
use tessera_planner::catalog::{Coord, Dataset, Decode, SourceRef, Unreadable, Variable};
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error;
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;

/// A relation that is a tensor or a dataset: labelled variables over shared dimensions.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Cube {
    /// How its columns are qualified where the query gives no alias.
    pub name: String,
    /// The data variables: they span the rows.
    pub variables: Vec<CubeVariable>,
    /// 1-d coordinates, known at bind.
    pub coords: Vec<Arc<Coord>>,
    /// Auxiliary coordinates and bounds: reached by name, they add no rows.
    pub auxiliary: Vec<CubeVariable>,
    /// Arrays that cannot be read: columns that are an error when they are used.
    pub unreadable: Vec<Arc<Unreadable>>,
    /// Other names of variables, and the variables: that of an `.npy` file, which is called by an alias; `v0`, `v1`, …
    /// of items without a name.
    pub also: Vec<(Arc<str>, Arc<str>)>,
}

/// One variable of a cube.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CubeVariable {
    /// The name of its column.
    pub name: Arc<str>,
    /// Its dimensions; `None` where they have no name.
    pub dims: Vec<Option<Arc<str>>>,
    /// Where its cells come from.
    pub cells: Cells,
}

/// Where the cells of a variable come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cells {
    /// A stored array and how its raw cells are read.
    Stored {
        /// The array.
        source: Arc<SourceRef>,
        /// Masks, packing and time.
        decode: Decode,
    },
    /// A tensor that a tensor block computes.
    Planned {
        /// The block.
        block: Arc<Lowered>,
        /// The tensor.
        node: NodeId,
    },
}

impl Cube {
    /// True if there is a variable of that name, data or not.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        self.variables.iter().chain(&self.auxiliary).any(|v| *v.name == *name)
    }
}

impl From<&Dataset> for Cube {
    fn from(dataset: &Dataset) -> Self {
        let variables = |from: &[Variable]| from.iter().map(CubeVariable::from).collect();
        Self {
            name: dataset.name.clone(),
            variables: variables(&dataset.variables),
            coords: dataset.coords.clone(),
            auxiliary: variables(&dataset.auxiliary),
            unreadable: dataset.unreadable.clone(),
            also: Vec::new(),
        }
    }
}

impl From<&Variable> for CubeVariable {
    fn from(variable: &Variable) -> Self {
        Self {
            name: variable.name.clone(),
            dims: variable.dims.clone(),
            cells: Cells::Stored {
                source: Arc::new(variable.source.clone()),
                decode: variable.decode.clone(),
            },
        }
    }
}

impl CubeVariable {
    /// Its lengths.
    pub(crate) fn shape(&self) -> &[u64] {
        match &self.cells {
            Cells::Stored { source, .. } => &source.shape,
            Cells::Planned { block, node } => &block.rooted.graph.node(*node).shape,
        }
    }

    /// Adds its decoded cells to a graph: a node of its shape.
    ///
    /// # Errors
    /// Those of the planner's constructors, for a source that cannot be addressed.
    pub(crate) fn build(&self, b: &mut Builder) -> Result<NodeId, Error> {
        match &self.cells {
            Cells::Stored { source, decode } => {
                let raw = b.load(source.clone())?;
                b.decode(raw, decode)
            }
            Cells::Planned { block, node } => {
                let from = Rooted { graph: block.rooted.graph.clone(), roots: vec![*node] };
                b.import(&from)?.first().copied().ok_or_else(|| Error::Unsupported {
                    construct: format!("the variable {}", self.name),
                })
            }
        }
    }

    /// The type of its decoded cells and whether they can be masked.
    pub(crate) fn dtype(&self) -> Result<(DType, bool), Error> {
        let mut b = Builder::new(Config::default());
        let node = self.build(&mut b)?;
        let node = b.node(node);
        Ok((node.dtype, node.nullable))
    }
}
