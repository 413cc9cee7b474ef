//! The files in which Linux says what the host is, under a root that tests can replace.

use std::path::{Path, PathBuf};

/// A tree with `proc/` and `sys/` in it: `/`, or a folder that a test filled.
#[derive(Clone, Debug)]
pub(crate) struct SystemFiles {
    root: PathBuf,
}

impl SystemFiles {
    /// The running system's own tree.
    pub(crate) fn live() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// A tree under `root`.
    #[cfg(test)]
    pub(crate) fn under(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The text of `path` without surrounding white space; the error says which file and why.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Result<String, String> {
        let relative = path.as_ref().strip_prefix("/").unwrap_or(path.as_ref());
        match std::fs::read_to_string(self.root.join(relative)) {
            Ok(text) => Ok(text.trim().to_string()),
            Err(e) => Err(format!("/{}: {e}", relative.display())),
        }
    }

    /// The first word of `path` as a number.
    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Result<u64, String> {
        let path = path.as_ref();
        let text = self.text(path)?;
        let word = text.split_whitespace().next().unwrap_or("");
        word.parse().map_err(|_| format!("{}: expected a number, found \"{word}\"", path.display()))
    }

    /// Whether `path` is a folder of the tree.
    pub(crate) fn has_folder(&self, path: &Path) -> bool {
        self.root.join(path.strip_prefix("/").unwrap_or(path)).is_dir()
    }

    /// Names in the folder `path`, sorted; none when it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.root.join(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}

/// The value of `key` in text made of `key : value` lines, as in `/proc/cpuinfo`, `/proc/meminfo` and
/// `/proc/self/status`; the first line wins.
pub(crate) fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

/// A field that Linux gives as `N kB`, in bytes.
pub(crate) fn field_bytes(text: &str, key: &str) -> Option<u64> {
    let kib: u64 = field(text, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The members of a list such as `0-3,8,10-11`.
pub(crate) fn parse_list(list: &str) -> Result<Vec<usize>, String> {
    let bad = || format!("expected a list such as 0-3,8, found \"{list}\"");
    let mut out = Vec::new();
    for part in list.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
        if last < first || last > 1 << 20 {
            return Err(bad());
        }
        out.extend(first..=last);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_expand_and_refuse_nonsense() {
        assert_eq!(parse_list("0-2,5,8-9\n").unwrap(), [0, 1, 2, 5, 8, 9]);
        assert_eq!(parse_list("").unwrap(), Vec::<usize>::new());
        for bad in ["3-1", "a", "0-99999999999"] {
            assert!(parse_list(bad).unwrap_err().contains(bad));
        }
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "VmRSSx:\t1 kB\nVmRSS:\t   1756 kB\nThreads: 3";
        assert_eq!(field_bytes(text, "VmRSS"), Some(1756 * 1024));
        assert_eq!(field_bytes(text, "Threads"), None);
        assert_eq!(field(text, "Threads"), Some("3"));
    }
}
