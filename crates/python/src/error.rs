//! Errors as exceptions.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tessera_engine::error::Error;

/// The exception of an error, with its text for people: `tessera_sql._errors.make` picks its class.
pub(crate) fn exception(py: Python<'_>, error: &Error, sql: &str) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let position = error.position().map(|p| (p.line, p.column));
    let make = MAKE.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("tessera_sql._errors")?.getattr("make")?.unbind())
    });
    let made = make.and_then(|make| {
        let text = error.render(sql);
        let (code, class) = (error.code(), error.class().name());
        make.bind(py).call1((code, class, error.to_string(), error.hint(), position, text))
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    }
}

/// An error of this package's use of the engine.
pub(crate) fn usage(py: Python<'_>, reason: impl Into<String>, hint: Option<&str>) -> PyErr {
    exception(py, &Error::Usage { reason: reason.into(), hint: hint.map(Into::into) }, "")
}
