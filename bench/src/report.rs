//! Rows as measured, and ratios computed from them.

use serde_json::{Value as Json, json};

use crate::{Bench, measure::Row};

struct Ratio {
    case: &'static str,
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

/// Peer against ours, from the minima: how many times better we are.
fn ratios(bench: &Bench, rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for case in &bench.cases {
        let ours = case.subjects[0].name;
        for own in rows.iter().filter(|row| row.case == case.name && row.subject == ours) {
            let goal_for = |peer: &str| case.goals.iter().find(|goal| goal.peer == peer && goal.unit == own.unit);
            let mut compare = |peer, theirs, goal| {
                let ratio = times_better(own.min(), theirs);
                ratios.push(Ratio { case: case.name, unit: own.unit.clone(), peer, ratio, goal });
            };
            let is_same = |row: &&Row| row.unit == own.unit;
            let peers = || rows.iter().filter(is_same).filter(|row| row.case == case.name && row.subject != ours);
            for peer in peers() {
                compare(peer.subject, peer.min(), goal_for(peer.subject).map(|goal| goal.at_least));
            }
            if let Some(goal) = goal_for("best")
                && let Some(best) = peers().map(Row::min).min_by(f64::total_cmp)
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
    println!("{:<22} {:<18} {:>12} {:>12}  unit", "case", "subject", "min", "median");
    for row in rows {
        println!("{:<22} {:<18} {:>12} {:>12}  {}", row.case, row.subject, round(row.min()), round(row.median()), row.unit);
    }
    println!("\n{:<22} {:<18} {:>12} {:>12}  {:<10} unit", "case", "peer", "times better", "goal", "");
    for ratio in &ratios {
        let goal = ratio.goal.map_or(String::new(), |goal| format!(">= {goal}"));
        let met = ratio.met().map_or("", |met| if met { "met" } else { "NOT MET" });
        println!("{:<22} {:<18} {:>12} {goal:>12}  {met:<10} {}", ratio.case, ratio.peer, round(ratio.ratio), ratio.unit);
    }
    if as_json {
        println!("{}", json(bench, rows, &ratios));
    }
}

fn json(bench: &Bench, rows: &[Row], ratios: &[Ratio]) -> Json {
    let row = |row: &Row| {
        json!({"case": row.case, "subject": row.subject, "value": row.min(), "median": row.median(),
               "rounds": row.values.len(), "unit": row.unit})
    };
    let ratio = |ratio: &Ratio| {
        json!({"case": ratio.case, "peer": ratio.peer, "unit": ratio.unit, "ratio": ratio.ratio,
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
