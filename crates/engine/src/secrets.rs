//! Encrypts secrets of statements in the documents of a warehouse: records of statements and entries of the catalog.
//!
//! A record has to run its statement again after a failure, so it needs the secrets in its options (`OPTIONS
//! ('aws.secret_access_key' '…')`). A reader of a record, of a backup or of a bucket does not need them. So a secret is
//! stored as `(sealed:…)`: AES-256-GCM with the warehouse's own key. The key is a document `key` that only its owner
//! reads; it is created for the first secret. Whoever has the key and the document has the secret.

use crate::error::Error;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::Value;
use std::sync::Arc;
use tessera_frontend::secrets;
use tessera_storage::sink::{Folder, Mode, SinkError};
use tokio::sync::OnceCell;

pub(crate) const KEY: &str = "key";
/// The marks of a sealed text. Between them is hex: the nonce, then the text and its tag.
const BEGIN: &str = "(sealed:";
const END: char = ')';
const KEY_BYTES: usize = 32;
/// Fields of documents that are scripts, and the field that is pairs of options.
const SCRIPTS: [&str; 2] = ["sql", "query"];
const OPTIONS: &str = "options";

/// Seals and opens the secrets of one warehouse.
#[derive(Debug, Clone)]
pub(crate) struct Sealer {
    folder: Folder,
    key: Arc<OnceCell<SealingKey>>,
}

struct SealingKey(LessSafeKey);

impl std::fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Sealer {
    pub(crate) fn new(folder: Folder) -> Self {
        Sealer { folder, key: Arc::default() }
    }

    /// Seals the secrets of a document. Creates the key if it does not exist.
    ///
    /// # Errors
    /// Errors of storage.
    pub(crate) async fn seal(&self, document: &mut Value) -> Result<(), Error> {
        let mut has_some = false;
        walk(document, &mut |text, is_script| {
            match is_script {
                true => drop(secrets::replaced(text, &mut |_| {
                    has_some = true;
                    String::new()
                })),
                false => has_some = true,
            }
            None
        });
        if !has_some {
            return Ok(());
        }
        let key = self.key.get_or_try_init(|| self.make()).await?;
        let mut failed = false;
        let mut sealed = |text: &str| {
            key.seal(text).unwrap_or_else(|| {
                failed = true;
                String::new()
            })
        };
        walk(document, &mut |text, is_script| {
            Some(match is_script {
                true => secrets::replaced(text, &mut |literal| format!("'{}'", sealed(literal))),
                false => sealed(text),
            })
        });
        match failed {
            true => Err(Error::Internal { what: "a secret could not be sealed".into() }),
            false => Ok(()),
        }
    }

    /// Opens the secrets of a document. A secret of another key stays sealed.
    ///
    /// # Errors
    /// Errors of storage.
    pub(crate) async fn open(&self, document: &mut Value) -> Result<(), Error> {
        let mut has_some = false;
        walk(document, &mut |text, _| {
            has_some |= text.contains(BEGIN);
            None
        });
        if !has_some {
            return Ok(());
        }
        let Some(key) = self.there().await? else {
            tracing::warn!(warehouse = self.folder.display(), "the key of its secrets is missing");
            return Ok(());
        };
        walk(document, &mut |text, is_script| Some(key.open_all(text, is_script)));
        Ok(())
    }

    /// The key, if it exists.
    async fn there(&self) -> Result<Option<&SealingKey>, Error> {
        if let Some(key) = self.key.get() {
            return Ok(Some(key));
        }
        match self.read().await? {
            Some(key) => Ok(Some(self.key.get_or_init(|| async { key }).await)),
            None => Ok(None),
        }
    }

    async fn read(&self) -> Result<Option<SealingKey>, Error> {
        let Some(bytes) = self.folder.get(KEY).await.map_err(Error::stage)? else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        let bytes = unhex(text.trim()).filter(|b| b.len() == KEY_BYTES);
        let key = bytes.and_then(|b| UnboundKey::new(&AES_256_GCM, &b).ok());
        match key {
            Some(key) => Ok(Some(SealingKey(LessSafeKey::new(key)))),
            None => Err(Error::Internal {
                what: format!("`{}` is not the key of a warehouse", self.folder.url(KEY)),
            }),
        }
    }

    async fn make(&self) -> Result<SealingKey, Error> {
        if let Some(key) = self.read().await? {
            return Ok(key);
        }
        // Two processes that create one concurrently end with the same key.
        let text = format!("{}\n", hex(&random::<KEY_BYTES>()?));
        match self.folder.put(KEY, text.into_bytes(), Mode::Create).await {
            Ok(_) | Err(SinkError::Exists { .. }) => {}
            Err(e) => return Err(Error::stage(e)),
        }
        let made = self.read().await?;
        made.ok_or_else(|| Error::Internal { what: "the key of the warehouse is missing".into() })
    }
}

impl SealingKey {
    fn seal(&self, text: &str) -> Option<String> {
        let nonce = random::<NONCE_LEN>().ok()?;
        let mut bytes = text.as_bytes().to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.0.seal_in_place_append_tag(unique, Aad::empty(), &mut bytes).ok()?;
        Some(format!("{BEGIN}{}{}{END}", hex(&nonce), hex(&bytes)))
    }

    /// Decrypts the part between the marks.
    fn open(&self, sealed: &str) -> Option<String> {
        let mut bytes = unhex(sealed)?;
        let nonce: [u8; NONCE_LEN] = bytes.get(..NONCE_LEN)?.try_into().ok()?;
        let unique = Nonce::assume_unique_for_key(nonce);
        let opened = self.0.open_within(unique, Aad::empty(), &mut bytes, NONCE_LEN..).ok()?;
        String::from_utf8(opened.to_vec()).ok()
    }

    /// Opens all sealed texts of this key. In a script a sealed text is a literal, including its quotes.
    fn open_all(&self, text: &str, is_script: bool) -> String {
        let (begin, end) = match is_script {
            true => (format!("'{BEGIN}"), format!("{END}'")),
            false => (BEGIN.to_string(), END.to_string()),
        };
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(&begin) {
            out.push_str(before);
            let opened = after
                .split_once(&end)
                .and_then(|(sealed, after)| Some((self.open(sealed)?, after)));
            match opened {
                Some((opened, after)) => {
                    out.push_str(&opened);
                    rest = after;
                }
                None => {
                    out.push_str(&begin);
                    rest = after;
                }
            }
        }
        out + rest
    }
}

/// Calls `change` with each script of a document (`true`), and with each value of an option that is a secret (`false`).
fn walk(value: &mut Value, change: &mut dyn FnMut(&str, bool) -> Option<String>) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(|v| walk(v, change)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if SCRIPTS.contains(&name.as_str()) => {
                        if let Some(new) = change(text, true) {
                            *text = new;
                        }
                    }
                    Value::Array(pairs) if name == OPTIONS => {
                        for pair in pairs {
                            let key = pair.get(0).and_then(Value::as_str).unwrap_or_default();
                            let is_secret = secrets::is_secret(key);
                            if let (true, Some(Value::String(text))) = (is_secret, pair.get_mut(1))
                                && let Some(new) = change(text, false)
                            {
                                *text = new;
                            }
                        }
                    }
                    other => walk(other, change),
                }
            }
        }
        _ => {}
    }
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    let failed = |_| Error::Internal { what: "the system gives no random bytes".into() };
    filled.map(|()| bytes).map_err(failed)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let digit = |b: u8| char::from(b).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs.map(|p| Some((digit(p[0])? * 16 + digit(p[1])?) as u8)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;
    use tessera_storage::source::{Options, Stores};

    fn sealer(directory: &tempfile::TempDir) -> Sealer {
        let root = directory.path().display().to_string();
        let stores = Stores::new(Duration::from_secs(10));
        Sealer::new(Folder::open(&root, &Options::default(), &stores).unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn secrets_are_sealed_wherever_a_document_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let plain = json!({
            "sql": "COPY (SELECT 'é' AS x) TO 's3://b/x' OPTIONS ('aws.secret_access_key' 'TOP''S', 'overwrite' 'true')",
            "recipe": {
                "temps": [{"sql": "SELECT x FROM read_zarr('u', aws.session_token => 'TOPS')", "settings": {"a": "b"}}],
                "steps": [{"names": {"t": {
                    "kind": "external",
                    "options": [["aws.endpoint", "http://h"], ["aws.secret_access_key", "TOPS"]],
                }}}],
            },
            "query": "SELECT '(sealed:00)' AS x",
        });
        let mut sealed = plain.clone();
        sealer(&directory).seal(&mut sealed).await.unwrap();
        let text = sealed.to_string();
        assert!(
            !text.contains("TOP") && text.contains("http://h") && text.contains("overwrite"),
            "{text}"
        );
        assert_eq!(text.matches(BEGIN).count(), 4, "{text}");
        // Another process uses the same key.
        let mut opened = sealed.clone();
        sealer(&directory).open(&mut opened).await.unwrap();
        assert_eq!(opened, plain);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(directory.path().join(KEY)).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        // The key of another warehouse does not open it.
        let other = tempfile::tempdir().unwrap();
        let mut kept = plain.clone();
        sealer(&other).seal(&mut kept).await.unwrap();
        let mut still = sealed.clone();
        sealer(&other).open(&mut still).await.unwrap();
        assert_eq!(still, sealed);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn text_without_secrets_needs_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let plain =
            json!({"sql": "SELECT 1 AS token FROM 'x'", "options": [["decode_cf", "false"]]});
        let mut same = plain.clone();
        sealer(&directory).seal(&mut same).await.unwrap();
        assert_eq!(same, plain);
        assert!(!directory.path().join(KEY).exists());
    }
}
