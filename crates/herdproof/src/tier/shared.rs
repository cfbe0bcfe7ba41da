//! A tier in memory: for the caches of one process, for simulations, and as the measure of what a tier must do.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    hash::{BuildHasher, Hash},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use super::{
    Fault, Feed, Filled, Lease, Lookup, News, Pushed, Speaker, Stored, Tier, TierError, Wait, Want, feed,
    slot::{Answer, Pushes, Slot},
};
use crate::env::{Env, MapHasher, Tick, within};

/// How many keys are kept without looking whether anybody can still need them.
const KEPT: usize = 1_000;
/// How long nobody looks whether there is room in a full store, once there was none.
const FULL: Duration = Duration::from_secs(1);
/// How much news a listener may be behind.
const NEWS: usize = 10_000;

/// A tier in memory, as one of its nodes sees it; see the [module](super). Each [`Cache`](crate::Cache) gets a
/// [`node`](SharedTier::node) of its own, so that it does not hear of its own changes.
pub struct SharedTier<K, V> {
    store: Arc<Store<K, V>>,
    node: u64,
}

struct Store<K, V> {
    env: Env,
    /// Hashes keys for the place of each within a smear.
    places: MapHasher,
    /// How many values there may be.
    capacity: usize,
    state: Mutex<State<K, V>>,
}

struct State<K, V> {
    slots: HashMap<K, Slot<V, Who<V>>, MapHasher>,
    values: usize,
    /// When there are as many keys as this, those that nobody needs are looked for.
    sweep_at: usize,
    /// Until then a full store is full of what somebody needs, as far as anybody knows.
    full_until: Tick,
    /// The last token. A tag's expiry takes one too, so that it can be compared with leases.
    token: u64,
    /// Tags that were expired, and at which token. Remembered while a lease may be older.
    expired: HashMap<String, (u64, Tick), MapHasher>,
    /// The longest that a lease was asked for.
    longest: Duration,
    listeners: Vec<(u64, Speaker<K>)>,
    nodes: u64,
}

/// Somebody who waits.
struct Who<V>(Arc<Mutex<Seat<V>>>);

struct Seat<V> {
    pushed: Option<Pushed<V>>,
    waker: Option<Waker>,
}

impl<K, V> SharedTier<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// An empty store with room for a million values, and its first node.
    pub fn new(env: &Env) -> SharedTier<K, V> {
        SharedTier::with_capacity(env, 1_000_000)
    }

    /// An empty store with room for so many values, and its first node. What finds no room goes to those who wait for it and is
    /// not kept.
    pub fn with_capacity(env: &Env, capacity: usize) -> SharedTier<K, V> {
        let state = State {
            slots: HashMap::with_hasher(env.hasher("tier")),
            values: 0,
            sweep_at: KEPT,
            full_until: Tick::ZERO,
            token: 0,
            expired: HashMap::with_hasher(env.hasher("tier/expired")),
            longest: Duration::ZERO,
            listeners: Vec::new(),
            nodes: 1,
        };
        let places = env.hasher("tier/places");
        SharedTier { store: Arc::new(Store { env: env.clone(), places, capacity, state: Mutex::new(state) }), node: 0 }
    }

    /// Another node of the same store.
    #[must_use]
    pub fn node(&self) -> SharedTier<K, V> {
        let mut state = self.store.state.lock();
        let node = state.nodes;
        state.nodes += 1;
        SharedTier { store: Arc::clone(&self.store), node }
    }

    /// How many values there are, past their time or not.
    pub fn len(&self) -> usize {
        self.store.state.lock().values
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, as a store does that is restarted and had it only in memory. Tokens still grow.
    pub fn wipe(&self) {
        self.store.change(|state, _| {
            let mut pushes = Vec::new();
            for (_, mut slot) in state.slots.drain() {
                pushes.append(&mut slot.invalidate());
            }
            state.values = 0;
            ((), pushes)
        });
    }

    fn tell(&self, state: &mut State<K, V>, news: &News<K>) {
        state.listeners.retain(
            |(node, speaker)| {
                if *node == self.node { !speaker.is_closed() } else { speaker.say(news.clone()) }
            },
        );
    }

    fn lookup_now(&self, key: &K, want: Want) -> Lookup<V> {
        let store = &self.store;
        let now = store.env.now();
        let mut state = store.state.lock();
        store.sweep(&mut state, now);
        let State { slots, token, longest, .. } = &mut *state;
        *longest = want.lease.max(*longest);
        let slot = slots.entry(key.clone()).or_default();
        match slot.lookup(now, want, next(token)) {
            Answer::Hit(held) => Lookup::Hit(held),
            Answer::Stale(held, left) => Lookup::Stale(held, store.seat(key, slot, left)),
            Answer::Refresh(held, lease) => Lookup::Refresh(held, lease),
            Answer::Fill(lease) => Lookup::Fill(lease),
            Answer::Wait(left) => Lookup::Wait(store.seat(key, slot, left)),
            Answer::Failed(failure) => Lookup::Failed(failure),
        }
    }

    fn fill_now(&self, key: &K, lease: Lease, stored: Stored<V>) -> Filled {
        self.store.change(|state, now| {
            let expired = |tag| state.expired.get(tag).is_some_and(|(token, _)| *token > lease.0);
            let out_of_date = stored.tags.iter().any(expired);
            self.store.at(state, key, |slot, _| {
                if out_of_date { (Filled::Fenced, slot.fence()) } else { slot.fill(now, lease, stored) }
            })
        })
    }

    fn put_now(&self, key: &K, stored: Stored<V>) {
        self.store.change(|state, now| {
            self.tell(state, &News::Changed(key.clone()));
            self.store.at(state, key, |slot, _| ((), slot.put(now, stored)))
        });
    }

    fn invalidate_now(&self, key: &K) {
        self.store.change(|state, _| {
            self.tell(state, &News::Changed(key.clone()));
            self.store.at(state, key, |slot, _| ((), slot.invalidate()))
        });
    }

    /// Looks at every value: there is no index of tags here.
    fn expire_tag_now(&self, tag: &str, smear: Duration) {
        self.store.change(|state, now| {
            self.tell(state, &News::TagExpired { tag: tag.into(), smear });
            state.token += 1;
            let longest = state.longest;
            state.expired.insert(tag.to_owned(), (state.token, now));
            if state.expired.len() > KEPT && state.expired.len().is_power_of_two() {
                // A lease is renewed while its load goes on; ten times is as long as anybody will.
                state.expired.retain(|_, (_, at)| *at + longest.saturating_mul(10) > now);
            }
            for (key, slot) in &mut state.slots {
                slot.expire(tag, || now + within(smear, self.store.places.hash_one(key)));
            }
            ((), Vec::new())
        });
    }
}

fn next(token: &mut u64) -> impl FnOnce() -> Lease {
    || {
        *token += 1;
        Lease(*token)
    }
}

impl<K, V> Store<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Changes the state, and tells those who wait what it means for them.
    fn change<T>(&self, change: impl FnOnce(&mut State<K, V>, Tick) -> (T, Pushes<V, Who<V>>)) -> T {
        let mut state = self.state.lock();
        let (result, pushes) = change(&mut state, self.env.now());
        // Under the lock, so that whoever leaves sees whether there is something for them.
        let wakers: Vec<Waker> = pushes
            .into_iter()
            .filter_map(|(Who(seat), pushed)| {
                let mut seat = seat.lock();
                seat.pushed = Some(pushed);
                seat.waker.take()
            })
            .collect();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Changes what is known of a key, and takes it away if that is nothing.
    fn at<T>(
        &self,
        state: &mut State<K, V>,
        key: &K,
        change: impl FnOnce(&mut Slot<V, Who<V>>, &mut u64) -> (T, Pushes<V, Who<V>>),
    ) -> (T, Pushes<V, Who<V>>) {
        let now = self.env.now();
        let State { slots, values, token, .. } = state;
        let slot = slots.entry(key.clone()).or_default();
        let had = slot.has_entry();
        let changed = change(slot, token);
        if !had && slot.has_entry() && *values >= self.capacity {
            slot.drop_entry();
        }
        *values = *values - usize::from(had) + usize::from(slot.has_entry());
        if slot.is_idle(now) && slots.remove(key).is_some_and(|slot| slot.has_entry()) {
            *values -= 1;
        }
        self.sweep(state, now);
        changed
    }

    /// Takes away what nobody can need, once in a while.
    fn sweep(&self, state: &mut State<K, V>, now: Tick) {
        let is_full = |state: &State<K, V>| state.values >= self.capacity;
        if state.slots.len() >= state.sweep_at || (is_full(state) && now >= state.full_until) {
            state.slots.retain(|_, slot| !slot.is_idle(now));
            state.values = state.slots.values().filter(|slot| slot.has_entry()).count();
            state.sweep_at = (2 * state.slots.len()).max(KEPT);
            state.full_until = if is_full(state) { now + FULL } else { now };
        }
    }

    fn seat(self: &Arc<Self>, key: &K, slot: &mut Slot<V, Who<V>>, left: Duration) -> Wait<V> {
        let seat = Arc::new(Mutex::new(Seat { pushed: None, waker: None }));
        slot.wait(Who(Arc::clone(&seat)));
        Wait::new(left, Waiting { store: Arc::downgrade(self), key: key.clone(), seat: Some(Who(seat)) })
    }
}

struct Waiting<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    store: Weak<Store<K, V>>,
    key: K,
    /// Given up once something was pushed.
    seat: Option<Who<V>>,
}

impl<K, V> Future for Waiting<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    type Output = Pushed<V>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Pushed<V>> {
        let waiting = self.get_mut();
        let Some(Who(seat)) = &waiting.seat else { return Poll::Ready(Pushed::Again) };
        let mut seat = seat.lock();
        let Some(pushed) = seat.pushed.take() else {
            seat.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(seat);
        waiting.seat = None;
        Poll::Ready(pushed)
    }
}

// Keys are moved, never pinned.
impl<K, V> Unpin for Waiting<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
}

impl<K, V> Drop for Waiting<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        let (Some(who), Some(store)) = (self.seat.take(), self.store.upgrade()) else { return };
        store.change(|state, now| {
            let pushed = who.0.lock().pushed.take();
            store.at(state, &self.key, |slot, token| {
                slot.leave(&who);
                let passed = match pushed {
                    Some(Pushed::Lease(lease)) => slot.pass(now, lease, next(token)),
                    _ => Vec::new(),
                };
                ((), passed)
            })
        });
    }
}

impl<K, V> Tier<K, V> for SharedTier<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    async fn lookup(&self, key: &K, want: Want) -> Result<Lookup<V>, TierError> {
        Ok(self.lookup_now(key, want))
    }

    async fn fill(&self, key: &K, lease: Lease, stored: Stored<V>) -> Result<Filled, TierError> {
        Ok(self.fill_now(key, lease, stored))
    }

    async fn fail(&self, key: &K, lease: Lease, fault: Fault) -> Result<(), TierError> {
        self.store.change(|state, now| {
            self.store.at(state, key, |slot, token| ((), slot.fail(now, lease, &fault, next(token))))
        });
        Ok(())
    }

    async fn renew(&self, key: &K, lease: Lease, time: Duration) -> Result<Filled, TierError> {
        Ok(self
            .store
            .change(|state, now| self.store.at(state, key, |slot, _| (slot.renew(now, lease, time), Vec::new()))))
    }

    async fn put(&self, key: &K, stored: Stored<V>) -> Result<(), TierError> {
        self.put_now(key, stored);
        Ok(())
    }

    async fn invalidate(&self, key: &K) -> Result<(), TierError> {
        self.invalidate_now(key);
        Ok(())
    }

    async fn expire_tag(&self, tag: &str, smear: Duration) -> Result<(), TierError> {
        self.expire_tag_now(tag, smear);
        Ok(())
    }

    fn listen(&self) -> Feed<K> {
        let (speaker, feed) = feed(NEWS);
        self.store.state.lock().listeners.push((self.node, speaker));
        feed
    }
}

impl<V> Clone for Who<V> {
    fn clone(&self) -> Self {
        Who(Arc::clone(&self.0))
    }
}

impl<V> PartialEq for Who<V> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<K, V> fmt::Debug for SharedTier<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedTier").field("node", &self.node).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::Sim;

    const SEC: Duration = Duration::from_secs(1);

    #[test]
    fn a_store_full_of_what_is_needed_is_not_searched_at_every_question() {
        let mut sim = Sim::new(1);
        let tier: SharedTier<u32, u32> = SharedTier::with_capacity(&sim.env(), 100);
        let stored = |value| {
            let (ttl, none) = (60 * SEC, Duration::ZERO);
            Stored { value: Some(value), ttl, grace: none, keep: none, load: none, tags: Vec::new() }
        };
        (0..100).for_each(|key| tier.put_now(&key, stored(key)));
        let want = Want { lease: SEC, early: Duration::ZERO };
        let mut searched = 0;
        for _ in 0..1_000 {
            let before = tier.store.state.lock().full_until;
            assert!(matches!(tier.lookup_now(&1, want), Lookup::Hit(_)));
            searched += u32::from(tier.store.state.lock().full_until > before);
            sim.run_until(sim.env().now() + SEC / 100);
        }
        assert!((9..=10).contains(&searched), "once in a second: {searched}");
        sim.run_until(sim.env().now() + 60 * SEC);
        (100..150).for_each(|key| tier.put_now(&key, stored(key)));
        assert!((101..150).all(|key| matches!(tier.lookup_now(&key, want), Lookup::Hit(_))), "there is room again");
    }
}
