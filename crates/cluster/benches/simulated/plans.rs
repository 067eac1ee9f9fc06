//! Plans of many operands over stored arrays. Their cells are never read.

use std::sync::Arc;
use tessera_cluster::{Cluster, Drive, DriveOptions, Home, Identity};
use tessera_exec::task::{SourceLocation, Sources};
use tessera_planner::build::Builder;
use tessera_planner::catalog::SourceRef;
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error;
use tessera_planner::grid::Grid;
use tessera_planner::ir::{NodeId, ScanKind};
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::tile::Tiling;
use tessera_storage::source::{Options, Versions};

/// Cells of a chunk along each axis.
const CHUNK: u64 = 256;

/// A plan and the arrays that it reads.
pub(crate) struct Simulated {
    pub(crate) name: &'static str,
    pub(crate) tiling: Arc<Tiling>,
    pub(crate) sources: Sources,
}

impl Simulated {
    /// Number of operands.
    pub(crate) fn operands(&self) -> u64 {
        self.tiling.plan().stages.iter().map(|s| s.grid.count()).sum()
    }

    /// Prepares the plan to run on a cluster; `None` if it cannot.
    pub(crate) fn drive(
        &self,
        cluster: &Arc<Cluster>,
    ) -> Result<Option<Arc<Drive>>, tessera_exec::error::Error> {
        let home: Home = Arc::new(|_, _, _| None);
        let versions = Versions::new(false);
        let identity = Identity { statement: None, is_again: false, shares: false, versions };
        let options = DriveOptions { threads: None, stored: None, output: None, identity };
        Drive::new(cluster, &self.tiling, &self.sources, options, home)
    }
}

/// An array of `rows` by `columns` chunks of a shape in chunks.
struct Arrays<'a> {
    b: &'a mut Builder,
    sources: Sources,
}

impl Arrays<'_> {
    fn load(&mut self, name: &str, shape: [u64; 2], chunk: [u64; 2]) -> Result<NodeId, Error> {
        let (shape, chunk) = (shape.map(|n| n * CHUNK), chunk.map(|n| n * CHUNK));
        let source = SourceRef {
            url: name.into(),
            path: String::new(),
            dtype: DType::Float64,
            shape: shape.as_slice().into(),
            grid: Grid::regular(&shape, &chunk),
            nullable: false,
            version: None,
            plain: false,
        };
        let (url, options) = (name.to_owned(), Options::default());
        self.sources
            .opened_at(source.clone(), Arc::new(SourceLocation { url, options, rules: None }));
        self.b.load(Arc::new(source))
    }
}

type Build = fn(&mut Arrays<'_>, f64) -> Result<NodeId, Error>;

/// The plans, with about this number of operands each.
pub(crate) fn plans(operands: u64) -> Result<Vec<Simulated>, Error> {
    let all: [(&'static str, Build); 5] = [
        ("mean of all cells", |a, n| {
            let side = (n / 2.07).sqrt() as u64;
            let x = a.load("x", [side; 2], [1; 2])?;
            a.b.reduce_axes(x, ReduceKind::Mean, &[0, 1])
        }),
        ("standardised columns", |a, n| {
            let side = (n / 3.15).sqrt() as u64;
            let x = a.load("x", [side; 2], [1; 2])?;
            let mean = a.b.reduce_axes(x, ReduceKind::Mean, &[0])?;
            let std = a.b.reduce_axes(x, ReduceKind::Var { ddof: 0 }, &[0])?;
            let d = a.b.map(ScalarOp::Sub, &[x, mean])?;
            a.b.map(ScalarOp::Div, &[d, std])
        }),
        ("x + transpose(x)", |a, n| {
            let side = (n / 2.0).sqrt() as u64;
            let x = a.load("x", [side; 2], [1; 2])?;
            let t = a.b.transpose(x, &[1, 0])?;
            a.b.map(ScalarOp::Add, &[x, t])
        }),
        ("running sums, rows to columns", |a, n| {
            let side = (n / 1.56).sqrt() as u64 * 4;
            let x = a.load("x", [side, side / 2], [1, 8])?;
            let s = a.b.scan(x, ScanKind::Sum, 1)?;
            let c = a.b.rechunk(s, &[8 * CHUNK, CHUNK])?;
            a.b.reduce_axes(c, ReduceKind::Max, &[0])
        }),
        ("product", |a, n| {
            // Blocks of a product have 4 by 4 by 16 chunks.
            let operands = |side: &u64| (2 * side.pow(2) + side.pow(3) / 256) as f64;
            let sides = (1..).map(|blocks| 16 * blocks).take_while(|side| operands(side) <= n);
            let side = sides.last().unwrap_or(16);
            let x = a.load("x", [side; 2], [1; 2])?;
            let y = a.load("y", [side; 2], [1; 2])?;
            a.b.contract(x, y)
        }),
    ];
    let bytes = CHUNK * CHUNK * 8;
    let config = Config { chunk_bytes_target: bytes, batch_cells: Some(0), ..Config::default() };
    let plan = |(name, build): (&'static str, Build)| {
        let mut b = Builder::new(config.clone());
        let mut arrays = Arrays { b: &mut b, sources: Sources::default() };
        let root = build(&mut arrays, operands as f64)?;
        let sources = arrays.sources;
        let rooted = Rooted { graph: b.graph, roots: vec![root] };
        let tiling = Arc::new(tessera_planner::compile(rooted, &config, &mut |_, _| {})?);
        Ok(Simulated { name, tiling, sources })
    };
    all.into_iter().map(plan).collect()
}
