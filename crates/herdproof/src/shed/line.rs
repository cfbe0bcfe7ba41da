//! Those who wait: a line for each priority, from which anybody can leave.

use std::task::Waker;

use super::slots::{List, Of, Slots, Stage, Waiter};
use crate::gate::Ask;

/// As many as there are priorities.
pub(super) const CLASSES: usize = 4;

/// The waiting line. Whoever is in it holds a slot until they have read how it ended.
#[derive(Debug)]
pub(super) struct Line {
    slots: Slots,
    /// Who waits, by class, least important first.
    classes: [List; CLASSES],
    len: u32,
}

impl Line {
    pub(super) const fn new() -> Line {
        Line { slots: Slots::new(), classes: [List::EMPTY; CLASSES], len: 0 }
    }

    /// How many wait.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Stands at the end of the line of its class.
    pub(super) fn join(&mut self, ask: &Ask) -> u32 {
        let of = Of { class: ask.priority as u8, flow: 0, load: None };
        let slot = self.slots.add(ask, of);
        self.slots.link(&mut self.classes[of.class()], slot);
        self.len += 1;
        slot
    }

    /// Who of a class has waited longest.
    pub(super) fn oldest(&self, class: usize) -> Option<Waiter> {
        self.slots.waiter(self.classes[class].head)
    }

    /// Who is next: of the most important class that has any, the newest if that is said of the class, or the oldest.
    pub(super) fn next(&self, newest: impl FnOnce(usize) -> bool) -> Option<Waiter> {
        let class = self.classes.iter().rposition(|list| !list.is_empty())?;
        let list = &self.classes[class];
        self.slots.waiter(if newest(class) { list.tail } else { list.head })
    }

    /// The least important class that has any, and the one of it who has waited longest.
    pub(super) fn least(&self) -> Option<(usize, Waiter)> {
        let class = self.classes.iter().position(|list| !list.is_empty())?;
        Some((class, self.oldest(class)?))
    }

    /// Ends somebody's wait, and gives whom to wake.
    pub(super) fn end(&mut self, slot: u32, stage: Stage) -> Option<Waker> {
        self.unlink(slot);
        self.slots.end(slot, stage)
    }

    /// See [`Slots::watch`].
    pub(super) fn watch(&mut self, slot: u32, waker: &Waker) -> (Stage, Option<Waker>) {
        self.slots.watch(slot, waker)
    }

    /// Gives a slot back, and says how far its holder had come. Somebody who still waits leaves the line.
    pub(super) fn leave(&mut self, slot: u32) -> (Stage, Option<Waker>) {
        let stage = self.slots.stage(slot);
        if stage == Stage::Waiting {
            self.unlink(slot);
        }
        (stage, self.slots.remove(slot))
    }

    fn unlink(&mut self, slot: u32) {
        let class = self.slots.of(slot).class();
        self.slots.unlink(&mut self.classes[class], slot);
        self.len -= 1;
    }

    #[cfg(test)]
    pub(super) fn slots_held(&self) -> usize {
        self.slots.held()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{env::Tick, gate::Priority};

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
                    Step::Join(class) => model.push((class, now, line.join(&Ask::at(at(now)).priority(EACH[class])))),
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
