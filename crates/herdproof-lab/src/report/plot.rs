//! Pictures that show all arms at once: how long callers waited, and what one call became on its way. Parts of a drawing: the page
//! and the chapter each put them where they want them.

use std::{fmt::Write, time::Duration};

use super::{Arm, Edge, Report, Waits, html::said, millis};
use crate::page::Plain;

/// How high the curves are, and what is between the picture and what is above and below it.
const HIGH: f64 = 190.0;
const GAP: f64 = 14.0;
/// A line of words.
const LINE: f64 = 16.0;
/// The bar of an edge, and what is left for its name.
const BAR: f64 = 14.0;
const NAMES: f64 = 130.0;
/// How many nines the longest wait is drawn at.
const MOST: f64 = 3.6;
/// How wide a letter is, about.
const LETTER: f64 = 6.0;

/// Where a picture is drawn: between these, from there down.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
}

/// A picture, and where it ends.
pub(super) struct Drawn {
    pub(super) svg: String,
    pub(super) bottom: f64,
}

/// Draws one of them.
type Plot = fn(&Report, Frame) -> Option<Drawn>;

/// All of them, each with its title and how it is read.
pub(super) const ALL: [(&str, &str, Plot); 2] = [
    (
        "How long callers waited",
        "Those who got what they came for or were still there, from most of them to the worst; a line is an arm. Who gave up \
         earlier, or was refused, is in the table above.",
        waits,
    ),
    ("What one call became", "Calls from each to the next, and how many times those of the first.", edges),
];

/// How long callers waited, a line for each arm; nothing if nobody knows.
fn waits(report: &Report, frame: Frame) -> Option<Drawn> {
    let arms: Vec<(usize, &Arm, Waits)> =
        report.arms.iter().enumerate().filter_map(|(nth, arm)| Some((nth, arm, arm.waits?))).collect();
    let all = || arms.iter().flat_map(|(_, _, waits)| waits.quantiles()).map(|(_, _, wait)| millis(wait));
    let longest = all().fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    // Six decades are enough for everybody: what is shorter is as good as nothing.
    let shortest = all().filter(|wait| *wait > longest / 1e6).fold(longest, f64::min);
    let (low, high) = (shortest.log10().floor(), longest.log10().ceil());
    let (low, high) = if high - low < 1.0 { (low, low + 1.0) } else { (low, high) };
    let legend = legend(arms.iter().map(|(nth, arm, _)| (*nth, arm.name)), frame);
    let (top, floor) = (legend.bottom + GAP, legend.bottom + GAP + HIGH);
    let y = |ms: f64| floor - HIGH * ((ms.max(1e-9).log10() - low) / (high - low)).clamp(0.0, 1.0);
    let x = |share: f64| {
        let nines = if share < 1.0 { -(1.0 - share).log10() } else { MOST };
        frame.left + (frame.right - frame.left) * nines / MOST
    };
    let mut svg = legend.svg;
    let mut decade = low;
    while decade <= high {
        let ms = 10f64.powf(decade);
        // Strings take everything.
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{} {at:.1}H{}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            frame.left,
            frame.right,
            frame.left - 6.0,
            y(ms) + 4.0,
            said(Duration::from_secs_f64(ms / 1e3)),
            at = y(ms),
        );
        decade += 1.0;
    }
    for (name, share, _) in arms.first().iter().flat_map(|(_, _, waits)| waits.quantiles()) {
        // The others are too near to one another.
        if matches!(name, "p50" | "p90" | "p99" | "p99.9" | "max") {
            let anchor = if name == "max" { "end" } else { "middle" };
            let _ = write!(
                svg,
                "<path class=\"axis\" d=\"M{0:.1} {top}V{floor}\"/><text x=\"{0:.1}\" y=\"{1:.1}\" text-anchor=\"{anchor}\">{name}</text>",
                x(share),
                floor + LINE,
            );
        }
    }
    for (nth, arm, waits) in &arms {
        let points: Vec<String> =
            waits.quantiles().map(|(_, share, wait)| format!("{:.1} {:.1}", x(share), y(millis(wait)))).collect();
        let told: Vec<String> = waits.quantiles().map(|(name, _, wait)| format!("{name} {}", shown(wait))).collect();
        let _ = write!(
            svg,
            "<path class=\"line c{}\" d=\"M{}\"><title>{}: {}</title></path>",
            nth % COLORS,
            points.join("L"),
            Plain(arm.name),
            told.join(", "),
        );
    }
    Some(Drawn { svg, bottom: floor + LINE + GAP })
}

/// How many calls went over each edge of the way to the origin, arm by arm; nothing if there is one only.
fn edges(report: &Report, frame: Frame) -> Option<Drawn> {
    let most = report.arms.iter().flat_map(|arm| &arm.edges).map(|edge| edge.calls).max().filter(|most| *most > 0)?;
    let (from, to) = (frame.left + NAMES, frame.right - 110.0);
    let mut svg = String::new();
    let mut y = frame.top;
    for arm in &report.arms {
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{:.1}\">{}</text>",
            frame.left,
            y + LINE - 3.0,
            Plain(arm.name)
        );
        y += LINE + 3.0;
        let first = arm.edges.first().map_or(0, |edge| edge.calls).max(1) as f64;
        for (nth, Edge { name, calls }) in arm.edges.iter().enumerate() {
            let long = ((to - from) * *calls as f64 / most as f64).max(1.0);
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{1:.1}\" text-anchor=\"end\">{2}</text>\
                 <rect class=\"fill c{3}\" x=\"{from}\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"{BAR}\"/>\
                 <text x=\"{4:.1}\" y=\"{1:.1}\">{calls} (x {5:.2})</text>",
                from - 6.0,
                y + BAR - 3.0,
                Plain(name),
                nth % COLORS,
                from + long + 6.0,
                *calls as f64 / first,
            );
            y += BAR + 3.0;
        }
        y += GAP / 2.0;
    }
    Some(Drawn { svg, bottom: y })
}

/// How many colours there are; more than that begin again.
pub(super) const COLORS: usize = 7;

/// What each colour is, in as many lines as it takes.
pub(super) fn legend<'a>(names: impl Iterator<Item = (usize, &'a str)>, frame: Frame) -> Drawn {
    let (mut svg, mut x, mut y) = (String::new(), frame.left, frame.top + LINE);
    for (nth, name) in names {
        let wide = name.chars().count() as f64 * LETTER + 34.0;
        if x > frame.left && x + wide > frame.right {
            (x, y) = (frame.left, y + LINE);
        }
        let _ = write!(
            svg,
            "<rect class=\"fill c{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            nth % COLORS,
            y - 9.0,
            x + 15.0,
            Plain(name),
        );
        x += wide;
    }
    Drawn { svg, bottom: y }
}

/// Words at places from left to right, none over another: the row of each, from zero, whether it ends at its place instead of
/// beginning there, and how many rows there are.
pub(super) fn rows(words: &[(f64, &str)], right: f64) -> (Vec<(usize, bool)>, usize) {
    let mut taken: Vec<Vec<(f64, f64)>> = Vec::new();
    let places = words.iter().map(|(at, word)| {
        let wide = word.chars().count() as f64 * LETTER + 8.0;
        let ends = at + wide > right;
        let (from, to) = if ends { (at - wide, *at) } else { (*at, at + wide) };
        let free = taken.iter().position(|row| row.iter().all(|(a, b)| to <= *a || *b <= from));
        let row = free.unwrap_or(taken.len());
        if row == taken.len() {
            taken.push(Vec::new());
        }
        taken[row].push((from, to));
        (row, ends)
    });
    let places: Vec<_> = places.collect();
    (places, taken.len())
}

fn shown(wait: Duration) -> String {
    let ms = millis(wait);
    if ms < 10.0 { format!("{ms:.2} ms") } else { format!("{ms:.0} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::Timeline;

    const MS: Duration = Duration::from_millis(1);
    const FRAME: Frame = Frame { left: 60.0, right: 900.0, top: 0.0 };

    fn arm(name: &'static str, waits: &[u32]) -> Arm {
        Arm::new(name, vec![], Timeline::new(MS)).waits(Waits::of(waits.iter().map(|wait| MS * *wait).collect()))
    }

    fn report(arms: Vec<Arm>) -> Report {
        Report { arms, ..Report::default() }
    }

    #[test]
    fn words_near_to_one_another_are_in_rows_and_none_leaves_the_picture() {
        let (places, rows) = rows(&[(0.0, "gone"), (5.0, "back again"), (400.0, "far"), (890.0, "the end")], 900.0);
        assert_eq!((places, rows), (vec![(0, false), (1, false), (0, false), (0, true)], 2));
    }

    #[test]
    fn every_arm_that_waited_has_a_line_and_waits_of_nothing_are_on_the_floor() {
        let drawn = waits(&report(vec![arm("naive", &[10, 10_000]), arm("none", &[]), arm("at once", &[0])]), FRAME);
        let svg = drawn.unwrap().svg;
        assert_eq!(
            ["class=\"line c0\"", "class=\"line c1\"", "class=\"line c2\""].map(|line| svg.contains(line)),
            [true, false, true]
        );
        assert!([">10ms<", ">100ms<", ">1s<", ">10s<"].iter().all(|word| svg.contains(word)), "{svg}");
        assert!(svg.contains("max 10000 ms") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(waits(&report(vec![arm("at once", &[0])]), FRAME).is_none(), "nobody waited");
    }

    #[test]
    fn an_edge_says_how_many_times_the_first_it_is() {
        let edges_of = |calls: [u64; 2]| ["users > A", "A > B"].into_iter().map(str::to_owned).zip(calls);
        let arm = |calls| arm("naive", &[]).edges(edges_of(calls).map(|(name, calls)| Edge { name, calls }).collect());
        let svg = edges(&report(vec![arm([10, 270])]), FRAME).unwrap().svg;
        assert!(svg.contains("10 (x 1.00)") && svg.contains("270 (x 27.00)") && svg.contains("A &gt; B"), "{svg}");
        assert!(edges(&report(vec![arm([0, 0])]), FRAME).is_none());
    }
}
