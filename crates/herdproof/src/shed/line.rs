//! Those who wait: a line for each priority, from which anybody can leave.
//!
//! Lists through a store of slots, so that joining, leaving from the middle, and taking the oldest or the newest each cost
//! the same whether ten wait or twenty thousand, and nothing is allocated once the store has grown.

use std::task::Waker;

use crate::{
    env::Tick,
    gate::{Priority, Why},
};

/// No slot.
const NONE: u32 = u32::MAX;
/// As many as there are priorities.
pub(super) const CLASSES: usize = 4;

/// The waiting line. Whoever is in it holds a slot until they have read how it ended.
#[derive(Debug)]
pub(super) struct Line {
    slots: Vec<Slot>,
    /// The first of the free slots, which are linked by `next`.
    free: u32,
    /// Who waits, by class, least important first; the head is the oldest.
    classes: [List; CLASSES],
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

#[derive(Debug)]
struct Slot {
    prev: u32,
    next: u32,
    class: u8,
    stage: Stage,
    since: Tick,
    deadline: Tick,
    waker: Option<Waker>,
}

/// How far somebody in the line has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    /// A seat was kept for them at this tick. Whoever holds the slot owes it.
    Seated(Tick),
    Refused(Why),
}

/// Somebody in the line, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) slot: u32,
    pub(super) since: Tick,
    pub(super) deadline: Tick,
}

impl Line {
    pub(super) const fn new() -> Line {
        Line { slots: Vec::new(), free: NONE, classes: [List { head: NONE, tail: NONE }; CLASSES], len: 0 }
    }

    /// How many wait.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Stands at the end of the line of its class.
    pub(super) fn join(&mut self, priority: Priority, since: Tick, deadline: Tick) -> u32 {
        let class = priority as u8;
        let tail = self.classes[usize::from(class)].tail;
        let joined = Slot { prev: tail, next: NONE, class, stage: Stage::Waiting, since, deadline, waker: None };
        let slot = if self.free == NONE {
            self.slots.push(joined);
            // The line is bounded far below this.
            u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
        } else {
            let slot = self.free;
            self.free = std::mem::replace(self.slot(slot), joined).next;
            slot
        };
        if tail == NONE {
            self.classes[usize::from(class)].head = slot;
        } else {
            self.slot(tail).next = slot;
        }
        self.classes[usize::from(class)].tail = slot;
        self.len += 1;
        slot
    }

    /// Who of a class has waited longest.
    pub(super) fn oldest(&self, class: usize) -> Option<Waiter> {
        self.waiter(self.classes[class].head)
    }

    /// Who is next: of the most important class that has any, the newest if that is said of the class, or the oldest.
    pub(super) fn next(&self, newest: impl FnOnce(usize) -> bool) -> Option<Waiter> {
        let class = self.classes.iter().rposition(|list| list.head != NONE)?;
        let list = &self.classes[class];
        self.waiter(if newest(class) { list.tail } else { list.head })
    }

    /// The least important class that has any, and the one of it who has waited longest.
    pub(super) fn least(&self) -> Option<(usize, Waiter)> {
        let class = self.classes.iter().position(|list| list.head != NONE)?;
        Some((class, self.oldest(class)?))
    }

    /// Ends somebody's wait, and gives whom to wake.
    pub(super) fn end(&mut self, slot: u32, stage: Stage) -> Option<Waker> {
        self.unlink(slot);
        let slot = self.slot(slot);
        slot.stage = stage;
        slot.waker.take()
    }

    /// How far the holder of a slot has come, and whom to wake when they have come further. The waker that this one
    /// replaces is given back, to be dropped where no lock is held.
    pub(super) fn watch(&mut self, slot: u32, waker: &Waker) -> (Stage, Option<Waker>) {
        let slot = self.slot(slot);
        if slot.stage != Stage::Waiting || slot.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            return (slot.stage, None);
        }
        (slot.stage, slot.waker.replace(waker.clone()))
    }

    /// Gives a slot back, and says how far its holder had come. Somebody who still waits leaves the line.
    pub(super) fn leave(&mut self, slot: u32) -> (Stage, Option<Waker>) {
        let stage = self.slot(slot).stage;
        if stage == Stage::Waiting {
            self.unlink(slot);
        }
        let free = std::mem::replace(&mut self.free, slot);
        let slot = self.slot(slot);
        slot.next = free;
        (stage, slot.waker.take())
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { prev, next, class, .. } = *self.slot(slot);
        match prev {
            NONE => self.classes[usize::from(class)].head = next,
            prev => self.slot(prev).next = next,
        }
        match next {
            NONE => self.classes[usize::from(class)].tail = prev,
            next => self.slot(next).prev = prev,
        }
        self.len -= 1;
    }

    fn waiter(&self, slot: u32) -> Option<Waiter> {
        let Slot { since, deadline, .. } = *self.slots.get(slot as usize)?;
        Some(Waiter { slot, since, deadline })
    }

    fn slot(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    #[cfg(test)]
    pub(super) fn slots_held(&self) -> usize {
        let mut free = 0;
        let mut next = self.free;
        while let Some(slot) = self.slots.get(next as usize) {
            free += 1;
            next = slot.next;
        }
        self.slots.len() - free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EACH: [Priority; 4] = [Priority::Sheddable, Priority::Background, Priority::Normal, Priority::Critical];

    fn at(n: u64) -> Tick {
        Tick::from_nanos(n)
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Join(usize),
        Leave(usize),
        Take { newest: bool },
        Shed,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..4usize).prop_map(Step::Join),
            any::<usize>().prop_map(Step::Leave),
            any::<bool>().prop_map(|newest| Step::Take { newest }),
            Just(Step::Shed),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
        #[test]
        fn whoever_leaves_and_whatever_is_taken_the_line_is_as_a_plain_one_would_be(
            steps in prop::collection::vec(step(), 0..200)
        ) {
            let mut line = Line::new();
            // (class, since, slot), in the order of coming.
            let mut model: Vec<(usize, u64, u32)> = Vec::new();
            let mut ended = Vec::new();
            for (now, step) in (0..).zip(steps) {
                match step {
                    Step::Join(class) => model.push((class, now, line.join(EACH[class], at(now), Tick::MAX))),
                    Step::Leave(who) if !model.is_empty() => {
                        let (_, _, slot) = model.remove(who % model.len());
                        prop_assert_eq!(line.leave(slot).0, Stage::Waiting);
                    }
                    Step::Take { newest } => {
                        let best = model.iter().map(|who| who.0).max();
                        let mut of_best = model.iter().filter(|who| Some(who.0) == best);
                        let expected = if newest { of_best.next_back() } else { of_best.next() }.copied();
                        let next = line.next(|_| newest);
                        prop_assert_eq!(next.map(|who| who.slot), expected.map(|who| who.2));
                        if let Some((_, _, slot)) = expected {
                            line.end(slot, Stage::Seated(at(now)));
                            model.retain(|who| who.2 != slot);
                            ended.push(slot);
                        }
                    }
                    Step::Shed => {
                        let worst = model.iter().map(|who| who.0).min();
                        let expected = model.iter().find(|who| Some(who.0) == worst).map(|who| who.2);
                        prop_assert_eq!(line.least().map(|(_, who)| who.slot), expected);
                        if let Some(slot) = ended.pop() {
                            prop_assert!(matches!(line.leave(slot).0, Stage::Seated(_)));
                        }
                    }
                    Step::Leave(_) => {}
                }
                prop_assert_eq!(line.len() as usize, model.len());
                for class in 0..4 {
                    let oldest = model.iter().find(|who| who.0 == class).map(|who| who.2);
                    prop_assert_eq!(line.oldest(class).map(|who| who.slot), oldest);
                }
                prop_assert_eq!(line.slots_held(), model.len() + ended.len());
            }
        }
    }
}
