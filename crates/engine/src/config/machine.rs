//! The resources of the machine.

use std::path::Path;

/// Bytes of memory that this process may use: the minimum of the machine's memory, the limits of its control groups and
/// their parents, and the address space limit. `None` if the system does not report it.
pub(super) fn memory_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|t| total(&t));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = limits(&groups, Path::new("/sys/fs/cgroup"));
    of_groups.into_iter().chain(machine).chain(addresses_left()).min()
}

/// Bytes of address space that this process may still map: RLIMIT_AS, which `ulimit -v` sets, minus the mapped bytes.
/// `None` without such a limit.
pub fn addresses_left() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    left(&limits, &status)
}

fn left(limits: &str, status: &str) -> Option<u64> {
    let most = limits.lines().find_map(|l| l.strip_prefix("Max address space"))?;
    // `unlimited` does not parse.
    let most: u64 = most.split_whitespace().next()?.parse().ok()?;
    let mapped = status.lines().find_map(|l| l.strip_prefix("VmSize:"))?;
    let mapped: u64 = mapped.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(most.saturating_sub(mapped.saturating_mul(1024)))
}

/// Bytes that this user may still write to the file system of a directory.
pub(super) fn free_bytes(dir: &Path) -> std::io::Result<u64> {
    let of = rustix::fs::statvfs(dir)?;
    Ok(of.f_bavail.saturating_mul(of.f_frsize))
}

/// `MemTotal:       16384 kB` in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The limits of the groups named in `/proc/self/cgroup`, in both versions of the interface.
fn limits(groups: &str, root: &Path) -> Vec<u64> {
    let mut out = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (base, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be that of the host: then only the root exists.
        let mut at = base.join(path.trim_start_matches('/'));
        loop {
            if let Ok(text) = std::fs::read_to_string(at.join(file))
                && let Ok(n) = text.trim().parse::<u64>()
            {
                out.push(n);
            }
            if at == base || !at.pop() {
                break;
            }
        }
    }
    out
}

/// The default path of the cluster secret of this user: in the directory of settings, else in the working directory.
pub(super) fn secret_file() -> String {
    let directory = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|d| !d.is_empty())
        .map(std::path::PathBuf::from)
        .or_else(|| Some(std::path::PathBuf::from(std::env::var_os("HOME")?).join(".config")));
    let directory = directory.unwrap_or_default().join("tessera");
    directory.join("cluster.secret").display().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::create_dir_all(root.path().join("memory")).unwrap();
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        std::fs::write(root.path().join("a/memory.max"), "1048576\n").unwrap();
        std::fs::write(root.path().join("memory/memory.limit_in_bytes"), "4096\n").unwrap();
        assert_eq!(limits("0::/a/b\n", root.path()), [1048576]);
        assert_eq!(limits("3:cpu,memory:/gone/here\n2:pids:/a\n", root.path()), [4096]);
        let status = "VmPeak:\t 9 kB\nVmSize:\t     512 kB\n";
        let limit = |most: &str| {
            left(&format!("Limit  Soft  Hard  Units\nMax address space  {most}  bytes\n"), status)
        };
        assert_eq!(limit("1048576  2097152"), Some(1 << 19));
        assert_eq!((limit("1  1"), limit("unlimited  unlimited")), (Some(0), None));
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       2048 kB\n"), Some(2 << 20));
    }
}
