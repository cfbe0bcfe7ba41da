//! Takes single bad endpoints out of a set, and not so many that the others drown.
//!
//! One of twenty endpoints is broken: a breaker for all of them sees 5 % errors and does nothing, and every twentieth
//! caller gets an error until somebody looks. Here each endpoint is watched by itself, and one that fails is out for a while.
//! Done carelessly that makes a herd of its own: if all of them look bad, because what they share is bad, ejecting them all
//! puts the whole load on the last; and endpoints ejected together come back together. So at most a tenth are out at one
//! time (one at least, but never the last), for a random time.
//!
//! ```
//! use herdproof::{Env, breaker::ejection::Ejection, gate::{Ask, Gate, Permit, Span, Verdict}};
//!
//! let env = Env::system();
//! let endpoints = Ejection::new(&env, 20);
//! let broken = endpoints.endpoint(3).unwrap();
//! for _ in 0..5 {
//!     let ask = Ask::new(&env);
//!     broken.try_enter(&ask).unwrap().settle(&Verdict::Fault, Span { from: ask.at, to: env.now() });
//! }
//! assert!(broken.try_enter(&Ask::new(&env)).is_err());
//! assert_eq!(endpoints.out(env.now()), 1);
//! ```
//!
//! | | unless told otherwise |
//! |---|---|
//! | ejects | on 5 faults in a row; or, looked at every 10 s, if its share of good calls is more than 1.9 standard deviations below the mean of the set |
//! | needs | 5 endpoints with 100 calls each in 10 s before shares are compared |
//! | out | at random from half to all of 30 s, 60 s, 90 s, up to 300 s; each 30 s in service takes one step back |
//! | at most | a tenth of them at one time |
//!
//! An endpoint that comes back should not get its full load at once: [`back_since`](Ejection::back_since) says since when it
//! is in service again, for whoever weighs endpoints by age.
//!
//! The set is fixed. When its members change, make a new one.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{Outcome, Returns, outcome};
use crate::{
    env::{Env, Rng, Tick, nanos},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
    sync::{AtomicU32, AtomicU64, Mutex},
    window::{ALL, BOTH, Scale, Sum, Window},
};

const SLOTS: usize = 16;
/// How far below the mean is an outlier, in standard deviations.
const DEVIATIONS: f64 = 1.9;
/// How many endpoints with enough calls it takes to compare them.
const LEAST_ENDPOINTS: usize = 5;

/// Watches a set of endpoints; see the [module](self). Cheap to clone, and clones share.
#[derive(Clone)]
pub struct Ejection(Arc<Inner>);

/// How an [`Ejection`] is made.
#[derive(Clone, Debug)]
#[must_use]
pub struct EjectionBuilder {
    env: Env,
    rules: Rules,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    faults: u32,
    least_calls: u32,
    window: Duration,
    base: Duration,
    longest: Duration,
    most: f64,
}

struct Inner {
    rules: Rules,
    scale: Scale<SLOTS>,
    env: Env,
    rng: Rng,
    returns: Returns,
    endpoints: Box<[Watched]>,
    /// Who was out how often; changed together with the `until` of the endpoint.
    records: Mutex<Box<[Record]>>,
    /// When shares are compared next, in nanoseconds.
    compare_at: AtomicU64,
}

/// What is counted for one endpoint.
struct Watched {
    /// Until when it is out, or was last, in nanoseconds; zero if it never was. Also tells calls that were let in before from
    /// those let in after.
    until: AtomicU64,
    faults: AtomicU32,
    /// Calls, and the bad ones among them.
    calls: Window<SLOTS>,
}

/// How often and how long an endpoint was out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    until: Tick,
    times: u32,
}

impl Rules {
    /// How many of so many may be out at one time.
    fn most_out(&self, endpoints: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let share = (endpoints as f64 * self.most) as usize;
        share.max(1).min(endpoints.saturating_sub(1))
    }

    /// The record of an endpoint that is ejected now, or nothing if it is out already or too many are.
    fn eject(&self, records: &[Record], which: usize, now: Tick, draw: f64) -> Option<Record> {
        let out = records.iter().filter(|record| now < record.until).count();
        let Record { until, times } = *records.get(which)?;
        if now < until || out >= self.most_out(records.len()) {
            return None;
        }
        let healthy = u32::try_from(nanos(now - until) / nanos(self.base).max(1)).unwrap_or(u32::MAX);
        let times = times.saturating_sub(healthy).saturating_add(1);
        // The cap limits the range; the draw is made within it.
        let longest = self.base.saturating_mul(times).min(self.longest);
        Some(Record { until: now + longest.mul_f64(0.5 + draw / 2.0), times })
    }
}

/// Those whose share of good calls is far below that of the others, worst first.
fn outliers(shares: &[Option<f64>]) -> Vec<usize> {
    let known: Vec<f64> = shares.iter().copied().flatten().collect();
    if known.len() < LEAST_ENDPOINTS {
        return Vec::new();
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    let variance = known.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / known.len() as f64;
    let least = mean - DEVIATIONS * variance.sqrt();
    let mut low: Vec<(f64, usize)> =
        shares.iter().enumerate().filter_map(|(which, share)| Some(((*share)?, which))).collect();
    low.retain(|(share, _)| *share < least);
    low.sort_by(|a, b| a.0.total_cmp(&b.0));
    low.into_iter().map(|(_, which)| which).collect()
}

impl EjectionBuilder {
    /// Ejects on so many faults in a row; 5 unless told otherwise. Zero counts as one.
    pub fn faults(mut self, in_a_row: u32) -> EjectionBuilder {
        self.rules.faults = in_a_row.max(1);
        self
    }

    /// Over how long shares of good calls are compared, and how many calls an endpoint needs; 10 s and 100 unless told
    /// otherwise.
    pub fn window(mut self, window: Duration, least_calls: u32) -> EjectionBuilder {
        self.rules.window = super::sane(window);
        self.rules.least_calls = least_calls.max(1);
        self
    }

    /// How long an endpoint is out the first time, and at most; 30 s and 300 s unless told otherwise.
    pub fn out_for(mut self, base: Duration, longest: Duration) -> EjectionBuilder {
        self.rules.base = super::sane(base);
        self.rules.longest = super::sane(longest).max(self.rules.base);
        self
    }

    /// The share that may be out at one time; 0.1 unless told otherwise. One always may, but never all.
    pub fn most_out(mut self, share: f64) -> EjectionBuilder {
        self.rules.most = super::share_or(share, self.rules.most);
        self
    }

    /// Watches so many endpoints, known by their numbers from zero.
    pub fn build(self, endpoints: usize) -> Ejection {
        let EjectionBuilder { env, rules } = self;
        let rng = env.rng("breaker/ejection");
        let watched = |_| Watched { until: AtomicU64::new(0), faults: AtomicU32::new(0), calls: Window::new() };
        Ejection(Arc::new(Inner {
            rules,
            scale: Scale::new(rules.window),
            compare_at: AtomicU64::new((env.now() + rules.window).as_nanos()),
            returns: Returns::new(&rng),
            rng,
            env,
            endpoints: (0..endpoints).map(watched).collect(),
            records: Mutex::new(vec![Record::default(); endpoints].into()),
        }))
    }
}

impl Ejection {
    /// Watches so many endpoints, with the usual settings.
    pub fn new(env: &Env, endpoints: usize) -> Ejection {
        Ejection::builder(env).build(endpoints)
    }

    /// A set in the making.
    pub fn builder(env: &Env) -> EjectionBuilder {
        let rules = Rules {
            faults: 5,
            least_calls: 100,
            window: Duration::from_secs(10),
            base: Duration::from_secs(30),
            longest: Duration::from_secs(300),
            most: 0.1,
        };
        EjectionBuilder { env: env.clone(), rules }
    }

    /// The gate of one endpoint; nothing if there is none of this number.
    pub fn endpoint(&self, which: usize) -> Option<Endpoint> {
        (which < self.0.endpoints.len()).then(|| Endpoint { set: self.clone(), which })
    }

    /// Whether an endpoint is out at this time.
    pub fn is_out(&self, which: usize, now: Tick) -> bool {
        self.0.endpoints.get(which).is_some_and(|watched| now.as_nanos() < watched.until.load(Relaxed))
    }

    /// Since when an endpoint that was out is in service again; nothing if it is out or never was.
    pub fn back_since(&self, which: usize, now: Tick) -> Option<Tick> {
        let until = self.0.endpoints.get(which)?.until.load(Relaxed);
        (until != 0 && until <= now.as_nanos()).then(|| Tick::from_nanos(until))
    }

    /// How many are out at this time.
    pub fn out(&self, now: Tick) -> usize {
        (0..self.0.endpoints.len()).filter(|which| self.is_out(*which, now)).count()
    }
}

impl Inner {
    fn settle(&self, which: usize, word: u64, verdict: &Verdict, now: Tick) {
        let Some(watched) = self.endpoints.get(which) else { return };
        // Let in before it was last ejected: what it says is known.
        if watched.until.load(Relaxed) != word {
            return;
        }
        let Some(outcome) = outcome(verdict) else { return };
        let faults = match outcome {
            Outcome::Ok => {
                if watched.faults.load(Relaxed) != 0 {
                    watched.faults.store(0, Relaxed);
                }
                return watched.calls.add(self.scale, now, ALL);
            }
            Outcome::Weak => 0,
            Outcome::Fault => watched.faults.fetch_add(1, Relaxed).saturating_add(1),
        };
        watched.calls.add(self.scale, now, BOTH);
        if faults >= self.rules.faults {
            self.eject(which, now);
        }
        let due = self.compare_at.load(Relaxed);
        let next = (now + self.rules.window).as_nanos();
        if now.as_nanos() >= due && self.compare_at.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
            self.compare(now);
        }
    }

    /// Ejects those who do far worse than the others.
    fn compare(&self, now: Tick) {
        let share = |watched: &Watched| {
            let Sum { all, some: bad } = watched.calls.sum(self.scale, now);
            (all >= u64::from(self.rules.least_calls)).then(|| all.saturating_sub(bad) as f64 / all as f64)
        };
        let shares: Vec<Option<f64>> = self.endpoints.iter().map(share).collect();
        for which in outliers(&shares) {
            self.eject(which, now);
        }
    }

    fn eject(&self, which: usize, now: Tick) {
        let draw = self.rng.unit();
        {
            let mut records = self.records.lock();
            let Some(record) = self.rules.eject(&records, which, now, draw) else { return };
            records[which] = record;
            let watched = &self.endpoints[which];
            // It comes back with nothing counted.
            watched.faults.store(0, Relaxed);
            watched.calls.clear();
            watched.until.store(record.until.as_nanos(), Relaxed);
        }
        self.env.tell(&Event::Trip);
    }
}

/// The gate of one endpoint, from [`Ejection::endpoint`].
#[derive(Clone)]
pub struct Endpoint {
    set: Ejection,
    which: usize,
}

/// The right to call one endpoint. Dropping it says nothing about the endpoint.
#[derive(Debug)]
#[must_use]
pub struct Call {
    endpoint: Endpoint,
    word: u64,
}

impl Gate for Endpoint {
    type Place = Call;

    fn try_reserve(&self, ask: &Ask) -> Result<Call, Refusal> {
        let Inner { endpoints, env, returns, rules, .. } = &*self.set.0;
        let word = endpoints[self.which].until.load(Relaxed);
        if ask.at.as_nanos() >= word {
            return Ok(Call { endpoint: self.clone(), word });
        }
        env.tell(&Event::Refusal);
        Err(Refusal::new(Why::Tripped).after(Tick::from_nanos(word) - ask.at + returns.within(rules.base / 10)))
    }

    fn renew(&self, call: &mut Call, ask: &Ask) -> Result<(), Refusal> {
        if self.set.0.endpoints[self.which].until.load(Relaxed) != call.word {
            *call = self.try_reserve(ask)?;
        }
        Ok(())
    }
}

/// Dropped before the work or during it, it takes nothing.
impl Place for Call {
    type Permit = Self;

    fn commit(self) -> Self {
        self
    }
}

impl Permit for Call {
    fn settle(self, verdict: &Verdict, span: Span) {
        self.endpoint.set.0.settle(self.endpoint.which, self.word, verdict, span.to);
    }
}

impl fmt::Debug for Ejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.0.env.now();
        f.debug_struct("Ejection").field("endpoints", &self.0.endpoints.len()).field("out", &self.out(now)).finish()
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = self.set.is_out(self.which, self.set.0.env.now());
        f.debug_struct("Endpoint").field("which", &self.which).field("out", &out).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::env::sim::Sim;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Tick {
        Tick::ZERO + SECOND * seconds
    }

    fn set(endpoints: usize) -> Ejection {
        Ejection::new(&Sim::new(5).env(), endpoints)
    }

    /// Calls an endpoint; false if it is out.
    fn call(set: &Ejection, which: usize, now: Tick, verdict: Verdict) -> bool {
        let ask = Ask { at: now, ..Ask::new(&set.0.env) };
        let entered = set.endpoint(which).unwrap().try_enter(&ask);
        entered.map(|call| call.settle(&verdict, Span { from: now, to: now })).is_ok()
    }

    fn fault_five(set: &Ejection, which: usize, now: Tick) {
        for _ in 0..5 {
            call(set, which, now, Verdict::Fault);
        }
    }

    #[test]
    fn five_faults_in_a_row_put_an_endpoint_out_and_nobody_else() {
        let set = set(20);
        for _ in 0..4 {
            call(&set, 3, at(0), Verdict::Fault);
        }
        call(&set, 3, at(0), Verdict::Ok);
        for _ in 0..4 {
            call(&set, 3, at(0), Verdict::Fault);
        }
        assert_eq!(set.out(at(0)), 0);
        call(&set, 3, at(0), Verdict::Fault);
        assert!(set.is_out(3, at(0)) && !call(&set, 3, at(0), Verdict::Ok));
        assert_eq!(set.out(at(0)), 1);
    }

    #[test]
    fn who_waited_while_its_endpoint_was_put_out_does_not_call_it() {
        let set = set(20);
        let ask = Ask::at(at(0));
        let (down, up) = (set.endpoint(3).unwrap(), set.endpoint(4).unwrap());
        let (mut waited, mut other) = (down.try_enter(&ask).unwrap(), up.try_enter(&ask).unwrap());
        fault_five(&set, 3, at(0));
        assert_eq!(down.renew(&mut waited, &ask).unwrap_err().why, Why::Tripped);
        assert!(up.renew(&mut other, &ask).is_ok());
    }

    #[test]
    fn when_all_look_bad_most_stay_in() {
        for (endpoints, most) in [(1, 0), (2, 1), (9, 1), (20, 2), (100, 10)] {
            let set = set(endpoints);
            for which in 0..endpoints {
                fault_five(&set, which, at(0));
            }
            assert_eq!(set.out(at(0)), most, "of {endpoints}");
        }
    }

    /// envoy#27066: the share was reckoned before the ejection, so that with two thirds allowed all of three were out.
    #[test]
    fn the_bound_counts_the_one_that_is_about_to_go_and_the_last_stays_in_whatever_the_bound() {
        for (endpoints, share, most) in
            [(3, 0.5, 1), (3, 0.67, 2), (3, 1.0, 2), (4, 0.74, 2), (10, 0.25, 2), (10, 0.0, 1)]
        {
            let set = Ejection::builder(&Sim::new(5).env()).most_out(share).build(endpoints);
            for which in 0..endpoints {
                fault_five(&set, which, at(0));
            }
            assert_eq!(set.out(at(0)), most, "{share} of {endpoints}");
        }
    }

    /// envoy#19869: those that were ejected together came back together.
    #[test]
    fn those_ejected_together_come_back_apart() {
        let set = set(1000);
        for which in 0..100 {
            fault_five(&set, which, at(0));
        }
        let back: BTreeSet<Tick> = (0..100).map(|which| set.back_since(which, at(40)).unwrap()).collect();
        assert_eq!(back.len(), 100);
        assert!(*back.first().unwrap() >= at(15) && *back.last().unwrap() <= at(30));
        assert!(*back.last().unwrap() - *back.first().unwrap() > SECOND * 12);
    }

    #[test]
    fn it_is_out_longer_each_time_up_to_a_cap_at_which_it_is_still_drawn() {
        let rules = Ejection::builder(&Sim::new(1).env()).rules;
        let mut records = vec![Record::default(); 20];
        let mut now = at(0);
        for times in 1..=20 {
            let longest = (SECOND * 30 * times).min(SECOND * 300);
            let times = [0.0, 1.0].map(|draw| rules.eject(&records, 0, now, draw).unwrap().until - now);
            assert_eq!(times, [longest / 2, longest]);
            records[0] = rules.eject(&records, 0, now, 1.0).unwrap();
            now = records[0].until;
        }
        let after_a_minute = rules.eject(&records, 0, now + SECOND * 60, 0.0).unwrap();
        assert_eq!(after_a_minute.times, 19, "two steps back, one more");
        assert_eq!(rules.eject(&records, 0, now + SECOND * 1_000_000, 0.0).unwrap().times, 1);
    }

    #[test]
    fn one_that_does_far_worse_than_the_others_is_found_without_a_row_of_faults() {
        let set = set(20);
        for round in 0..120 {
            for which in 0..20 {
                let bad = which == 7 && round % 3 == 0;
                call(&set, which, at(round / 12), if bad { Verdict::Fault } else { Verdict::Ok });
            }
        }
        call(&set, 7, at(10), Verdict::Overload { after: None });
        assert!(set.is_out(7, at(10)));
        assert_eq!(set.out(at(10)), 1);
    }

    #[test]
    fn few_endpoints_or_few_calls_say_nothing() {
        assert!(outliers(&[Some(1.0), Some(1.0), Some(1.0), Some(0.0), None]).is_empty());
        assert!(outliers(&[Some(0.5); 20]).is_empty(), "equally bad is not an outlier");
        let mut shares = vec![Some(0.99); 20];
        (shares[4], shares[9]) = (Some(0.3), Some(0.1));
        assert_eq!(outliers(&shares), [9, 4], "the worst goes first");
    }

    #[test]
    fn what_was_under_way_when_it_was_ejected_does_not_count_when_it_is_back() {
        let set = set(20);
        let endpoint = set.endpoint(0).unwrap();
        let ask = Ask { at: at(0), ..Ask::new(&set.0.env) };
        let slow: Vec<Call> = (0..5).map(|_| endpoint.try_enter(&ask).unwrap()).collect();
        fault_five(&set, 0, at(0));
        for call in slow {
            call.settle(&Verdict::Fault, Span { from: at(0), to: at(31) });
        }
        assert!(!set.is_out(0, at(31)));
        assert!(set.back_since(0, at(31)).is_some() && set.back_since(1, at(31)).is_none());
    }

    #[test]
    fn there_is_no_gate_for_an_endpoint_that_is_not_there() {
        assert!(set(3).endpoint(3).is_none() && !set(3).is_out(9, at(0)) && set(0).endpoint(0).is_none());
    }

    #[test]
    fn those_who_are_refused_are_told_different_times() {
        let set = set(10);
        fault_five(&set, 0, at(0));
        let ask = Ask { at: at(0), ..Ask::new(&set.0.env) };
        let refused = |_| set.endpoint(0).unwrap().try_enter(&ask).unwrap_err().after.unwrap();
        let told: BTreeSet<Duration> = (0..1000).map(refused).collect();
        assert_eq!(told.len(), 1000);
        assert!(set.0.endpoints[0].until.load(Relaxed) <= nanos(*told.first().unwrap()));
    }
}
