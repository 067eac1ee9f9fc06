//! The setting for dense evaluation of cell blocks.

use std::fmt;
use std::str::FromStr;

/// Controls whether cell blocks stay dense. The result is the same; `Off` exists to test that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Density {
    /// Dense wherever possible.
    #[default]
    Auto,
    /// Every cell that a block reads becomes a row, and DataFusion computes the result.
    Off,
}

impl fmt::Display for Density {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Density::Auto => "auto",
            Density::Off => "off",
        })
    }
}

impl FromStr for Density {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Density::Auto),
            "off" => Ok(Density::Off),
            _ => Err(format!("`{text}` is neither `auto` nor `off`")),
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub density: Density,
    /// True if the rows become tensors. No rows are needed then, so the items of the outermost `SELECT` are dense too.
    pub as_tensors: bool,
}
