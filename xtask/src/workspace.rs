//! Where the repository is, what its manifest promises, and which files belong to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::manifest;
use crate::run::Call;

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) version: String,
    /// The oldest Rust that must build it, as major and minor: `1.95`.
    pub(crate) rust_version: String,
    /// As written in the manifest: `crates/*`.
    pub(crate) members: Vec<String>,
}

impl Workspace {
    pub(crate) fn find() -> Result<Self, Failure> {
        // Read when it runs, not when it is compiled: a repository that was moved still finds itself.
        let xtask = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = xtask.as_deref().and_then(|xtask| xtask.parent()).ok_or_else(|| {
            Failure::Usage("cannot tell where the repository is; start it through cargo: `cargo xtask`".into())
        })?;
        let manifest = root.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).map_err(|error| Failure::io("read", &manifest, &error))?;
        Self::read(root.into(), &text)
    }

    fn read(root: PathBuf, toml: &str) -> Result<Self, Failure> {
        let strings = |section, key| {
            manifest::entry(toml, section, key)
                .map(|entry| entry.strings().into_iter().map(String::from).collect::<Vec<_>>())
                .filter(|strings| !strings.is_empty())
                .ok_or_else(|| Failure::Io(format!("Cargo.toml has no `{key} = ...` on one line under [{section}]")))
        };
        Ok(Self {
            root,
            version: strings("workspace.package", "version")?.concat(),
            rust_version: strings("workspace.package", "rust-version")?.concat(),
            members: strings("workspace", "members")?,
        })
    }

    /// The files a clone would have, plus those about to be added: relative, with forward slashes, sorted.
    pub(crate) fn tracked(&self) -> Result<Vec<String>, Failure> {
        let listing = Call::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .within(&self.root)
            .output()?;
        let paths: BTreeSet<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
        // A file deleted but not yet committed is still listed.
        Ok(paths.into_iter().filter(|path| self.root.join(path).is_file()).map(String::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_a_rust_version_is_refused_by_name() {
        let toml = "[workspace]\nmembers = [\"xtask\"]\n[workspace.package]\nversion = \"0.1.0\"\n";
        let failure = Workspace::read(PathBuf::new(), toml).err().unwrap();
        assert!(failure.to_string().contains("rust-version"), "{failure}");
    }

    #[test]
    fn members_spread_over_lines_are_refused_rather_than_lost() {
        let toml =
            "[workspace]\nmembers = [\n  \"xtask\",\n]\n[workspace.package]\nversion = \"1\"\nrust-version = \"1\"\n";
        let failure = Workspace::read(PathBuf::new(), toml).err().unwrap();
        assert!(failure.to_string().contains("members"), "{failure}");
    }
}
