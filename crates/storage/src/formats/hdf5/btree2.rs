//! Version 2 B-trees.
//!
//! ```text
//!   BTHD ─▶ BTIN  record record …  child child child …  ─▶ BTLF  record record record …
//! ```
//! Inner nodes hold records, too: those between two children.
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.A.2; the widths of counts follow `H5B2hdr.c`.

use crate::formats::hdf5::file::{File, bytes_for, version};
use crate::formats::view::Fault;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Upper bound on the depth of a tree.
const DEPTH_MAX: u16 = 32;

/// Bytes of a node besides its records.
const NODE_BYTES: u64 = 10;

/// A record, and its offset in the file.
pub(super) type Record = (Vec<u8>, u64);

pub(super) struct Tree {
    pub(super) kind: u8,
    node_bytes: u64,
    pub(super) record_bytes: u64,
    /// Bytes of the number of records of a child, and of all below it, by depth.
    widths: Vec<(usize, usize)>,
    root: Option<Node>,
}

/// A node that is not read yet.
#[derive(Debug, Clone, Copy)]
struct Node {
    address: u64,
    count: u64,
    depth: usize,
}

/// A node that was read: its records, and the children around them.
struct Opened {
    records: Vec<Record>,
    children: Vec<Node>,
}

impl Tree {
    pub(super) fn read(file: &File<'_>, address: u64) -> Result<Tree, Fault> {
        let (o, l) = (file.sizes.offset as u64, file.sizes.length as u64);
        let at = file.offset(address)?;
        let mut r = file.checked(address, 22 + o + l, b"BTHD")?;
        version(&mut r, "a B-tree", 0)?;
        let kind = r.u8()?;
        let (node_bytes, record_bytes) = (u64::from(r.u32()?), u64::from(r.u16()?));
        let depth = r.u16()?;
        r.skip(2)?;
        let root = file.sizes.address(&mut r)?;
        let count = r.u16()?.into();
        if record_bytes == 0 || node_bytes <= NODE_BYTES + record_bytes || depth > DEPTH_MAX {
            let reason = format!(
                "a B-tree of depth {depth} with nodes of {node_bytes} bytes and records of {record_bytes}"
            );
            return Err(Fault::bad(at, reason));
        }
        let leaf = (node_bytes - NODE_BYTES) / record_bytes;
        let width = bytes_for(leaf);
        let mut widths = vec![(0, 0)];
        let mut below = leaf;
        for d in 1..=depth {
            let of_all = if d == 1 { 0 } else { bytes_for(below) };
            widths.push((width, of_all));
            let child = o + (width + of_all) as u64;
            let here = node_bytes.saturating_sub(NODE_BYTES + child) / (record_bytes + child);
            below = (here + 1).saturating_mul(below).saturating_add(here);
        }
        let root = root.map(|address| Node { address, count, depth: depth.into() });
        Ok(Tree { kind, node_bytes, record_bytes, widths, root })
    }

    fn open(&self, file: &File<'_>, node: Node) -> Result<Opened, Fault> {
        let (of_child, of_all) = self.widths[node.depth];
        let child_bytes = (file.sizes.offset + of_child + of_all) as u64;
        let inner = if node.depth == 0 { 0 } else { (node.count + 1).saturating_mul(child_bytes) };
        let bytes = node.count.saturating_mul(self.record_bytes).saturating_add(inner + NODE_BYTES);
        let at = file.offset(node.address)?;
        if bytes > self.node_bytes {
            let reason = format!("{} records, a node has {} bytes", node.count, self.node_bytes);
            return Err(Fault::bad(at, reason));
        }
        let signature = if node.depth == 0 { b"BTLF" } else { b"BTIN" };
        let mut r = file.checked(node.address, bytes, signature)?;
        version(&mut r, "a node of a B-tree", 0)?;
        r.skip(1)?;
        let mut records = Vec::new();
        for _ in 0..node.count {
            let at = r.offset();
            records.push((r.bytes(self.record_bytes as usize)?.to_vec(), at));
        }
        let mut children = Vec::new();
        if node.depth > 0 {
            for _ in 0..=node.count {
                let (address, count) = (file.sizes.defined(&mut r)?, r.uint(of_child)?);
                r.skip(of_all)?;
                children.push(Node { address, count, depth: node.depth - 1 });
            }
        }
        Ok(Opened { records, children })
    }

    /// Says that a node is read next.
    fn will_read(&self, file: &File<'_>, node: &Node) {
        file.will_read(node.address, self.node_bytes);
    }

    /// The records of `keys`, which are in order, found with `compare`.
    pub(super) fn find<K>(
        &self,
        file: &File<'_>,
        keys: &[K],
        compare: &dyn Fn(&K, &[u8]) -> Ordering,
    ) -> Result<Vec<Option<Record>>, Fault> {
        let mut out = vec![None; keys.len()];
        let Some(root) = self.root else { return Ok(out) };
        let mut level = vec![(root, 0..keys.len())];
        while !level.is_empty() {
            level.iter().for_each(|(node, _)| self.will_read(file, node));
            let opened = file.each(&level, |(node, _)| self.open(file, *node))?;
            let mut next = Vec::new();
            for ((_, range), node) in level.into_iter().zip(opened) {
                let mut i = range.start;
                let mut start = i;
                for (k, record) in node.records.iter().enumerate() {
                    while i < range.end && compare(&keys[i], &record.0) == Ordering::Less {
                        i += 1;
                    }
                    if let Some(child) = node.children.get(k).filter(|_| start < i) {
                        next.push((*child, start..i));
                    }
                    while i < range.end && compare(&keys[i], &record.0) == Ordering::Equal {
                        out[i] = Some(record.clone());
                        i += 1;
                    }
                    start = i;
                }
                if let Some(child) = node.children.last().filter(|_| start < range.end) {
                    next.push((*child, start..range.end));
                }
            }
            level = next;
        }
        Ok(out)
    }
}

/// All records of a tree of one of these kinds.
pub(super) fn records(file: &File<'_>, address: u64, kinds: &[u8]) -> Result<Vec<Record>, Fault> {
    let tree = Tree::read(file, address)?;
    if !kinds.contains(&tree.kind) {
        let reason = format!("a B-tree of kind {}, expected {kinds:?}", tree.kind);
        return Err(Fault::bad(file.offset(address)?, reason));
    }
    let mut out = Vec::new();
    let mut level: Vec<Node> = tree.root.into_iter().collect();
    let mut seen = BTreeSet::new();
    while !level.is_empty() {
        for node in &level {
            if !seen.insert(node.address) {
                let at = file.offset(node.address)?;
                return Err(Fault::bad(at, "a node is twice in a B-tree"));
            }
            tree.will_read(file, node);
        }
        let opened = file.each(&level, |node| tree.open(file, *node))?;
        level.clear();
        for node in opened {
            out.extend(node.records);
            level.extend(node.children);
        }
    }
    Ok(out)
}
