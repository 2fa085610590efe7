//! The memory that this process may use: that of the machine, or the limit of its control groups (cgroups). Containers
//! and batch systems set such limits, and end a process that exceeds them.

use std::fs;
use std::path::{Path, PathBuf};

/// Host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The most bytes that the process may use. Swap doesn't count.
    pub total: u64,
    /// The file that `total` is from, for messages.
    pub says: String,
    /// The bytes of `total` that are free now, or that the system can free.
    pub available: u64,
}

/// Returns how many processes that torchrun started share this machine; 1 if it started none.
pub fn local_processes() -> usize {
    std::env::var("LOCAL_WORLD_SIZE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Limits from here on are none.
const UNLIMITED: u64 = 1 << 62;

impl Machine {
    /// Finds the memory of this machine. `None` if the system doesn't tell.
    pub fn find() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// Returns the bytes that the readers of this process share.
    pub fn share(&self) -> u64 {
        self.share_of(local_processes())
    }

    /// Returns the bytes that the readers of one process share, if so many processes run on this machine.
    fn share_of(&self, processes: usize) -> u64 {
        self.total / 2 / processes.max(1) as u64
    }

    /// As [`Self::find`], for a file system whose root is `root`.
    fn below(root: &Path) -> Option<Self> {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        let total = kibibytes(&meminfo, "MemTotal:")?;
        let available = kibibytes(&meminfo, "MemAvailable:").unwrap_or(total);
        let mut machine = Self { total, says: "/proc/meminfo".into(), available };
        for group in groups(root) {
            machine.narrow(root, &group);
        }
        Some(machine)
    }

    /// Takes the limit of a group into account, if it has one.
    fn narrow(&mut self, root: &Path, group: &ControlGroup) {
        let read = |file: &str| fs::read_to_string(group.folder.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        let files = group.version.files();
        // Without a limit the file has a word (`max`), or a number that is larger than the memory of any machine.
        let Some(limit) = number(files.limit).filter(|limit| *limit < UNLIMITED) else { return };
        // Cached files count as free: the system drops them before the limit is reached.
        let cached = read("memory.stat").and_then(|stat| field(&stat, files.cached)?.parse().ok()).unwrap_or(0);
        let used = number(files.used).unwrap_or(0).saturating_sub(cached);
        self.available = self.available.min(limit.saturating_sub(used));
        if limit < self.total {
            let file = group.folder.join(files.limit);
            (self.total, self.says) = (limit, format!("/{}", file.strip_prefix(root).unwrap_or(&file).display()));
        }
    }
}

/// Returns the value of a name, in a text whose lines have a name and a value each.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut words =
        text.lines().map(str::split_whitespace).find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.parse::<u64>().ok().map(|n| n.saturating_mul(1024))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The names of a group's files, and of the line in `memory.stat` that has the bytes of cached files.
struct Files {
    limit: &'static str,
    used: &'static str,
    cached: &'static str,
}

impl Version {
    fn files(self) -> Files {
        match self {
            Self::One => {
                Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cached: "total_inactive_file" }
            }
            Self::Two => Files { limit: "memory.max", used: "memory.current", cached: "inactive_file" },
        }
    }
}

/// A control group: its version, and its folder in the file system of control groups.
struct ControlGroup {
    version: Version,
    folder: PathBuf,
}

/// Returns the groups that may limit the memory of this process: its own, and all groups around it that are visible.
fn groups(root: &Path) -> Vec<ControlGroup> {
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap_or_default();
    let (memberships, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let mut all = Vec::new();
    for line in memberships.lines() {
        // NUMBER:CONTROLLERS:PATH; version 2 has the number 0 and no controllers.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" if number == "0" => Version::Two,
            _ if controllers.split(',').any(|c| c == "memory") => Version::One,
            _ => continue,
        };
        let Some((of, at)) = mounts.lines().find_map(|mount| mounted(mount, version)) else { continue };
        // In a container the path may be the host's, and the mount may begin at the container's own group.
        let inside = Path::new(path).strip_prefix(&of).unwrap_or(Path::new(""));
        let inside = if inside.components().any(|c| c.as_os_str() == "..") { Path::new("") } else { inside };
        let top = root.join(at.trim_start_matches('/'));
        all.extend(inside.ancestors().map(|folder| ControlGroup { version, folder: top.join(folder) }));
    }
    all
}

/// Parses a line of `mountinfo`. If it mounts control groups of this version that limit memory, returns the group at
/// the root of the mount, and the mount point.
fn mounted(line: &str, version: Version) -> Option<(String, String)> {
    // ID PARENT DEVICE ROOT POINT OPTIONS... - TYPE SOURCE SUPER_OPTIONS
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split_whitespace();
    let found = match (kind.next()?, version) {
        ("cgroup2", Version::Two) => true,
        ("cgroup", Version::One) => kind.nth(1).is_some_and(|options| options.split(',').any(|o| o == "memory")),
        _ => false,
    };
    let mut mount = mount.split_whitespace().skip(3);
    let (of, at) = (mount.next()?, mount.next()?);
    found.then(|| (unescaped(of), unescaped(at)))
}

/// Replaces escapes in a path of `mountinfo`: `\040` is a space, `\134` a backslash.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MEMINFO: &str = "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   50331648 kB\n";

    /// Returns the memory of a machine with these files.
    fn machine(files: &[(&str, &str)]) -> Option<Machine> {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        Machine::below(root.path())
    }

    fn found(files: &[(&str, &str)]) -> (u64, String, u64) {
        let machine = machine(files).unwrap();
        (machine.total, machine.says, machine.available)
    }

    #[test]
    fn without_groups_the_machine_has_what_it_has() {
        assert_eq!(machine(&[]), None);
        assert_eq!(machine(&[("proc/meminfo", "nonsense")]), None);
        let plain = ("proc/meminfo", MEMINFO);
        assert_eq!(found(&[plain]), (64 * GIB, "/proc/meminfo".into(), 48 * GIB));
        let broken =
            [plain, ("proc/self/cgroup", "0:\n::\n1:memory\n"), ("proc/self/mountinfo", "a - b\n - cgroup2\n")];
        assert_eq!(found(&broken), (64 * GIB, "/proc/meminfo".into(), 48 * GIB));
        assert!(Machine::find().is_some_and(|m| m.total > 0 && m.available <= m.total.max(m.available)));
    }

    #[test]
    fn processes_divide_half_of_the_machine() {
        let machine = machine(&[("proc/meminfo", MEMINFO)]).unwrap();
        assert_eq!([0, 1, 8].map(|processes| machine.share_of(processes)), [32 * GIB, 32 * GIB, 4 * GIB]);
    }

    /// In version 2, a group's limit also holds for all groups in it.
    #[test]
    fn the_smallest_limit_of_nested_groups_counts() {
        let files = |outer: &'static str, inner: &'static str| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/job.slice/step/task\n"),
                (
                    "proc/self/mountinfo",
                    "24 1 0:22 / /sys rw - sysfs sysfs rw\n35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
                ),
                ("sys/fs/cgroup/job.slice/memory.max", outer),
                ("sys/fs/cgroup/job.slice/memory.current", "6442450944\n"),
                ("sys/fs/cgroup/job.slice/memory.stat", "anon 5\ninactive_file 5368709120\nactive_file 7\n"),
                ("sys/fs/cgroup/job.slice/step/memory.max", "max\n"),
                ("sys/fs/cgroup/job.slice/step/task/memory.max", inner),
                ("sys/fs/cgroup/other/memory.max", "1\n"),
            ]
        };
        let says = |folder: &str| format!("/sys/fs/cgroup/{folder}/memory.max");
        // Of 6 GiB in use, 5 are cached files.
        assert_eq!(found(&files("17179869184\n", "max\n")), (16 * GIB, says("job.slice"), 15 * GIB));
        assert_eq!(found(&files("17179869184\n", "8589934592\n")), (8 * GIB, says("job.slice/step/task"), 8 * GIB));
        assert_eq!(found(&files("max\n", "max\n")), (64 * GIB, "/proc/meminfo".into(), 48 * GIB));
        // More than the machine has is no limit.
        assert_eq!(found(&files("687194767360\n", "max\n")), (64 * GIB, "/proc/meminfo".into(), 48 * GIB));
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let memberships = "12:cpu,cpuacct:/jobs/7\n5:memory:/jobs/7\n0::/user.slice\n";
        let mounts = "30 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      33 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let files = |limit: &'static str| {
            [
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", memberships),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "12884901888\n"),
                ("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/jobs/7/memory.usage_in_bytes", "3221225472\n"),
                ("sys/fs/cgroup/memory/jobs/7/memory.stat", "total_inactive_file 1073741824\n"),
            ]
        };
        let says = |folder: &str| format!("/sys/fs/cgroup/memory/{folder}/memory.limit_in_bytes");
        assert_eq!(found(&files("4294967296\n")), (4 * GIB, says("jobs/7"), 2 * GIB));
        assert_eq!(found(&files("9223372036854771712\n")), (12 * GIB, says("jobs"), 12 * GIB));
    }

    /// Containers see their own group at the top, while the path may be the host's.
    #[test]
    fn containers_see_their_limit() {
        let file = ("proc/meminfo", MEMINFO);
        for (membership, mount, limit) in [
            // Version 2 with a namespace of its own, and without.
            ("0::/\n", "9 8 0:30 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "sys/fs/cgroup/memory.max"),
            ("0::/../../x\n", "9 8 0:30 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "sys/fs/cgroup/memory.max"),
            (
                "0::/system.slice/docker-1.scope\n",
                "9 8 0:30 /system.slice/docker-1.scope /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
                "sys/fs/cgroup/memory.max",
            ),
            // Version 1 as Docker mounts it.
            (
                "4:memory:/docker/a b\n",
                "9 8 0:30 /docker/a\\040b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
            ),
        ] {
            let files =
                [file, ("proc/self/cgroup", membership), ("proc/self/mountinfo", mount), (limit, "2147483648\n")];
            assert_eq!(found(&files), (2 * GIB, format!("/{limit}"), 2 * GIB), "{membership}");
        }
    }
}
