//! Loads in progress, and who follows them: what a [flight group](crate::flight) and a [cache](crate::cache) are both made of.
//!
//! Both keep [`Loads`] in shards, each under one lock; a cache keeps the entries of the same keys beside them. Whoever asks for
//! a key [follows](follow) the load in progress, or [leads](Lead) a new one. A lead is an obligation: dropped, it ends the load
//! for everybody as abandoned.

mod follower;
mod landing;
mod lead;
mod loads;
mod nest;
mod outcome;
mod shared;
mod slot;
mod stats;
mod wakers;

use std::{
    borrow::Borrow,
    hash::Hash,
    ops::DerefMut,
    sync::{Arc, Weak},
};

pub use follower::Flight;
pub use landing::{Landing, Linger};
pub(crate) use lead::{Lead, OwnedLead};
pub(crate) use loads::{Loads, Place};
pub(crate) use nest::Chain;
use nest::FlightId;
pub(crate) use outcome::Ending;
pub use outcome::{FlightError, Landed};
pub use shared::Abandon;
use shared::{Closed, Joined, Removal, Shared};
pub use stats::Stats;

use crate::{
    env::{Env, Tick},
    event::Event,
};

/// What keeps loads in progress, in shards.
pub(crate) trait Home: Send + Sync + Sized + 'static {
    type Key: Hash + Eq + Send + 'static;
    type Value: Clone + Send + Sync + 'static;
    type Error: Send + Sync + 'static;
    /// What one lock guards: loads in progress, and what the owner keeps beside them.
    type Shard: HasLoads<Self::Key, Self::Value, Self::Error>;

    fn settings(&self) -> &Settings;

    /// What a load is marked with when it begins; see [`Loads::stamp`]. Called under the lock of its shard.
    fn stamp(&self) -> u64 {
        0
    }

    /// The shard of the keys with this hash, locked. To hold it must be short, and no user's code that may come back here runs
    /// meanwhile.
    fn shard(&self, hash: u64) -> impl DerefMut<Target = Self::Shard>;
}

pub(crate) trait HasLoads<K, V, E> {
    fn loads(&mut self) -> &mut Loads<K, V, E>;
}

/// What holds for all loads of a [`Home`].
pub(crate) struct Settings {
    pub(crate) env: Env,
    pub(crate) abandon: Abandon,
    pub(crate) max_followers: u32,
}

impl Settings {
    pub(crate) fn new(env: Env, abandon: Abandon, max_followers: u32) -> Settings {
        // The largest number means "given up".
        Settings { env, abandon, max_followers: max_followers.min(u32::MAX - 2) }
    }
}

/// A [`Home`] as its flights see it, whatever its keys are.
trait Table: Send + Sync {
    /// Takes the flight out of its shard, if it is still there.
    fn remove(&self, place: Place, why: Removal);
    /// Acts unless the flight was forgotten, and so that it cannot be forgotten meanwhile; says whether it did.
    fn unless_forgotten(&self, place: Place, act: &mut dyn FnMut()) -> bool;
}

impl<H: Home> Table for H {
    fn remove(&self, place: Place, why: Removal) {
        let mut shard = self.shard(place.hash);
        let Some(removed) = shard.loads().remove(place) else { return };
        shard.loads().tally.abandoned += u64::from(why == Removal::GivenUp);
        // The lock is not held when the key is dropped, which may do anything.
        drop(shard);
        removed.tell(&self.settings().env);
    }

    fn unless_forgotten(&self, place: Place, act: &mut dyn FnMut()) -> bool {
        let mut shard = self.shard(place.hash);
        let known = shard.loads().is_findable(place);
        if known {
            act();
        }
        known
    }
}

/// Follows the load of this key, or is refused; without a load in progress, gives the locked shard back.
#[inline(always)]
pub(crate) fn follow<H, S, Q>(home: &Arc<H>, mut shard: S, hash: u64, key: &Q) -> Result<Flight<H::Value, H::Error>, S>
where
    H: Home<Key: Borrow<Q>>,
    S: DerefMut<Target = H::Shard>,
    Q: Eq + ?Sized,
{
    if shard.loads().find(hash, key).is_none() {
        return Err(shard);
    }
    match join(home, shard, hash, key) {
        Join::Aboard(shared, at) => Ok(Flight::aboard(shared, Joined { led: false, at })),
        Join::Refused(error) => Ok(Flight::refused(error)),
        Join::Over(shard) => Err(shard),
    }
}

/// What a [`Flight`] is made of, not the `Flight`: so that of a leader without followers stays in registers, and is not copied
/// right after it was written (`bench flight`, `uncontended`).
enum Join<V, E, S> {
    Aboard(Arc<Shared<V, E>>, Tick),
    Refused(FlightError<E>),
    /// Nobody can follow this load any more.
    Over(S),
}

#[inline(never)]
fn join<H, S, Q>(home: &Arc<H>, mut shard: S, hash: u64, key: &Q) -> Join<H::Value, H::Error, S>
where
    H: Home<Key: Borrow<Q>>,
    S: DerefMut<Target = H::Shard>,
    Q: Eq + ?Sized,
{
    let Settings { env, max_followers, .. } = home.settings();
    let Some((place, seat)) = shard.loads().find(hash, key) else { return Join::Over(shard) };
    let shared = Arc::clone(seat.get_or_insert_with(|| shared_of(home, place)));
    if nest::is_inside(id_of(home, place)) {
        return Join::Refused(FlightError::Reentrant);
    }
    match shared.join(*max_followers) {
        Ok(()) => {
            shard.loads().tally.joins += 1;
            drop(shard);
            Join::Aboard(shared, env.coarse())
        }
        Err(Closed::Full) => {
            shard.loads().tally.overloaded += 1;
            drop(shard);
            env.tell(&Event::Refusal);
            Join::Refused(FlightError::Overloaded)
        }
        // Its last caller has just left and is about to take it out.
        Err(Closed::Dead) => {
            shard.loads().hide(place);
            Join::Over(shard)
        }
    }
}

fn id_of<H: Home>(home: &Arc<H>, place: Place) -> FlightId {
    FlightId { home: Arc::as_ptr(home).addr(), number: place.number }
}

fn shared_of<H: Home>(home: &Arc<H>, place: Place) -> Arc<Shared<H::Value, H::Error>> {
    let Settings { env, abandon, .. } = home.settings();
    let home = Arc::downgrade(home) as Weak<dyn Table>;
    Arc::new(Shared::new(env.clone(), *abandon, place, home))
}
