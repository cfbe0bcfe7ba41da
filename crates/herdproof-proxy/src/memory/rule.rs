//! Who is ended, as arithmetic: the rules are in the [module above](super).

use std::cmp::Reverse;

use super::NARROW;

/// Bytes a second below which a client that takes no more is slow, when memory or most seats are taken.
const SLOW: u64 = 64 << 10;
/// No more than this are ended at one look: it holds up those who begin to read.
const AT_ONCE: usize = 256;

/// One client's hold on one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about a reader or its body, and all combinations occur"
)]
pub(super) struct Hold {
    pub(super) client: u64,
    /// The same for all who read the same body.
    pub(super) body: usize,
    /// How many bytes of that body are not the store's.
    pub(super) bytes: u64,
    /// Bytes a second lately, unless it has only begun.
    pub(super) rate: Option<u64>,
    /// Whether the client takes no more at the moment.
    pub(super) blocked: bool,
    /// Whether the origin's body waits for its readers, and holds its seat for as long.
    pub(super) waits: bool,
    /// Whether more of it is to come.
    pub(super) arrives: bool,
    /// Whether it is kept no longer than a narrow window already.
    pub(super) is_narrow: bool,
    /// Whether it was ended before, and is about to let go.
    pub(super) ended: bool,
}

/// What to do about memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Which of them to end.
    pub(super) end: Vec<usize>,
    /// Of which of them the body is to be kept no longer than a narrow window.
    pub(super) narrow: Vec<usize>,
    /// Whether that is not enough, and nobody else may be ended.
    pub(super) short: bool,
}

/// Whom to end so that of `outside` bytes no more than `most` are left.
pub(super) fn for_memory(holds: &[Hold], outside: u64, most: u64) -> Plan {
    let mut plan = Plan::default();
    if outside <= most {
        return plan;
    }
    let (clients, client_of) = numbered(holds.iter().map(|hold| hold.client));
    let (bodies, body_of) = numbered(holds.iter().map(|hold| hold.body as u64));
    let mut ended: Vec<bool> = holds.iter().map(|hold| hold.ended).collect();
    let mut readers = vec![0_u64; bodies];
    let mut sizes = vec![0; bodies];
    for (index, hold) in holds.iter().enumerate() {
        readers[body_of[index]] += u64::from(!hold.ended);
        sizes[body_of[index]] = hold.bytes;
    }
    let mut narrowed = 0;
    loop {
        // What only those hold who were ended is as good as gone.
        let leaving: u64 = readers.iter().zip(&sizes).filter(|(readers, _)| **readers == 0).map(|(_, size)| size).sum();
        let held = outside.saturating_sub(leaving);
        let left = held.saturating_sub(narrowed);
        if left <= most || plan.end.len() + plan.narrow.len() >= AT_ONCE {
            return plan;
        }
        let share =
            |index: usize| if ended[index] { 0 } else { sizes[body_of[index]] / readers[body_of[index]].max(1) };
        let mut charges = vec![0; clients];
        for index in 0..holds.len() {
            charges[client_of[index]] += share(index);
        }
        let anybody = held > most.saturating_add(most / 4);
        let order = |index: &usize| {
            let (hold, charge) = (&holds[*index], charges[client_of[*index]]);
            (charge > most / 8, hold.is_slow(SLOW), charge, share(*index), Reverse(hold.known_rate()))
        };
        let may_end = |index: &usize| {
            let (is_large, is_slow, ..) = order(index);
            share(*index) > 0 && (is_large || is_slow || anybody)
        };
        let Some(next) = (0..holds.len()).filter(may_end).max_by_key(order) else {
            plan.short = true;
            return plan;
        };
        let body = body_of[next];
        let drains = holds[next].arrives && !holds[next].is_slow(SLOW) && readers[body] == 1;
        if drains && !anybody && sizes[body] > NARROW {
            // What it reads is not replaced: as good as gone for as long as it reads fast.
            narrowed += sizes[body] - NARROW;
            sizes[body] = NARROW;
            plan.narrow.extend((!holds[next].is_narrow).then_some(next));
            continue;
        }
        ended[next] = true;
        readers[body] -= 1;
        plan.end.push(next);
    }
}

/// Whom to end so that a seat becomes free: of those who hold one by reading slowly, the slowest of the client with most of them.
pub(super) fn for_a_seat(holds: &[Hold], taken: u32, seats: u32) -> Option<usize> {
    let least = least_rate(taken, seats);
    let (clients, client_of) = numbered(holds.iter().map(|hold| hold.client));
    let mut held = vec![0_u32; clients];
    for (index, hold) in holds.iter().enumerate() {
        held[client_of[index]] += u32::from(hold.waits && !hold.ended);
    }
    let may_end = |index: &usize| holds[*index].waits && !holds[*index].ended && holds[*index].is_slow(least);
    (0..holds.len()).filter(may_end).max_by_key(|index| (held[client_of[*index]], Reverse(holds[*index].known_rate())))
}

/// Bytes a second that who holds a seat has to read, when so many of so many are taken.
fn least_rate(taken: u32, seats: u32) -> u64 {
    match u64::from(taken) * 100 / u64::from(seats.max(1)) {
        ..50 => 1 << 10,
        50..75 => 16 << 10,
        _ => SLOW,
    }
}

impl Hold {
    /// Who has only begun is nobody to be ended first.
    fn known_rate(&self) -> u64 {
        self.rate.unwrap_or(u64::MAX)
    }

    fn is_slow(&self, rate: u64) -> bool {
        self.blocked && self.rate.is_some_and(|lately| lately < rate)
    }
}

/// Numbers from zero on for these, the same for the same, and how many there are.
fn numbered(keys: impl Iterator<Item = u64> + Clone) -> (usize, Vec<usize>) {
    let mut distinct: Vec<u64> = keys.clone().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let numbers = keys.map(|key| distinct.partition_point(|other| *other < key)).collect();
    (distinct.len(), numbers)
}

#[cfg(test)]
mod tests;
