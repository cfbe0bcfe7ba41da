//! A chapter of the guide for each herd, written by its run.
//!
//! What a guide says of numbers is soon no longer so. Here the words are those at the head of the scenario's own file, and
//! everything else is what the run gives; a test holds `docs/herds` against it.

use std::{fmt::Write, time::Duration};

use super::{
    Report,
    html::said,
    millis,
    plot::{self, Frame, legend},
    tops,
};
use crate::page::{COLORS, Plain};

/// How many columns a picture has at most.
const COLUMNS: usize = 160;
const WIDTH: f64 = 800.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 12.0;
/// How high the picture of an arm is; that of a lane is half of it.
const HEIGHT: f64 = 84.0;
/// Room for a name above a picture, and for times below the last.
const ABOVE: f64 = 24.0;
const BELOW: f64 = 26.0;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#667}.name{fill:#1c1e21;font-weight:600}.bar{fill:#2f6fdb}\
                     .axis{stroke:#b8bdc6}.mark{stroke:#c2410c;stroke-dasharray:3 3}text.mark{fill:#c2410c;stroke:none}\
                     @media(prefers-color-scheme:dark){text{fill:#98a0ab}.name{fill:#e6e8eb}.bar{fill:#6ba1ff}.axis{stroke:#4a505a}\
                     .mark{stroke:#ff9d5c}text.mark{fill:#ff9d5c}}";

impl Report {
    /// The chapter: what it is about in these words, what was run, and what came of it. Its [drawing](Report::drawing) is a file
    /// beside it.
    pub fn chapter(&self, title: &str, about: &str) -> String {
        let mut text = format!("# {}\n\n*{title}*\n\n{}\n\n", self.scenario, about.trim());
        // Strings take everything.
        let _ = writeln!(text, "![{}]({}.svg)\n", self.caption(), self.scenario);
        if !self.marks.is_empty() {
            let marks: Vec<String> =
                self.marks.iter().map(|mark| format!("at {}: {}", said(mark.at), mark.what)).collect();
            let _ = writeln!(text, "Dashed lines, {}.\n", marks.join("; "));
        }
        let _ = writeln!(text, "In a sentence: {}\n\n## What was measured\n", Cell(&self.summary));
        let figures = self.arms.first().map_or(&[][..], |arm| &arm.figures);
        let titles: Vec<&str> = figures.iter().map(|figure| figure.title).collect();
        let _ = writeln!(text, "| arm | {} | shape |\n|---|{}---|", titles.join(" | "), "--:|".repeat(titles.len()));
        for arm in &self.arms {
            let values: Vec<String> = arm.figures.iter().map(|figure| figure.value.to_string()).collect();
            let _ = writeln!(text, "| {} | {} | {} |", Cell(&arm.title()), values.join(" | "), arm.shape.as_str());
        }
        let _ = writeln!(text, "\n## What is claimed\n\n| claim | by | expected | measured |\n|---|---|---|---|");
        for check in &self.checks {
            let by = [&[check.source.as_str()], &check.cites[..]].concat().join(", ");
            let got = if check.passed { check.got.clone() } else { format!("**{}**", check.got) };
            let _ = writeln!(text, "| {} | {by} | {} | {} |", Cell(&check.what), Cell(&check.expected), Cell(&got));
        }
        let _ = writeln!(text, "\n## What can be set\n\n| parameter | value |\n|---|---|");
        for parameter in &self.parameters {
            let _ = writeln!(text, "| {} | {} |", Cell(parameter.name), Cell(&parameter.value));
        }
        let _ = writeln!(text, "\nAgain, with the same bytes on every machine: `{}`", self.replay());
        text
    }

    /// What each arm did, one above another, as a picture that needs nothing but itself.
    pub fn drawing(&self) -> String {
        let end = self.end().max(Duration::from_nanos(1));
        let pictures = self.pictures_within(COLUMNS);
        let tops = tops(&pictures);
        let mut body = String::new();
        let mut y = 4.0;
        if self.names_of_tries().next().is_some() {
            let drawn = legend(self.names_of_tries(), Frame { left: LEFT, right: RIGHT, top: y });
            body.push_str(&drawn.svg);
            y = drawn.bottom + 4.0;
        }
        let width = pictures.iter().flatten().map(|(_, columns)| columns.len()).max().unwrap_or(1);
        for ((arm, lanes), tries) in self.arms.iter().zip(&pictures).zip(self.tries(width)) {
            for ((lane, columns), top) in lanes.iter().zip(&tops) {
                let height = if lane.is_empty() { HEIGHT } else { HEIGHT / 2.0 };
                let name = if lane.is_empty() { arm.name.to_owned() } else { format!("{}: {lane}", arm.name) };
                let _ = write!(body, "<text class=\"name\" x=\"{LEFT}\" y=\"{:.0}\">{}</text>", y + 14.0, Plain(&name));
                let layers = if tries.is_empty() { std::slice::from_ref(columns) } else { &tries[..] };
                body.push_str(&self.bars(layers, *top, end, y + ABOVE, height));
                y += ABOVE + height;
            }
        }
        body.push_str(&self.axis(pictures.first().and_then(|lanes| lanes.first()).map_or(1, |(_, all)| all.len()), y));
        y += BELOW;
        for (title, _, draw) in plot::ALL {
            if let Some(drawn) = draw(self, Frame { left: LEFT, right: RIGHT, top: y + ABOVE }) {
                let _ = write!(body, "<text class=\"name\" x=\"{LEFT}\" y=\"{:.0}\">{title}</text>", y + 18.0);
                body.push_str(&drawn.svg);
                y = drawn.bottom;
            }
        }
        let (caption, colors) = (self.caption(), if body.contains("class=\"fill ") { COLORS } else { "" });
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\"><title>{}</title>\
             <style>{STYLE}{colors}</style>{body}</svg>\n",
            y,
            Plain(&caption)
        )
    }

    /// Columns as one line around all of them, or around each layer of them, and what happened meanwhile.
    fn bars(&self, layers: &[Vec<u64>], top: u64, end: Duration, above: f64, height: f64) -> String {
        let floor = above + height;
        let columns = layers.first().map_or(1, Vec::len).max(1);
        let wide = (RIGHT - LEFT) / columns as f64;
        let mut svg = String::new();
        // The highest first: each covers what is below its own part.
        for nth in (0..layers.len()).rev() {
            let class = if layers.len() == 1 { "bar".to_owned() } else { format!("fill c{}", nth % plot::COLORS) };
            let mut path = format!("M{LEFT} {floor}");
            for at in 0..columns {
                let count: u64 = layers[..=nth].iter().filter_map(|layer| layer.get(at)).sum();
                // Any count at all shows.
                let high = if count == 0 { 0.0 } else { (height * count as f64 / top as f64).max(1.0) };
                let _ = write!(path, "V{:.1}H{:.1}", floor - high, LEFT + wide * (at + 1) as f64);
            }
            let _ = write!(svg, "<path class=\"{class}\" d=\"{path}V{floor}Z\"/>");
        }
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {floor}H{RIGHT}\"/>\
             <text x=\"{0}\" y=\"{1:.0}\" text-anchor=\"end\">{top}</text><text x=\"{0}\" y=\"{floor}\" text-anchor=\"end\">0</text>",
            LEFT - 6.0,
            above + 10.0,
        );
        for mark in &self.marks {
            let x = LEFT + (RIGHT - LEFT) * (millis(mark.at) / millis(end)).min(1.0);
            let _ = write!(
                svg,
                "<path class=\"mark\" d=\"M{x:.1} {above}V{floor}\"><title>{}</title></path>",
                Plain(mark.what)
            );
        }
        svg
    }

    fn axis(&self, columns: usize, floor: f64) -> String {
        let mut svg = String::new();
        for (at, word) in self.words(columns) {
            let x = LEFT + (RIGHT - LEFT) * at;
            let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{word}</text>", floor + 17.0);
        }
        svg
    }
}

/// Text in a table of Markdown.
struct Cell<'a>(&'a str);

impl std::fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for letter in self.0.chars() {
            if matches!(letter, '|' | '<' | '*' | '_') {
                f.write_char('\\')?;
            }
            f.write_char(letter)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{Arm, Scenario, Settings, Watch, all};

    /// The code that the articles print.
    const SAMPLES: [(&str, &str); 15] = [
        ("C1", "retries at once, with backoff and with full jitter, in Go"),
        ("C2", "singleflight in 25 lines"),
        ("C3", "what Go's singleflight gives its callers"),
        ("C4", "what becomes of a load that panics"),
        ("C5", "a caller that walks away from a load"),
        ("C6", "keys that are too coarse or too fine"),
        ("C7", "a mutex for each key"),
        ("C8", "a cache with one load at a time, which is good from before the load on"),
        ("C9", "backoff with jitter from a generator with a seed"),
        ("C10", "a cache with a soft and a hard TTL"),
        ("C11", "reconnecting with backoff, ten times"),
        ("C12", "a lock in Redis, waited for by asking"),
        ("C13", "stale while revalidating"),
        ("C14", "early refresh by dice (XFetch)"),
        ("C15", "cache aside with singleflight"),
    ];

    /// Which arms do as the samples do.
    fn autopsies(arms: &[(&Scenario, Vec<Arm>)]) -> String {
        let mut text = String::from(
            "\n## Autopsies\n\nThe code that the articles print is run here too. What is wrong with it is among the claims of the \
             chapter.\n\n| sample | what it is | shown by |\n|---|---|---|\n",
        );
        for (sample, what) in SAMPLES {
            let shown = arms.iter().flat_map(|(scenario, arms)| {
                let arms = arms.iter().filter(|arm| arm.samples.contains(&sample));
                arms.map(|arm| format!("[{0}]({0}.md): {1}", scenario.name, arm.name))
            });
            let shown = shown.collect::<Vec<_>>().join("; ");
            let _ = writeln!(text, "| {sample} | {what} | {shown} |");
        }
        text
    }

    /// What a scenario's file says of itself.
    fn about(scenario: &Scenario) -> String {
        let file = format!("src/scenario/{}.rs", scenario.name.replace('-', "_"));
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let words = source
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line));
        words.flat_map(|line| [line, "\n"]).collect()
    }

    /// A guide that says what was so last year is worse than none.
    #[test]
    fn every_chapter_is_what_its_run_gives_today() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/herds");
        let writes = std::env::var_os("HERDPROOF_WRITE_REFERENCE").is_some();
        let check = |name: String, text: &str| {
            let path = folder.join(&name);
            if writes {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, text).unwrap();
            }
            let kept = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                kept == text,
                "docs/herds/{name} is not what the run gives; write it anew with HERDPROOF_WRITE_REFERENCE=1 cargo test -p \
                 herdproof-lab every_chapter"
            );
        };
        let mut index = String::from(
            "# The herds\n\nA chapter for each experiment of the lab, written by its run. How to run them: \
             [the lab](../guide/lab.md).\n\n",
        );
        for scenario in all() {
            let _ = writeln!(index, "- [{0}]({0}.md): {1}", scenario.name, scenario.title);
        }
        let scenarios: Vec<&Scenario> = all().iter().collect();
        let arms = Watch::default().each(&scenarios, |scenario| {
            let report = scenario.run(&Settings::new(0));
            assert!(report.passed(), "{}: {:#?}", scenario.name, report.checks);
            check(format!("{}.md", scenario.name), &report.chapter(scenario.title, &about(scenario)));
            check(format!("{}.svg", scenario.name), &report.drawing());
            (*scenario, report.arms)
        });
        index.push_str(&autopsies(&arms.into_iter().flatten().collect::<Vec<_>>()));
        check("README.md".into(), &index);
        let known = |name: &str| name == "README" || all().iter().any(|scenario| scenario.name == name);
        for file in fs::read_dir(&folder).unwrap() {
            let name = file.unwrap().path();
            let stem = name.file_stem().unwrap().to_str().unwrap().to_owned();
            assert!(known(&stem), "docs/herds/{stem} is about no scenario");
        }
    }
}
