//! Encodings of texts: percent, base 64, dates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Decodes `%20`.
pub(crate) fn percent(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                let (hex, after) = rest.split_at(2);
                out.push(u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap());
                rest = after;
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).unwrap()
}

/// The parameters of a query, decoded.
pub(crate) fn pairs(query: &str) -> Vec<(String, String)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (percent(&name.replace('+', " ")), percent(&value.replace('+', " ")))
    };
    parts.map(pair).collect()
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let n = three.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - three.len()));
        for i in 0..4 {
            let digit = char::from(DIGITS[(n >> (18 - 6 * i)) as usize & 63]);
            out.push(if i <= three.len() { digit } else { '=' });
        }
    }
    out
}

/// Decodes base 64, that of URLs too.
pub(crate) fn of_base64(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut n, mut bits) = (Vec::new(), 0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let c = match c {
            b'-' => b'+',
            b'_' => b'/',
            c => c,
        };
        n = n << 6 | DIGITS.iter().position(|digit| *digit == c)? as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((n >> bits) as u8);
        }
    }
    Some(out)
}

/// Year, month, day, hour, minute, second, and the day of the week from Thursday.
///
/// # Source
/// H. Hinnant: chrono-compatible low-level date algorithms, `civil_from_days`.
fn civil(at: SystemTime) -> (i64, i64, i64, u64, u64, u64, u64) {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let z = days as i64 + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let m = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * m + 2) / 5 + 1, if m < 10 { m + 3 } else { m - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60, days % 7)
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn http_date(at: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day, h, m, s, week) = civil(at);
    let (week, month) = (DAYS[week as usize], MONTHS[month as usize - 1]);
    format!("{week}, {day:02} {month} {year} {h:02}:{m:02}:{s:02} GMT")
}

/// `1994-11-06T08:49:37.000Z`.
pub(crate) fn iso_date(at: SystemTime) -> String {
    let (year, month, day, h, m, s, _) = civil(at);
    format!("{year}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.000Z")
}

/// The text in a document of XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The texts of the elements of a name.
pub(crate) fn elements(xml: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let parts = xml.split(begin.as_str()).skip(1).filter_map(|part| part.split_once(end.as_str()));
    parts.map(|(text, _)| text.replace("&quot;", "\"").replace("&amp;", "&")).collect()
}

#[test]
fn texts_are_encoded_as_everywhere() {
    assert_eq!(
        http_date(UNIX_EPOCH + Duration::from_secs(784_111_777)),
        "Sun, 06 Nov 1994 08:49:37 GMT"
    );
    assert_eq!(iso_date(UNIX_EPOCH + Duration::from_secs(951_827_696)), "2000-02-29T12:34:56.000Z");
    for (bytes, text) in
        [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("\u{ff}~", "w79+")]
    {
        assert_eq!(
            (base64(bytes.as_bytes()).as_str(), of_base64(text).unwrap()),
            (text, bytes.into())
        );
    }
    assert_eq!(pairs("a=%2F+b&c"), [("a".into(), "/ b".into()), ("c".into(), String::new())]);
}
