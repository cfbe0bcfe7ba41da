//! Many runs of one scenario: what one seed shows may be luck.
//!
//! Every run is a scenario on a seed of its own; all arms of one run have the same seed, so arms are compared in pairs. Runs are
//! spread over the processors, and the arms of a run too where processors are left; each arm is whole on one thread, and the order
//! is that of the seeds and arms whoever was first.

mod page;

use std::{
    panic::resume_unwind,
    sync::atomic::{
        AtomicBool, AtomicIsize, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
};

use parking_lot::Mutex;
use serde::Serialize;

use crate::{
    knob::Settings,
    named::NoArm,
    report::{Report, Source},
    scenario::Scenario,
};

pub use page::RunsPage;

/// Follows many runs, and may end them early. Shared with who runs them.
#[derive(Debug, Default)]
pub struct Watch {
    done: AtomicUsize,
    stopped: AtomicBool,
}

/// What several runs of one scenario gave, in the order of their seeds.
#[derive(Clone, Debug)]
pub struct Runs(Vec<Report>);

/// A figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the runs gave no more.
    pub median: f64,
    /// Where the median lies with this confidence, from here.
    pub low: f64,
    /// To here.
    pub high: f64,
    /// How sure that is, from 0 to 1: at least [`SURE`] from six runs on; with fewer there is nothing beyond the values to go to.
    pub confidence: f64,
}

/// How sure an interval is to be.
pub const SURE: f64 = 0.95;

/// A claim over several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Held {
    /// What is claimed.
    pub what: String,
    /// Who claims it.
    pub source: Source,
    /// In how many runs it held.
    pub held: usize,
    /// Of so many.
    pub runs: usize,
}

impl Watch {
    /// How many runs are done.
    pub fn done(&self) -> usize {
        self.done.load(Relaxed)
    }

    /// No more runs are begun.
    pub fn stop(&self) {
        self.stopped.store(true, Release);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    /// What each of the items comes to, on all processors that are free; those that were not begun when it was stopped are missing.
    pub(crate) fn each<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<Option<R>> {
        self.each_beside(Busy::take(items.len().saturating_sub(1)), items, work)
    }

    /// The same on this thread and so many more.
    pub(crate) fn each_beside<T: Sync, R: Send>(
        &self,
        helpers: Vec<Busy>,
        items: &[T],
        work: impl Fn(&T) -> R + Sync,
    ) -> Vec<Option<R>> {
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
        let worker = || {
            while !self.is_stopped() {
                let at = next.fetch_add(1, Relaxed);
                let Some((item, result)) = items.get(at).zip(results.get(at)) else { break };
                *result.lock() = Some(work(item));
                self.done.fetch_add(1, Relaxed);
            }
        };
        let help = |busy: Busy| {
            worker();
            drop(busy);
        };
        thread::scope(|scope| {
            let helpers: Vec<_> = helpers.into_iter().map(|busy| scope.spawn(|| help(busy))).collect();
            worker();
            // While this thread waits for the others, its processor is free for what they spread.
            let _lent = Busy::count(-1);
            for helper in helpers {
                helper.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
        results.into_iter().map(Mutex::into_inner).collect()
    }
}

/// Threads at work in this process, beside those that have work done.
static BUSY: AtomicIsize = AtomicIsize::new(0);

/// So many of them, counted until this is dropped. Work that is spread inside work that is spread finds no more processors than
/// there are.
#[must_use]
pub(crate) struct Busy(isize);

impl Busy {
    fn count(threads: isize) -> Busy {
        BUSY.fetch_add(threads, Relaxed);
        Busy(threads)
    }

    /// As many threads as processors are free, and no more than wanted.
    fn take(wanted: usize) -> Vec<Busy> {
        let all = thread::available_parallelism().map_or(1, usize::from);
        let all = isize::try_from(all).unwrap_or(isize::MAX) - 1;
        let mut taken = Vec::new();
        while taken.len() < wanted && BUSY.load(Relaxed) < all {
            taken.push(Busy::count(1));
        }
        taken
    }

    /// So many, free or not.
    pub(crate) fn forced(threads: usize) -> Vec<Busy> {
        (0..threads).map(|_| Busy::count(1)).collect()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(self.0, Relaxed);
    }
}

impl Runs {
    /// Runs a scenario so often, on this seed and those that follow. Those that were begun before the watch was stopped.
    pub fn of(scenario: &Scenario, settings: &Settings, runs: usize, watch: &Watch) -> Runs {
        let seeds: Vec<u64> = (0..runs as u64).map(|next| settings.seed.wrapping_add(next)).collect();
        Runs(watch.each(&seeds, |seed| scenario.run(&settings.with_seed(*seed))).into_iter().flatten().collect())
    }

    /// Each run's report.
    pub fn reports(&self) -> &[Report] {
        &self.0
    }

    /// A figure of an arm over all runs; the arm by its place in each report.
    pub fn spread(&self, arm: usize, key: &str) -> Option<Spread> {
        let of = |report: &Report| report.arms.get(arm)?.figure(key);
        Spread::of(self.0.iter().filter_map(of).collect())
    }

    /// What is given of each figure, and how sure it is.
    pub fn about(&self) -> String {
        let (_, sure) = interval(self.0.len());
        let [sure, wanted] = [sure, SURE].map(|share| 100.0 * share);
        if sure >= wanted {
            return format!("medians, and where they lie with {wanted} % confidence");
        }
        let all = "medians, and the least and the most of all runs";
        format!("{all}: where they lie with {sure} % confidence only, as {wanted} % takes six runs")
    }

    /// The command that gives the same again.
    pub fn replay(&self) -> String {
        let first = self.0.first().map(Report::replay).unwrap_or_default();
        if self.0.len() > 1 { format!("{first} --runs {}", self.0.len()) } else { first }
    }

    /// The same with the arms that are meant by these names; with all, if there are none.
    pub fn only(self, asked: &[impl AsRef<str>]) -> Result<Runs, NoArm> {
        self.0.into_iter().map(|report| report.only(asked)).collect::<Result<_, _>>().map(Runs)
    }

    /// Each claim, and in how many runs it held.
    pub fn held(&self) -> Vec<Held> {
        let Some(first) = self.0.first() else { return Vec::new() };
        let holds =
            |at: usize| self.0.iter().filter(move |report| report.checks.get(at).is_some_and(|check| check.passed));
        first
            .checks
            .iter()
            .enumerate()
            .map(|(at, check)| Held {
                what: check.what.clone(),
                source: check.source,
                held: holds(at).count(),
                runs: self.0.len(),
            })
            .collect()
    }
}

impl Spread {
    /// Of these values, in any order.
    ///
    /// The interval is between two of the values themselves, whatever their distribution: how many of them are below the median is
    /// a matter of coin tosses. Below six runs no two values are far enough apart, and it is all of them.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_unstable_by(f64::total_cmp);
        let n = values.len();
        let middle = (values.get(n.checked_sub(1)? / 2)? + values.get(n / 2)?) / 2.0;
        let (outer, confidence) = interval(n);
        Some(Spread { median: middle, low: *values.get(outer)?, high: *values.get(n - 1 - outer)?, confidence })
    }
}

/// How many of so many values are outside the interval on each side, and how sure it is.
fn interval(n: usize) -> (usize, f64) {
    // How likely so many heads are, compared with the likeliest number of them: the chances themselves are too small for a float.
    let mut likely = vec![1.0];
    for heads in (1..=n / 2).rev() {
        let last = likely[likely.len() - 1];
        likely.push(last * heads as f64 / (n - heads + 1) as f64);
    }
    likely.reverse();
    let half: f64 = likely.iter().sum();
    let all = if n.is_multiple_of(2) { 2.0 * half - 1.0 } else { 2.0 * half };
    let sure = |below: f64| 1.0 - 2.0 * below / all;
    // All of the values, as long as nothing else is sure enough.
    let (mut below, mut outer) = (likely[0], 0);
    while let Some(chance) = likely.get(outer + 1).filter(|chance| sure(below + **chance) >= SURE) {
        below += chance;
        outer += 1;
    }
    // To as many digits as anybody reads.
    (outer, (sure(below).max(0.0) * 1e4).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        find,
        report::{Arm, Figure},
        timeline::Timeline,
    };

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn the_interval_of_a_median_leaves_out_as_many_as_the_tables_say() {
        // From tables of the sign test: ranks 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 10 and 21 of 30.
        for (n, low, high) in [(5, 1.0, 5.0), (6, 1.0, 6.0), (10, 2.0, 9.0), (20, 6.0, 15.0), (30, 10.0, 21.0)] {
            let values = (1..=n).rev().map(f64::from).collect();
            let spread = Spread::of(values).unwrap();
            assert_eq!((spread.low, spread.high, spread.median), (low, high, f64::from(n + 1) / 2.0), "{n} values");
        }
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0]), Some(Spread { median: 3.0, low: 3.0, high: 3.0, confidence: 0.0 }));
    }

    #[test]
    fn too_few_runs_are_not_called_sure() {
        let sure = |n: u32| Spread::of((0..n).map(f64::from).collect()).unwrap().confidence.to_string();
        assert_eq!([1, 2, 3, 5, 6, 30].map(sure), ["0", "0.5", "0.75", "0.9375", "0.9688", "0.9572"]);
    }

    /// Beyond a thousand tosses, the chance that all are heads is less than the least number there is.
    #[test]
    fn many_runs_do_not_shrink_the_interval_to_its_middle() {
        // By Gauss, 2500 less 1.96 times half of the root of 5000: 2430.7.
        let (outer, sure) = interval(5_000);
        assert!((2_425..=2_435).contains(&outer) && (0.95..0.953).contains(&sure), "{outer} {sure}");
    }

    #[test]
    fn runs_are_those_of_their_seeds_in_order_whoever_was_first() {
        let scenario = find("shared-failure").unwrap();
        let runs = Runs::of(scenario, &Settings::new(u64::MAX), 8, &Watch::default());
        let seeds: Vec<u64> = runs.reports().iter().map(|report| report.seed).collect();
        assert_eq!(seeds, [u64::MAX, 0, 1, 2, 3, 4, 5, 6]);
        assert!(runs.held().iter().all(|held| (held.held, held.runs) == (8, 8)));
    }

    #[test]
    fn a_page_of_many_runs_is_not_that_of_the_first() {
        let mut settings = Settings::new(7);
        let scenario = find("retry-wall").unwrap();
        settings.set(&scenario.knobs(), "clients=3").unwrap();
        let runs = Runs::of(scenario, &settings, 6, &Watch::default()).only(&["backoff +"]).unwrap();
        let page = runs.page().to_string();
        let end = runs.spread(0, "end_ms").unwrap();
        assert!(end.low < end.high);
        let cell =
            format!(">{:.1} ms<br><span class=\"soft\">{:.1} ms to {:.1} ms</span>", end.median, end.low, end.high);
        assert!(page.contains(&cell), "no {cell} in {page}");
        assert!(page.contains("with 95 % confidence") && page.contains("6 of 6</td>"), "{page}");
        assert!(page.contains("--set clients=3 --arm &quot;backoff + full jitter&quot; --seed 7 --runs 6<"), "{page}");
        assert_eq!(page.matches("<h1>").count(), 1);
    }

    #[test]
    fn two_arms_of_one_name_are_two() {
        let arm = |calls| Arm::new("... with jitter", vec![Figure::count("calls", "calls", calls)], Timeline::new(SEC));
        let other = Arm::new("naive", vec![], Timeline::new(SEC));
        let report = Report { arms: vec![other, arm(1), arm(5)], ..Report::default() };
        let runs = Runs(vec![report]).only(&["..."]).unwrap();
        let median = |arm| runs.spread(arm, "calls").map(|spread| spread.median.to_string());
        assert_eq!([median(0), median(1), median(2)], [Some("1".into()), Some("5".into()), None]);
    }

    #[test]
    fn a_stop_keeps_what_is_done() {
        let watch = Watch::default();
        let items: Vec<usize> = (0..1_000).collect();
        let results = watch.each(&items, |item| {
            if *item == 3 {
                watch.stop();
            }
            *item
        });
        let done: Vec<usize> = results.into_iter().flatten().collect();
        assert!(done.contains(&3) && done.len() < 1_000, "{done:?}");
        assert_eq!(watch.done(), done.len());
    }
}
