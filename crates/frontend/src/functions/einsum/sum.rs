//! Lowers a sum of products pair by pair.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, Contraction, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::RANK_MAX;

use super::Label;
use super::diagonal::take_diagonal;
use super::subscripts::show;
use crate::error::Error;
use crate::lower::value::{Dim, Tensor};
use crate::lower::{At, Lowerer, misshapen, unique, unsupported};

/// A tensor with labelled axes; during the search each label occurs once.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) node: NodeId,
    pub(super) labels: Vec<Label>,
}

/// The state of lowering one sum of products.
pub(super) struct Sum<'s> {
    pub(super) name: &'s str,
    pub(super) span: Span,
    pub(super) dtype: DType,
    /// Length and dimension of each label.
    pub(super) axes: Vec<(Label, u64, Dim)>,
}

/// The sum of the products of all operands over the labels that are not in `output`.
pub(in crate::functions) fn sum_of_products(
    l: &mut Lowerer<'_, '_>,
    name: &str,
    span: Span,
    dtype: DType,
    operands: Vec<(Tensor, Vec<Label>)>,
    output: &[Label],
) -> Result<Tensor, Error> {
    let mut sum = Sum { name, span, dtype, axes: Vec::new() };
    let mut terms = Vec::with_capacity(operands.len());
    for (t, labels) in operands {
        let (mut t, mut labels) = (t, labels);
        // A repeated label is a diagonal.
        while let Some((i, j)) = repeated(&labels) {
            let shape = l.b.shape(t.node);
            if shape[i] != shape[j] {
                return misshapen(
                    name,
                    &[shape],
                    format!("`{}` stands for two lengths of one operand", show(labels[i])),
                    span,
                );
            }
            let label = labels[i];
            let dim = t.dims[i].clone();
            t = take_diagonal(l, t, i, j, 0, span)?;
            // The diagonal is now the last axis; the next iteration handles a third axis of the label.
            let rest = labels.iter().enumerate().filter(|(at, _)| *at != i && *at != j);
            labels = rest.map(|(_, other)| *other).chain([label]).collect();
            if let Some(last) = t.dims.last_mut() {
                *last = dim;
            }
        }
        let shape = l.b.shape(t.node);
        for (axis, &label) in labels.iter().enumerate() {
            sum.meet(l, label, shape[axis], &t.dims[axis])?;
        }
        terms.push(Term { node: t.node, labels });
    }
    // An axis of length 1 broadcasts where the label is longer elsewhere: remove it from the products.
    for term in &mut terms {
        let shape = l.b.shape(term.node);
        let gone: Vec<usize> = (0..shape.len())
            .filter(|&axis| shape[axis] == 1 && sum.len(term.labels[axis]) != 1)
            .collect();
        term.node = l.b.squeeze(term.node, &gone).at(span)?;
        let mut axis = 0;
        term.labels.retain(|_| {
            axis += 1;
            !gone.contains(&(axis - 1))
        });
    }
    let order = sum.order(&terms, output);
    let mut made: Vec<Option<Term>> = terms.into_iter().map(Some).collect();
    for at in 0..made.len() {
        let needed = needed(&made, at, at, output);
        if let Some(term) = made[at].take() {
            made[at] = Some(sum.without(l, term, &needed)?);
        }
    }
    for (i, j) in order {
        let needed = needed(&made, i, j, output);
        if let (Some(x), Some(y)) = (made[i].take(), made[j].take()) {
            made.push(Some(sum.pair(l, x, y, &needed)?));
        }
    }
    let Some(last) = made.into_iter().flatten().next_back() else {
        return unsupported("a sum of no products", span);
    };
    sum.finish(l, last, output)
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|j| Some((labels[..j].iter().position(|l| *l == labels[j])?, j)))
}

/// The labels of the result and of all terms other than `i` and `j`.
fn needed(terms: &[Option<Term>], i: usize, j: usize, output: &[Label]) -> Vec<Label> {
    let others = terms.iter().enumerate().filter(|(at, _)| *at != i && *at != j);
    let others = others.flat_map(|(_, t)| t.iter().flat_map(|t| t.labels.iter().copied()));
    output.iter().copied().chain(others).collect()
}

impl Sum<'_> {
    /// Records an axis of an operand: lengths are equal or 1, coordinates of equal names align.
    fn meet(
        &mut self,
        l: &mut Lowerer<'_, '_>,
        label: Label,
        length: u64,
        dim: &Dim,
    ) -> Result<(), Error> {
        let Some((_, known, own)) = self.axes.iter_mut().find(|(other, _, _)| *other == label)
        else {
            self.axes.push((label, length, dim.clone()));
            return Ok(());
        };
        if *known != length && *known != 1 && length != 1 {
            return misshapen(
                self.name,
                &[[*known], [length]],
                match label {
                    label if label < 256 && (label as u8).is_ascii_alphabetic() => {
                        format!("`{}` stands for both lengths", show(label))
                    }
                    _ => "lengths of dimensions that meet must be equal".into(),
                },
                self.span,
            );
        }
        if *known == length
            && let (Some(x), Some(y)) = (&own.coord, &dim.coord)
            && x.name == y.name
        {
            l.same_labels(x, y, self.span)?;
        }
        if own.name.is_none() || *known == 1 && length != 1 {
            *own = dim.clone();
        }
        // Length 1 broadcasts to every length, 0 included.
        if *known == 1 {
            *known = length;
        }
        Ok(())
    }

    pub(super) fn len(&self, label: Label) -> u64 {
        self.axes.iter().find(|(other, _, _)| *other == label).map_or(1, |(_, n, _)| *n)
    }

    /// A term, summed over the labels that neither another term nor the result needs.
    fn without(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: Term,
        needed: &[Label],
    ) -> Result<Term, Error> {
        let axes: Vec<usize> =
            (0..term.labels.len()).filter(|&axis| !needed.contains(&term.labels[axis])).collect();
        if axes.is_empty() {
            return Ok(term);
        }
        let node = self.total(l, term.node, &axes)?;
        let labels = term.labels.into_iter().filter(|label| needed.contains(label)).collect();
        Ok(Term { node, labels })
    }

    /// A sum over axes, which are dropped, in the type of the products.
    fn total(
        &self,
        l: &mut Lowerer<'_, '_>,
        node: NodeId,
        axes: &[usize],
    ) -> Result<NodeId, Error> {
        let mut how = vec![AxisReduce::Keep; l.b.shape(node).len()];
        for &axis in axes {
            how[axis] = AxisReduce::All;
        }
        let node = l.b.reduce(node, ReduceKind::Sum, &how).at(self.span)?;
        let node = l.b.cast(node, self.dtype).at(self.span)?;
        l.b.squeeze(node, axes).at(self.span)
    }

    /// The term with its axes in the order of `labels`; missing labels have length 1.
    fn arranged(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: &Term,
        labels: &[Label],
    ) -> Result<NodeId, Error> {
        let at = |label: &Label| term.labels.iter().position(|own| own == label);
        let order: Vec<usize> = labels.iter().filter_map(at).collect();
        let mut node = l.b.transpose(term.node, &order).at(self.span)?;
        for (axis, label) in labels.iter().enumerate() {
            if at(label).is_none() {
                node = l.b.expand_dims(node, axis).at(self.span)?;
            }
        }
        Ok(node)
    }

    /// The product of two terms, summed over the shared labels that nothing else needs.
    fn pair(
        &self,
        l: &mut Lowerer<'_, '_>,
        x: Term,
        y: Term,
        needed: &[Label],
    ) -> Result<Term, Error> {
        let pick = |of: &Term, keep: &dyn Fn(&Label) -> bool| -> Vec<Label> {
            of.labels.iter().copied().filter(|label| keep(label)).collect()
        };
        let stack = pick(&x, &|label| y.labels.contains(label) && needed.contains(label));
        // In the axis order of the larger side, which can then be read in place.
        let [x_cells, y_cells] = [&x, &y].map(|t| self.size(t.labels.iter().copied()));
        let (larger, other) = if x_cells >= y_cells { (&x, &y) } else { (&y, &x) };
        let summed = pick(larger, &|l| other.labels.contains(l) && !needed.contains(l));
        let rows = pick(&x, &|label| !y.labels.contains(label));
        let columns = pick(&y, &|label| !x.labels.contains(label));
        let labels: Vec<Label> = stack.iter().chain(&rows).chain(&columns).copied().collect();
        if summed.is_empty() || rows.is_empty() && columns.is_empty() {
            let all: Vec<Label> = labels.iter().chain(&summed).copied().collect();
            let sides = [self.arranged(l, &x, &all)?, self.arranged(l, &y, &all)?];
            let mut node = l.b.map(ScalarOp::Mul, &sides).at(self.span)?;
            if !summed.is_empty() {
                let axes: Vec<usize> = (labels.len()..all.len()).collect();
                node = self.total(l, node, &axes)?;
            }
            return Ok(Term { node, labels });
        }
        let lengths = |labels: &[Label]| -> Vec<u64> {
            labels.iter().map(|&label| self.len(label)).collect()
        };
        let all = |parts: [&[Label]; 2]| -> Vec<Label> {
            stack.iter().chain(parts[0]).chain(parts[1]).copied().collect()
        };
        let left = self.arranged(l, &x, &all([&rows, &summed]))?;
        let right = self.arranged(l, &y, &all([&summed, &columns]))?;
        let (first, many) = (stack.len(), rows.len() + columns.len() + summed.len());
        let node = if first + many >= RANK_MAX {
            // Axes beyond the maximum rank are merged into those of matrices.
            let joined =
                |labels: &[Label]| lengths(labels).into_iter().fold(1, u64::saturating_mul);
            let mut matrices = |node: NodeId, parts: [&[Label]; 2]| {
                let shape = [lengths(&stack), parts.map(joined).to_vec()].concat();
                l.b.reshape(node, &shape).at(self.span)
            };
            let left = matrices(left, [&rows, &summed])?;
            let right = matrices(right, [&summed, &columns])?;
            let node = l.b.contract(left, right).at(self.span)?;
            l.b.reshape(node, &lengths(&labels)).at(self.span)?
        } else {
            // A side without axes of its own gets one of length 1.
            let (mut left, mut right) = (left, right);
            if rows.is_empty() {
                left = l.b.expand_dims(left, first).at(self.span)?;
            }
            if columns.is_empty() {
                right = l.b.expand_dims(right, first + summed.len()).at(self.span)?;
            }
            let axes = Contraction {
                rows: rows.len().max(1),
                columns: columns.len().max(1),
                summed: summed.len(),
            };
            let node = l.b.contract_axes(left, right, axes).at(self.span)?;
            let extra = [(rows.is_empty(), first), (columns.is_empty(), first + axes.rows)];
            let extra: Vec<usize> = extra.into_iter().filter(|e| e.0).map(|e| e.1).collect();
            l.b.squeeze(node, &extra).at(self.span)?
        };
        Ok(Term { node, labels })
    }

    /// Converts the last term to the result.
    fn finish(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: Term,
        output: &[Label],
    ) -> Result<Tensor, Error> {
        let term = self.without(l, term, output)?;
        let node = self.arranged(l, &term, output)?;
        let dims = output
            .iter()
            .map(|label| {
                let found = self.axes.iter().find(|(other, _, _)| other == label);
                found.map_or_else(Dim::default, |(_, _, dim)| dim.clone())
            })
            .collect();
        Ok(Tensor::new(node, unique(dims)))
    }
}
