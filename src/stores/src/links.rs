//! Symbolic links with targets that don't exist. DataLad and git-annex keep a data set as links to content that is
//! fetched on demand. Content that hasn't been fetched must be an error, not a missing chunk.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A symbolic link with a target that doesn't exist.
#[derive(Debug)]
pub(super) struct Dangling {
    link: PathBuf,
    target: PathBuf,
}

impl Dangling {
    /// Finds the dangling link that explains why nothing exists at `path`: `path` itself, or a folder above it. `None`
    /// if there is no such link. Makes one or more system calls, so call it only for a path where nothing was found.
    pub fn find(path: &Path) -> Option<Self> {
        let (link, meta) = path.ancestors().find_map(|at| Some((at, fs::symlink_metadata(at).ok()?)))?;
        let target = if meta.is_symlink() { fs::read_link(link).ok()? } else { return None };
        fs::metadata(link).is_err().then(|| Self { link: link.to_owned(), target })
    }
}

impl fmt::Display for Dangling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "found the symbolic link {} to {}, where there is nothing; if its content is still to be fetched, do that \
             (`datalad get`, `git annex get`)",
            self.link.display(),
            self.target.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_told_from_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir(root.join("folder")).unwrap();
        fs::write(root.join("file"), b"content").unwrap();
        symlink("file", root.join("good")).unwrap();
        symlink("folder", root.join("good-folder")).unwrap();
        symlink(".git/annex/objects/k", root.join("annexed")).unwrap();
        symlink("annexed", root.join("twice")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for path in ["good", "file", "nothing", "folder/nothing", "file/below", "good-folder/nothing", "good/below"] {
            assert!(Dangling::find(&root.join(path)).is_none(), "{path}");
        }
        for (path, link, target) in [
            ("annexed", "annexed", ".git/annex/objects/k"),
            ("annexed/c/0/1", "annexed", ".git/annex/objects/k"),
            ("twice", "twice", "annexed"),
            ("loop", "loop", "loop"),
        ] {
            let found = Dangling::find(&root.join(path)).expect(path);
            assert_eq!((found.link, found.target), (root.join(link), target.into()));
        }
        assert!(Dangling::find(Path::new("")).is_none());
    }
}
