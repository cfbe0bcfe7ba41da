//! Just enough TOML to read our own manifests and the snippets in our documents.
//!
//! One entry per line, sections in brackets. Arrays and tables spread over lines are not understood; the callers say so
//! instead of guessing.

/// One `key = value` line, with the section it stands in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) section: &'a str,
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl<'a> Entry<'a> {
    /// The strings in the value, in order: one for `"1.95"`, two for `["crates/*", "xtask"]`.
    pub(crate) fn strings(&self) -> Vec<&'a str> {
        self.value.split('"').skip(1).step_by(2).collect()
    }
}

pub(crate) fn entries(toml: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    toml.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[') {
            section = name.split(']').next().unwrap_or(name);
            return None;
        }
        let (key, value) = line.split_once('=')?;
        Some(Entry { section, key: key.trim(), value: value.trim(), line: index + 1 })
    })
}

pub(crate) fn entry<'a>(toml: &'a str, section: &str, key: &str) -> Option<Entry<'a>> {
    entries(toml).find(|entry| entry.section == section && entry.key == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_section_is_not_mistaken_for_ours() {
        let toml = "[package]\nversion = \"9.9.9\"\n\n[workspace.package]\nversion = \"0.1.0\"\n";
        let found = entry(toml, "workspace.package", "version").unwrap();
        assert_eq!((found.strings(), found.line), (vec!["0.1.0"], 5));
    }

    #[test]
    fn a_commented_out_entry_does_not_count() {
        assert_eq!(entry("[lints]\n# workspace = true\n", "lints", "workspace"), None);
    }

    #[test]
    fn every_string_of_a_list_is_read() {
        let found = entry("[workspace]\nmembers = [\"crates/*\", \"xtask\"]\n", "workspace", "members").unwrap();
        assert_eq!(found.strings(), ["crates/*", "xtask"]);
    }
}
