//! The spelling of names.

use sqlparser::ast::{
    ExcludeSelectItem, Expr, Ident, ObjectName, ObjectNamePart, Select, SelectItem, VisitorMut,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Changes names to the spelling of the columns they resolve to.
pub(super) struct Spelling<'a> {
    names: &'a BTreeSet<String>,
}

impl<'a> Spelling<'a> {
    pub(super) fn new(names: &'a BTreeSet<String>) -> Self {
        Spelling { names }
    }

    fn fix(&self, ident: &mut Ident) {
        if self.names.contains(&ident.value) {
            return;
        }
        let mut same = self.names.iter().filter(|n| n.eq_ignore_ascii_case(&ident.value));
        if let (Some(one), None) = (same.next(), same.next()) {
            ident.value.clone_from(one);
        }
    }
}

impl VisitorMut for Spelling<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(ident) => self.fix(ident),
            Expr::CompoundIdentifier(parts) => parts.iter_mut().for_each(|part| self.fix(part)),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            let (SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)) = item
            else {
                continue;
            };
            if let Some(except) = &mut options.opt_except {
                self.fix(&mut except.first_element);
                except.additional_elements.iter_mut().for_each(|name| self.fix(name));
            }
            let excluded = match &mut options.opt_exclude {
                Some(ExcludeSelectItem::Single(name)) => std::slice::from_mut(name),
                Some(ExcludeSelectItem::Multiple(names)) => names.as_mut_slice(),
                None => continue,
            };
            for name in excluded {
                if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice() {
                    self.fix(ident);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        if let [ObjectNamePart::Identifier(ident)] = relation.0.as_mut_slice() {
            self.fix(ident);
        }
        ControlFlow::Continue(())
    }
}
