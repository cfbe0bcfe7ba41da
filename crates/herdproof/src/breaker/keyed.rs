//! A breaker for each key: for each host, each tenant, each shard.

use std::{borrow::Borrow, fmt, hash::Hash, sync::Arc, time::Duration};

use super::{
    CLOSED, KIND, PROBING, Returns, SETTLED, outcome,
    state::{Entry, Mode, Rules, State},
    tally::Tally,
    word,
};
use crate::{
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
    keyed::{Fades, Keyed},
    window::Scale,
};

/// A window of two or three buckets: coarser than that of a single breaker, and a quarter of its size.
const SLOTS: usize = 4;
/// Faults in a row are kept for this long after the last one: what is called once in minutes and fails every time is down.
const ROW: Duration = Duration::from_secs(600);

/// A [`Breaker`](super::Breaker) for each key, in bounded memory. Cheap to clone, and clones share.
///
/// ```
/// use herdproof::{Breaker, Env, breaker::KeyedBreaker, gate::{Ask, Gate, Permit, Span, Verdict}};
///
/// let env = Env::system();
/// let hosts: KeyedBreaker<String> = Breaker::builder(&env).build_keyed(100_000);
/// for _ in 0..7 {
///     let ask = Ask::new(&env);
///     hosts.of("a.example").try_enter(&ask).unwrap().settle(&Verdict::Fault, Span { from: ask.at, to: env.now() });
/// }
/// assert!(hosts.of("a.example").try_enter(&Ask::new(&env)).is_err());
/// assert!(hosts.of("b.example").try_enter(&Ask::new(&env)).is_ok());
/// ```
///
/// A key is forgotten when nothing was heard of it for so long that a new breaker would do the same; faults in a row are
/// forgotten with it after ten minutes. At the bound, the one that would have been forgotten first goes, and begins anew:
/// closed. A key costs some 150 bytes beside itself. Its window is made of two or three buckets, where that of a single
/// breaker has ten.
pub struct KeyedBreaker<K>(Arc<Inner<K>>);

struct Inner<K> {
    rules: Rules,
    scale: Scale<SLOTS>,
    ramp_time: Duration,
    env: Env,
    rng: Rng,
    returns: Returns,
    keys: Keyed<K, Small>,
}

/// What is kept for a key, under the lock of its shard.
struct Small {
    state: State,
    fades_at: Tick,
    tally: Tally<SLOTS>,
}

impl Fades for Small {
    fn fades_at(&self) -> Tick {
        self.fades_at
    }
}

impl Small {
    fn new(now: Tick) -> Small {
        Small { state: State::new(now), fades_at: now, tally: Tally::new() }
    }

    /// Takes a new state; true if it has opened.
    fn change(&mut self, state: State) -> bool {
        let opened = state.opened_since(&self.state);
        if state.epoch != self.state.epoch {
            self.tally.clear();
        }
        self.state = state;
        opened
    }

    /// Something was heard of it at this time.
    fn touch(&mut self, rules: &Rules, now: Tick) {
        let healthy = rules.window.saturating_mul(u32::from(self.state.level) + 1);
        let until = match self.state.mode {
            Mode::Closed { .. } if self.tally.has_row() => now + ROW,
            Mode::Closed { .. } | Mode::HeldClosed | Mode::HeldOpen => now,
            Mode::Open { until } | Mode::Probing { until } => now.max(until) + rules.open_cap,
            Mode::Ramping { .. } => now + rules.open_cap,
        };
        self.fades_at = until + healthy;
    }
}

impl<K: Hash + Eq> KeyedBreaker<K> {
    pub(super) fn new(env: Env, rules: Rules, keys: usize) -> KeyedBreaker<K> {
        let rng = env.rng("breaker/keyed");
        KeyedBreaker(Arc::new(Inner {
            rules,
            scale: Scale::new(rules.window),
            ramp_time: rules.ramp_time(),
            returns: Returns::new(&rng),
            rng,
            keys: Keyed::new(&env, "breaker/keyed", keys),
            env,
        }))
    }

    /// The gate of this key.
    #[inline]
    pub fn of<'a, Q: ?Sized>(&'a self, key: &'a Q) -> OfKey<'a, K, Q>
    where
        K: Borrow<Q>,
    {
        OfKey { breakers: self, key }
    }

    /// How many keys are kept at present.
    pub fn len(&self) -> usize {
        self.0.keys.len()
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The gate of one key, from [`KeyedBreaker::of`].
pub struct OfKey<'a, K, Q: ?Sized> {
    breakers: &'a KeyedBreaker<K>,
    key: &'a Q,
}

/// The right to make one call for a key.
#[must_use]
pub struct KeyedPass<K: Hash + Eq> {
    breakers: KeyedBreaker<K>,
    hash: u64,
    word: u64,
}

impl<K, Q> Gate for OfKey<'_, K, Q>
where
    K: Borrow<Q> + Hash + Eq + Send + Sync,
    Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
{
    type Place = KeyedPass<K>;

    fn try_reserve(&self, ask: &Ask) -> Result<KeyedPass<K>, Refusal> {
        let Inner { rules, env, rng, keys, returns, ramp_time, .. } = &*self.breakers.0;
        let hash = keys.hash(self.key);
        let (entry, word, opened) = keys.with(
            hash,
            self.key,
            ask.at,
            || Small::new(ask.at),
            |small| {
                let mut opened = false;
                let mut entry = Entry::In;
                if word(&small.state) & KIND != CLOSED {
                    let (state, answer) = small.state.ask(rules, ask.at, rng.unit());
                    opened = small.change(state);
                    entry = answer;
                }
                small.touch(rules, ask.at);
                (entry, word(&small.state), opened)
            },
        );
        if opened {
            env.tell(&Event::Trip);
        }
        match entry {
            Entry::In => Ok(KeyedPass { breakers: self.breakers.clone(), hash, word }),
            Entry::Held => Err(Refusal::new(Why::Tripped)),
            Entry::Refused { until } => {
                env.tell(&Event::Refusal);
                Err(Refusal::new(Why::Tripped).after(until - ask.at + returns.within(*ramp_time)))
            }
        }
    }

    fn renew(&self, pass: &mut KeyedPass<K>, ask: &Ask) -> Result<(), Refusal> {
        // A key that is forgotten is closed.
        let now = self.breakers.0.keys.with_known(pass.hash, |small| word(&small.state));
        if now.is_some_and(|now| now != pass.word) {
            *pass = self.try_reserve(ask)?;
        }
        Ok(())
    }
}

impl<K: Hash + Eq> Inner<K> {
    fn settle(&self, hash: u64, entered: u64, verdict: &Verdict, span: Span) {
        let Some(outcome) = outcome(verdict) else { return self.cancel(hash, entered) };
        let opened = self.keys.with_known(hash, |small| {
            if word(&small.state) != entered {
                return false;
            }
            let state = if entered & KIND != CLOSED {
                let outcome = self.rules.on_trial(outcome, span.took());
                small.state.settle(&self.rules, span.to, outcome, self.rng.unit())
            } else if small.tally.count(&self.rules, self.scale, outcome, self.rules.is_slow(span.took()), span.to) {
                small.state.trip(&self.rules, span.to, self.rng.unit())
            } else {
                small.state
            };
            let opened = small.change(state);
            small.touch(&self.rules, span.to);
            opened
        });
        if opened == Some(true) {
            self.env.tell(&Event::Trip);
        }
    }

    fn cancel(&self, hash: u64, entered: u64) {
        if entered & KIND == PROBING {
            self.keys.with_known(hash, |small| {
                if word(&small.state) == entered {
                    small.change(small.state.cancel());
                }
            });
        }
    }
}

/// Dropped before the work or during it, it takes nothing.
impl<K: Hash + Eq + Send + Sync> Place for KeyedPass<K> {
    type Permit = Self;

    fn commit(self) -> Self {
        self
    }
}

impl<K: Hash + Eq + Send + Sync> Permit for KeyedPass<K> {
    fn settle(mut self, verdict: &Verdict, span: Span) {
        let word = std::mem::replace(&mut self.word, SETTLED);
        self.breakers.0.settle(self.hash, word, verdict, span);
    }
}

impl<K: Hash + Eq> Drop for KeyedPass<K> {
    fn drop(&mut self) {
        self.breakers.0.cancel(self.hash, self.word);
    }
}

impl<K> Clone for KeyedBreaker<K> {
    fn clone(&self) -> KeyedBreaker<K> {
        KeyedBreaker(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for KeyedBreaker<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreaker").field("rules", &self.0.rules).finish_non_exhaustive()
    }
}

impl<K, Q: ?Sized> fmt::Debug for OfKey<'_, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfKey").field("breakers", self.breakers).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> fmt::Debug for KeyedPass<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPass").field("word", &self.word).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{breaker::Breaker, env::sim::Sim};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u32) -> Tick {
        Tick::ZERO + SECOND * seconds
    }

    fn keyed(keys: usize) -> KeyedBreaker<u64> {
        Breaker::builder(&Sim::new(3).env()).build_keyed(keys)
    }

    fn enter(hosts: &KeyedBreaker<u64>, key: u64, now: Tick) -> Result<KeyedPass<u64>, Refusal> {
        hosts.of(&key).try_enter(&Ask { at: now, ..Ask::new(&hosts.0.env) })
    }

    fn call(hosts: &KeyedBreaker<u64>, key: u64, now: Tick, verdict: Verdict) -> bool {
        enter(hosts, key, now).map(|pass| pass.settle(&verdict, Span { from: now, to: now })).is_ok()
    }

    fn trip(hosts: &KeyedBreaker<u64>, key: u64, now: Tick) {
        for _ in 0..7 {
            call(hosts, key, now, Verdict::Fault);
        }
    }

    #[test]
    fn one_host_that_is_down_stops_calls_to_itself_only() {
        let hosts = keyed(100);
        trip(&hosts, 1, at(0));
        assert!(enter(&hosts, 1, at(0)).unwrap_err().after.is_some());
        assert!((2..50).all(|key| call(&hosts, key, at(0), Verdict::Ok)));
    }

    #[test]
    fn who_waited_while_its_host_went_down_asks_again_and_who_waited_for_another_does_not() {
        let hosts = keyed(100);
        let (mut down, mut up) = (enter(&hosts, 1, at(0)).unwrap(), enter(&hosts, 2, at(0)).unwrap());
        trip(&hosts, 1, at(0));
        let ask = Ask::at(at(0));
        assert_eq!(hosts.of(&1).renew(&mut down, &ask).unwrap_err().why, Why::Tripped);
        assert!(hosts.of(&2).renew(&mut up, &ask).is_ok());
    }

    #[test]
    fn a_key_probes_ramps_and_closes_as_a_single_breaker_does() {
        let hosts = keyed(100);
        trip(&hosts, 1, at(0));
        let probe = enter(&hosts, 1, at(5)).unwrap();
        assert!(enter(&hosts, 1, at(5)).is_err(), "one probe at a time");
        drop(probe);
        assert!(call(&hosts, 1, at(5), Verdict::Ok), "it left, so the next is the probe");
        for second in 6..8 {
            let within = (0..1000).filter(|_| call(&hosts, 1, at(second), Verdict::Ok)).count();
            assert!(within < 1000, "the ramp lets {within} of 1000 in at {second} s");
        }
        assert!((0..100).all(|_| call(&hosts, 1, at(9), Verdict::Ok)));
    }

    #[test]
    fn a_rate_trips_a_key_too() {
        let hosts = keyed(100);
        for _ in 0..20 {
            assert!(call(&hosts, 1, at(0), Verdict::Overload { after: None }));
        }
        assert!(enter(&hosts, 1, at(0)).is_err());
    }

    #[test]
    fn results_of_a_key_that_was_forgotten_and_came_again_do_not_count() {
        let hosts = keyed(1);
        let before: Vec<_> = (0..7).map(|_| enter(&hosts, 1, at(0)).unwrap()).collect();
        assert!(call(&hosts, 2, at(100), Verdict::Ok));
        assert!(call(&hosts, 1, at(200), Verdict::Ok));
        for pass in before {
            pass.settle(&Verdict::Fault, Span { from: at(0), to: at(200) });
        }
        assert!(enter(&hosts, 1, at(200)).is_ok());
    }

    #[test]
    fn a_key_that_is_open_is_kept_when_invented_keys_come() {
        let hosts = keyed(500);
        trip(&hosts, 1, at(0));
        for key in 10..5_000 {
            call(&hosts, key, at(1), Verdict::Ok);
        }
        assert!(enter(&hosts, 1, at(1)).is_err(), "a healthy one went in its place");
        assert!(hosts.len() <= 500);
    }

    /// The row was forgotten with its key, a window after each fault, so a host that is called every minute was never found
    /// to be down.
    #[test]
    fn a_host_that_is_rarely_called_is_noticed_though_other_keys_come_and_go() {
        let hosts = keyed(500);
        for minute in 0..7 {
            assert!(call(&hosts, 1, at(minute * 60), Verdict::Fault));
            for key in 0..2_000 {
                call(&hosts, 10 + key + u64::from(minute) * 2_000, at(minute * 60 + 30), Verdict::Ok);
            }
        }
        assert!(enter(&hosts, 1, at(6 * 60)).is_err());
    }

    #[test]
    fn a_key_costs_less_than_a_fifth_of_a_kilobyte() {
        // With its key, in a table that is seven eighths full.
        assert!((size_of::<Small>() + 8) * 8 / 7 < 200, "{} bytes", size_of::<Small>());
    }
}
