//! A layer of the configuration: the defaults, a file, the environment or the flags.

use super::keys::{ConfigKey, KEYS, LATER, names};
use crate::error::Error;
use figment::providers::{Format as _, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider, Source};
use std::collections::BTreeMap;
use std::path::Path;

const DEFAULTS: &str = "default";
const ENVIRONMENT: &str = "environment";
const FLAGS: &str = "flag";
/// A table of a file: its `read` and `write` are the settings `allow-read` and `allow-write`.
const PATHS: &str = "allowed-paths";

/// Settings by key (with `_`), and the name of their origin.
pub(super) struct Layer {
    name: String,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::from(self.name.clone(), Source::Custom(self.name.clone()))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.values.clone()))
    }
}

/// The origin of the value of `key`, in the user's words.
pub(super) fn origin(metadata: &Metadata, key: &str) -> String {
    match &*metadata.name {
        ENVIRONMENT => format!("environment TESSERA_{}", key.replace('-', "_").to_uppercase()),
        FLAGS => format!("flag --{key}"),
        other => other.to_string(),
    }
}

impl Layer {
    pub(super) fn empty() -> Self {
        Layer { name: String::new(), values: Dict::new() }
    }

    pub(super) fn defaults() -> Self {
        let value =
            |key: &ConfigKey| Some((key.name.replace('-', "_"), Value::from(key.default()?)));
        Layer { name: DEFAULTS.into(), values: KEYS.iter().filter_map(value).collect() }
    }

    pub(super) fn file(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| Error::Usage {
            reason: format!("cannot read the configuration file `{shown}`: {e}"),
            hint: None,
        })?;
        let name = format!("file {shown}");
        let data = Toml::string(&text).data().map_err(|e| Error::Usage {
            reason: format!("the configuration file `{shown}` is not TOML: {e}"),
            hint: None,
        })?;
        let mut values = Dict::new();
        for (key, value) in data.into_values().flatten() {
            match value {
                Value::Dict(_, lists) if key.replace('_', "-") == PATHS => {
                    for (verb, list) in lists {
                        insert(&mut values, &format!("allow-{verb}"), list, &name)?;
                    }
                }
                value => insert(&mut values, &key, value, &name)?,
            }
        }
        Ok(Layer { name, values })
    }

    /// `TESSERA_<KEY>` without the prefix, and the names of variables that are not settings.
    ///
    /// A typo (`TESSERA_THREDS`) is an error. Others (`TESSERA_HOME`) belong to other programs.
    pub(super) fn environment(
        variables: &BTreeMap<String, String>,
    ) -> Result<(Self, Vec<String>), Error> {
        let mut values = Dict::new();
        let mut ignored = Vec::new();
        for (name, value) in variables {
            let key = name.to_ascii_lowercase().replace('_', "-");
            if key == "config" {
                continue;
            }
            let known = names().any(|name| name == key);
            if !known && (LATER.contains(&&*key) || suggestion(&key).is_none()) {
                ignored.push(format!("TESSERA_{name}"));
                continue;
            }
            let origin = format!("environment TESSERA_{name}");
            insert(&mut values, &key, Value::from(value.clone()), &origin)?;
        }
        Ok((Layer { name: ENVIRONMENT.into(), values }, ignored))
    }

    pub(super) fn flags(flags: &BTreeMap<&'static str, String>) -> Result<Self, Error> {
        let mut values = Dict::new();
        for (key, value) in flags {
            insert(&mut values, key, Value::from(value.clone()), &format!("flag --{key}"))?;
        }
        Ok(Layer { name: FLAGS.into(), values })
    }
}

/// Adds a value under its key, in either spelling.
fn insert(values: &mut Dict, key: &str, value: Value, origin: &str) -> Result<(), Error> {
    let spelled = key.to_ascii_lowercase().replace('_', "-");
    let error = |reason: &str, hint| {
        Err(Error::Config { key: key.into(), origin: origin.into(), reason: reason.into(), hint })
    };
    if LATER.contains(&&*spelled) {
        return error("it is not supported yet", None);
    }
    if !names().any(|name| name == spelled) {
        let hint = match suggestion(&spelled) {
            Some(k) => format!("did you mean `{k}`?"),
            None => format!("settings are {}", names().collect::<Vec<_>>().join(", ")),
        };
        return error("unknown setting", Some(hint));
    }
    if values.insert(spelled.replace('-', "_"), value).is_some() {
        return error("it is set twice, with `-` and with `_`", None);
    }
    Ok(())
}

/// The key that was probably meant: at most two letters away, and less than half of it.
fn suggestion(key: &str) -> Option<&'static str> {
    names()
        .map(|k| (distance(key, k), k))
        .filter(|(d, k)| *d <= 2 && *d * 2 < k.len())
        .min()
        .map(|(_, k)| k)
}

/// Number of letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
