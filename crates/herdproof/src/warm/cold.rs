//! A cold cache, filled no faster than the origin can bear.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Gate, Permit, Place, Refusal, Span, Verdict, Why},
};

/// A gate before a cache: lets in as many lookups as make no more than so many misses a second.
///
/// It knows from what lookups say of themselves how many of them miss at present. While the cache is cold that is all of
/// them, and only as many come in as the origin can serve; as it fills, more and more do; when it is warm the gate stands
/// open. If the cache is lost, it closes again by itself.
///
/// A lookup is charged for what it will cost as far as is known, and when it turns out to be a hit or a miss the account is
/// put right. So a wrong guess costs a little order, but the misses never run ahead of the rate by more than the burst and
/// what is under way.
///
/// ```
/// use herdproof::{Sim, gate::{Ask, Gate}, warm::ColdCache};
///
/// let env = Sim::new(1).env();
/// let gate = ColdCache::new(&env, 50.0); // misses a second
/// let mut lookup = gate.try_enter(&Ask::new(&env)).unwrap();
/// lookup.hit(); // or `lookup.missed()`, before the origin is asked
/// ```
#[derive(Clone, Debug)]
pub struct ColdCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    rng: Rng,
    /// Nanoseconds of the origin's time that a miss takes.
    miss: u64,
    /// How many nanoseconds the account may be ahead of the clock.
    burst: u64,
    /// The tick up to which the origin's time is given away.
    given: AtomicU64,
    /// The share of lookups that miss, as the bits of an `f64`. A lost update is only a sample that was not taken.
    missing: AtomicU64,
}

/// One lookup that was let in. One that does not say whether it hit or missed keeps its charge, and nothing is learned from it.
#[derive(Debug)]
pub struct Lookup {
    inner: Arc<Inner>,
    charged: u64,
    /// Whether it is known to have missed or hit, and the account is right.
    settled: bool,
}

/// One lookup that has not begun. Dropping it gives back what it was charged.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct LookupPlace {
    inner: Arc<Inner>,
    /// Zero once it is committed.
    charged: u64,
}

/// The share of misses is a mean over about so many lookups.
const MEMORY: f64 = 64.0;
/// Lookups are charged for this share of a miss at least, so that a cache which is lost is noticed after a few.
const LEAST: f64 = 1.0 / 1024.0;

impl ColdCache {
    /// A gate that expects a cold cache. The rate is what the origin can serve a second (a thousandth at least, a million at
    /// most); a tenth of a second of it, one miss at least, may come at once.
    pub fn new(env: &Env, misses_per_second: f64) -> ColdCache {
        let rate = if misses_per_second.is_nan() { 1.0 } else { misses_per_second.clamp(1e-3, 1e6) };
        let miss = nanos(1e9 / rate);
        ColdCache(Arc::new(Inner {
            rng: env.rng("warm/cold"),
            env: env.clone(),
            miss,
            burst: miss.max(100_000_000),
            given: AtomicU64::new(0),
            missing: AtomicU64::new(1f64.to_bits()),
        }))
    }

    /// The share of lookups that miss, as far as is known.
    pub fn missing(&self) -> f64 {
        f64::from_bits(self.0.missing.load(Ordering::Relaxed))
    }
}

impl Gate for ColdCache {
    type Place = LookupPlace;

    fn try_reserve(&self, ask: &Ask) -> Result<LookupPlace, Refusal> {
        let inner = &self.0;
        let charge = nanos(inner.miss as f64 * self.missing().max(LEAST));
        let taken = inner
            .given
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |given| take(given, ask.at, charge, inner.burst));
        match taken {
            Ok(_) => Ok(LookupPlace { inner: Arc::clone(inner), charged: charge }),
            Err(given) => {
                inner.env.tell(&Event::Refusal);
                let room = Tick::from_nanos(given.saturating_add(charge).saturating_sub(inner.burst)) - ask.at;
                // Nobody is promised the room there will be, so those who are refused are spread over as long again.
                let spread = inner.rng.between(Duration::ZERO, room.max(Duration::from_nanos(inner.burst)));
                Err(Refusal::new(Why::Rate).after(room + spread))
            }
        }
    }
}

/// The account after this charge, or `None` if there is no room for it.
fn take(given: u64, now: Tick, charge: u64, burst: u64) -> Option<u64> {
    let now = now.as_nanos();
    let after = given.max(now).saturating_add(charge);
    (after <= now.saturating_add(burst)).then_some(after)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float as an integer saturates")]
fn nanos(nanos: f64) -> u64 {
    nanos as u64
}

impl Lookup {
    /// The value was there.
    pub fn hit(&mut self) {
        self.learn(0.0);
        self.correct(0);
    }

    /// It was not; the origin is going to be asked.
    pub fn missed(&mut self) {
        self.learn(1.0);
        self.correct(self.inner.miss);
    }

    fn learn(&self, missed: f64) {
        if !self.settled {
            let missing = f64::from_bits(self.inner.missing.load(Ordering::Relaxed));
            self.inner.missing.store((missing + (missed - missing) / MEMORY).to_bits(), Ordering::Relaxed);
        }
    }

    /// Charges what it really cost instead of what was thought; once.
    fn correct(&mut self, cost: u64) {
        if !self.settled {
            self.settled = true;
            self.inner.correct(self.charged, cost);
        }
    }
}

impl Inner {
    fn correct(&self, charged: u64, cost: u64) {
        self.given
            .update(Ordering::Relaxed, Ordering::Relaxed, |given| given.saturating_add(cost).saturating_sub(charged));
    }
}

impl Place for LookupPlace {
    type Permit = Lookup;

    fn commit(mut self) -> Lookup {
        let charged = std::mem::take(&mut self.charged);
        Lookup { inner: Arc::clone(&self.inner), charged, settled: false }
    }
}

impl Drop for LookupPlace {
    fn drop(&mut self) {
        self.inner.correct(self.charged, 0);
    }
}

impl Permit for Lookup {
    fn settle(self, _: &Verdict, _: Span) {}
}
