//! What has to be true of ours, and whether it was in this run.

use super::{
    peers::OURS,
    results::{Results, round},
};

/// Requests at a time that an origin gets from a proxy with no settings.
const LIMIT: f64 = 256.0;

pub struct Must {
    pub what: String,
    /// The numbers it is decided by.
    pub seen: String,
    /// Unknown, where a case that it needs was not measured.
    pub met: Option<bool>,
}

pub fn all(results: &Results) -> Vec<Must> {
    let mut musts = Musts { results, all: Vec::new() };
    for case in ["cacheable", "herd-800", "herd-5000", "trickle", "truncated", "max-age-0", "leader-leaves"] {
        musts.at_most(&format!("{case}: one origin request"), case, "", "origin", 1.0);
    }
    // Whether it is slow or hangs cannot be told before it answers, and who hangs must be asked again (`hung`).
    musts.at_most("slow: one origin request and one hedge", "slow", "", "origin", 2.0);
    musts.at_most("vary: one origin request for each of four languages", "vary", "", "origin", 4.0);
    for case in ["cacheable", "herd-800", "herd-5000", "trickle", "max-age-0", "slow", "vary"] {
        musts.none(&format!("{case}: nobody without the right answer"), case, "", &["other", "cut", "wrong"]);
    }
    musts.none(
        "truncated: nobody takes half for the whole, and no body is wrong",
        "truncated",
        "",
        &["right", "wrong"],
    );
    musts.at_most("browsers: one origin request for 800 cookies", "browsers", "", "origin", 1.0);
    musts.none("browsers: nobody without the right answer", "browsers", "", &["other", "cut", "wrong"]);
    musts.peak();
    for label in ["private", "set-cookie", "max-age"] {
        musts.none(
            &format!("cookies, {label}: no foreign body and no foreign Set-Cookie among 1,000 users"),
            "cookies",
            label,
            &["foreign bodies", "foreign cookies"],
        );
    }
    musts.none("set-cookie: no answer and no cookie is shared", "set-cookie", "", &["shared", "foreign cookies"]);
    musts.at_most("trickle: followers' first byte at most 1.2x the leader's", "trickle", "", "lag", 1.2);
    musts.at_most("expiry-swr: at most one origin request a second", "expiry-swr", "", "origin/s", 1.0);
    musts.none("expiry-swr: nobody slower than 40 ms, or failed", "expiry-swr", "", &["slow", "failed", "wrong"]);
    musts.at_most("failing: at most 2 origin requests for 200", "failing", "1st", "origin", 2.0);
    musts.none("failing: the origin's error is one client's alone", "failing", "1st", &["shared", "cut"]);
    musts.at_most("503: at most 2 origin requests for 100", "503", "", "origin", 2.0);
    musts.at_most("hung: at most 2 origin requests", "hung", "", "origin", 2.0);
    musts.at_most("hung: everybody out before the hung answer", "hung", "", "max ms", 9900.0);
    musts.none("hung: everybody has a real answer", "hung", "", &["other", "cut", "wrong"]);
    for case in ["down-sie", "down-reset", "down-hang"] {
        musts.at_most(&format!("{case}: at most 2 origin requests per second"), case, "", "origin/s", 2.0);
        musts.none(
            &format!("{case}: everybody has the stale answer, none slow"),
            case,
            "",
            &["failed", "wrong", "slow"],
        );
    }
    musts.at_most("uncacheable: at most two origin rounds the first time", "uncacheable", "1st", "rounds", 2.0);
    musts.at_most("uncacheable: one origin round the second time", "uncacheable", "2nd", "rounds", 1.0);
    for label in ["1st", "2nd"] {
        musts.none(
            &format!("uncacheable, {label}: everybody has an answer of their own"),
            "uncacheable",
            label,
            &["other", "cut", "wrong", "shared"],
        );
    }
    musts.against("haproxy", "hits-1k", "cpu s/100k", 0.80);
    musts.against_best("hits-100k", "cpu s/100k", 0.95);
    musts.against("haproxy", "keys", "cpu s/100k", 0.80);
    musts.at_most("keys: at most 1,500 B of memory for an object of 1 KiB", "keys", "", "B/object", 1500.0);
    for case in ["hits-1k", "hits-100k", "pace-1k", "pace-100k", "keys"] {
        musts.against_best(case, "p99 ms", 1.2);
        musts.none(&format!("{case}: every answer is one"), case, "", &["failed"]);
    }
    for case in ["herd-800", "herd-5000"] {
        musts.against_best(case, "wall ms", 1.1);
        musts.against_best(case, "cpu s/100k", 1.1);
    }
    musts.none("churn: no wrong body, no failure", "churn", "", &["wrong", "failed"]);
    musts.flat("churn: memory flat in the second half", "MB", 1.05);
    musts.flat("churn: no more descriptors in the end than after half of the time", "files", 1.1);
    musts.all
}

struct Musts<'a> {
    results: &'a Results,
    all: Vec<Must>,
}

impl Musts<'_> {
    fn push(&mut self, what: String, decided: Option<(String, bool)>) {
        let (seen, met) = decided.map_or(("not measured".into(), None), |(seen, met)| (seen, Some(met)));
        self.all.push(Must { what, seen, met });
    }

    /// In every round.
    fn at_most(&mut self, what: &str, case: &str, label: &str, name: &str, most: f64) {
        let ours = self.results.ours(case, label, name).map(|cell| cell.max());
        self.push(what.into(), ours.map(|ours| (format!("{} {name}", round(ours)), ours <= most)));
    }

    /// Nothing of any of these, in any round.
    fn none(&mut self, what: &str, case: &str, label: &str, names: &[&str]) {
        let seen: Option<Vec<(f64, &str)>> =
            names.iter().map(|name| Some((self.results.ours(case, label, name)?.max(), *name))).collect();
        let decided = seen.map(|seen| {
            let text: Vec<String> = seen.iter().map(|(value, name)| format!("{} {name}", round(*value))).collect();
            (text.join(", "), seen.iter().all(|(value, _)| *value == 0.0))
        });
        self.push(what.into(), decided);
    }

    fn against(&mut self, peer: &str, case: &str, name: &str, most: f64) {
        let theirs = self.results.of(peer, case, "", name).map(|cell| (cell.peer, cell.min()));
        self.compare(&format!("{case}: {name} at most {most:.2}x {peer}'s"), theirs, case, name, most);
    }

    fn against_best(&mut self, case: &str, name: &str, most: f64) {
        let theirs = self.results.best(case, "", name).map(|cell| (cell.peer, cell.min()));
        self.compare(&format!("{case}: {name} at most {most:.2}x the best peer's"), theirs, case, name, most);
    }

    fn compare(&mut self, what: &str, theirs: Option<(&str, f64)>, case: &str, name: &str, most: f64) {
        let ours = self.results.ours(case, "", name).map(|cell| cell.min());
        let decided = ours.zip(theirs).map(|(ours, (peer, theirs))| {
            (format!("{} by {} of {peer}: {:.2}x", round(ours), round(theirs), ours / theirs), ours <= most * theirs)
        });
        self.push(what.into(), decided);
    }

    fn peak(&mut self) {
        let ours = self.results.cells().iter().filter(|cell| cell.peer == OURS && cell.name == "peak");
        let worst = ours.max_by(|a, b| a.max().total_cmp(&b.max()));
        let decided = worst.map(|cell| (format!("{} in {}", round(cell.max()), cell.case), cell.max() <= LIMIT));
        self.push(format!("never more than {LIMIT} requests at a time at the origin"), decided);
    }

    /// In the end at most so many times what it was after half of the time.
    fn flat(&mut self, what: &str, unit: &str, most: f64) {
        let seen = |when| self.results.ours("churn", "", &format!("{when} {unit}")).map(|cell| cell.max());
        let decided = seen("half").zip(seen("end")).map(|(half, end)| {
            (format!("{} {unit} after half of the time, {} in the end", round(half), round(end)), end <= half * most)
        });
        self.push(what.into(), decided);
    }
}

pub fn print(musts: &[Must]) {
    if musts.iter().all(|must| must.met.is_none()) {
        return;
    }
    println!("\nwhat has to be true of ours");
    for must in musts.iter().filter(|must| must.met.is_some()) {
        let verdict = if must.met == Some(true) { "met" } else { "NOT MET" };
        println!("  {verdict:<8} {:<78} {}", must.what, must.seen);
    }
    let (met, not) =
        (musts.iter().filter(|must| must.met == Some(true)), musts.iter().filter(|must| must.met == Some(false)));
    let unknown = musts.iter().filter(|must| must.met.is_none());
    println!("  {} met, {} not, {} not measured", met.count(), not.count(), unknown.count());
}
