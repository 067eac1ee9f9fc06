//! The data of a tensor relation of a cell block.

use std::sync::Arc;

use tessera_frontend::Lowered;
use tessera_planner::build::Builder;
use tessera_planner::catalog::{Attrs, Coord, Dataset, Decode, SourceRef, Unreadable, Variable};
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error;
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;

/// A relation that is a tensor or a dataset: labelled variables over shared dimensions.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Cube {
    /// Qualifier of its columns if the query gives no alias.
    pub name: String,
    /// The data variables, whose cells are the rows.
    pub variables: Vec<CubeVariable>,
    /// 1-d coordinates, known at bind.
    pub coords: Vec<Arc<Coord>>,
    /// Texts without a dimension, each along a dimension of its own name.
    pub scalars: Vec<Arc<Coord>>,
    /// Auxiliary coordinates and bounds: accessible by name, they add no rows.
    pub auxiliary: Vec<CubeVariable>,
    /// Unreadable arrays: columns whose use is an error.
    pub unreadable: Vec<Arc<Unreadable>>,
    /// Alternative names of variables, and the variables: that of an `.npy` file with an alias; `v0`, `v1`, …
    /// of items without a name.
    pub also: Vec<(Arc<str>, Arc<str>)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CubeVariable {
    /// The name of its column.
    pub name: Arc<str>,
    /// Its dimensions; `None` for unnamed ones.
    pub dims: Vec<Option<Arc<str>>>,
    /// Its attributes.
    pub attrs: Attrs,
    /// The source of its cells.
    pub cells: Cells,
}

/// The source of a variable's cells.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cells {
    /// A stored array and the decoding of its raw cells.
    Stored {
        source: Arc<SourceRef>,
        /// Masks, packing and time.
        decode: Decode,
    },
    /// A tensor that a tensor block computes.
    Planned { block: Arc<Lowered>, node: NodeId },
}

impl Cube {
    /// True if a variable has that name, data or not.
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
            scalars: dataset.scalars.clone(),
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
            attrs: variable.attrs.clone(),
            cells: Cells::Stored {
                source: Arc::new(variable.source.clone()),
                decode: variable.decode.clone(),
            },
        }
    }
}

impl CubeVariable {
    pub(crate) fn shape(&self) -> &[u64] {
        match &self.cells {
            Cells::Stored { source, .. } => &source.shape,
            Cells::Planned { block, node } => &block.rooted.graph.node(*node).shape,
        }
    }

    /// Adds its decoded cells to a graph as a node of its shape.
    pub(crate) fn build(&self, b: &mut Builder) -> Result<NodeId, Error> {
        match &self.cells {
            Cells::Stored { source, decode } => {
                let raw = b.load(source.clone())?;
                b.decode(raw, decode)
            }
            Cells::Planned { block, node } => {
                // Without nodes that only other variables of the block need.
                let from = Rooted::of(&block.rooted.graph, *node);
                b.import(&from)?.first().copied().ok_or_else(|| Error::Unsupported {
                    construct: format!("the variable {}", self.name),
                })
            }
        }
    }

    /// The type of its decoded cells, and true if they can be masked.
    pub(crate) fn dtype(&self) -> Result<(DType, bool), Error> {
        if let Cells::Planned { block, node } = &self.cells {
            let node = block.rooted.graph.node(*node);
            return Ok((node.dtype, node.nullable));
        }
        let mut b = Builder::new(Config::default());
        let node = self.build(&mut b)?;
        let node = b.node(node);
        Ok((node.dtype, node.nullable))
    }
}
