//! Sizes as people write them.

const UNITS: [(&str, u64); 14] = [
    ("b", 1),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("", 1),
];

/// Parses `2GiB`, `1.5 GB`, `512m`, `1048576`: a number and a unit in any case. `KiB` and a bare letter are powers of
/// 1024, `KB` is a power of 1000.
///
/// # Errors
/// A sentence with the reason.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end =
        text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let Some(&(_, factor)) = UNITS.iter().find(|u| u.0 == unit) else {
        return Err(match number {
            "" => format!("`{text}` is not an amount of memory"),
            _ => format!("`{unit}` is not a unit of memory"),
        });
    };
    let number = number.replace('_', "");
    if let Ok(n) = number.parse::<u64>() {
        return n.checked_mul(factor).ok_or_else(|| format!("`{text}` does not fit in 64 bits"));
    }
    let value =
        number.parse::<f64>().map_err(|_| format!("`{text}` is not an amount of memory"))?;
    let bytes = value * factor as f64;
    if bytes >= u64::MAX as f64 {
        return Err(format!("`{text}` does not fit in 64 bits"));
    }
    Ok(bytes as u64)
}

/// Formats as `2GiB`, `1.5GiB`, `1000B`: the largest unit that needs at most two decimals without loss, else bytes.
pub fn format_bytes(bytes: u64) -> String {
    for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        let hundredths = (u128::from(bytes) * 100) >> shift;
        if hundredths >= 100 && hundredths << shift == u128::from(bytes) * 100 {
            let (whole, rest) = (hundredths / 100, hundredths % 100);
            let text = format!("{whole}.{rest:02}");
            return format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'));
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read() {
        for (text, want) in [
            ("2GiB", 2 << 30),
            (" 1.5 gib ", 3 << 29),
            ("512m", 512 << 20),
            ("500MB", 500_000_000),
            ("1_048_576", 1 << 20),
            ("0", 0),
            ("7b", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for (text, want) in [
            ("", "`` is not an amount of memory"),
            ("lots", "`lots` is not an amount of memory"),
            ("-1", "`-1` is not an amount of memory"),
            ("1.2.3GiB", "`1.2.3GiB` is not an amount of memory"),
            ("2GiBs", "`gibs` is not a unit of memory"),
            ("99999999TiB", "`99999999TiB` does not fit in 64 bits"),
            ("1.1e9", "`e9` is not a unit of memory"),
            (".", "`.` is not an amount of memory"),
            ("99999999999999999999.5GiB", "`99999999999999999999.5GiB` does not fit in 64 bits"),
        ] {
            assert_eq!(parse_bytes(text), Err(want.to_string()), "{text}");
        }
    }

    #[test]
    fn amounts_are_written_without_loss() {
        for (bytes, want) in [
            (2u64 << 30, "2GiB"),
            (3 << 29, "1.5GiB"),
            (1000, "1000B"),
            (0, "0B"),
            (1 << 40, "1TiB"),
            ((1 << 30) + 1, "1073741825B"),
            (10 << 20, "10MiB"),
        ] {
            assert_eq!(format_bytes(bytes), want);
            assert_eq!(parse_bytes(want), Ok(bytes));
        }
    }
}
