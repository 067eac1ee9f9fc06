//! Name resolution: variables, coordinates, relations, in this order.

use std::sync::Arc;

use sqlparser::ast::Ident;
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{
    Attrs, Coord, CoordValues, Dataset, TextColumn, Unreadable, Variable as Stored,
};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ConstArray;
use tessera_planner::region::Dims;

use super::value::{Dim, Record, Tensor, Value};
use super::{At, Lowerer, fail, unique, unsupported};
use crate::error::{BindError, Error, Position, nearest};

/// A relation in scope.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relation {
    /// Its alias or name; empty for a subquery without one.
    pub(crate) name: String,
    pub(crate) variables: Vec<(Arc<str>, Variable)>,
    /// Variables under alternative names: that of an `.npy` file with an alias; `v0`, `v1`, … of items without
    /// a name.
    pub(crate) also: Vec<(Arc<str>, Variable)>,
    /// Variables that are not data.
    pub(crate) auxiliary: Vec<(Arc<str>, Variable)>,
    pub(crate) coords: Vec<Arc<Coord>>,
    pub(crate) unreadable: Vec<Arc<Unreadable>>,
    /// Coordinates in `coords` that are texts and label no dimension of a variable.
    pub(crate) texts: Vec<TextColumn>,
    /// Attributes of the dataset.
    pub(crate) attrs: Arc<Attrs>,
}

/// A variable in scope.
#[derive(Debug, Clone)]
pub(crate) enum Variable {
    /// A stored variable: the dataset and the index in its list.
    Data(Arc<Dataset>, usize),
    /// A stored auxiliary variable.
    Auxiliary(Arc<Dataset>, usize),
    /// A lowered tensor.
    Lowered(Tensor),
}

/// The variables `record.field` of one record, by their fields.
type Members = Vec<(Arc<str>, Variable)>;

/// The meaning of a name inside one relation.
#[derive(Debug, Clone)]
enum Meaning {
    Variable(Variable),
    /// Several variables, under the record's name.
    Record(Arc<str>, Members),
    Coord(Arc<Coord>, Vec<Arc<Coord>>),
    /// An array that cannot be read.
    Unreadable(Arc<Unreadable>),
}

impl Relation {
    /// An opened dataset.
    pub(crate) fn stored(name: String, dataset: Arc<Dataset>) -> Self {
        let variables = (0..dataset.variables.len())
            .map(|i| (dataset.variables[i].name.clone(), Variable::Data(dataset.clone(), i)))
            .collect();
        let auxiliary = (0..dataset.auxiliary.len())
            .map(|i| (dataset.auxiliary[i].name.clone(), Variable::Auxiliary(dataset.clone(), i)))
            .collect();
        let coords = dataset.coords.iter().chain(&dataset.scalars).cloned().collect();
        let unreadable = dataset.unreadable.clone();
        let (texts, attrs) = (dataset.texts(), Arc::new(dataset.attrs.clone()));
        Relation { name, variables, also: Vec::new(), auxiliary, coords, unreadable, texts, attrs }
    }

    fn variable(&self, fits: &dyn Fn(&str) -> bool) -> Vec<(String, Meaning)> {
        let find = |known: &[(Arc<str>, Variable)]| -> Vec<(String, Meaning)> {
            let found = known.iter().filter(|(name, _)| fits(name));
            found.map(|(name, v)| (self.full(name), Meaning::Variable(v.clone()))).collect()
        };
        let mut found = find(&self.variables);
        if found.is_empty() {
            found = find(&self.also);
        }
        if found.is_empty() { self.record(fits) } else { found }
    }

    /// The records whose variables are called `name.field`.
    fn record(&self, fits: &dyn Fn(&str) -> bool) -> Vec<(String, Meaning)> {
        let mut records: Vec<(&str, Members)> = Vec::new();
        for (name, v) in &self.variables {
            let Some((record, field)) = name.split_once('.').filter(|(r, _)| fits(r)) else {
                continue;
            };
            let member = (Arc::from(field), v.clone());
            match records.iter_mut().find(|(known, _)| *known == record) {
                Some((_, fields)) => fields.push(member),
                None => records.push((record, vec![member])),
            }
        }
        let records = records.into_iter();
        records.map(|(name, f)| (self.full(name), Meaning::Record(name.into(), f))).collect()
    }

    fn coordinate(&self, fits: &dyn Fn(&str) -> bool) -> Vec<(String, Meaning)> {
        // A companion of a dimension's name can be read although it labels nothing.
        let is_shown = |coord: &&Arc<Coord>| {
            fits(&coord.name)
                && (coord.values.unreadable().is_none()
                    || !self.auxiliary.iter().any(|(name, _)| *name == coord.name))
        };
        let coords = self.coords.iter().filter(is_shown).map(|coord| {
            (self.full(&coord.name), Meaning::Coord(coord.clone(), self.coords.clone()))
        });
        let auxiliary = self
            .auxiliary
            .iter()
            .filter(|(name, _)| fits(name))
            .map(|(name, v)| (self.full(name), Meaning::Variable(v.clone())));
        let unreadable = self
            .unreadable
            .iter()
            .filter(|u| fits(&u.name) && !self.coords.iter().any(|c| c.name == u.name))
            .map(|u| (self.full(&u.name), Meaning::Unreadable(u.clone())));
        coords.chain(auxiliary).chain(unreadable).collect()
    }

    fn full(&self, name: &str) -> String {
        if self.name.is_empty() { format!("`{name}`") } else { format!("`{}.{name}`", self.name) }
    }
}

impl Lowerer<'_, '_> {
    /// Resolves an unqualified name.
    pub(crate) fn name(&mut self, ident: &Ident) -> Result<Value, Error> {
        match self.lookup(&ident.value, ident.span)? {
            Some(meaning) => self.meaning(meaning, ident.span),
            None => Err(self.unknown("name", &ident.value, ident.span)),
        }
    }

    /// `relation.variable`, or a variable with fields after it: `x.T`.
    pub(crate) fn dotted(&mut self, parts: &[Ident], span: Span) -> Result<Value, Error> {
        let [first, second, rest @ ..] = parts else {
            return match parts {
                [one] => self.name(one),
                _ => unsupported("a name of this form", span),
            };
        };
        if let Some(at) = self.relation_called(&first.value) {
            let relation = self.relations[at].clone();
            let found = within(&second.value, |fits| {
                let variables = relation.variable(fits);
                if variables.is_empty() { relation.coordinate(fits) } else { variables }
            });
            if let Some(meaning) = one("name", &second.value, found, second.span)? {
                let mut value = self.meaning(meaning, span)?;
                for field in rest {
                    value = self.field(value, field)?;
                }
                return Ok(value);
            }
            let is_field = match self.lookup(&first.value, first.span) {
                Ok(Some(Meaning::Record(..))) => true,
                Ok(Some(_)) => second.value == "T",
                _ => false,
            };
            if !is_field {
                let names = names_of(&relation);
                let found: Vec<&str> = names.iter().map(String::as_str).collect();
                return Err(Error::UnknownName {
                    kind: "name",
                    name: format!("{}.{}", first.value, second.value),
                    candidates: match nearest(&second.value, &found) {
                        Some(name) => vec![format!("{}.{name}", relation.name)],
                        None => names.iter().map(|n| format!("{}.{n}", relation.name)).collect(),
                    },
                    position: Position::of_span(second.span),
                });
            }
        }
        let mut value = match self.lookup(&first.value, first.span)? {
            Some(meaning) => self.meaning(meaning, first.span)?,
            None => return Err(self.unknown("relation or name", &first.value, first.span)),
        };
        for field in &parts[1..] {
            value = self.field(value, field)?;
        }
        Ok(value)
    }

    fn relation_called(&self, name: &str) -> Option<usize> {
        let exact = self.relations.iter().position(|r| r.name == name);
        exact.or_else(|| {
            let mut found = (0..self.relations.len())
                .filter(|&i| self.relations[i].name.eq_ignore_ascii_case(name));
            match (found.next(), found.next()) {
                (Some(at), None) => Some(at),
                _ => None,
            }
        })
    }

    /// Resolves a name by rule 13: an exact match, else one that ignores case; a variable before a coordinate, a
    /// coordinate before a relation.
    fn lookup(&self, name: &str, span: Span) -> Result<Option<Meaning>, Error> {
        if let Some(local) = self.locals.iter().rev().find(|coord| &*coord.name == name)
            && !self.relations.iter().any(|r| r.variables.iter().any(|(v, _)| &**v == name))
        {
            return Ok(Some(Meaning::Coord(local.clone(), self.locals.clone())));
        }
        for case in [true, false] {
            let fits =
                |known: &str| if case { known == name } else { known.eq_ignore_ascii_case(name) };
            let mut variables: Vec<_> =
                self.relations.iter().flat_map(|r| r.variable(&fits)).collect();
            // The name of a tensor that is named after its variable refers to that variable.
            if variables.len() > 1
                && let Some(relation) = self.relations.iter().find(|r| fits(&r.name))
                && relation.variable(&fits).len() == 1
            {
                variables = relation.variable(&fits);
            }
            if let Some(meaning) = one("variable", name, variables, span)? {
                return Ok(Some(meaning));
            }
            let mut coords: Vec<_> =
                self.relations.iter().flat_map(|r| r.coordinate(&fits)).collect();
            coords.dedup_by(|a, b| match (&a.1, &b.1) {
                (Meaning::Coord(a, _), Meaning::Coord(b, _)) => a == b,
                _ => false,
            });
            if let Some(meaning) = one("coordinate", name, coords, span)? {
                return Ok(Some(meaning));
            }
            let relations: Vec<&Relation> =
                self.relations.iter().filter(|r| fits(&r.name)).collect();
            if let [relation] = relations.as_slice() {
                return match relation.variables.as_slice() {
                    [(_, only)] => Ok(Some(Meaning::Variable(only.clone()))),
                    [] => Ok(None),
                    several => fail(
                        BindError::AmbiguousName {
                            kind: "dataset",
                            name: name.into(),
                            found: several.iter().map(|(v, _)| relation.full(v)).collect(),
                        },
                        span,
                    ),
                };
            }
        }
        Ok(None)
    }

    /// A coordinate of a relation that lies along a dimension, and the coordinate that is that dimension's own.
    pub(crate) fn coordinate_along(
        &self,
        name: &str,
        dim: &str,
    ) -> Option<(Arc<Coord>, Option<Arc<Coord>>)> {
        self.relations.iter().find_map(|relation| {
            let along = |name: &str| {
                relation.coords.iter().find(|c| &*c.name == name && &*c.dim == dim).cloned()
            };
            Some((along(name)?, along(dim)))
        })
    }

    pub(super) fn unknown(&self, kind: &'static str, name: &str, span: Span) -> Error {
        let known: Vec<String> = self
            .relations
            .iter()
            .flat_map(|r| std::iter::once(r.name.clone()).chain(names_of(r)))
            .collect();
        let found: Vec<&str> = known.iter().map(String::as_str).collect();
        let candidates = match (nearest(name, &found), kind) {
            (Some(near), _) => vec![near.to_string()],
            (None, "name") => self.relations.iter().flat_map(names_of).collect(),
            (None, _) => Vec::new(),
        };
        Error::UnknownName {
            kind,
            name: name.into(),
            candidates,
            position: Position::of_span(span),
        }
    }

    fn meaning(&mut self, meaning: Meaning, span: Span) -> Result<Value, Error> {
        match meaning {
            Meaning::Variable(v) => self.variable(v, span).map(Value::Tensor),
            Meaning::Record(of, members) => {
                let mut fields = Vec::with_capacity(members.len());
                for (name, v) in members {
                    fields.push((name, self.variable(v, span)?));
                }
                Ok(Value::Record(Record { of, named: true, fields }))
            }
            Meaning::Unreadable(of) => fail(BindError::unreadable(&of), span),
            Meaning::Coord(coord, all) => self.coordinate(&coord, &all, span).map(Value::Tensor),
        }
    }

    pub(super) fn variable(&mut self, v: Variable, span: Span) -> Result<Tensor, Error> {
        match v {
            Variable::Lowered(tensor) => Ok(tensor),
            Variable::Data(dataset, at) => self.load(&dataset, &dataset.variables[at], span),
            Variable::Auxiliary(dataset, at) => self.load(&dataset, &dataset.auxiliary[at], span),
        }
    }

    /// Loads a stored variable: its raw cells, decoded.
    pub(crate) fn load(
        &mut self,
        dataset: &Dataset,
        v: &Stored,
        span: Span,
    ) -> Result<Tensor, Error> {
        let raw = match v.source.is_resident() && v.source.shape.contains(&0) {
            // An array in memory without cells has no chunks to load.
            true => self.b.array(ConstArray::new(v.source.dtype, &v.source.shape, &[])),
            false => self.b.load(Arc::new(v.source.clone())),
        }
        .at(span)?;
        let node = self.b.decode(raw, &v.decode).at(span)?;
        let shape = &v.source.shape;
        let dims = (0..shape.len())
            .map(|axis| {
                let name = v.dims.get(axis).cloned().flatten();
                let coord = name
                    .as_ref()
                    .and_then(|name| dataset.index_coord(name))
                    .filter(|coord| coord.values.len() as u64 == shape[axis])
                    .cloned();
                Dim { name, coord, group: None }
            })
            .collect();
        Ok(Tensor {
            node,
            dims: unique(dims),
            name: Some(v.name.clone()),
            attrs: v.attrs.clone(),
            is_coordinate: dataset.coordinates.contains(&v.name),
        })
    }

    /// A coordinate as a 1-d tensor.
    pub(super) fn coordinate(
        &mut self,
        coord: &Arc<Coord>,
        all: &[Arc<Coord>],
        span: Span,
    ) -> Result<Tensor, Error> {
        if let Some(error) = BindError::no_labels(coord) {
            return fail(error, span);
        }
        let Some(array) = coord_array(&coord.values) else {
            return Err(Error::Unsupported {
                construct: format!("the text `{}` in an expression of tensors", coord.name),
                position: Position::of_span(span),
                hint: Some(
                    "cell blocks read texts: `FROM CELLS('url')`, or a block with WHERE, GROUP BY or ORDER BY".into(),
                ),
            });
        };
        let node = self.b.array(array).at(span)?;
        let index = all.iter().find(|c| c.name == coord.dim && c.dim == coord.dim).cloned();
        let dim = Dim { name: Some(coord.dim.clone()), coord: index, group: None };
        Ok(Tensor {
            node,
            dims: vec![dim],
            name: Some(coord.name.clone()),
            attrs: coord.attrs.clone(),
            is_coordinate: coord.name != coord.dim,
        })
    }
}

/// The labels as a constant array; texts have none.
fn coord_array(values: &CoordValues) -> Option<ConstArray> {
    let dtype = values.dtype()?;
    let bytes: Vec<u8> = match values {
        CoordValues::Int(d, v) => {
            v.iter().flat_map(|x| x.to_le_bytes()[..d.size()].to_vec()).collect()
        }
        CoordValues::Float(DType::Float32, v) => {
            v.iter().flat_map(|x| (*x as f32).to_le_bytes()).collect()
        }
        CoordValues::Float(_, v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        CoordValues::Time(_, v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        CoordValues::Text(_) | CoordValues::Unreadable(_) => return None,
    };
    let shape = Dims::from_elem(values.len() as u64, 1);
    let valid: Vec<u8> = (0..values.len()).map(|i| u8::from(!values.is_missing(i))).collect();
    let valid = valid.contains(&0).then(|| valid.into());
    Some(ConstArray { dtype, shape, bytes: bytes.into(), valid })
}

pub(super) fn names_of(relation: &Relation) -> Vec<String> {
    let variables = relation.variables.iter().chain(&relation.auxiliary);
    let coords = relation.coords.iter().map(|coord| coord.name.to_string());
    let unreadable = relation.unreadable.iter().map(|u| u.name.to_string());
    let mut names: Vec<String> =
        variables.map(|(name, _)| name.to_string()).chain(coords).chain(unreadable).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// Exact matches, else matches that ignore case.
fn within(
    name: &str,
    find: impl Fn(&dyn Fn(&str) -> bool) -> Vec<(String, Meaning)>,
) -> Vec<(String, Meaning)> {
    let exact = find(&|known| known == name);
    if exact.is_empty() { find(&|known| known.eq_ignore_ascii_case(name)) } else { exact }
}

fn one(
    kind: &'static str,
    name: &str,
    mut found: Vec<(String, Meaning)>,
    span: Span,
) -> Result<Option<Meaning>, Error> {
    if found.len() > 1 {
        let found = found.into_iter().map(|(name, _)| name).collect();
        return fail(BindError::AmbiguousName { kind, name: name.into(), found }, span);
    }
    Ok(found.pop().map(|(_, meaning)| meaning))
}
