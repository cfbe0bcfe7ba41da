//! A rate for each key: for each client, each host, each tenant.
//!
//! The state of a key is two numbers, kept only while they matter: a key whose burst is whole again, and whose refused callers
//! were told of no later instant, is forgotten when somebody new comes. The number of keys is bounded, so that whoever invents keys fills no memory; at the bound the key that
//! would have been forgotten first goes, and begins anew with its burst whole.

use std::{borrow::Borrow, fmt, future::Future, hash::Hash, sync::Arc};

use super::{
    gcra::{Gcra, Slot, until},
    rate::{Rate, RatePermit, latest},
};
use crate::{
    env::{Env, Rng, Tick},
    event::Event,
    gate::{Ask, Gate, Place, Refusal, Why},
    keyed::{Fades, Keyed},
};

/// How many keys are kept unless told otherwise.
const KEYS: usize = 1_000_000;

/// A [`Rate`] for each key; see [`limit`](super). Cheap to clone, and clones share.
///
/// ```
/// use herdproof::{Env, gate::{Ask, Gate}, limit::{KeyedRate, Rate}};
///
/// let env = Env::system();
/// let clients: KeyedRate<String> = KeyedRate::new(&env, Rate::per_second(10).burst(1));
/// let ask = Ask::new(&env);
/// assert!(clients.of("10.0.0.7").try_enter(&ask).is_ok());
/// assert!(clients.of("10.0.0.7").try_enter(&ask).is_err());
/// assert!(clients.of("10.0.0.8").try_enter(&ask).is_ok());
/// ```
pub struct KeyedRate<K>(Arc<Inner<K>>);

struct Inner<K> {
    env: Env,
    rng: Rng,
    gcra: Gcra,
    states: Keyed<K, State>,
}

/// What is kept for a key: as in a single limit, but under the lock of its shard.
#[derive(Default)]
struct State {
    tat: u64,
    promised: u64,
}

impl Fades for State {
    #[inline]
    fn fades_at(&self) -> Tick {
        // Not before what those refused were told, or the next would be told the same. That is half a minute and an interval
        // ahead at most.
        Tick::from_nanos(self.tat.max(self.promised))
    }
}

/// The gate of one key, from [`KeyedRate::of`].
pub struct OfKey<'a, K, Q: ?Sized> {
    limits: &'a KeyedRate<K>,
    key: &'a Q,
}

/// A slot of one key that is not used yet. Dropping it gives it back if nobody has reserved behind it; a key is too small to
/// remember holes.
#[must_use = "dropping it gives the slot back"]
pub struct KeyedPlace<K: Hash + Eq> {
    limits: KeyedRate<K>,
    hash: u64,
    /// What was taken; nothing if its cost is zero.
    slot: Slot,
}

impl<K: Hash + Eq> KeyedRate<K> {
    /// A limit with this rate for every key, and room for a million keys.
    pub fn new(env: &Env, rate: Rate) -> KeyedRate<K> {
        KeyedRate::bounded(env, rate, KEYS)
    }

    /// A limit with room for this many keys, one at least. Set it above the number of keys that are expected to be busy:
    /// within a few percent of it, some are already forgotten before their time.
    pub fn bounded(env: &Env, rate: Rate, keys: usize) -> KeyedRate<K> {
        KeyedRate(Arc::new(Inner {
            env: env.clone(),
            rng: env.rng("limit/keyed"),
            gcra: Gcra::new(&rate),
            states: Keyed::new(env, "limit/keyed", keys),
        }))
    }

    /// The gate of this key.
    #[inline]
    pub fn of<'a, Q: ?Sized>(&'a self, key: &'a Q) -> OfKey<'a, K, Q>
    where
        K: Borrow<Q>,
    {
        OfKey { limits: self, key }
    }

    /// Whether one more of this key may go now: [`try_enter`](Gate::try_enter) at the present time, for one.
    ///
    /// ```
    /// use herdproof::{Env, limit::{KeyedRate, Rate}};
    ///
    /// let limits: KeyedRate<String> = KeyedRate::new(&Env::system(), Rate::per_second(10).burst(1));
    /// assert!(limits.check("ann").is_ok() && limits.check("bob").is_ok());
    /// assert!(limits.check("ann").unwrap_err().after.unwrap().as_millis() >= 90);
    /// ```
    pub fn check<Q>(&self, key: &Q) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.of(key).at_once(&Ask::new(&self.0.env)).map(drop)
    }

    /// How many keys are kept at present.
    pub fn len(&self) -> usize {
        self.0.states.len()
    }

    /// Whether no key is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K, Q> OfKey<'_, K, Q>
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    /// Takes the next slot if it is not later than `latest`; gives it with the hash of its key.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "else what was taken is written to memory and read back at once, which stalls"
    )]
    fn take(&self, ask: &Ask, latest: u64, why: Why) -> Result<(u64, Slot), Refusal> {
        let Inner { env, rng, gcra, states } = &*self.limits.0;
        let now = ask.at.as_nanos();
        let hash = states.hash(self.key);
        let taken = states.with(hash, self.key, ask.at, State::default, |state| {
            let slot = gcra.slot(state.tat, now, ask.cost).ok_or(None)?;
            if slot.at > latest {
                let promise = gcra.promise(slot, state.promised, |below| rng.below(below));
                state.promised = promise.promised;
                return Err(Some(promise.told));
            }
            state.tat = slot.tat;
            Ok(slot)
        });
        match taken {
            Ok(slot) => Ok((hash, slot)),
            Err(told) => {
                env.tell(&Event::Refusal);
                let refusal = Refusal::new(why);
                Err(told.map_or(refusal, |told| refusal.after(until(now, told))))
            }
        }
    }

    #[inline]
    fn at_once(&self, ask: &Ask) -> Result<(u64, Slot), Refusal> {
        self.take(ask, ask.at.as_nanos(), Why::Rate)
    }

    #[inline]
    fn in_time(&self, ask: &Ask) -> Result<(u64, Slot), Refusal> {
        let (latest, why) = latest(ask, self.limits.0.gcra.max_wait);
        self.take(ask, latest, why)
    }
}

impl<K, Q> Gate for OfKey<'_, K, Q>
where
    K: Borrow<Q> + Hash + Eq + Send + Sync,
    Q: Hash + Eq + ToOwned<Owned = K> + Sync + ?Sized,
{
    type Place = KeyedPlace<K>;

    #[inline]
    fn try_reserve(&self, ask: &Ask) -> Result<KeyedPlace<K>, Refusal> {
        self.at_once(ask).map(|(hash, slot)| KeyedPlace { limits: self.limits.clone(), hash, slot })
    }

    fn reserve(&self, ask: &mut Ask) -> impl Future<Output = Result<KeyedPlace<K>, Refusal>> + Send {
        let place = self.in_time(ask).map(|(hash, slot)| KeyedPlace { limits: self.limits.clone(), hash, slot });
        async {
            let place = place?;
            let at = Tick::from_nanos(place.slot.at);
            if at > ask.at {
                ask.at = self.limits.0.env.sleep_until(at).await;
            }
            Ok(place)
        }
    }

    // Without a place, which would count a reference to the limits: `toolbox keyed`.
    #[inline]
    fn try_enter(&self, ask: &Ask) -> Result<RatePermit, Refusal> {
        self.at_once(ask).map(|_| RatePermit::SPENT)
    }
}

impl<K: Hash + Eq + Send + Sync> Place for KeyedPlace<K> {
    type Permit = RatePermit;

    #[inline]
    fn commit(mut self) -> RatePermit {
        self.slot.cost = 0;
        RatePermit::SPENT
    }
}

impl<K: Hash + Eq> Drop for KeyedPlace<K> {
    #[inline]
    fn drop(&mut self) {
        if self.slot.cost > 0 {
            self.give_back();
        }
    }
}

impl<K: Hash + Eq> KeyedPlace<K> {
    /// The key may be forgotten by now; then there is nothing to do.
    #[cold]
    fn give_back(&mut self) {
        let Slot { tat, cost, .. } = self.slot;
        self.limits.0.states.with_known(self.hash, |state| {
            if state.tat == tat {
                state.tat -= cost;
            }
        });
    }
}

impl<K> Clone for KeyedRate<K> {
    fn clone(&self) -> KeyedRate<K> {
        KeyedRate(Arc::clone(&self.0))
    }
}

impl<K> fmt::Debug for KeyedRate<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRate").field("gcra", &self.0.gcra).finish_non_exhaustive()
    }
}

impl<K, Q: ?Sized> fmt::Debug for OfKey<'_, K, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfKey").field("gcra", &self.limits.0.gcra).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> fmt::Debug for KeyedPlace<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedPlace").field("slot", &self.slot).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
