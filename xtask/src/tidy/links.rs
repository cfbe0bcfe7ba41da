//! Relative links in documents lead to files that a clone has, and their anchors to headings that are there.

use std::collections::{BTreeMap, BTreeSet};

use super::markdown::{self, Place};
use super::{Finding, TextFile};

/// `tracked` are all files of the repository, pictures included.
pub(super) fn check(files: &[TextFile], tracked: &[String]) -> Vec<Finding> {
    let documents: Vec<&TextFile> = files.iter().filter(|file| file.is_markdown()).collect();
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|file| (file.path.as_str(), anchors(&file.text))).collect();
    let mut findings = Vec::new();
    for file in documents {
        for (line, link) in links(&file.text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let Some(target) = resolve(&file.path, path).filter(|target| exists(tracked, target)) else {
                findings.push(file.finding(
                    line,
                    format!("`{link}` leads nowhere"),
                    "link to a file of the repository",
                ));
                continue;
            };
            let known = anchors.get(target.as_str());
            if !anchor.is_empty() && known.is_some_and(|known| !known.contains(anchor)) {
                let wrong = format!("{target} has no heading `#{anchor}`");
                findings.push(file.finding(line, wrong, "link to a heading that is there"));
            }
        }
    }
    findings
}

/// The relative targets of `[text](target)` with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for line in markdown::lines(text).into_iter().filter(|line| line.place == Place::Prose) {
        let prose = markdown::without_code(line.text);
        for (start, opening) in prose.match_indices("](") {
            let target = target(&prose[start + opening.len()..]);
            if !target.is_empty() && !is_elsewhere(target) {
                links.push((line.number, target.to_owned()));
            }
        }
    }
    links
}

/// Up to the closing parenthesis, without a title and without angle brackets.
fn target(rest: &str) -> &str {
    if let Some(rest) = rest.strip_prefix('<') {
        return rest.split('>').next().unwrap_or(rest);
    }
    let mut depth = 0;
    let end = rest.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth < 0 || c == ' '
    });
    &rest[..end.unwrap_or(rest.len())]
}

/// A scheme such as `https:` or `mailto:` comes before any slash.
fn is_elsewhere(target: &str) -> bool {
    target.starts_with("//") || target.split(['/', '#']).next().is_some_and(|first| first.contains(':'))
}

/// The path from the root, or nothing when it leaves the repository. A leading slash means the root, as on GitHub.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.is_empty() {
        return Some(from.into());
    }
    let mut parts: Vec<&str> = if link.starts_with('/') { Vec::new() } else { from.split('/').collect() };
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn exists(tracked: &[String], target: &str) -> bool {
    let is_below = |path: &String| path.strip_prefix(target).is_some_and(|rest| rest.starts_with('/'));
    target.is_empty() || tracked.iter().any(|path| path == target || is_below(path))
}

/// What may stand behind `#`: slugs of headings, and ids set by hand.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in markdown::lines(text).into_iter().filter(|line| line.place == Place::Prose) {
        if let Some(heading) = markdown::heading(line.text) {
            let slug = slug(heading);
            let numbered = (1..).map(|number| format!("{slug}-{number}"));
            let free = std::iter::once(slug.clone()).chain(numbered).find(|slug| !anchors.contains(slug));
            anchors.extend(free);
        }
        let by_hand = line.text.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(by_hand.map(String::from));
    }
    anchors
}

/// As GitHub makes it: the words as shown, in lower case, spaces to hyphens, other signs dropped.
fn slug(heading: &str) -> String {
    let shown = without_targets(heading);
    let kept = shown.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// `[text](target)` shows as `text`.
fn without_targets(heading: &str) -> String {
    let mut shown = String::new();
    let mut rest = heading;
    while let Some((before, behind)) = rest.split_once("](") {
        shown += before;
        rest = behind.get(target(behind).len() + 1..).unwrap_or_default();
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    #[track_caller]
    fn check_links(text: &str, expected: &[&str]) {
        let other = file("docs/other.md", "# Other page\n## Twice\n## Twice\n<a id=\"by-hand\"></a>\n");
        let files = [file("docs/guide/page.md", text), other];
        let tracked = ["README.md", "docs/guide/page.md", "docs/guide/herd.svg", "docs/other.md"].map(String::from);
        check_found(&check(&files, &tracked), expected);
    }

    #[test]
    fn a_link_to_a_file_that_is_gone_is_reported() {
        let expected = ["docs/guide/page.md:2: `../gone.md` leads nowhere", "docs/guide/page.md:2: `gone.svg` leads"];
        check_links("\n[a](../gone.md) ![b](gone.svg)\n", &expected);
    }

    #[test]
    fn links_to_files_folders_and_the_root_are_fine() {
        check_links(
            "[a](../other.md) ![b](herd.svg \"title\") [c](../guide/) [d](/README.md) [e](<../other.md>)\n",
            &[],
        );
    }

    #[test]
    fn a_link_out_of_the_repository_is_reported() {
        check_links("[a](../../../README.md)\n", &["docs/guide/page.md:1: `../../../README.md` leads nowhere"]);
    }

    #[test]
    fn a_heading_that_was_renamed_is_reported() {
        let expected = [
            "docs/guide/page.md:1: docs/other.md has no heading `#old-name`",
            "docs/guide/page.md:1: docs/guide/page.md has no",
        ];
        check_links("[a](../other.md#old-name) [b](#nowhere)\n", &expected);
    }

    #[test]
    fn anchors_follow_the_rules_of_github() {
        let text = "# What's `new` in [v2](../other.md)? A_b - c\n[a](#whats-new-in-v2-a_b---c)\n\
            [b](../other.md#twice-1) [c](../other.md#by-hand) [d](../other.md#other-page)\n";
        check_links(text, &[]);
        check_links("[a](../other.md#twice-2)\n", &["docs/guide/page.md:1: docs/other.md has no heading `#twice-2`"]);
    }

    #[test]
    fn code_and_the_web_are_not_followed() {
        check_links("`[a](gone)` [b](https://x.org/gone) [c](mailto:a@x.org)\n```\n[d](gone)\n```\n", &[]);
    }

    #[test]
    fn parentheses_inside_a_target_belong_to_it() {
        check_links("([a](gone_(1).md))\n", &["docs/guide/page.md:1: `gone_(1).md` leads nowhere"]);
    }
}
