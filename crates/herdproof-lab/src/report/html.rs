//! The report as one page that needs nothing else: no server, no network, no script.

use std::{
    fmt::{self, Write},
    time::Duration,
};

use herdproof_proxy::settings::show_time;

use super::{
    Report, Steps, millis,
    plot::{self, Drawn, Frame, legend},
    tops,
};
use crate::page::{Plain, close, open};

/// How many bars a picture has at most.
const BARS: usize = 240;
/// A picture's size, in the units of the drawing.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 120.0;
const RIGHT: f64 = WIDTH - 8.0;
/// What is left of the bars, for the numbers of the axis, and above them, for each row of marks.
const LEFT: f64 = 64.0;
const ABOVE: f64 = 14.0;
const BELOW: f64 = 22.0;
/// How many words there are on an axis, about.
const TICKS: f64 = 8.0;

/// A report that prints itself as a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a>(pub(super) &'a Report);

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let name = Plain(report.scenario);
        open(f, &format!("{name}: herdproof lab"))?;
        write!(
            f,
            "<h1>{name}</h1>\n<p class=\"soft\">herdproof lab, in virtual time with the real library</p>\n\
             <p class=\"summary\">{}</p>\n",
            Plain(&report.summary)
        )?;
        self.arms(f)?;
        self.pictures(f)?;
        self.plots(f)?;
        self.checks(f)?;
        self.parameters(f)?;
        close(f, &report.replay())
    }
}

impl Page<'_> {
    fn arms(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>Arms</h2>\n<div class=\"wide\"><table><thead><tr><th>arm</th>")?;
        for figure in self.0.arms.first().iter().flat_map(|arm| &arm.figures) {
            write!(f, "<th>{}</th>", Plain(figure.title))?;
        }
        f.write_str("<th>calls over time</th></tr></thead><tbody>\n")?;
        for arm in &self.0.arms {
            write!(f, "<tr><td>{}</td>", Plain(&arm.title()))?;
            for figure in &arm.figures {
                write!(f, "<td>{}</td>", figure.value)?;
            }
            writeln!(f, "<td>{}</td></tr>", Plain(arm.shape.as_str()))?;
        }
        f.write_str("</tbody></table></div>\n")
    }

    pub(crate) fn pictures(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.end().max(Duration::from_nanos(1));
        let pictures = self.0.pictures_within(BARS);
        let tops = tops(&pictures);
        let bars = pictures.iter().flatten().map(|(_, columns)| columns.len()).max().unwrap_or(1).max(1);
        let bar = match self.0.steps {
            None => format!("{:.1} ms", millis(end) / bars as f64),
            Some(Steps { step, .. }) => step.to_string(),
        };
        let scale = if tops.len() < 2 { "All on one scale" } else { "Each layer on one scale for all arms" };
        writeln!(f, "<h2>{}</h2>\n<p class=\"soft\">{scale}; a bar is {bar}.</p>", Plain(&self.0.caption()))?;
        if self.0.names_of_tries().next().is_some() {
            let Drawn { svg, bottom } = legend(self.0.names_of_tries(), FRAME);
            writeln!(f, "<div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {}\">{svg}</svg></div>", bottom + 4.0)?;
        }
        for ((arm, lanes), tries) in self.0.arms.iter().zip(&pictures).zip(self.0.tries(bars)) {
            // On a narrow screen a picture is moved sideways rather than too small to read.
            writeln!(f, "<h3>{}</h3>\n<div class=\"wide\">", Plain(&arm.title()))?;
            for (nth, ((lane, columns), top)) in lanes.iter().zip(&tops).enumerate() {
                // Lanes are lower, so that all of an arm are seen at once.
                let height = if lane.is_empty() { HEIGHT } else { HEIGHT / 2.0 };
                if !lane.is_empty() {
                    writeln!(f, "<p class=\"soft\">{}</p>", Plain(lane))?;
                }
                let label = if lane.is_empty() { arm.shape.as_str() } else { lane };
                let label = format!("{}: {}", Plain(arm.name), Plain(label));
                let layers = if tries.is_empty() { std::slice::from_ref(columns) } else { &tries[..] };
                let picture = Picture { report: self.0, layers, top: *top, end, high: height, is_first: nth == 0 };
                writeln!(f, "{}", picture.draw(&label))?;
            }
            f.write_str("</div>\n")?;
        }
        Ok(())
    }

    /// What is shown of all arms at once.
    pub(crate) fn plots(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, about, draw) in plot::ALL {
            if let Some(Drawn { svg, bottom }) = draw(self.0, FRAME) {
                writeln!(
                    f,
                    "<h2>{title}</h2>\n<p class=\"soft\">{about}</p>\n<div class=\"wide\">\
                     <svg viewBox=\"0 0 {WIDTH} {bottom}\" role=\"img\" aria-label=\"{title}\">{svg}</svg></div>"
                )?;
            }
        }
        Ok(())
    }

    fn checks(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>Checks</h2>\n")?;
        if self.0.is_changed() {
            f.write_str("<p>They are about other parameters than these: what does not hold has not failed.</p>\n")?;
        }
        f.write_str(
            "<div class=\"wide\"><table><thead><tr><th>claim</th><th>by</th><th class=\"words\">expected</th><th class=\"words\">got</th><th></th></tr></thead><tbody>\n",
        )?;
        for check in &self.0.checks {
            let (class, word) = match (check.passed, self.0.is_changed()) {
                (true, _) => ("good", "holds"),
                (false, true) => ("soft", "does not hold"),
                (false, false) => ("bad", "failed"),
            };
            writeln!(
                f,
                "<tr><td class=\"words\">{}</td><td>{}</td><td class=\"words\">{}</td><td class=\"words\">{}</td>\
                 <td class=\"{class}\">{word}</td></tr>",
                Plain(&check.what),
                Plain(check.source.as_str()),
                Plain(&check.expected),
                Plain(&check.got),
            )?;
        }
        f.write_str("</tbody></table></div>\n")
    }

    pub(crate) fn parameters(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<h2>Parameters</h2>\n<div class=\"wide\"><table><tbody>\n")?;
        for parameter in &self.0.parameters {
            writeln!(
                f,
                "<tr><td>{}</td><td class=\"words\">{}</td></tr>",
                Plain(parameter.name),
                Plain(&parameter.value)
            )?;
        }
        writeln!(f, "<tr><td>seed</td><td class=\"words\">{}</td></tr>\n</tbody></table></div>", self.0.seed)
    }
}

const FRAME: Frame = Frame { left: LEFT, right: RIGHT, top: 0.0 };

/// Calls over time, or over steps.
struct Picture<'a> {
    report: &'a Report,
    /// What is in each column, one upon another: all calls, or those of each try.
    layers: &'a [Vec<u64>],
    /// What fills it.
    top: u64,
    end: Duration,
    high: f64,
    /// Whether it says what its marks are.
    is_first: bool,
}

impl Picture<'_> {
    fn draw(&self, label: &str) -> String {
        let x = |time: Duration| LEFT + (RIGHT - LEFT) * (millis(time) / millis(self.end)).min(1.0);
        let marks: Vec<(f64, &str)> = self.report.marks.iter().map(|mark| (x(mark.at), mark.what)).collect();
        let (places, rows) = if self.is_first { plot::rows(&marks, RIGHT) } else { (Vec::new(), 0) };
        let above = ABOVE * rows as f64 + 4.0;
        let floor = above + self.high;
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{label}\">", floor + BELOW);
        // Strings take everything.
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{RIGHT}\" y2=\"{floor}\"/>\
             <text x=\"{0}\" y=\"{1}\" text-anchor=\"end\">{2}</text>\
             <text x=\"{0}\" y=\"{floor}\" text-anchor=\"end\">0</text>",
            LEFT - 6.0,
            above + 10.0,
            self.top,
        );
        self.bars(&mut svg, floor);
        let columns = self.layers.first().map_or(1, Vec::len);
        for (share, word) in self.report.words(columns) {
            let at = LEFT + (RIGHT - LEFT) * share;
            let _ = write!(
                svg,
                "<line class=\"axis\" x1=\"{at:.1}\" y1=\"{floor}\" x2=\"{at:.1}\" y2=\"{}\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"{}\">{word}</text>",
                floor + 4.0,
                floor + 16.0,
                if share > 0.99 { "end" } else { "middle" },
            );
        }
        for (at, _) in &marks {
            let _ = write!(svg, "<line class=\"mark\" x1=\"{at:.1}\" y1=\"{above}\" x2=\"{at:.1}\" y2=\"{floor}\"/>");
        }
        for ((at, what), (row, ends)) in marks.iter().zip(places) {
            let anchor = if ends { "end" } else { "start" };
            // The first row is next to the picture.
            let y = above - 5.0 - ABOVE * row as f64;
            let _ = write!(
                svg,
                "<text class=\"mark\" x=\"{at:.1}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>",
                Plain(what),
            );
        }
        svg.push_str("</svg>");
        svg
    }

    fn bars(&self, svg: &mut String, floor: f64) {
        let columns = self.layers.first().map_or(1, Vec::len).max(1);
        let bar = (RIGHT - LEFT) / columns as f64;
        let mut below = vec![0.0; columns];
        for (nth, layer) in self.layers.iter().enumerate() {
            let (class, of) = match self.layers.len() {
                1 => ("bar".to_owned(), String::new()),
                _ => (format!("fill c{}", nth % plot::COLORS), format!(" of try {}", nth + 1)),
            };
            for (at, count) in layer.iter().enumerate().filter(|(_, count)| **count > 0) {
                // Any count at all shows.
                let height = (self.high * *count as f64 / self.top as f64).max(1.0);
                below[at] += height;
                let place = match self.report.steps {
                    None => format!("from {:.1} ms", millis(self.end) / columns as f64 * at as f64),
                    Some(Steps { step, .. }) => format!("at {}", step * (at + 1) as f64),
                };
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{height:.2}\">\
                     <title>{count}{of} {place}</title></rect>",
                    LEFT + bar * at as f64,
                    floor - below[at],
                    (bar - 0.5).max(0.5),
                );
            }
        }
    }
}

/// A time on an axis.
pub(super) fn said(tick: Duration) -> String {
    if tick.is_zero() { "0".to_owned() } else { show_time(tick) }
}

/// Round times from zero on, up to the end.
pub(super) fn ticks(end: Duration) -> Vec<Duration> {
    const ROUND: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];
    const ROUNDER: [u64; 10] =
        [20_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 86_400_000];
    let wanted = millis(end) / TICKS;
    let step = ROUND.into_iter().chain(ROUNDER).find(|step| *step as f64 >= wanted).unwrap_or(7 * 86_400_000);
    let step = Duration::from_millis(step);
    let mut ticks: Vec<Duration> = vec![Duration::ZERO];
    while let Some(last) = ticks.last().filter(|last| **last + step <= end && ticks.len() < 100) {
        ticks.push(*last + step);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Settings, all,
        report::{Arm, Check, Lane, Source},
        timeline::Timeline,
    };
    use herdproof::Tick;

    #[test]
    fn what_was_measured_is_text_and_not_markup() {
        let checks = vec![Check::equal(Source::Article, "<script>", &1, &1)];
        let page = Report { checks, summary: "a < b && \"c\"".into(), ..Report::default() }.page().to_string();
        assert!(page.contains("&lt;script&gt;") && page.contains("a &lt; b &amp;&amp; &quot;c&quot;"), "{page}");
    }

    #[test]
    fn every_scenario_makes_a_page_that_asks_nobody_for_anything() {
        for scenario in
            all().iter().filter(|scenario| ["retry-wall", "hot-key", "cron", "goodput"].contains(&scenario.name))
        {
            let report = scenario.run(&Settings::new(42));
            let page = report.page().to_string();
            assert!(
                !page.contains("http:") && !page.contains("https:") && !page.contains("<script"),
                "{}",
                scenario.name
            );
            let more = usize::from(page.contains("How long callers")) + usize::from(page.contains("first tries"));
            assert_eq!(page.matches("<svg").count(), report.arms.len() + more);
            assert!(page.contains("<rect class=") && page.contains("--seed 42"), "{}", scenario.name);
        }
    }

    /// Ten calls at one layer and a thousand at the next: on one scale the first would not be seen.
    #[test]
    fn a_herd_that_goes_through_layers_has_a_picture_of_each_on_its_own_scale() {
        let lane = |name, calls| {
            let mut timeline = Timeline::new(Duration::from_millis(1));
            (0..calls).for_each(|_| timeline.record(Tick::ZERO));
            Lane { name, timeline }
        };
        let arm = |name, dials, queries| {
            Arm::new(name, vec![], Timeline::new(Duration::from_millis(1)))
                .lanes(vec![lane("dials", dials), lane("queries", queries)])
        };
        let report = Report { arms: vec![arm("naive", 10, 1_000), arm("remedy", 5, 10)], ..Report::default() };
        let page = report.page().to_string();
        assert_eq!(page.matches("<svg").count(), 4);
        assert_eq!([">10</text>", ">1000</text>"].map(|top| page.matches(top).count()), [2, 2], "{page}");
        let text = report.to_string();
        assert!(text.contains("█") && text.contains("full columns are 10, 1000"), "{text}");
        assert_eq!(["  dials", "  queries"].map(|name| text.matches(name).count()), [2, 2], "{text}");
    }

    #[test]
    fn times_on_an_axis_are_round_and_few() {
        let words = |ms| ticks(Duration::from_millis(ms)).into_iter().map(show_time).collect::<Vec<_>>().join(" ");
        assert_eq!(words(310), "0s 50ms 100ms 150ms 200ms 250ms 300ms");
        assert_eq!(words(600_000), "0s 2m 4m 6m 8m 10m");
        for ms in [0, 1, 7, 999, 86_400_000 * 400] {
            assert!((1..=100).contains(&ticks(Duration::from_millis(ms)).len()), "{ms}");
        }
    }
}
