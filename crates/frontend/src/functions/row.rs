//! A row of the table of functions, and the parameters derived from its signature.

use super::{Bound, Error, Lowerer, Value};

pub(super) type Lower = fn(&mut Lowerer<'_, '_>, &Bound<'_>) -> Result<Value, Error>;

/// Arguments beyond the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Open {
    /// No extra arguments.
    No,
    /// Any number of positional arguments.
    Many,
    /// Arguments named by the dimensions of the first argument.
    Dims,
}

/// The arguments that a function takes.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    /// Their names, in order.
    pub(super) names: Vec<&'static str>,
    pub(super) required: usize,
    /// Extra arguments that are accepted.
    pub(super) open: Open,
}

/// A function as its group declares it: `row(signature, lower, doc)`, and the differences from the defaults.
pub(super) struct Row {
    signature: &'static str,
    lower: Lower,
    doc: &'static str,
    dtypes: &'static str,
    missing: &'static str,
    example: Option<&'static str>,
    numpy: Option<&'static str>,
    takes: Option<(&'static [&'static str], usize, Open)>,
    also: &'static [&'static str],
}

/// A row: the call with all arguments (optional ones with their defaults, `name => default`), the function that
/// lowers it, and a sentence that describes the result.
pub(super) const fn row(signature: &'static str, lower: Lower, doc: &'static str) -> Row {
    Row {
        signature,
        lower,
        doc,
        dtypes: "any",
        missing: "masked where an argument is; NaN propagates",
        example: None,
        numpy: None,
        takes: None,
        also: &[],
    }
}

impl Row {
    /// Sets the accepted types and the type of the result; `any` by default.
    pub(super) const fn dtypes(self, dtypes: &'static str) -> Self {
        Row { dtypes, ..self }
    }

    /// Sets the behaviour for masked cells and NaN. By default the result is masked where an argument is, and NaN
    /// propagates.
    pub(super) const fn missing(self, missing: &'static str) -> Self {
        Row { missing, ..self }
    }

    /// Sets the example; by default `SELECT name(x, y) FROM x, y` with the required parameters.
    pub(super) const fn example(self, example: &'static str) -> Self {
        Row { example: Some(example), ..self }
    }

    /// Sets the NumPy or xarray equivalent; `numpy.name` by default.
    pub(super) const fn numpy(self, numpy: &'static str) -> Self {
        Row { numpy: Some(numpy), ..self }
    }

    /// Sets the parameters, the number of required ones and the extra arguments, if the signature does not show them.
    pub(super) const fn takes(
        self,
        names: &'static [&'static str],
        required: usize,
        open: Open,
    ) -> Self {
        Row { takes: Some((names, required, open)), ..self }
    }

    /// Adds optional parameters that the signature does not show, after those that it shows.
    pub(super) const fn also(self, also: &'static [&'static str]) -> Self {
        Row { also, ..self }
    }

    pub(super) fn name(&self) -> &'static str {
        self.signature.split('(').next().unwrap_or_default()
    }

    pub(super) fn function(&self) -> Function {
        let name = self.name();
        let mut parameters = match self.takes {
            Some((names, required, open)) => Parameters { names: names.into(), required, open },
            None => parameters(self.signature),
        };
        let given = parameters.names[..parameters.required].join(", ");
        parameters.names.extend(self.also);
        Function {
            name,
            signature: self.signature,
            doc: self.doc,
            dtypes: self.dtypes,
            missing: self.missing,
            example: match self.example {
                Some(example) => example.into(),
                None => format!("SELECT {name}({given}) FROM {given}"),
            },
            numpy: self.numpy.map_or_else(|| format!("numpy.{name}"), String::from),
            parameters,
            lower: self.lower,
        }
    }
}

/// A function: the text of `SHOW FUNCTIONS` and the help, and how a call is bound and lowered.
#[derive(Debug, Clone)]
pub struct Function {
    /// The name, in lower case.
    pub name: &'static str,
    /// The call with all arguments, optional ones with their defaults.
    pub signature: &'static str,
    /// A sentence that describes the result.
    pub doc: &'static str,
    /// The accepted types, and the type of the result.
    pub dtypes: &'static str,
    /// Behaviour for masked cells and NaN.
    pub missing: &'static str,
    /// An example query.
    pub example: String,
    /// The NumPy or xarray equivalent.
    pub numpy: String,
    pub(super) parameters: Parameters,
    pub(super) lower: Lower,
}

/// The parameters of a signature.
///
/// A parameter with a default is optional. `…` means that the argument before it may be repeated: a named one stands
/// for a dimension, a positional one for more arguments. `[x, y, …]` is the parameter `tensors`.
fn parameters(signature: &'static str) -> Parameters {
    let mut found = Parameters { names: Vec::new(), required: 0, open: Open::No };
    let arguments = arguments(signature.split_once('(').map_or("", |(_, rest)| rest));
    for (at, argument) in arguments.iter().enumerate() {
        let named = argument.split_once(" => ");
        match (*argument, named) {
            ("…", _) => {}
            _ if arguments.get(at + 1) == Some(&"…") => {
                found.open = if named.is_some() { Open::Dims } else { Open::Many };
            }
            (_, Some((name, _))) => found.names.push(name),
            (name, None) => {
                found.names.push(if name.starts_with('[') { "tensors" } else { name });
                found.required += 1;
            }
        }
    }
    found
}

/// The arguments in `rest` up to the closing parenthesis, separated by commas outside of brackets.
fn arguments(rest: &'static str) -> Vec<&'static str> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, c) in rest.char_indices() {
        let is_end = depth == 0 && matches!(c, ',' | ')');
        if is_end && !rest[start..at].trim().is_empty() {
            found.push(rest[start..at].trim());
        }
        match c {
            ')' if depth == 0 => break,
            ',' if depth == 0 => start = at + 1,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    found
}
