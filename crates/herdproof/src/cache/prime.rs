//! Filling a cache before anybody asks.
//!
//! A cold cache is a herd that waits for its first caller. Filling it is a herd too, if it asks the origin for everything at
//! once; here it asks for a few keys at a time, behind everybody who waits for an answer.

use std::{
    future::{Future, poll_fn},
    hash::Hash,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{
    Cache,
    call::Plain,
    get::Get,
    load::Purpose,
    outcome::{GetError, Got, Source},
};
use crate::{env::Sleep, gate::Refusal};

/// How often a key is tried that the cache's limit refuses.
const TRIES: u32 = 8;
/// How long to stay away after a refusal that does not say.
const PAUSE: Duration = Duration::from_millis(100);

/// What came of [`Cache::prime`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Primed {
    /// Keys that were loaded, or found to be absent.
    pub loaded: u64,
    /// Keys that were there, or being loaded for somebody else.
    pub there: u64,
    /// Keys whose load failed, or was refused time after time.
    pub failed: u64,
}

/// A key on its way.
struct Step<K, V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    key: K,
    tries: u32,
    doing: Doing<V, E>,
}

enum Doing<V: Clone + Send + Sync + 'static, E: Send + Sync + 'static> {
    Loading(Get<V, E>),
    /// It was refused, and waits to be tried again.
    Pausing(Sleep),
}

/// What came of a step.
enum Over<V, E> {
    Loaded(Result<Got<V>, GetError<E>>),
    Paused,
}

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Loads those of the keys that are not there, `at_once` of them at a time at most, and as the cache's limit lets them:
    /// they come after everybody who waits for an answer. What the limit refuses is tried again when it says. Let `at_once`
    /// be smaller than the limit's line is long: from a line full of them, others push them out.
    ///
    /// Nothing is begun before this is awaited, and nothing more once it is dropped.
    ///
    /// ```
    /// # use herdproof::{Cache, Env};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    /// # runtime.block_on(async {
    /// let odds: Cache<u32, u32> = Cache::builder(&Env::system()).build();
    /// odds.set(7, 7);
    /// let primed = odds.prime(0..100, 8, |key| async move { Ok(key) }).await;
    /// assert_eq!((primed.loaded, primed.there, primed.failed), (99, 1, 0));
    /// # });
    /// ```
    pub async fn prime<F, L>(&self, keys: impl IntoIterator<Item = K>, at_once: usize, mut load: L) -> Primed
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnMut(K) -> F,
    {
        let mut primed = Primed::default();
        let mut keys = keys.into_iter();
        let mut steps: Vec<Step<K, V, E>> = Vec::new();
        let rng = self.0.env().rng("cache/prime");
        loop {
            while steps.len() < at_once.max(1)
                && let Some(key) = keys.next()
            {
                if self.peek(&key).is_some() {
                    primed.there += 1;
                } else {
                    let doing = Doing::Loading(self.begin(&key, &mut load));
                    steps.push(Step { key, tries: 1, doing });
                }
            }
            if steps.is_empty() {
                return primed;
            }
            let (at, over) = poll_fn(|cx| any(&mut steps, cx)).await;
            let Step { key, tries, .. } = steps.swap_remove(at);
            match over {
                Over::Loaded(Err(GetError::Refused(Refusal { after, .. }))) if tries < TRIES => {
                    let pause = after.unwrap_or_else(|| PAUSE.mul_f64(0.5 + rng.unit()));
                    let pause = pause.max(self.put_off(&key).unwrap_or_default());
                    steps.push(Step { key, tries: tries + 1, doing: Doing::Pausing(self.0.env().sleep(pause)) });
                }
                // It was refused before, and what is kept is still served as it is: longer than the pause, if that is long past its time.
                Over::Loaded(Ok(Got { source: Source::StaleOnError, .. })) if (2..TRIES).contains(&tries) => {
                    let pause = self.put_off(&key).unwrap_or_default().max(PAUSE);
                    steps.push(Step { key, tries: tries + 1, doing: Doing::Pausing(self.0.env().sleep(pause)) });
                }
                Over::Loaded(Ok(Got { source: Source::Loaded, .. }) | Err(GetError::Absent)) => primed.loaded += 1,
                Over::Loaded(Ok(Got { source: Source::StaleOnError, .. }) | Err(_)) => primed.failed += 1,
                Over::Loaded(Ok(_)) => primed.there += 1,
                Over::Paused => {
                    let doing = Doing::Loading(self.begin(&key, &mut load));
                    steps.push(Step { key, tries, doing });
                }
            }
        }
    }

    fn begin<F, L>(&self, key: &K, load: &mut L) -> Get<V, E>
    where
        F: Future<Output = Result<V, E>> + Send + 'static,
        L: FnMut(K) -> F,
    {
        let cache = &*self.0;
        let load = |_| Plain { load: load(key.clone()) };
        // Nothing to fall back on: that would be the answer of a load that goes on, or that the limit has refused.
        self.load(cache.engine.hash(key), key.clone(), cache.env().now(), None, Purpose::Prime, load)
    }

    /// How long what is kept of a key is served as it is after its load was refused, if anything is.
    fn put_off(&self, key: &K) -> Option<Duration> {
        self.peek(key)?;
        Some(self.0.policy(self.0.own_policy(key).as_deref()).pause)
    }
}

/// The first of these that is over.
fn any<K, V, E>(steps: &mut [Step<K, V, E>], cx: &mut Context<'_>) -> Poll<(usize, Over<V, E>)>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    for (at, step) in steps.iter_mut().enumerate() {
        let over = match &mut step.doing {
            Doing::Loading(get) => Pin::new(get).poll(cx).map(Over::Loaded),
            Doing::Pausing(sleep) => Pin::new(sleep).poll(cx).map(|_| Over::Paused),
        };
        if let Poll::Ready(over) = over {
            return Poll::Ready((at, over));
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    };

    use super::*;
    use crate::{
        cache::Policy,
        env::{Env, Tick, sim::Sim},
        gate::Gate,
        limit::Bulkhead,
    };

    const MS: Duration = Duration::from_millis(1);

    /// An origin that needs ten milliseconds for each key and notes how much it has to do at once.
    #[derive(Clone, Default)]
    struct Origin {
        loads: Arc<AtomicU32>,
        now: Arc<AtomicU32>,
        most: Arc<AtomicU32>,
    }

    impl Origin {
        fn load(&self, env: &Env, key: u32) -> impl Future<Output = Result<u32, String>> + Send + use<> {
            let (env, origin) = (env.clone(), self.clone());
            async move {
                origin.loads.fetch_add(1, Relaxed);
                origin.most.fetch_max(origin.now.fetch_add(1, Relaxed) + 1, Relaxed);
                env.sleep(10 * MS).await;
                origin.now.fetch_sub(1, Relaxed);
                if key % 10 == 3 { Err("three".into()) } else { Ok(key) }
            }
        }
    }

    #[test]
    fn a_cold_cache_is_filled_a_few_keys_at_a_time_and_what_came_of_it_is_said() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let cache: Cache<u32, u32, String> = Cache::builder(&env).build();
        (0..5).for_each(|key| cache.set(key * 10, 0));
        let priming = {
            let (env, origin, cache) = (env.clone(), origin.clone(), cache.clone());
            async move { cache.prime(0..100, 4, |key| origin.load(&env, key)).await }
        };
        assert_eq!(sim.run(priming), Primed { loaded: 85, there: 5, failed: 10 });
        assert_eq!((origin.loads.load(Relaxed), origin.most.load(Relaxed)), (95, 4));
        assert_eq!(env.now(), Tick::ZERO + 240 * MS, "always four at a time");
        assert_eq!(cache.stats().misses, 0, "nobody has asked");
    }

    #[test]
    fn priming_comes_after_those_who_wait() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let limit = Bulkhead::new(&env, 2).max_waiting(10);
        let cache: Cache<u32, u32, String> = Cache::builder(&env).load_limit(limit).build();
        let priming = {
            let (env, origin, cache) = (env.clone(), origin.clone(), cache.clone());
            env.clone().spawn(async move { cache.prime(0..30, 6, |key| origin.load(&env, key)).await })
        };
        sim.run_until(Tick::ZERO + 5 * MS);
        let asked = cache.get(&100, || origin.load(&env, 100));
        assert!(sim.run(asked).is_ok());
        assert!(env.now() <= Tick::ZERO + 20 * MS, "ahead of those that were in line: {:?}", env.now());
        assert_eq!(sim.run(priming).unwrap(), Primed { loaded: 27, there: 0, failed: 3 });
        assert_eq!(origin.most.load(Relaxed), 2);
    }

    #[test]
    fn priming_that_is_refused_comes_back() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let limit = Bulkhead::new(&env, 2).max_waiting(1);
        let cache: Cache<u32, u32, String> = Cache::builder(&env).load_limit(limit).build();
        let (clock, asked) = (env.clone(), origin.clone());
        let primed = sim.run(async move { cache.prime(0..30, 6, |key| asked.load(&clock, key)).await });
        assert_eq!(primed, Primed { loaded: 27, there: 0, failed: 3 });
        assert_eq!((origin.loads.load(Relaxed), origin.most.load(Relaxed)), (30, 2));
    }

    #[test]
    fn a_limit_that_never_lets_anybody_in_does_not_keep_priming_for_ever() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let limit = Bulkhead::new(&env, 1).max_waiting(0);
        let _taken = limit.try_enter(&crate::gate::Ask::new(&env)).unwrap();
        let cache: Cache<u32, u32, String> = Cache::builder(&env).load_limit(limit).build();
        let clock = env.clone();
        let primed = sim.run(async move { cache.prime(0..3, 3, |key| origin.load(&clock, key)).await });
        assert_eq!(primed, Primed { loaded: 0, there: 0, failed: 3 });
    }

    #[test]
    fn dropped_it_begins_nothing_more_and_what_was_begun_still_fills() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let cache: Cache<u32, u32, String> =
            Cache::builder(&env).policy(Policy::default().failed(Duration::ZERO)).build();
        let priming = {
            let (env, origin, cache) = (env.clone(), origin.clone(), cache.clone());
            env.clone().spawn(async move { cache.prime(10..100, 2, |key| origin.load(&env, key)).await })
        };
        sim.run_until(Tick::ZERO + 15 * MS);
        priming.abort();
        sim.run_until(Tick::ZERO + 200 * MS);
        assert_eq!((origin.loads.load(Relaxed), cache.len()), (4, 3), "one of the four is a thirteen");
    }

    #[test]
    fn what_is_kept_for_errors_is_primed_within_the_bound_though_patience_is_short() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let second = Duration::from_secs(1);
        let policy = Policy::strict(second).on_error(60 * second).patience(MS);
        let cache: Cache<u32, u32, String> = Cache::builder(&env).policy(policy).build();
        (10..13).for_each(|key| cache.set(key, 0));
        sim.run_until(Tick::ZERO + 2 * second);
        let (clock, asked) = (env.clone(), origin.clone());
        let primed = sim.run(async move { cache.prime(10..13, 1, |key| asked.load(&clock, key)).await });
        assert_eq!((primed, origin.most.load(Relaxed)), (Primed { loaded: 3, there: 0, failed: 0 }, 1));
    }

    #[test]
    fn what_is_kept_for_errors_is_tried_again_when_the_limit_refuses_it() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let second = Duration::from_secs(1);
        let policy = Policy::strict(second).on_error(60 * second);
        let limit = Bulkhead::new(&env, 1).max_waiting(0);
        let cache: Cache<u32, u32, String> = Cache::builder(&env).policy(policy).load_limit(limit.clone()).build();
        cache.set(1, 0);
        sim.run_until(Tick::ZERO + 2 * second);
        let taken = limit.try_enter(&crate::gate::Ask::new(&env)).unwrap();
        let (clock, primed) = (env.clone(), cache.clone());
        let priming = env.spawn(async move { primed.prime([1], 1, |key| origin.load(&clock, key)).await });
        sim.run_until(Tick::ZERO + 3 * second);
        drop(taken);
        assert_eq!(sim.run(priming).unwrap(), Primed { loaded: 1, there: 0, failed: 0 });
        assert_eq!(cache.peek(&1).unwrap().value, 1);
    }

    #[test]
    fn what_is_kept_for_errors_survives_priming_that_fails() {
        let mut sim = Sim::new(1);
        let (env, origin) = (sim.env(), Origin::default());
        let second = Duration::from_secs(1);
        let policy = Policy::strict(second).on_error(60 * second).failed(second);
        let cache: Cache<u32, u32, String> = Cache::builder(&env).policy(policy).build();
        cache.set(3, 7);
        sim.run_until(Tick::ZERO + 2 * second);
        let (clock, primed) = (env.clone(), cache.clone());
        let primed = sim.run(async move { primed.prime([3], 1, |key| origin.load(&clock, key)).await });
        assert_eq!(primed, Primed { loaded: 0, there: 0, failed: 1 });
        assert_eq!(cache.peek(&3).unwrap().value, 7);
    }
}
