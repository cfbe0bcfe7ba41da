//! Who is let in when not all can be: a cut through levels, moved by how long those behind it wait.
//!
//! Refusing at random is unfair in a way that does not show in a rate. A page of twenty calls of which each passes with
//! 90 % is complete one time in eight. If the *same* users are refused everything, nine in ten of them see a whole page.
//! So each class of [`Priority`](crate::gate::Priority) has 128 sub-levels, and a user's calls all have the same one, from
//! a hash that is salted anew every hour, so that it is not always the same who are out of luck.
//!
//! Those at or above the cursor pass. After each window (a second, or 2,000 requests) the cursor moves through a histogram
//! of who came: so that a twentieth fewer would have passed if there was overload, a hundredth more if not. This is what
//! `WeChat` does ("DAGOR").

use std::{
    hash::BuildHasher,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;

use crate::{
    env::{Env, MapHasher, Rng, Tick},
    gate::Ask,
};

/// Sub-levels of a class.
const SUBS: usize = 128;
/// Levels in all, of which the last is the most important.
pub(super) const LEVELS: usize = 4 * SUBS;
const WINDOW: Duration = Duration::from_secs(1);
/// A window is over after this many requests, too.
const FULL: u32 = 2_000;
/// A mean wait of more than this is overload.
const WAIT: Duration = Duration::from_millis(20);
/// How many fewer pass after a window with overload, and how many more after one without.
const FEWER: f64 = 0.05;
const MORE: f64 = 0.01;
/// How long a user keeps a sub-level.
const SALT: u64 = 3_600 * 1_000_000_000;

/// A window's requests by level.
pub(super) type Counts = [u32; LEVELS];

/// What became of those who passed the cut in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Behind {
    /// How long they waited in the line, all together.
    pub(super) waited: Duration,
    /// How many were refused there.
    pub(super) shed: u32,
}

/// Whether those who passed were too many: they waited too long, or too many of them were refused after all. The second is
/// not in the paper; a line that sheds by age never lets the mean wait grow as far as the first.
pub(super) fn is_overload(behind: Behind, passed: u32) -> bool {
    behind.waited > WAIT.saturating_mul(passed.max(1)) || f64::from(behind.shed) > FEWER * f64::from(passed)
}

/// Where the cursor goes after a window. The last level always passes: a cut that refuses everybody learns nothing.
pub(super) fn moved(cursor: usize, came: &Counts, overload: bool) -> usize {
    let passed: u32 = came[cursor..].iter().sum();
    let (mut passing, mut cursor) = (f64::from(passed), cursor);
    if overload {
        let wanted = passing * (1.0 - FEWER);
        while passing > wanted && cursor < LEVELS - 1 {
            passing -= f64::from(came[cursor]);
            cursor += 1;
        }
    } else {
        // One more at least, or a cut that lets nobody pass would stay where it is.
        let wanted = (passing * (1.0 + MORE)).max(passing + 1.0);
        while passing < wanted && cursor > 0 {
            cursor -= 1;
            passing += f64::from(came[cursor]);
        }
    }
    cursor
}

/// The cut of one gate.
#[derive(Debug)]
pub(super) struct Cut {
    hasher: MapHasher,
    /// For those who are nobody in particular.
    rng: Rng,
    cursor: AtomicU32,
    /// When the window ends, in nanoseconds. Written by whoever closes a window.
    ends: AtomicU64,
    came: Box<[AtomicU32; LEVELS]>,
    total: AtomicU32,
    waited: AtomicU64,
    shed: AtomicU32,
    /// Held while a window is closed; whoever finds it taken goes on.
    closing: Mutex<()>,
}

impl Cut {
    pub(super) fn new(env: &Env) -> Cut {
        Cut {
            hasher: env.hasher("shed/users"),
            rng: env.rng("shed/nobody"),
            cursor: AtomicU32::new(0),
            ends: AtomicU64::new((env.now() + WINDOW).as_nanos()),
            came: Box::new(std::array::from_fn(|_| AtomicU32::new(0))),
            total: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            shed: AtomicU32::new(0),
            closing: Mutex::new(()),
        }
    }

    /// Counts somebody who came, and says whether they pass.
    pub(super) fn passes(&self, ask: &Ask) -> bool {
        let level = self.level(ask);
        self.came[level].fetch_add(1, Relaxed);
        let passes = level >= self.cursor();
        let total = self.total.fetch_add(1, Relaxed) + 1;
        if total >= FULL || ask.at.as_nanos() >= self.ends.load(Relaxed) {
            self.close(ask.at);
        }
        passes
    }

    /// Somebody who passed has waited this long in the line, and was refused there or was not.
    pub(super) fn waited(&self, waited: Duration, shed: bool) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(nanos, Relaxed);
        if shed {
            self.shed.fetch_add(1, Relaxed);
        }
    }

    /// The least level that passes.
    pub(super) fn cursor(&self) -> usize {
        self.cursor.load(Relaxed) as usize
    }

    fn level(&self, ask: &Ask) -> usize {
        let bits = match ask.user {
            Some(user) => self.hasher.hash_one((ask.at.as_nanos() / SALT, user)),
            None => self.rng.bits(),
        };
        // The upper bits are the best ones.
        ask.priority as usize * SUBS + usize::try_from(bits >> 57).unwrap_or(0)
    }

    /// Moves the cursor by what the window has seen. Requests that come meanwhile count for one window or the other.
    fn close(&self, now: Tick) {
        let Some(_closing) = self.closing.try_lock() else { return };
        if self.total.load(Relaxed) < FULL && now.as_nanos() < self.ends.load(Relaxed) {
            return;
        }
        self.ends.store((now + WINDOW).as_nanos(), Relaxed);
        self.total.store(0, Relaxed);
        let came = std::array::from_fn(|level| self.came[level].swap(0, Relaxed));
        let cursor = self.cursor();
        let behind =
            Behind { waited: Duration::from_nanos(self.waited.swap(0, Relaxed)), shed: self.shed.swap(0, Relaxed) };
        let overload = is_overload(behind, came[cursor..].iter().sum());
        self.cursor.store(u32::try_from(moved(cursor, &came, overload)).unwrap_or(0), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{env::sim::Sim, gate::Priority};

    const MS: Duration = Duration::from_millis(1);

    /// So many at every level of a class.
    fn crowd(of: &[(Priority, u32)]) -> Counts {
        let mut counts = [0; LEVELS];
        for (class, each) in of {
            counts[*class as usize * SUBS..][..SUBS].fill(*each);
        }
        counts
    }

    fn passing(cursor: usize, came: &Counts) -> u32 {
        came[cursor..].iter().sum()
    }

    #[test]
    fn overload_cuts_a_twentieth_from_the_bottom() {
        let came = crowd(&[(Priority::Sheddable, 10), (Priority::Normal, 10)]);
        let cursor = moved(0, &came, true);
        assert_eq!(cursor, 13, "13 levels of 10 are the first to be more than a twentieth of 2,560");
        assert_eq!(passing(moved(cursor, &came, true), &came), 2_430 - 130);
    }

    #[test]
    fn calm_lets_a_hundredth_more_in() {
        let came = crowd(&[(Priority::Sheddable, 10), (Priority::Normal, 10)]);
        assert_eq!(moved(100, &came, false), 98, "one level of 10 is not yet a hundredth of 1,560");
        assert_eq!(moved(0, &came, false), 0);
    }

    #[test]
    fn the_least_important_go_first_and_the_last_level_never() {
        let came = crowd(&[(Priority::Background, 1), (Priority::Critical, 100)]);
        let mut cursor = 0;
        for _ in 0..10_000 {
            cursor = moved(cursor, &came, true);
        }
        assert_eq!(cursor, LEVELS - 1);
        assert_eq!(passing(cursor, &came), 100);
    }

    #[test]
    fn a_cut_that_refuses_everybody_who_comes_still_opens_again() {
        let came = crowd(&[(Priority::Sheddable, 1)]);
        let mut cursor = LEVELS - 1;
        for _ in 0..200 {
            cursor = moved(cursor, &came, false);
        }
        assert_eq!(cursor, 0);
    }

    #[test]
    fn an_empty_window_opens_the_cut() {
        assert_eq!(moved(300, &[0; LEVELS], false), 0);
    }

    #[test]
    fn overload_is_a_long_wait_or_many_refused_behind_the_cut() {
        let behind = |waited, shed| Behind { waited, shed };
        assert!(!is_overload(behind(MS * 2_000, 5), 100), "20 ms each, and a twentieth");
        assert!(is_overload(behind(MS * 2_001, 0), 100));
        assert!(is_overload(behind(Duration::ZERO, 6), 100));
        assert!(!is_overload(Behind::default(), 0));
    }

    #[test]
    fn a_user_is_always_on_the_same_side_of_the_cut_until_the_hour_is_over() {
        let env = Sim::new(3).env();
        let cut = Cut::new(&env);
        let level = |user: u64, at: Tick| cut.level(&Ask { at, ..Ask::new(&env) }.user(user));
        let (first, last) = (Tick::ZERO, Tick::from_nanos(SALT - 1));
        assert!((0..1_000).all(|user| level(user, first) == level(user, last)));
        let moved = (0..1_000).filter(|user| level(*user, first) != level(*user, Tick::from_nanos(SALT))).count();
        assert!(moved > 950, "{moved} of 1,000 have another level in the next hour");
        let mut used: Vec<usize> = (0..10_000).map(|user| level(user, first)).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), SUBS, "users are spread over all sub-levels");
        assert_eq!(used[0], Priority::Normal as usize * SUBS);
    }

    #[test]
    fn a_window_ends_with_its_second_or_with_its_two_thousandth() {
        let sim = Sim::new(3);
        let env = sim.env();
        let cut = Cut::new(&env);
        let come = |at: Tick, n: u32| {
            for user in 0..n {
                cut.passes(&Ask { at, ..Ask::new(&env) }.user(user.into()));
                cut.waited(MS * 30, false);
            }
        };
        come(Tick::ZERO, 1_999);
        assert_eq!(cut.cursor(), 0);
        come(Tick::ZERO, 1);
        assert!(cut.cursor() > 2 * SUBS, "{}", cut.cursor());
        let before = cut.cursor();
        come(Tick::ZERO + MS * 500, 10);
        assert_eq!(cut.cursor(), before);
        come(Tick::ZERO + WINDOW, 10);
        assert!(cut.cursor() > before);
    }
}
