//! Modules of the library stand in rows, and a module uses only rows below its own. `ARCHITECTURE.md` draws the rows;
//! without a check the drawing is wrong within a month.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::markdown::{self, Place};
use super::{Finding, LIBRARY, TextFile, line_at, source};

const DRAWING: &str = "ARCHITECTURE.md";

pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    let modules: Vec<(&str, &TextFile)> =
        files.iter().filter_map(|file| Some((module_of(&file.path)?, file))).collect();
    let Some((_, first)) = modules.first() else { return Vec::new() };
    let Some(drawing) = files.iter().find(|file| file.path == DRAWING) else {
        return vec![first.finding(1, format!("there is no {DRAWING}"), "draw the rows of modules there")];
    };
    let (rows, mut findings) = Rows::read(drawing);
    if rows.depth.is_empty() {
        findings.push(drawing.finding(1, "it draws no rows", "add a fenced block marked `text rows`"));
        return findings;
    }
    let mut without_row = BTreeSet::new();
    let mut level = Edges::new();
    for (module, file) in modules {
        if !rows.depth.contains_key(module) {
            if without_row.insert(module) {
                findings.push(file.finding(
                    1,
                    format!("module `{module}` is in no row"),
                    format!("add it to {DRAWING}"),
                ));
            }
        } else if !source::is_test_file(&file.path) {
            for (line, used) in uses(&source::code(&file.text)) {
                match rows.judge(module, &used) {
                    Use::Fine => {}
                    Use::Level => {
                        level.entry(module.into()).or_default().entry(used).or_insert((file, line));
                    }
                    Use::Wrong(wrong, right) => findings.push(file.finding(line, wrong, right)),
                }
            }
        }
    }
    findings.extend(cycles(&level));
    findings
}

/// `cache` for `crates/herdproof/src/cache.rs` and for everything below `crates/herdproof/src/cache/`.
fn module_of(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(LIBRARY)?.strip_suffix(".rs")?;
    let name = inside.split('/').next()?;
    (name != "lib").then_some(name)
}

struct Rows {
    /// How far from the top each module stands, from 0.
    depth: BTreeMap<String, usize>,
    names: Vec<String>,
}

enum Use {
    Fine,
    /// Within the lowest row, where modules may use each other, though not in a circle.
    Level,
    Wrong(String, String),
}

impl Rows {
    fn read(drawing: &TextFile) -> (Self, Vec<Finding>) {
        let mut rows = Self { depth: BTreeMap::new(), names: Vec::new() };
        let mut findings = Vec::new();
        for line in markdown::lines(&drawing.text).into_iter().filter(|line| line.place == Place::Code("text rows")) {
            let mut words = line.text.split_whitespace().filter(|word| !word.starts_with('('));
            let Some(name) = words.next() else { continue };
            for module in words {
                if rows.depth.insert(module.into(), rows.names.len()).is_some() {
                    let wrong = format!("module `{module}` is drawn twice");
                    findings.push(drawing.finding(line.number, wrong, "keep it in one row"));
                }
            }
            rows.names.push(name.into());
        }
        (rows, findings)
    }

    fn judge(&self, module: &str, used: &str) -> Use {
        if used == "*" || used.starts_with(char::is_uppercase) {
            let wrong = format!("`crate::{used}` does not say which module is used");
            return Use::Wrong(wrong, "inside the library, name the module and not its re-export".into());
        }
        let Some((&own, &other)) = self.depth.get(module).zip(self.depth.get(used)) else {
            return Use::Wrong(format!("`crate::{used}` is in no row"), format!("use a module drawn in {DRAWING}"));
        };
        let ground = self.names.len() - 1;
        if module == used || own < other {
            Use::Fine
        } else if own == ground && other == ground {
            Use::Level
        } else {
            let wrong = format!("`{module}` ({}) uses `{used}` ({})", self.names[own], self.names[other]);
            Use::Wrong(wrong, "a module uses only rows below its own".into())
        }
    }
}

/// The first name behind every `crate::`, also inside braces, with its line.
fn uses(code: &str) -> Vec<(usize, String)> {
    let mut uses = Vec::new();
    for start in source::words(code, "crate::") {
        for offset in heads(code, start + "crate::".len()) {
            let rest = &code[offset..];
            let name = if rest.starts_with('*') { "*" } else { identifier(rest) };
            let is_macro = rest[name.len()..].starts_with('!');
            if !name.is_empty() && name != "self" && !is_macro {
                uses.push((line_at(code, offset), name.into()));
            }
        }
    }
    uses
}

/// Where the names behind `crate::` start: one, or each first one within the braces.
fn heads(code: &str, start: usize) -> Vec<usize> {
    let mut heads = Vec::new();
    let (mut depth, mut expecting) = (0, true);
    for (offset, c) in code[start..].char_indices() {
        match c {
            _ if c.is_whitespace() => {}
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => expecting = true,
            _ if expecting => {
                heads.push(start + offset);
                expecting = false;
            }
            _ => {}
        }
        if depth == 0 && (c == '}' || !expecting) {
            break;
        }
    }
    heads
}

fn identifier(text: &str) -> &str {
    &text[..text.find(|c| !source::is_identifier(c)).unwrap_or(text.len())]
}

/// Who uses whom in the lowest row, and where.
type Edges<'a> = BTreeMap<String, BTreeMap<String, (&'a TextFile, usize)>>;

/// The shortest circle through each module that is the first by name in it.
fn cycles(edges: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (start, targets) in edges {
        if let Some(path) = way_back(edges, start) {
            let (file, line) = targets[path[1]];
            let circle = format!("modules use each other in a circle: {}", path.join(" -> "));
            findings.push(file.finding(line, circle, "move what they share to one of them"));
        }
    }
    findings
}

fn way_back<'a>(edges: &'a Edges, start: &'a str) -> Option<Vec<&'a str>> {
    let mut paths = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        let targets = path.last().and_then(|last| edges.get(*last)).into_iter().flat_map(BTreeMap::keys);
        for target in targets {
            let longer = || path.iter().copied().chain([target.as_str()]).collect();
            if target == start {
                return Some(longer());
            }
            // A circle through a smaller name is told there.
            if target.as_str() > start && seen.insert(target) {
                paths.push_back(longer());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_found, file};
    use super::*;

    const DRAWN: &str = "# Rows\n\n```text rows\n adapters  layer (tower)  blocking\n policies  flight  retry\n ground    env  gate  event\n```\n";

    #[track_caller]
    fn check_rows(modules: &[(&str, &str)], expected: &[&str]) {
        let mut files =
            vec![file("ARCHITECTURE.md", DRAWN), file("crates/herdproof/src/lib.rs", "use crate::nothing;")];
        files.extend(modules.iter().map(|(name, text)| file(&format!("crates/herdproof/src/{name}"), text)));
        check_found(&check(&files), expected);
    }

    #[test]
    fn a_module_that_reaches_up_is_reported() {
        let wrong = "crates/herdproof/src/env.rs:2: `env` (ground) uses `flight` (policies)";
        check_rows(&[("env.rs", "\nuse crate::flight::Flight;")], &[wrong]);
    }

    #[test]
    fn a_module_that_reaches_down_is_fine() {
        check_rows(&[("layer.rs", "use crate::{env, flight::Flight};"), ("flight/map.rs", "crate::flight::x()")], &[]);
    }

    #[test]
    fn a_neighbour_in_the_same_row_is_reported() {
        let wrong = "crates/herdproof/src/retry/loop.rs:1: `retry` (policies) uses `flight` (policies)";
        check_rows(&[("retry/loop.rs", "fn f() { crate::flight::go() }")], &[wrong]);
    }

    #[test]
    fn nothing_hides_inside_braces() {
        let source = "use crate::{\n    env::{Clock, gate},\n    layer::{self, Layer},\n    Env,\n};";
        let expected = [
            "crates/herdproof/src/retry.rs:3: `retry` (policies) uses `layer`",
            "crates/herdproof/src/retry.rs:4: `crate::Env`",
        ];
        check_rows(&[("retry.rs", source)], &expected);
    }

    #[test]
    fn a_reexport_hides_the_module_and_is_reported() {
        let expected = ["crates/herdproof/src/retry.rs:1: `crate::Env`", "crates/herdproof/src/retry.rs:1: `crate::*`"];
        check_rows(&[("retry.rs", "fn f(env: crate::Env) {} use crate::*;")], &expected);
    }

    #[test]
    fn ground_modules_may_use_each_other() {
        check_rows(&[("env.rs", "use crate::gate;"), ("gate.rs", "use crate::event;")], &[]);
    }

    #[test]
    fn a_circle_on_the_ground_is_reported_once() {
        let wrong = "crates/herdproof/src/env.rs:1: modules use each other in a circle: env -> gate -> event -> env";
        let modules =
            [("env.rs", "use crate::gate;"), ("gate.rs", "use crate::event;"), ("event.rs", "use crate::env;")];
        check_rows(&modules, &[wrong]);
    }

    #[test]
    fn a_module_that_nobody_drew_is_reported_once() {
        let expected = ["crates/herdproof/src/topic.rs:1: module `topic` is in no row"];
        check_rows(&[("topic.rs", ""), ("topic/bus.rs", "use crate::layer;")], &expected);
    }

    #[test]
    fn comments_strings_tests_macros_and_visibilities_are_no_uses() {
        let source = "// crate::layer\nconst S: &str = \"crate::layer\";\npub(crate) fn f() { crate::trace!() }\n\
            #[cfg(test)]\nmod tests { use crate::layer; }\npub(in crate::env) fn g() {}";
        check_rows(&[("env.rs", source), ("env/tests.rs", "use crate::layer;")], &[]);
    }

    #[test]
    fn a_module_drawn_twice_is_reported() {
        let drawn = file("ARCHITECTURE.md", "```text rows\n high  env\n low  env\n```\n");
        let files = [drawn, file("crates/herdproof/src/env.rs", "")];
        check_found(&check(&files), &["ARCHITECTURE.md:3: module `env` is drawn twice"]);
    }

    #[test]
    fn a_lost_drawing_does_not_switch_the_check_off() {
        let module = || file("crates/herdproof/src/env.rs", "");
        check_found(&check(&[module()]), &["crates/herdproof/src/env.rs:1: there is no ARCHITECTURE.md"]);
        check_found(&check(&[file("ARCHITECTURE.md", "# Rows\n"), module()]), &["ARCHITECTURE.md:1: it draws no rows"]);
    }
}
