//! Rows as measured, and ratios computed from them.

use serde_json::{Value as Json, json};

use crate::{Bench, Case, FLOOR, Goal, measure::Row};

/// The peer of a goal that is one number.
const EXACTLY: &str = "exactly";

struct Ratio {
    case: &'static str,
    ours: &'static str,
    unit: String,
    peer: &'static str,
    ratio: f64,
    goal: Option<f64>,
}

impl Ratio {
    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| self.ratio >= goal)
    }
}

/// How many times better less is than more. Two that are alike are alike, also where both are nothing.
fn times_better(ours: f64, theirs: f64) -> f64 {
    if ours == theirs { 1.0 } else { theirs / ours }
}

/// Whose a subject is: "herdproof, one way" and "herdproof, another way" are both ours.
fn who(subject: &str) -> &str {
    subject.split(',').next().unwrap_or(subject)
}

/// Peer against ours, from the minima: how many times better we are. Goals are for the first of ours.
fn ratios(bench: &Bench, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for case in &bench.cases {
        let first = case.subjects[0].name;
        let is_ours = |row: &&Row| row.case == case.name && who(row.subject) == who(first);
        for own in rows.iter().filter(is_ours) {
            let ours = own.subject;
            let is_meant = |goal: &Goal, peer: &str| ours == first && goal.peer == peer && goal.unit == own.unit;
            let goal_for = |peer: &str| case.goals.iter().find(|goal| is_meant(goal, peer));
            let ratio = |peer, ratio, goal| Ratio { case: case.name, ours, unit: own.unit.clone(), peer, ratio, goal };
            if let Some(goal) = goal_for(EXACTLY) {
                ratios.push(ratio(EXACTLY, if own.is_always(goal.at_least) { 1.0 } else { 0.0 }, Some(1.0)));
                continue;
            }
            let mut compare = |peer, theirs, goal| ratios.push(ratio(peer, times_better(own.min(), theirs), goal));
            let is_same = |row: &&Row| row.unit == own.unit;
            let peers = || rows.iter().filter(is_same).filter(|row| row.case == case.name && !is_ours(row));
            for peer in peers() {
                compare(peer.subject, peer.min(), goal_for(peer.subject).map(|goal| goal.at_least));
            }
            if let Some(goal) = goal_for("best")
                && let Some(best) = peers().filter(|peer| peer.subject != FLOOR).map(Row::min).min_by(f64::total_cmp)
            {
                compare(goal.peer, best, Some(goal.at_least));
            }
            for there in rows.iter().filter(is_same).filter(|row| row.case != case.name && row.subject == ours) {
                if let Some(goal) = goal_for(there.case) {
                    compare(goal.peer, there.min(), Some(goal.at_least));
                }
            }
            if let Some(goal) = goal_for("limit") {
                compare(goal.peer, goal.at_least, Some(1.0));
            }
        }
    }
    ratios
}

pub(crate) fn print(bench: &Bench, rows: &[Row], as_json: bool) {
    let ratios = ratios(bench, rows);
    let (tables, lists): (Vec<&Case>, Vec<&Case>) = bench.cases.iter().partition(|case| is_table(case));
    let is_listed = |name: &str| lists.iter().any(|case| case.name == name);
    if rows.iter().any(|row| is_listed(row.case)) {
        print_lists(rows.iter().filter(|row| is_listed(row.case)), ratios.iter().filter(|ratio| is_listed(ratio.case)));
    }
    for case in tables.iter().filter(|case| rows.iter().any(|row| row.case == case.name)) {
        print_table(case, rows);
    }
    if as_json {
        println!("{}", json(bench, rows, &ratios));
    }
}

fn print_lists<'a>(rows: impl Iterator<Item = &'a Row>, ratios: impl Iterator<Item = &'a Ratio>) {
    println!("{:<18} {:<20} {:>12} {:>12}  unit", "case", "subject", "min", "median");
    for row in rows {
        let (min, median) = (round(row.min()), round(row.median()));
        println!("{:<18} {:<20} {min:>12} {median:>12}  {}", row.case, row.subject, row.unit);
    }
    println!("\n{:<18} {:<20} {:<20} {:>12} {:>8}  {:<8} unit", "case", "ours", "peer", "times better", "goal", "");
    for ratio in ratios {
        let goal = ratio.goal.map_or(String::new(), |goal| format!(">= {}", round(goal)));
        let (times, met) = (round(ratio.ratio), verdict(ratio.met()));
        let Ratio { case, ours, unit, peer, .. } = ratio;
        println!("{case:<18} {ours:<20} {peer:<20} {times:>12} {goal:>8}  {met:<8} {unit}");
    }
}

fn verdict(met: Option<bool>) -> &'static str {
    met.map_or("", |met| if met { "met" } else { "NOT MET" })
}

fn is_table(case: &Case) -> bool {
    case.goals.iter().any(|goal| goal.peer == EXACTLY)
}

/// A line for each subject and a column for each goal, with its number on top. What differs from that is marked.
fn print_table(case: &Case, rows: &[Row]) {
    let heads: Vec<(&str, &str)> =
        case.goals.iter().map(|goal| goal.unit.split_once(' ').unwrap_or((goal.unit, ""))).collect();
    let line = |name: &str, cells: Vec<String>, verdict: &str| {
        let widths = heads.iter().map(|(one, two)| one.len().max(two.len()) + 3);
        let cells: String = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        println!("{}", format!("{name:<18} {cells}  {verdict}").trim_end());
    };
    println!();
    line(case.name, heads.iter().map(|(one, _)| format!("{one} ")).collect(), "");
    line("", heads.iter().map(|(_, two)| format!("{two} ")).collect(), "");
    line("goal", case.goals.iter().map(|goal| format!("{} ", goal.at_least)).collect(), "");
    for (index, subject) in case.subjects.iter().enumerate() {
        let seen = |goal: &Goal| {
            rows.iter().find(|row| row.case == case.name && row.subject == subject.name && row.unit == goal.unit)
        };
        let is_met = |goal: &Goal| seen(goal).is_some_and(|row| row.is_always(goal.at_least));
        let cell = |goal: &Goal| {
            let mark = if is_met(goal) { ' ' } else { '!' };
            format!("{}{mark}", seen(goal).map_or("-".into(), span))
        };
        let is_ours = index == 0;
        let met = is_ours.then(|| case.goals.iter().all(is_met));
        line(subject.name, case.goals.iter().map(cell).collect(), verdict(met));
    }
}

/// One number, if it was the same in every round.
fn span(row: &Row) -> String {
    if row.is_always(row.min()) { row.min().to_string() } else { format!("{}-{}", row.min(), row.max()) }
}

fn json(bench: &Bench, rows: &[Row], ratios: &[Ratio]) -> Json {
    let row = |row: &Row| {
        json!({"case": row.case, "subject": row.subject, "value": row.min(), "median": row.median(),
               "rounds": row.values.len(), "unit": row.unit})
    };
    let ratio = |ratio: &Ratio| {
        json!({"case": ratio.case, "ours": ratio.ours, "peer": ratio.peer, "unit": ratio.unit, "ratio": ratio.ratio,
               "goal": ratio.goal, "met": ratio.met()})
    };
    json!({"bench": bench.name, "rows": rows.iter().map(row).collect::<Vec<_>>(),
           "ratios": ratios.iter().map(ratio).collect::<Vec<_>>()})
}

/// Three or four digits that mean something.
fn round(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
