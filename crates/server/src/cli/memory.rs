//! Memory of this process, as the system reports it.

use tessera_engine::error::Error;

/// Peak resident memory of the process in bytes.
pub(super) fn peak_resident_bytes() -> Result<u64, Error> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    peak(&text).ok_or_else(|| Error::Internal { what: format!("`{path}` has no VmHWM") })
}

/// `VmHWM:     1234 kB` in bytes.
fn peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read() {
        assert_eq!(peak("VmPeak:\t 9 kB\nVmHWM:\t    12 kB\nVmRSS: 3 kB\n"), Some(12288));
        assert_eq!(peak("VmRSS: 3 kB\n"), None);
        assert!(peak_resident_bytes().is_ok_and(|n| n > 1 << 20));
    }
}
