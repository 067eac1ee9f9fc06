//! Redacts secrets in a script's options.

use crate::tokens;
use sqlparser::tokenizer::Token;

/// Replacement for a secret.
const HIDDEN: &str = "'(hidden)'";
/// Substrings of the names of options whose values are secrets.
const MARKS: [&str; 9] = [
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    "account_key",
    "api_key",
    "sas_key",
    "connection_string",
];

/// True if the value of an option of that name is a secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    MARKS.iter().any(|m| name.contains(m))
}

/// The script with `'(hidden)'` for each text that follows the name of a secret, as in
/// `OPTIONS ('aws.secret_access_key' '…')` or `token => '…'`.
///
/// A script that cannot be split into tokens, and contains such a name, is hidden as a whole.
pub fn hidden(script: &str) -> String {
    match is_secret(script) && tokens::placed(script).is_err() {
        true => "(hidden)".into(),
        false => replaced(script, &mut |_| HIDDEN.into()),
    }
}

/// The script with each such text replaced: `replace` receives the literal as written, with its quotes.
/// It receives the whole script if that cannot be split into tokens and contains the name of a secret.
pub fn replaced(script: &str, replace: &mut dyn FnMut(&str) -> String) -> String {
    if !is_secret(script) {
        return script.to_string();
    }
    let Ok(tokens) = tokens::placed(script) else { return replace(script) };
    let mut out = String::with_capacity(script.len());
    let (mut copied, mut follows) = (0, false);
    for (token, _, bytes) in tokens {
        let text = match &token {
            Token::RArrow | Token::Eq | Token::Assignment | Token::Colon => continue,
            Token::Word(w) => Some((&w.value, false)),
            Token::SingleQuotedString(s)
            | Token::DoubleQuotedString(s)
            | Token::EscapedStringLiteral(s)
            | Token::NationalStringLiteral(s)
            | Token::UnicodeStringLiteral(s) => Some((s, true)),
            Token::DollarQuotedString(s) => Some((&s.value, true)),
            _ => None,
        };
        if let (true, Some((_, true))) = (follows, text) {
            out.push_str(&script[copied..bytes.start]);
            out.push_str(&replace(&script[bytes.clone()]));
            copied = bytes.end;
            follows = false;
            continue;
        }
        follows = text.is_some_and(|(name, _)| is_secret(name));
    }
    out.push_str(&script[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_options_are_hidden() {
        for (script, shown) in [
            (
                "COPY (SELECT 1) TO 's3://b/x' OPTIONS ('aws.access_key_id' 'AK', 'aws.secret_access_key' 'TOP')",
                "COPY (SELECT 1) TO 's3://b/x' OPTIONS ('aws.access_key_id' 'AK', 'aws.secret_access_key' '(hidden)')",
            ),
            ("OPTIONS (aws.session_token 'it''s')", "OPTIONS (aws.session_token '(hidden)')"),
            (
                "OPTIONS (gcs.token 'A', gcs.service_account_key '{}', gcs.service_account_path 'p')",
                "OPTIONS (gcs.token '(hidden)', gcs.service_account_key '(hidden)', gcs.service_account_path 'p')",
            ),
            (
                "OPTIONS ('azure.account' 'a', 'azure.account_key' 'K', azure.sas_token 'S', azure.client_secret 'C')",
                "OPTIONS ('azure.account' 'a', 'azure.account_key' '(hidden)', azure.sas_token '(hidden)', azure.client_secret '(hidden)')",
            ),
            (
                "read_zarr('az://c/x', azure.connection_string => 'AccountKey=K')",
                "read_zarr('az://c/x', azure.connection_string => '(hidden)')",
            ),
            ("open(token => 'T', x => 'y')", "open(token => '(hidden)', x => 'y')"),
            ("SET a.password = 'p'; SELECT 'é'", "SET a.password = '(hidden)'; SELECT 'é'"),
            ("SELECT token FROM 'x'", "SELECT token FROM 'x'"),
            ("SELECT ? AS x", "SELECT ? AS x"),
            ("OPTIONS ('secret' 'never ends", "(hidden)"),
            ("SELECT 'never ends", "SELECT 'never ends"),
        ] {
            assert_eq!(hidden(script), shown);
        }
    }
}
