//! Small states by key, in a table of fixed size that strangers cannot flush.
//!
//! What is remembered of URLs is remembered of names that clients invent. A map without a bound fills memory; a map that
//! replaces the oldest entry forgets what protects everybody as soon as one client has walked through enough URLs. Here a key
//! has four places ([`WAYS`]), and a newcomer takes the one that is worth least, by what its state says of itself
//! ([`Worth`]). A newcomer that is worth less than all four is not kept.
//!
//! Keys are 64-bit hashes with a seed that clients do not know, so nobody can choose whom it meets in a set.

use herdproof::Tick;
use parking_lot::Mutex;

/// Places of one key.
const WAYS: usize = 4;

/// What is kept for a key. Its default is what holds for a key that nothing is known of.
pub(crate) trait Worth: Default {
    /// How much it would cost to forget it; zero if nothing is lost.
    fn worth(&self, now: Tick) -> u64;
}

/// A table of states; see the [module](self).
#[derive(Debug)]
pub(crate) struct Table<S> {
    sets: Box<[Set<S>]>,
}

type Set<S> = Mutex<[Option<(u64, S)>; WAYS]>;

impl<S: Worth> Table<S> {
    /// With room for about so many keys.
    pub(crate) fn new(keys: usize) -> Table<S> {
        Table { sets: (0..keys.div_ceil(WAYS).max(1)).map(|_| Mutex::new([const { None }; WAYS])).collect() }
    }

    /// Reads what is known of a key, if anything is.
    pub(crate) fn get<R>(&self, key: u64, read: impl FnOnce(&S) -> R) -> Option<R> {
        let set = self.set(key)?.lock();
        set.iter().flatten().find(|(other, _)| *other == key).map(|(_, state)| read(state))
    }

    /// Changes what is known of a key. What is worth nothing after that is forgotten.
    pub(crate) fn change<R>(&self, key: u64, now: Tick, change: impl FnOnce(&mut S) -> R) -> R {
        let mut fresh = S::default();
        let Some(set) = self.set(key) else { return change(&mut fresh) };
        let mut set = set.lock();
        let known = set.iter().position(|way| way.as_ref().is_some_and(|(other, _)| *other == key));
        if let Some(way) = known.and_then(|known| set.get_mut(known)) {
            let mut state = way.take().map_or_else(S::default, |(_, state)| state);
            let answer = change(&mut state);
            *way = (state.worth(now) > 0).then_some((key, state));
            return answer;
        }
        let answer = change(&mut fresh);
        let worth = |way: &Option<(u64, S)>| way.as_ref().map_or(0, |(_, state)| state.worth(now));
        let mine = fresh.worth(now);
        if let Some(least) = set.iter_mut().min_by_key(|way| worth(way))
            && mine > 0
            && mine >= worth(least)
        {
            *least = Some((key, fresh));
        }
        answer
    }

    fn set(&self, key: u64) -> Option<&Set<S>> {
        // The hash decides the set by its upper part; the lower one is what tables elsewhere go by.
        let place = (u128::from(key) * self.sets.len() as u128) >> 64;
        self.sets.get(usize::try_from(place).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Points(u64);

    impl Worth for Points {
        fn worth(&self, _: Tick) -> u64 {
            self.0
        }
    }

    fn put(table: &Table<Points>, key: u64, points: u64) {
        table.change(key, Tick::ZERO, |state| state.0 = points);
    }

    fn get(table: &Table<Points>, key: u64) -> Option<u64> {
        table.get(key, |state| state.0)
    }

    #[test]
    fn a_flood_of_cheap_keys_does_not_push_out_a_dear_one() {
        let table = Table::new(64);
        put(&table, 7, 5);
        for key in 0..100_000_u64 {
            put(&table, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1);
        }
        assert_eq!(get(&table, 7), Some(5));

        let full = Table::new(WAYS);
        for key in 0..4 {
            put(&full, key, 5);
        }
        for key in 4..1_000 {
            put(&full, key, 1);
        }
        assert!((0..4).all(|key| get(&full, key) == Some(5)), "not even where all places are taken");
    }

    #[test]
    fn the_newest_of_equals_is_kept_and_the_cheapest_goes() {
        let table = Table::new(1);
        for (key, points) in [(1, 3), (2, 1), (3, 3), (4, 3), (5, 1), (6, 2)] {
            put(&table, key, points);
        }
        let kept: Vec<_> = (1..=6).filter(|key| get(&table, *key).is_some()).collect();
        assert_eq!(kept, [1, 3, 4, 6], "5 took the place of 2, and 6 that of 5");
    }

    #[test]
    fn what_is_worth_nothing_takes_no_place() {
        let table = Table::new(1);
        put(&table, 1, 1);
        put(&table, 1, 0);
        put(&table, 2, 0);
        assert_eq!((get(&table, 1), get(&table, 2)), (None, None));
    }
}
