//! Paths of somebody's machine: they tell who wrote the file, and they work nowhere else.

use std::path::Path;

use super::{Finding, TextFile};

/// What to look for on this machine and on any other. The words are put together at run time, so that this file does
/// not contain what it forbids.
pub(super) struct Needles {
    /// Folders of this machine, and the one home that has the same name everywhere.
    folders: Vec<String>,
    /// What holds the homes of users on any machine.
    homes: [String; 2],
}

impl Needles {
    pub(super) fn new(root: &Path, home: Option<&str>) -> Self {
        let root = root.to_string_lossy();
        let mut folders = vec![format!("/{}/", "root")];
        // A container that builds in `/src` or `/app` must not forbid every path and URL that starts like that.
        if root.matches(['/', '\\']).count() >= 2 {
            folders.push(root.into_owned());
        }
        let home = home.map(|home| home.trim_end_matches('/')).filter(|home| !home.is_empty());
        folders.extend(home.map(|home| format!("{home}/")));
        Self { folders, homes: ["home", "Users"].map(|folder| format!("/{folder}/")) }
    }

    pub(super) fn check(&self, file: &TextFile) -> Vec<Finding> {
        let lines = file.text.lines().zip(1..);
        let found = lines.filter_map(|(line, number)| Some((number, self.find(line)?)));
        found.map(|(number, path)| file.finding(number, format!("`{path}` is a path of one machine"), RIGHT)).collect()
    }

    fn find<'a>(&self, line: &'a str) -> Option<&'a str> {
        let is_whole = |needle: &str, behind: &str| needle.ends_with('/') || !behind.starts_with(in_name);
        let is_user = |_: &str, behind: &str| {
            let name = behind.find(|c| !in_name(c)).unwrap_or_default();
            name > 0 && behind[name..].starts_with('/')
        };
        let folder = self.folders.iter().find_map(|needle| absolute(line, needle, is_whole));
        let path = folder.or_else(|| self.homes.iter().find_map(|needle| absolute(line, needle, is_user)))?;
        path.split(|c: char| c.is_whitespace() || "\"'`)>".contains(c)).next()
    }
}

const RIGHT: &str = "write it relative to the repository";

/// The rest of the line from where `needle` begins a path, as opposed to going on with one, and `fits` what follows it.
fn absolute<'a>(line: &'a str, needle: &str, fits: impl Fn(&str, &str) -> bool) -> Option<&'a str> {
    let goes_on = |c: char| in_name(c) || "*}>~)]".contains(c);
    let places = line.match_indices(needle).map(|(offset, _)| line.split_at(offset));
    let mut paths = places.filter(|(before, _)| !before.ends_with(goes_on)).map(|(_, path)| path);
    paths.find(|path| fits(needle, &path[needle.len()..]))
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    #[track_caller]
    fn check_line(line: &str, is_found: bool) {
        let needles = Needles::new(Path::new("/srv/herd"), Some("/var/people/ann"));
        let expected: &[&str] = if is_found { &["a.txt:1: `/"] } else { &[] };
        check_found(&needles.check(&file("a.txt", line)), expected);
    }

    #[test]
    fn the_folder_of_this_checkout_is_reported() {
        check_line("see `/srv/herd/src/lib.rs`", true);
        check_line("cd /srv/herd", true);
    }

    #[test]
    fn the_home_of_this_user_is_reported() {
        check_line("log = \"/var/people/ann/herd.log\"", true);
    }

    #[test]
    fn homes_on_other_machines_are_reported() {
        for folder in ["home/bob", "Users/bob", "root"] {
            check_line(&format!("(file:///{folder}/x)"), true);
        }
    }

    #[test]
    fn longer_names_and_relative_paths_are_somebody_elses() {
        for line in ["/srv/herder", "a/srv/herd", "../var/people/ann/", "/var/people/anna/"] {
            check_line(line, false);
        }
        for folder in ["home/", "home/<name>/", "Users/{user}/", "homes/bob/"] {
            check_line(&format!("/{folder}"), false);
        }
        check_line(&format!("https://x.org/{}/", "root"), false);
    }

    #[test]
    fn a_checkout_at_the_top_of_a_container_does_not_forbid_every_path_like_it() {
        let needles = Needles::new(Path::new("/src"), None);
        check_found(&needles.check(&file("a.txt", "GET /src and crates/*/src")), &[]);
    }
}
