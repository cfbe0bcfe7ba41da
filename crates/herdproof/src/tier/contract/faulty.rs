//! A tier that is away when the test says so.

use std::{
    fmt,
    future::pending,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::super::{Fault, Feed, Filled, Lease, Lookup, News, Speaker, Stored, Tier, TierError, Wait, Want, feed};
use crate::env::Env;

/// What is wrong with the way to a store. Clones share: one for all nodes is a store that is down, one for each a network
/// that can be cut.
#[derive(Clone)]
pub struct Faults<K>(Arc<Mutex<State<K>>>);

struct State<K> {
    mode: Mode,
    latency: Duration,
    calls: u64,
    listeners: Vec<Weak<Speaker<K>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Up,
    Down,
    Silent,
}

/// A tier behind [`Faults`].
pub struct Faulty<K, T> {
    env: Env,
    tier: T,
    faults: Faults<K>,
}

impl<K> Default for Faults<K> {
    fn default() -> Self {
        Faults(Arc::new(Mutex::new(State { mode: Mode::Up, latency: Duration::ZERO, calls: 0, listeners: Vec::new() })))
    }
}

impl<K> Faults<K> {
    /// Every call fails, and no news come through.
    pub fn down(&self) {
        self.0.lock().mode = Mode::Down;
    }

    /// No call is answered, and no news come through.
    pub fn silent(&self) {
        self.0.lock().mode = Mode::Silent;
    }

    /// All is well again. Listeners are told that they may have missed something.
    pub fn up(&self) {
        let mut state = self.0.lock();
        state.mode = Mode::Up;
        let listeners: Vec<_> = state.listeners.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        for listener in listeners {
            listener.say(News::Lost);
        }
    }

    /// Calls take this long, half of it before they have their effect. So do news and pushes.
    pub fn latency(&self, latency: Duration) {
        self.0.lock().latency = latency;
    }

    /// How many calls there were, answered or not.
    pub fn calls(&self) -> u64 {
        self.0.lock().calls
    }
}

impl<K, T> Faulty<K, T> {
    /// A tier with these faults.
    pub fn new(env: &Env, tier: T, faults: &Faults<K>) -> Faulty<K, T> {
        Faulty { env: env.clone(), tier, faults: Faults(Arc::clone(&faults.0)) }
    }

    async fn through<R>(&self, call: impl Future<Output = Result<R, TierError>>) -> Result<R, TierError> {
        let latency = {
            let mut state = self.faults.0.lock();
            state.calls += 1;
            state.latency
        };
        self.half(latency).await?;
        let answer = call.await;
        self.half(latency).await?;
        answer
    }

    async fn half(&self, latency: Duration) -> Result<(), TierError> {
        if !latency.is_zero() {
            self.env.sleep(latency / 2).await;
        }
        let mode = self.faults.0.lock().mode;
        match mode {
            Mode::Up => Ok(()),
            Mode::Down => Err(TierError::Away),
            Mode::Silent => pending().await,
        }
    }
}

impl<K: Send + 'static, T> Faulty<K, T> {
    /// The same answer, whose pushes have the same way to go.
    fn far_away<V: Send + 'static>(&self, lookup: Lookup<V>) -> Lookup<V> {
        match lookup {
            Lookup::Wait(wait) => Lookup::Wait(self.push_from_afar(wait)),
            Lookup::Stale(held, wait) => Lookup::Stale(held, self.push_from_afar(wait)),
            lookup => lookup,
        }
    }

    fn push_from_afar<V: Send + 'static>(&self, wait: Wait<V>) -> Wait<V> {
        let (env, faults) = (self.env.clone(), Faults(Arc::clone(&self.faults.0)));
        Wait::new(wait.left(), async move {
            let pushed = wait.await;
            let (mode, latency) = {
                let state = faults.0.lock();
                (state.mode, state.latency)
            };
            if mode != Mode::Up {
                pending::<()>().await;
            }
            env.sleep(latency / 2).await;
            pushed
        })
    }
}

impl<K, V, T> Tier<K, V> for Faulty<K, T>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    T: Tier<K, V>,
{
    async fn lookup(&self, key: &K, want: Want) -> Result<Lookup<V>, TierError> {
        self.through(self.tier.lookup(key, want)).await.map(|lookup| self.far_away(lookup))
    }

    /// One call, as over a network.
    async fn lookup_many(&self, wanted: &[(K, Want)]) -> Vec<Result<Lookup<V>, TierError>> {
        match self.through(async { Ok(self.tier.lookup_many(wanted).await) }).await {
            Ok(answers) => answers.into_iter().map(|answer| answer.map(|lookup| self.far_away(lookup))).collect(),
            Err(error) => wanted.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn fill(&self, key: &K, lease: Lease, stored: Stored<V>) -> Result<Filled, TierError> {
        self.through(self.tier.fill(key, lease, stored)).await
    }

    async fn fail(&self, key: &K, lease: Lease, fault: Fault) -> Result<(), TierError> {
        self.through(self.tier.fail(key, lease, fault)).await
    }

    async fn renew(&self, key: &K, lease: Lease, time: Duration) -> Result<Filled, TierError> {
        self.through(self.tier.renew(key, lease, time)).await
    }

    async fn put(&self, key: &K, stored: Stored<V>) -> Result<(), TierError> {
        self.through(self.tier.put(key, stored)).await
    }

    async fn invalidate(&self, key: &K) -> Result<(), TierError> {
        self.through(self.tier.invalidate(key)).await
    }

    async fn expire_tag(&self, tag: &str, smear: Duration) -> Result<(), TierError> {
        self.through(self.tier.expire_tag(tag, smear)).await
    }

    fn listen(&self) -> Feed<K> {
        let (speaker, heard) = feed(10_000);
        let speaker = Arc::new(speaker);
        let mut state = self.faults.0.lock();
        state.listeners.push(Arc::downgrade(&speaker));
        drop(state);
        let (env, mut news, faults) = (self.env.clone(), self.tier.listen(), Faults(Arc::clone(&self.faults.0)));
        let forward = async move {
            while let Some(next) = news.next().await {
                let latency = faults.0.lock().latency;
                env.sleep(latency / 2).await;
                let is_up = faults.0.lock().mode == Mode::Up;
                if is_up && !speaker.say(next) {
                    return;
                }
            }
        };
        self.env.spawn_named("faulty news", forward).detach();
        heard
    }
}

impl<K> fmt::Debug for Faults<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl<K, T> fmt::Debug for Faulty<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("faults", &self.faults).finish_non_exhaustive()
    }
}
