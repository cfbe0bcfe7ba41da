//! The copy of the repository in which mutants live, so that nobody's working files are ever touched.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::workspace::Workspace;

pub(crate) struct Tree {
    pub(crate) root: PathBuf,
}

impl Tree {
    /// Makes `target` equal to the repository's files as they are now.
    pub(crate) fn copy(workspace: &Workspace, target: &Path) -> Result<Self, Failure> {
        let paths = workspace.tracked()?;
        copy_files(&workspace.root, &paths, target)?;
        Ok(Self { root: target.into() })
    }

    /// Runs `during` while `from` is replaced in `file`. The inner error is how often `from` occurs, when not once.
    pub(crate) fn with_replaced<T>(
        &self,
        file: &str,
        from: &str,
        to: &str,
        during: impl FnOnce() -> T,
    ) -> Result<Result<T, usize>, Failure> {
        let path = self.root.join(file);
        let original = match fs::read_to_string(&path) {
            Ok(original) => original,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Err(0)),
            Err(error) => return Err(Failure::io("read", &path, &error)),
        };
        let mutated = match replace_once(&original, from, to) {
            Ok(mutated) => mutated,
            Err(times) => return Ok(Err(times)),
        };
        let write = |text: &str| fs::write(&path, text).map_err(|error| Failure::io("write", &path, &error));
        write(&mutated)?;
        let outcome = during();
        // Should we be stopped before this line, the next copy puts the file right.
        write(&original)?;
        Ok(Ok(outcome))
    }
}

fn replace_once(text: &str, from: &str, to: &str) -> Result<String, usize> {
    match text.matches(from).count() {
        1 => Ok(text.replacen(from, to, 1)),
        times => Err(times),
    }
}

/// A file that is already equal keeps its time, so cargo rebuilds only what changed since the last run.
fn copy_files(source: &Path, paths: &[String], target: &Path) -> Result<(), Failure> {
    remove_others(target, target, paths)?;
    for path in paths {
        let (from, to) = (source.join(path), target.join(path));
        let wanted = fs::read(&from).map_err(|error| Failure::io("read", &from, &error))?;
        if fs::read(&to).is_ok_and(|present| present == wanted) {
            continue;
        }
        let unwritable = |error: std::io::Error| Failure::io("write", &to, &error);
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(unwritable)?;
        }
        fs::write(&to, wanted).map_err(unwritable)?;
    }
    Ok(())
}

/// Removes what an earlier copy had and this one has not. `paths` is sorted.
fn remove_others(folder: &Path, target: &Path, paths: &[String]) -> Result<(), Failure> {
    if !folder.is_dir() {
        return Ok(());
    }
    let unusable = |error: std::io::Error| Failure::io("clear", folder, &error);
    for entry in fs::read_dir(folder).map_err(unusable)? {
        let path = entry.map_err(unusable)?.path();
        if path.is_dir() {
            remove_others(&path, target, paths)?;
            continue;
        }
        let name = path.strip_prefix(target).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        if paths.binary_search(&name).is_err() {
            fs::remove_file(&path).map_err(unusable)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn tree(scratch: &Scratch) -> Tree {
        Tree { root: scratch.path().into() }
    }

    #[test]
    fn the_mutant_is_there_during_the_run_and_gone_after_it() {
        let scratch = Scratch::new();
        scratch.write("a.rs", "min(cap)\n");
        let seen = tree(&scratch).with_replaced("a.rs", "min", "max", || scratch.read("a.rs")).unwrap();
        assert_eq!(seen, Ok("max(cap)\n".into()));
        assert_eq!(scratch.read("a.rs"), "min(cap)\n");
    }

    #[test]
    fn an_ambiguous_mutant_is_not_run() {
        let scratch = Scratch::new();
        scratch.write("a.rs", "min min\n");
        let run = |from| tree(&scratch).with_replaced("a.rs", from, "max", || "ran").unwrap();
        assert_eq!((run("min"), run("mid")), (Err(2), Err(0)));
    }

    #[test]
    fn a_mutant_of_a_file_that_moved_away_is_stale_and_stops_nobody() {
        let scratch = Scratch::new();
        assert_eq!(tree(&scratch).with_replaced("moved.rs", "a", "b", || "ran").unwrap(), Err(0));
    }

    #[test]
    fn a_mutant_left_by_a_stopped_run_does_not_survive_the_next_copy() {
        let (source, target) = (Scratch::new(), Scratch::new());
        source.write("src/a.rs", "right");
        target.write("src/a.rs", "mutated");
        target.write("src/deleted.rs", "old");
        copy_files(source.path(), &["src/a.rs".into()], target.path()).unwrap();
        assert_eq!(target.read("src/a.rs"), "right");
        assert!(!target.path().join("src/deleted.rs").exists());
    }

    #[test]
    fn an_unchanged_file_keeps_its_time_so_that_nothing_is_rebuilt() {
        let (source, target) = (Scratch::new(), Scratch::new());
        source.write("a.rs", "same");
        target.write("a.rs", "same");
        let copied = target.path().join("a.rs");
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        fs::File::options().write(true).open(&copied).unwrap().set_modified(long_ago).unwrap();
        copy_files(source.path(), &["a.rs".into()], target.path()).unwrap();
        assert_eq!(fs::metadata(&copied).unwrap().modified().unwrap(), long_ago);
    }
}
