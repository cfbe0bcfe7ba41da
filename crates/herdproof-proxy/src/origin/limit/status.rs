//! What refusals of the origin (503) do to the limit, as arithmetic.
//!
//! An origin that answers 503 says that it has too much to do; or that one feature of it is broken, or that one client's
//! requests are refused. Its latency does not tell these apart, since a refusal is quick. Trying does: with as few at a time as
//! it has just served, an origin that sheds stops shedding, and a feature that is broken stays broken. So every cut is a trial,
//! and one after which the share of refusals is not half of what it was is undone. Where all clients are one, one that stops and
//! goes on at the right time can make a useless cut look useful; so what was cut is given back in large steps.

use std::time::Duration;

use herdproof::Tick;

use super::tally::Seen;

/// Refused by chance, or in passing.
const SHARE: f64 = 0.02;
const LEAST: u32 = 5;
/// An origin that refuses this share of what many clients ask for on many routes is left with the cut, though it did not help.
const MOST: f64 = 0.5;
/// The first window after a cut still has calls of before it; then so many are judged.
const JUDGED: u32 = 3;
/// After a trial that did not help, the next is so much later; each time twice that, up to the longest.
const PAUSE: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_hours(1);
/// Below where refusals began, the limit grows by this part of the way.
const PART: f64 = 8.0;
/// For so many windows the limit does not go back to where refusals began; each time twice that, up to the most.
const HOLD: u32 = 8;
const MOST_HOLD: u32 = 64;

/// The limit, as far as refusals are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    trial: Option<Trial>,
    /// Where refusals began, once a cut has ended them.
    edge: Option<Edge>,
    /// No trial before this.
    until: Tick,
    pause: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    /// The limit before.
    limit: f64,
    /// Refusals before, as a share or, where all clients were one, in a second: others that come meanwhile would make the share
    /// of that one seem less.
    refused: f64,
    alone: bool,
    /// Windows since, and the same in those that are judged, summed.
    windows: u32,
    sum: f64,
}

#[derive(Clone, Copy, Debug)]
struct Edge {
    at: f64,
    hold: u32,
    left: u32,
}

/// What becomes of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// This, whatever else was seen.
    Set(f64),
    /// As the law says.
    Law,
}

impl Status {
    pub(super) fn new() -> Status {
        Status { trial: None, edge: None, until: Tick::ZERO, pause: PAUSE }
    }

    /// After a window with this peak of requests at a time. A cut does not go below the floor.
    pub(super) fn next(&mut self, limit: f64, seen: &Seen, peak: f64, floor: f64, now: Tick) -> Step {
        if let Some(trial) = self.trial {
            return self.judge(trial, limit, seen, now);
        }
        if now < self.until || seen.shed_share <= SHARE || seen.shed < LEAST {
            return Step::Law;
        }
        // What it served at once is what it can serve; and so many seats beside that are kept free while one client has four times as
        // many (`shed::Queue`, fair).
        let kept_free = (seen.busy / (4.0 * seen.clients.max(1) as f64)).floor();
        let cut = (seen.busy.round() + kept_free).min(limit.min(peak) - 1.0).max(floor);
        if cut >= limit {
            return Step::Law;
        }
        let alone = seen.groups < 2;
        let refused = if alone { seen.shed_rate } else { seen.shed_share };
        self.trial = Some(Trial { limit, refused, alone, windows: 0, sum: 0.0 });
        Step::Set(cut)
    }

    fn judge(&mut self, mut trial: Trial, limit: f64, seen: &Seen, now: Tick) -> Step {
        trial.windows += 1;
        if trial.windows > 1 {
            trial.sum += if trial.alone { seen.shed_rate } else { seen.shed_now };
        }
        self.trial = Some(trial);
        if trial.windows <= JUDGED {
            return Step::Set(limit);
        }
        let refused = trial.sum / f64::from(JUDGED);
        if refused <= trial.refused / 2.0 {
            let again = self.edge.filter(|edge| (edge.at - trial.limit).abs() <= 2.0);
            let hold = again.map_or(HOLD, |edge| (2 * edge.hold).min(MOST_HOLD));
            *self =
                Status { trial: None, edge: Some(Edge { at: trial.limit, hold, left: hold }), pause: PAUSE, ..*self };
            return Step::Set(limit);
        }
        if seen.is_broad() && !trial.alone && refused >= MOST {
            self.trial = Some(Trial { windows: 0, sum: 0.0, ..trial });
            return Step::Set(limit);
        }
        let pause = (2 * self.pause).min(LONGEST);
        *self = Status { trial: None, edge: None, until: now + self.pause, pause };
        Step::Set(trial.limit)
    }

    /// What the law says, but with care where refusals began: one more at a time there, and after a while.
    pub(super) fn careful(&mut self, limit: f64, law: f64) -> f64 {
        let Some(edge) = &mut self.edge else { return law };
        if law <= limit {
            return law;
        }
        if limit > edge.at + 2.0 {
            // It can take more than it could.
            self.edge = None;
            return law;
        }
        if limit + 1.0 >= edge.at {
            if edge.left > 0 {
                edge.left -= 1;
                return limit;
            }
            edge.left = edge.hold;
        }
        limit + ((edge.at - limit) / PART).floor().max(1.0)
    }
}
