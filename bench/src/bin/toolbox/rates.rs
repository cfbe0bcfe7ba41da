//! So many in a second: for all together, and for each key.

use std::{
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    time::Duration,
};

use governor::{Quota, RateLimiter, clock, state::keyed::DashMapStateStore};
use herdproof::{
    Env,
    gate::{Gate, Permit, Span, Verdict},
    limit::{KeyedRate, Rate, RateLimit},
};
use herdproof_bench::{Value, live_bytes};
use tower::{Service, ServiceExt};

use crate::calls::{All, Clock, Given, any_key};

/// A second's worth: of two threads one may be stopped between its reading of the clock and its question.
const BURST: u32 = 1_000_000_000;
const NEVER: Duration = Duration::from_secs(1_000_000);

/// How long until one more may go: so short that there is always room, or so long that there never is.
fn interval(all: All) -> Duration {
    if all == All::LetIn { Duration::from_nanos(1) } else { NEVER }
}

/// Of a thousand keys each is asked for once in ten or twenty microseconds. They are kept only while something is taken from
/// them, so it must not have come back by then; and with this burst there is always room.
const KEYED: Duration = Duration::from_micros(100);

fn ours(all: All) -> Rate {
    Rate::every(interval(all)).burst(if all == All::LetIn { BURST } else { 1 })
}

fn ours_keyed() -> Rate {
    Rate::every(KEYED).burst(BURST)
}

fn quota_keyed() -> Quota {
    Quota::with_period(KEYED).expect("not zero").allow_burst(NonZeroU32::new(BURST).expect("not zero"))
}

fn quota(all: All) -> Quota {
    let burst = NonZeroU32::new(if all == All::LetIn { BURST } else { 1 }).expect("not zero");
    Quota::with_period(interval(all)).expect("not zero").allow_burst(burst)
}

/// Asks, and settles what it got. Nothing has taken any time, and a rate does not care.
fn go(gate: &impl Gate, clock: impl Clock) -> bool {
    let ask = clock.ask();
    match gate.try_enter(&ask) {
        Ok(permit) => {
            permit.settle(&Verdict::Ok, Span { from: ask.at, to: ask.at });
            true
        }
        Err(_) => false,
    }
}

pub(crate) fn herdproof<C: Clock>(all: All, env: &Env, clock: C) -> impl Fn() -> bool {
    let limit = RateLimit::new(env, ours(all));
    if all == All::Refused {
        assert!(go(&limit, clock), "the first gets in");
    }
    move || go(&limit, clock)
}

/// With permits that keep the limit alive.
pub(crate) fn herdproof_owned<C: Clock>(env: &Env, clock: C) -> impl Fn() -> bool {
    let limit = RateLimit::new(env, ours(All::LetIn));
    move || go(&limit, clock)
}

pub(crate) fn governor(all: All) -> impl Fn() -> bool {
    governor_by(all, clock::DefaultClock::default())
}

pub(crate) fn governor_given(all: All) -> impl Fn() -> bool {
    governor_by(all, Given)
}

fn governor_by<C: clock::Clock>(all: All, clock: C) -> impl Fn() -> bool {
    let limit = RateLimiter::direct_with_clock(quota(all), clock);
    if all == All::Refused {
        assert!(limit.check().is_ok(), "the first gets in");
    }
    // Who is refused is told when to come back, as it is by ours.
    move || match limit.check() {
        Ok(()) => true,
        Err(refusal) => {
            std::hint::black_box(refusal.earliest_possible());
            false
        }
    }
}

pub(crate) fn leaky_bucket(all: All) -> impl Fn() -> bool {
    let mut builder = leaky_bucket::RateLimiter::builder();
    let limit = match all {
        // A million in a millisecond, which is as evenly as it can be asked to.
        All::LetIn => {
            builder.max(1 << 40).initial(1 << 40).refill(1_000_000).interval(Duration::from_millis(1)).build()
        }
        All::Refused => builder.max(1).initial(0).refill(1).interval(NEVER).build(),
    };
    move || limit.try_acquire(1)
}

/// It has one owner, who waits: it cannot be asked from two threads, and does not refuse.
pub(crate) fn tower() -> impl AsyncFnMut() -> bool {
    let rate = tower::limit::rate::Rate::new(u64::MAX, Duration::from_secs(1));
    let mut limit = tower::limit::RateLimit::new(tower::service_fn(async |()| Ok::<(), ()>(())), rate);
    async move || match limit.ready().await {
        Ok(ready) => ready.call(()).await.is_ok(),
        Err(()) => false,
    }
}

pub(crate) fn herdproof_keyed<C: Clock>(env: &Env, clock: C) -> impl Fn() -> bool {
    let limits: KeyedRate<u64> = KeyedRate::new(env, ours_keyed());
    move || go(&limits.of(&any_key()), clock)
}

pub(crate) fn governor_keyed() -> impl Fn() -> bool {
    governor_keyed_by(clock::DefaultClock::default(), RandomState::new())
}

pub(crate) fn governor_keyed_given() -> impl Fn() -> bool {
    governor_keyed_by(Given, RandomState::new())
}

/// With the hasher that ours has.
pub(crate) fn governor_keyed_given_foldhash() -> impl Fn() -> bool {
    governor_keyed_by(Given, foldhash::fast::RandomState::default())
}

fn governor_keyed_by<C: clock::Clock, H: BuildHasher + Default + Clone>(clock: C, hasher: H) -> impl Fn() -> bool {
    let limits = RateLimiter::<u64, _, _, _>::dashmap_with_clock_and_hasher(quota_keyed(), clock, hasher);
    move || limits.check_key(&any_key()).is_ok()
}

pub(crate) fn herdproof_memory(keys: u64) -> Vec<Value> {
    let env = Env::system();
    bytes_per_key(keys, || {
        // A quarter more than there will be, as its documentation asks for.
        let room = usize::try_from(keys + keys / 4).expect("it fits");
        let limits: KeyedRate<u64> = KeyedRate::bounded(&env, ours(All::Refused), room);
        for key in 0..keys {
            assert!(go(&limits.of(&key), Given), "nobody was here before");
        }
        let len = limits.len();
        (limits, len)
    })
}

pub(crate) fn governor_memory(keys: u64) -> Vec<Value> {
    bytes_per_key(keys, || {
        let limits: RateLimiter<u64, DashMapStateStore<u64>, _> = RateLimiter::dashmap(quota(All::Refused));
        for key in 0..keys {
            assert!(limits.check_key(&key).is_ok(), "nobody was here before");
        }
        let len = limits.len();
        (limits, len)
    })
}

/// What a map costs in all, by its keys.
pub(crate) fn bytes_per_key<T>(keys: u64, fill: impl FnOnce() -> (T, usize)) -> Vec<Value> {
    let before = live_bytes();
    let (map, len) = fill();
    let bytes = live_bytes() - before;
    assert_eq!(len as u64, keys, "all keys are there");
    drop(map);
    vec![Value { unit: "bytes/key", value: bytes as f64 / keys as f64 }]
}
