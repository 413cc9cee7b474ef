//! Digests of files that were read before, so that gigabytes are not read again in each process of a campaign.
//!
//! A digest is believed while path, device, inode, length and both times of the file are those that it was taken of. The
//! time of the last change is set by the system and by nobody else. Of a file that changed a moment ago nothing is kept:
//! a second change within one tick of the clock would not show.

use serde::{Deserialize, Serialize};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tare_core::digest::sha256_hex;

/// How long a file must have been left alone before anything is kept of it.
const AT_REST: Duration = Duration::from_secs(2);

/// A folder of digests.
#[derive(Clone, Debug)]
pub struct DigestStore {
    folder: PathBuf,
}

/// What a digest was taken of.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    path: PathBuf,
    device: u64,
    inode: u64,
    length: u64,
    modified_ns: (i64, i64),
    changed_ns: (i64, i64),
}

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    state: State,
    sha256: String,
}

impl DigestStore {
    /// Digests kept under tare's folder `home`.
    pub fn at(home: &Path) -> Self {
        Self { folder: home.join("digests") }
    }

    /// The digest of `kind` of the file at `path`: the kept one, else what `compute` finds, which is kept when `path` is a
    /// regular file at rest. A folder that cannot be written keeps nothing.
    ///
    /// # Errors
    /// Those of `compute`.
    pub fn of<E>(&self, kind: &str, path: &Path, compute: impl FnOnce() -> Result<String, E>) -> Result<String, E> {
        let before = state(path);
        let Some(state_before) = before else { return compute() };
        let file = self.folder.join(format!("{}.json", sha256_hex(format!("{kind} {}", path.display()).as_bytes())));
        let kept = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        if let Some(kept) = kept.filter(|kept| kept.state == state_before) {
            return Ok(kept.sha256);
        }
        let sha256 = compute()?;
        if state(path).as_ref() == Some(&state_before) {
            self.keep(&file, &Kept { state: state_before, sha256: sha256.clone() });
        }
        Ok(sha256)
    }

    fn keep(&self, file: &Path, kept: &Kept) {
        let part = file.with_extension(format!("{}.part", std::process::id()));
        let text = serde_json::to_vec(kept).unwrap_or_default();
        let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&part, text));
        if written.and_then(|()| fs::rename(&part, file)).is_err() {
            drop(fs::remove_file(&part));
        }
    }
}

/// The state of a regular file that has been left alone for a while; none of any other.
fn state(path: &Path) -> Option<State> {
    let path = fs::canonicalize(path).ok()?;
    let meta: Metadata = fs::metadata(&path).ok()?;
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(meta.ctime()).ok()?);
    let at_rest = SystemTime::now().duration_since(changed).is_ok_and(|since| since > AT_REST);
    (meta.is_file() && at_rest).then(|| State {
        device: meta.dev(),
        inode: meta.ino(),
        length: meta.len(),
        modified_ns: (meta.mtime(), meta.mtime_nsec()),
        changed_ns: (meta.ctime(), meta.ctime_nsec()),
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn found(store: &DigestStore, path: &Path, computed: &str) -> String {
        store.of("test", path, || Ok::<_, Infallible>(computed.to_string())).unwrap()
    }

    #[test]
    fn a_file_that_changed_a_moment_ago_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let (store, file) = (DigestStore::at(home.path()), home.path().join("weights"));
        fs::write(&file, "one").unwrap();
        assert_eq!(found(&store, &file, "first"), "first");
        assert_eq!(found(&store, &file, "second"), "second", "it is not at rest");
        assert_eq!(found(&store, home.path(), "folder"), "folder", "a folder has no state of its own");
        assert_eq!(found(&store, &home.path().join("none"), "none"), "none");
    }

    #[test]
    fn a_file_at_rest_is_read_once_and_another_state_of_it_anew() {
        let home = tempfile::tempdir().unwrap();
        let store = DigestStore::at(home.path());
        let rests = std::env::current_exe().unwrap();
        if state(&rests).is_none() {
            std::thread::sleep(AT_REST + Duration::from_secs(1));
        }
        assert_eq!(found(&store, &rests, "first"), "first");
        assert_eq!(found(&store, &rests, "second"), "first", "it was not read again");
        let kept = fs::read_dir(&store.folder).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&kept).unwrap();
        let length = state(&rests).unwrap().length;
        fs::write(&kept, text.replace(&format!("\"length\":{length}"), "\"length\":1")).unwrap();
        assert_eq!(found(&store, &rests, "third"), "third", "taken of another state");
        fs::write(&kept, "{").unwrap();
        assert_eq!(found(&store, &rests, "fourth"), "fourth", "a spoiled file is not believed");
    }
}
