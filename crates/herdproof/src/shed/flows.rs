//! Seats shared by user: who holds how many, who waits, and who is next.
//!
//! A line that serves in the order of coming gives the seats to whoever asks most: two hundred calls of one user stand before
//! the one of another. Serving users in turn is not enough either: seats that one user took before there was a line come back
//! only as its calls end. So each user is a *flow*, and:
//!
//! - **A flow may hold four times the seats that are free** (a dynamic threshold, as switches use for shared buffers). Alone it
//!   gets four fifths of the seats; two get four ninths each; and whoever comes next finds some free.
//! - **Next is the flow that holds fewest**, among these the one whose turn was longest ago.
//! - **Two judges of age** ([`Codel`]). Each flow has its own, and a user that overloads it is the only one it refuses (FQ-CoDel,
//!   RFC 8290). The other is for all flows: it judges how long the next flow has waited for its turn, and sees the crowd of which
//!   everybody has a single call.
//! - **Eight to one** between calls that somebody waits for and those that nobody does, for seats and for places in a full line.
//!   Were it strict, one user's calls could keep all refreshes out.
//!
//! Decisions only: no clock, no lock. There are never more flows than calls that hold a seat or wait for one.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZero,
    task::Waker,
    time::Duration,
};

use super::{
    Codel, Order,
    line::CLASSES,
    slots::{List, NONE, Of, Slots, Stage, Waiter},
};
use crate::{
    env::{MapHasher, Tick},
    gate::{Ask, Priority, Why},
};

/// How many times the free seats one flow may hold.
const SHARE: u32 = 4;
/// How many seats go to calls that somebody waits for, for each that goes to one that nobody waits for, while both wait.
const RATIO: u32 = 8;
const BANDS: usize = 2;
const SPARE: usize = 0;
const WANTED: usize = 1;
/// The classes of a band, least important first.
const OF_BAND: [[usize; 2]; BANDS] = [[0, 1], [2, 3]];

type User = Option<NonZero<u64>>;

/// All flows of a queue; see the [module](self).
#[derive(Debug)]
pub(super) struct Flows {
    slots: Slots,
    all: Vec<Flow>,
    /// Those of them that are nobody's.
    unused: Vec<u32>,
    by_user: HashMap<User, u32, MapHasher>,
    /// The waiters that others may come to wait for.
    by_load: HashMap<NonZero<u64>, u32, MapHasher>,
    bands: [Band; BANDS],
    inside: u32,
    waiting: u32,
    /// The next turn's number.
    turn: u64,
    /// Seats that went to calls somebody waits for since one went to a call that nobody waits for, while both waited.
    run: u32,
    target: Duration,
}

#[derive(Clone, Debug)]
struct Flow {
    user: User,
    held: u32,
    /// Who waits, by class.
    lists: [List; CLASSES],
    codels: [Codel; CLASSES],
    /// By band.
    queues: [Turn; BANDS],
}

/// Where a flow stands in a band.
#[derive(Clone, Copy, Debug)]
struct Turn {
    waiting: u32,
    number: u64,
    /// When it was served last, or came.
    since: Tick,
    /// When its judges last looked.
    looked: Option<Tick>,
}

#[derive(Debug)]
struct Band {
    /// Flows that wait: seats held, turn, flow.
    next: BTreeSet<(u32, u64, u32)>,
    /// The same: calls that wait, flow.
    lengths: BTreeSet<(u32, u32)>,
    waiting: u32,
    /// The judge of how long a flow waits for its turn.
    codel: Codel,
    looked: Option<Tick>,
}

/// Somebody whose wait is over.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) waiter: Waiter,
    pub(super) stage: Stage,
    pub(super) waker: Option<Waker>,
}

/// What is known at the moment of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) now: Tick,
    pub(super) seats: u32,
    /// How long the work usually takes.
    pub(super) usual: Duration,
    pub(super) order: Order,
}

/// Whether a flow that holds so many may have another seat. Whoever holds none may have any that is free.
const fn may_sit(held: u32, free: u32) -> bool {
    held < free.saturating_mul(SHARE)
}

fn band_of(class: usize) -> usize {
    usize::from(class >= Priority::Normal as usize)
}

impl Flows {
    pub(super) fn new(target: Duration, hasher: MapHasher) -> Flows {
        let band = || Band {
            next: BTreeSet::new(),
            lengths: BTreeSet::new(),
            waiting: 0,
            codel: Codel::new(target),
            looked: None,
        };
        Flows {
            slots: Slots::new(),
            all: Vec::new(),
            unused: Vec::new(),
            by_user: HashMap::with_hasher(hasher.clone()),
            by_load: HashMap::with_hasher(hasher),
            bands: [band(), band()],
            inside: 0,
            waiting: 0,
            turn: 0,
            run: 0,
            target,
        }
    }

    pub(super) const fn inside(&self) -> u32 {
        self.inside
    }

    pub(super) const fn len(&self) -> u32 {
        self.waiting
    }

    /// Whether any line has stood for a whole interval: that for turns, or that of one flow.
    pub(super) fn is_overloaded(&self) -> bool {
        let of_bands = self.bands.iter().any(|band| band.codel.is_overloaded());
        of_bands || self.by_user.values().any(|flow| self.flow(*flow).codels.iter().any(Codel::is_overloaded))
    }

    /// Takes a seat that is free, and says for which flow. Whoever waits could not have it, or would have it by now.
    pub(super) fn take(&mut self, ask: &Ask, view: View) -> Option<u32> {
        let held = self.by_user.get(&ask.user).map_or(0, |flow| self.flow(*flow).held);
        if !may_sit(held, view.seats.saturating_sub(self.inside)) {
            return None;
        }
        let (flow, class) = (self.flow_of(ask.user), ask.priority as usize);
        self.calm(flow, class, ask.at, view.usual);
        self.bands[band_of(class)].calm(ask.at, view.usual);
        self.inside += 1;
        self.change(flow, |flow| flow.held += 1);
        Some(flow)
    }

    /// Stands in line.
    pub(super) fn join(&mut self, ask: &Ask, usual: Duration) -> u32 {
        let (flow, class) = (self.flow_of(ask.user), ask.priority as usize);
        let slot = self.slots.add(ask, Of { class: ask.priority as u8, flow, load: ask.load });
        if self.flow(flow).lists[class].is_empty() {
            self.calm(flow, class, ask.at, usual);
        }
        if self.bands[band_of(class)].waiting == 0 {
            self.bands[band_of(class)].calm(ask.at, usual);
        }
        if let Some(load) = ask.load {
            self.by_load.insert(load, slot);
        }
        self.link(slot, ask.at);
        slot
    }

    /// Makes room for one more in a line of at most so many: `Err` if the newcomer has to go. The calls that nobody waits for
    /// keep their ninth of the line; of those that are too many, the longest flow loses its oldest.
    pub(super) fn make_room(&mut self, ask: &Ask, most: u32) -> Result<Option<Ended>, ()> {
        if self.waiting < most {
            return Ok(None);
        }
        let mine = band_of(ask.priority as usize);
        let spare = self.bands[SPARE].waiting + u32::from(mine == SPARE);
        let from = if spare > most / (RATIO + 1) { SPARE } else { WANTED };
        let (longest, flow) = self.bands[from].lengths.last().copied().ok_or(())?;
        let own = self.by_user.get(&ask.user).copied();
        let length = own.map_or(0, |own| self.flow(own).queues[from].waiting) + 1;
        let out = if from != mine || length < longest {
            Some(flow)
        } else if self.bands[from].codel.is_overloaded() {
            // Everybody has as few as the newcomer, and the newest are served first.
            self.bands[from].next.first().map(|next| next.2)
        } else {
            own.filter(|own| self.flow(*own).codels[ask.priority as usize].is_overloaded())
        };
        let oldest = out.and_then(|out| self.least(out, from)).ok_or(())?;
        Ok(Some(self.end(oldest, Stage::Refused(Why::Queue))))
    }

    /// The next wait that ends: somebody gets a seat, or is refused. `None` if nobody who waits can have one.
    pub(super) fn next(&mut self, view: View, is_late: impl Fn(Tick, u32) -> bool) -> Option<Ended> {
        let (band, both) = self.next_band(view.seats.saturating_sub(self.inside))?;
        if let Some(shed) = self.shed_crowd(band, view) {
            return Some(shed);
        }
        let newest = match view.order {
            Order::Adaptive => self.bands[band].codel.is_overloaded(),
            Order::Oldest => false,
            Order::Newest => true,
        };
        let flow = self.bands[band].flow(newest)?;
        if let Some(shed) = self.shed_flow(flow, band, view) {
            return Some(shed);
        }
        let next = self.next_of(flow, band, view.order)?;
        if is_late(next.deadline, self.inside) {
            return Some(self.end(next, Stage::Refused(Why::Deadline)));
        }
        self.run = match (band, both) {
            (SPARE, _) => 0,
            (_, true) => self.run + 1,
            _ => self.run,
        };
        self.inside += 1;
        // Before its wait ends, or a flow with a single call would be given up.
        self.change(flow, |flow| flow.held += 1);
        self.served(flow, band, view.now);
        Some(self.end(next, Stage::Seated(view.now)))
    }

    /// A seat of a flow is given back.
    pub(super) fn release(&mut self, flow: u32) {
        self.inside -= 1;
        self.change(flow, |flow| flow.held -= 1);
    }

    /// See [`Slots::watch`].
    pub(super) fn watch(&mut self, slot: u32, waker: &Waker) -> (Stage, Option<Waker>) {
        self.slots.watch(slot, waker)
    }

    /// Gives a slot back, and says how far its holder had come, in which flow.
    pub(super) fn leave(&mut self, slot: u32) -> (Stage, u32, Option<Waker>) {
        let stage = self.slots.stage(slot);
        if stage == Stage::Waiting {
            self.unlink(slot);
        }
        (stage, self.slots.of(slot).flow, self.slots.remove(slot))
    }

    /// Somebody else has come to wait for a load that is in line. If it would be served sooner as theirs, it is theirs.
    pub(super) fn joined(&mut self, load: NonZero<u64>, ask: &Ask) -> bool {
        let Some(slot) = self.by_load.get(&load).copied() else { return false };
        let of = self.slots.of(slot);
        let class = of.class().max(ask.priority as usize);
        let (from, to) = (band_of(of.class()), band_of(class));
        let busy = |flow: u32| self.flow(flow).held + self.flow(flow).queues[to].waiting;
        let as_it_is = busy(of.flow) + u32::from(from != to);
        let as_theirs = self.by_user.get(&ask.user).map_or(0, |flow| busy(*flow)) + 1;
        let is_sooner = as_theirs < as_it_is;
        if !is_sooner && from == to {
            return false;
        }
        let user = if is_sooner { ask.user } else { self.flow(of.flow).user };
        self.unlink(slot);
        let flow = self.flow_of(user);
        self.slots.set_of(slot, Of { class: u8::try_from(class).unwrap_or(of.class), flow, load: Some(load) });
        self.by_load.insert(load, slot);
        self.link(slot, ask.at);
        true
    }

    /// The band whose turn it is, and whether both could have a seat.
    fn next_band(&self, free: u32) -> Option<(usize, bool)> {
        let ready = |band: usize| self.bands[band].next.first().is_some_and(|(held, ..)| may_sit(*held, free));
        match (ready(WANTED), ready(SPARE)) {
            (true, true) => Some((if self.run < RATIO { WANTED } else { SPARE }, true)),
            (true, false) => Some((WANTED, false)),
            (false, true) => Some((SPARE, false)),
            (false, false) => None,
        }
    }

    /// Refuses the flow that has waited longest for its turn, if flows have waited too long for an interval.
    fn shed_crowd(&mut self, band: usize, view: View) -> Option<Ended> {
        let flow = self.bands[band].flow(false)?;
        let oldest = self.least(flow, band)?;
        let waited = view.now - self.flow(flow).queues[band].since.max(oldest.since);
        let judge = &mut self.bands[band];
        if judge.looked != Some(view.now) {
            judge.looked = Some(view.now);
            judge.codel.scale(view.usual);
            judge.codel.sample(waited, view.now);
        }
        if !judge.codel.refuses(waited) {
            return None;
        }
        // That was its turn.
        self.served(flow, band, view.now);
        Some(self.end(oldest, Stage::Refused(Why::Shed)))
    }

    /// Refuses the oldest of a flow whose own line stands.
    fn shed_flow(&mut self, flow: u32, band: usize, view: View) -> Option<Ended> {
        let Flows { slots, all, .. } = self;
        let one = &mut all[flow as usize];
        let looks = one.queues[band].looked.replace(view.now) != Some(view.now);
        let mut out = None;
        for class in OF_BAND[band] {
            let oldest = slots.waiter(one.lists[class].head);
            let waited = oldest.map_or(Duration::ZERO, |oldest| view.now - oldest.since);
            let codel = &mut one.codels[class];
            if looks {
                codel.scale(view.usual);
                codel.sample(waited, view.now);
            }
            out = out.or(oldest.filter(|_| codel.refuses(waited)));
        }
        out.map(|out| self.end(out, Stage::Refused(Why::Shed)))
    }

    /// Who of a flow is next.
    fn next_of(&self, flow: u32, band: usize, order: Order) -> Option<Waiter> {
        let flow = self.flow(flow);
        let class = OF_BAND[band].into_iter().rev().find(|class| !flow.lists[*class].is_empty())?;
        let newest = match order {
            Order::Adaptive => flow.codels[class].is_overloaded(),
            Order::Oldest => false,
            Order::Newest => true,
        };
        self.slots.waiter(if newest { flow.lists[class].tail } else { flow.lists[class].head })
    }

    /// The least important of a flow, and of these the oldest.
    fn least(&self, flow: u32, band: usize) -> Option<Waiter> {
        OF_BAND[band].into_iter().find_map(|class| self.slots.waiter(self.flow(flow).lists[class].head))
    }

    /// A flow has had its turn.
    fn served(&mut self, flow: u32, band: usize, now: Tick) {
        self.turn += 1;
        let number = self.turn;
        self.change(flow, |flow| (flow.queues[band].number, flow.queues[band].since) = (number, now));
    }

    /// A call found no line before it.
    fn calm(&mut self, flow: u32, class: usize, now: Tick, usual: Duration) {
        let codel = &mut self.all[flow as usize].codels[class];
        codel.scale(usual);
        codel.sample(Duration::ZERO, now);
    }

    fn end(&mut self, waiter: Waiter, stage: Stage) -> Ended {
        self.unlink(waiter.slot);
        Ended { waiter, stage, waker: self.slots.end(waiter.slot, stage) }
    }

    fn link(&mut self, slot: u32, now: Tick) {
        let Of { flow, class, .. } = self.slots.of(slot);
        let (class, band) = (usize::from(class), band_of(usize::from(class)));
        self.slots.link(&mut self.all[flow as usize].lists[class], slot);
        self.waiting += 1;
        self.bands[band].waiting += 1;
        self.turn += 1;
        let number = self.turn;
        self.change(flow, |flow| {
            let queue = &mut flow.queues[band];
            if queue.waiting == 0 {
                (queue.number, queue.since) = (number, now);
            }
            queue.waiting += 1;
        });
    }

    fn unlink(&mut self, slot: u32) {
        let of = self.slots.of(slot);
        let band = band_of(of.class());
        self.slots.unlink(&mut self.all[of.flow as usize].lists[of.class()], slot);
        self.waiting -= 1;
        self.bands[band].waiting -= 1;
        if let Some(load) = of.load
            && self.by_load.get(&load) == Some(&slot)
        {
            self.by_load.remove(&load);
        }
        self.change(of.flow, |flow| flow.queues[band].waiting -= 1);
    }

    /// Changes a flow, and keeps it where it is looked for. One that holds nothing and has nobody waiting is given up.
    fn change(&mut self, flow: u32, change: impl FnOnce(&mut Flow)) {
        let Flows { all, bands, .. } = self;
        let one = &mut all[flow as usize];
        for (band, queue) in bands.iter_mut().zip(&one.queues).filter(|(_, queue)| queue.waiting > 0) {
            band.next.remove(&(one.held, queue.number, flow));
            band.lengths.remove(&(queue.waiting, flow));
        }
        change(one);
        for (band, queue) in bands.iter_mut().zip(&one.queues).filter(|(_, queue)| queue.waiting > 0) {
            band.next.insert((one.held, queue.number, flow));
            band.lengths.insert((queue.waiting, flow));
        }
        if one.held == 0 && one.queues.iter().all(|queue| queue.waiting == 0) {
            self.by_user.remove(&one.user);
            self.unused.push(flow);
        }
    }

    /// A user's flow. A new one has to be given something at once, or it would never be given up.
    fn flow_of(&mut self, user: User) -> u32 {
        if let Some(flow) = self.by_user.get(&user) {
            return *flow;
        }
        let turn = Turn { waiting: 0, number: 0, since: Tick::ZERO, looked: None };
        let new = Flow {
            user,
            held: 0,
            lists: [List::EMPTY; CLASSES],
            codels: [Codel::new(self.target); CLASSES],
            queues: [turn; BANDS],
        };
        let flow = if let Some(flow) = self.unused.pop() {
            self.all[flow as usize] = new;
            flow
        } else {
            self.all.push(new);
            // Bounded by those who wait and those who are inside.
            u32::try_from(self.all.len() - 1).unwrap_or(NONE)
        };
        self.by_user.insert(user, flow);
        flow
    }

    fn flow(&self, flow: u32) -> &Flow {
        &self.all[flow as usize]
    }
}

impl Band {
    /// Of the flows that hold fewest, the one whose turn was longest ago, or the newest.
    fn flow(&self, newest: bool) -> Option<u32> {
        let first = *self.next.first()?;
        let next = if newest { self.next.range(..(first.0 + 1, 0, 0)).next_back().copied()? } else { first };
        Some(next.2)
    }

    /// Somebody did not have to wait for a turn.
    fn calm(&mut self, now: Tick, usual: Duration) {
        self.codel.scale(usual);
        self.codel.sample(Duration::ZERO, now);
    }
}

#[cfg(test)]
mod tests;
