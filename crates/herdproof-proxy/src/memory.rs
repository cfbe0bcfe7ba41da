//! The memory of bodies outside of the store, and who is ended when it runs short.
//!
//! The store evicts, but a client that reads slowly keeps what it reads alive: 200 clients that each read their own 4 MB at a
//! few bytes a second would hold 800 MB that no eviction frees. So every byte is counted until its last holder lets go, and
//! beyond the budget (`in_flight`) it is the slow readers that go, not the memory of the machine.
//!
//! **Counted**: the bytes of every body that comes from the origin, from their arrival until the last clone of them is
//! dropped: by the [log](crate::log), by the store's object, by a client's response, or by hyper when they are written. Each
//! body has a [`Footprint`]; while an object in the store has it ([`Stored`]), it is the store's weight and not counted here.
//!
//! **Not counted**: stored bodies of up to [`SMALL`] bytes that are evicted while they are written (the kernel takes so few at
//! once), the bodies of requests, heads, hyper's read buffers, and an evicted object while a refresh asks about it.
//!
//! **Who is ended** beyond the budget: a body is charged to its readers in equal shares, and each client is charged for its
//! readers. One reader at a time is ended until the rest fits:
//!
//! 1. of clients that are charged for more than an eighth of the budget, slow readers first (a client that takes no more and
//!    took less than 64 KiB a second lately), then the others;
//! 2. slow readers of other clients;
//! 3. anybody, once the budget is exceeded by a quarter;
//!
//! and among these the client with the largest charge first, then the reader with the largest share, then the slowest. A fast
//! reader who shares a body with a slow one is not ended for it: the slow one is charged as much, and goes first. A fast reader
//! whose body is still arriving, for it alone, is not ended at first (but for 3): the origin waits until it has read all but
//! [`NARROW`] bytes. Who is ended sees its connection close before the body is whole. Where nobody
//! may be ended, [`BodyMemory::is_short`] says so, and fills wait for their fastest reader in the same way.
//!
//! The same list of readers answers another question. A body that is too large to be read ahead holds a seat at the origin for
//! as long as its client reads: [`BodyMemory::free_a_seat`] ends the slowest of those, by a rate that rises with how many seats
//! are taken.

mod rule;
#[cfg(all(test, not(herdproof_shuttle)))]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, Tick};

use crate::{sync::Mutex, who::Who};
use rule::Hold;

/// Larger bodies are counted in the store too, and their readers are known.
pub(crate) const SMALL: usize = 16 << 10;
/// While memory is short, no more of a body than this is kept for those who lag.
pub(crate) const NARROW: u64 = 256 << 10;
/// What a piece of a body costs beside its bytes: a body of single bytes must not be cheap.
const OVERHEAD: u64 = 128;
/// How long one look at the readers is good for, beyond the budget and before.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_IN_PEACE: Duration = Duration::from_secs(1);
/// A reader's rate is measured over this time; for want of it, over [`BRIEFLY`].
const WINDOW: Duration = Duration::from_secs(5);
const BRIEFLY: Duration = Duration::from_secs(1);

/// The account of all bodies; see the [module](self).
#[derive(Debug)]
pub(crate) struct BodyMemory {
    env: Env,
    most: u64,
    /// Bytes that are not the store's.
    outside: AtomicU64,
    readers: Mutex<Readers>,
    /// No look at the readers before this tick.
    next_look: AtomicU64,
    /// What the last look found.
    short: AtomicBool,
}

#[derive(Debug, Default)]
struct Readers {
    all: BTreeMap<u64, Entry>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    client: u64,
    footprint: Arc<Footprint>,
    connection: Arc<dyn Connected>,
    mark: Mark,
    ended: bool,
}

/// How much a reader had taken at some time, and its rate before that.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Tick,
    written: u64,
    before: Option<u64>,
}

/// A client's connection, as far as it matters here.
pub(crate) trait Connected: fmt::Debug + Send + Sync {
    /// How many bytes were written to the client, and whether it takes no more at the moment.
    fn progress(&self) -> (u64, bool);

    /// Closes the connection, whatever is under way.
    fn end(&self, why: Cause);
}

/// Why a reader is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// What it held was needed.
    Memory,
    /// The seat at the origin that it held was.
    Seat,
}

/// The bytes of one body, in whatever pieces and whoever holds them.
#[derive(Debug)]
pub(crate) struct Footprint {
    memory: Arc<BodyMemory>,
    state: Mutex<Size>,
    /// Whether more of it is to come.
    arrives: AtomicBool,
    /// Whether it is to be kept no longer than a narrow window.
    is_narrow: AtomicBool,
    /// Whether the origin's body waits until a reader has taken more.
    waits: AtomicBool,
}

#[derive(Debug, Default)]
struct Size {
    bytes: u64,
    /// How many objects of the store have it.
    stored: u32,
}

/// An object of the store has this body, until this is dropped.
#[derive(Debug)]
pub(crate) struct Stored(Arc<Footprint>);

/// A client reads a body, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reading {
    memory: Arc<BodyMemory>,
    id: u64,
}

/// A piece of a body that is counted until this is dropped.
struct Counted<B: AsRef<[u8]>> {
    bytes: B,
    footprint: Arc<Footprint>,
}

/// The last piece of a body, whose reader is one until it is written.
struct Last {
    bytes: Bytes,
    _reading: Reading,
}

impl BodyMemory {
    /// An account with a budget of so many bytes.
    pub(crate) fn new(env: &Env, most: u64) -> Arc<BodyMemory> {
        Arc::new(BodyMemory {
            env: env.clone(),
            most,
            outside: AtomicU64::new(0),
            readers: Mutex::new(Readers::default()),
            next_look: AtomicU64::new(0),
            short: AtomicBool::new(false),
        })
    }

    /// How many bytes of bodies there are outside of the store.
    pub(crate) fn bytes(&self) -> u64 {
        self.outside.load(Relaxed)
    }

    /// Whether there is room only for what somebody reads.
    pub(crate) fn is_filling(&self) -> bool {
        self.bytes() > self.most / 2
    }

    /// Whether there are more than there may be and nobody can be ended for it. Ends who can be.
    pub(crate) fn is_short(&self) -> bool {
        let outside = self.bytes();
        if outside <= self.most / 2 {
            return false;
        }
        let (now, due) = (self.env.now(), self.next_look.load(Relaxed));
        let again = if outside > self.most { AGAIN } else { AGAIN_IN_PEACE };
        // What is due in a second was set when there was peace.
        let is_due = now.as_nanos() >= due || due > (now + again).as_nanos();
        let next = (now + again).as_nanos();
        if is_due && self.next_look.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
            let is_short = self.relieve(now);
            self.short.store(is_short, Relaxed);
        }
        self.bytes() > self.most && self.short.load(Relaxed)
    }

    fn relieve(&self, now: Tick) -> bool {
        let mut readers = self.readers.lock();
        let (ids, holds) = readers.holds(now, BRIEFLY);
        let plan = rule::for_memory(&holds, self.bytes(), self.most);
        for entry in plan.narrow.iter().filter_map(|index| readers.all.get(ids.get(*index)?)) {
            entry.footprint.is_narrow.store(true, Release);
        }
        let ended: Vec<_> = plan.end.iter().filter_map(|index| readers.end(*ids.get(*index)?)).collect();
        drop(readers);
        for connection in ended {
            connection.end(Cause::Memory);
        }
        plan.short
    }

    /// Ends one of those whose slow reading holds a seat at the origin, if so many of so many are taken that it is too slow.
    pub(crate) fn free_a_seat(&self, taken: u32, seats: u32) {
        let mut readers = self.readers.lock();
        let (ids, holds) = readers.holds(self.env.now(), WINDOW);
        let slowest = rule::for_a_seat(&holds, taken, seats);
        let ended = slowest.and_then(|index| readers.end(*ids.get(index)?));
        drop(readers);
        if let Some(connection) = ended {
            connection.end(Cause::Seat);
        }
    }
}

impl Readers {
    /// What each reader holds, and its number.
    fn holds(&mut self, now: Tick, least: Duration) -> (Vec<u64>, Vec<Hold>) {
        let hold = |entry: &mut Entry| {
            let (written, blocked) = entry.connection.progress();
            Hold {
                client: entry.client,
                body: Arc::as_ptr(&entry.footprint).addr(),
                bytes: entry.footprint.outside(),
                rate: entry.mark.look(now, written, least),
                blocked,
                waits: entry.footprint.waits.load(Acquire),
                arrives: entry.footprint.arrives.load(Acquire),
                is_narrow: entry.footprint.is_narrow(),
                ended: entry.ended,
            }
        };
        self.all.iter_mut().map(|(id, entry)| (*id, hold(entry))).unzip()
    }

    fn end(&mut self, id: u64) -> Option<Arc<dyn Connected>> {
        let entry = self.all.get_mut(&id)?;
        entry.ended = true;
        Some(Arc::clone(&entry.connection))
    }
}

impl Mark {
    /// Bytes a second since the last mark if that is long enough ago, else before it. Marks anew when the time has come.
    fn look(&mut self, now: Tick, written: u64, least: Duration) -> Option<u64> {
        let time = now - self.at;
        let rate = (time >= least).then(|| {
            let bytes = u128::from(written.saturating_sub(self.written)) * 1_000_000_000;
            u64::try_from(bytes / time.as_nanos().max(1)).unwrap_or(u64::MAX)
        });
        let lately = rate.or(self.before);
        if time >= WINDOW {
            *self = Mark { at: now, written, before: rate };
        }
        lately
    }
}

impl Footprint {
    /// Of a body that nothing has come of.
    pub(crate) fn new(memory: &Arc<BodyMemory>) -> Arc<Footprint> {
        Arc::new(Footprint {
            memory: Arc::clone(memory),
            state: Mutex::new(Size::default()),
            arrives: AtomicBool::new(false),
            is_narrow: AtomicBool::new(false),
            waits: AtomicBool::new(false),
        })
    }

    #[cfg(test)]
    pub(crate) fn uncounted() -> Arc<Footprint> {
        Footprint::new(&BodyMemory::new(&herdproof::Sim::new(1).env(), u64::MAX))
    }

    /// Of another body in the same account.
    pub(crate) fn another(&self) -> Arc<Footprint> {
        Footprint::new(&self.memory)
    }

    pub(crate) fn memory(&self) -> &BodyMemory {
        &self.memory
    }

    /// These bytes as a part of the body: counted until the last clone of them is dropped.
    pub(crate) fn hold<B: AsRef<[u8]> + Send + 'static>(self: &Arc<Footprint>, bytes: B) -> Bytes {
        let cost = cost(bytes.as_ref());
        let mut state = self.state.lock();
        state.bytes += cost;
        if state.stored == 0 {
            self.memory.outside.fetch_add(cost, Relaxed);
        }
        drop(state);
        Bytes::from_owner(Counted { bytes, footprint: Arc::clone(self) })
    }

    /// From now on it belongs to an object of the store.
    pub(crate) fn store(self: &Arc<Footprint>) -> Stored {
        let mut state = self.state.lock();
        state.stored += 1;
        if state.stored == 1 {
            self.memory.outside.fetch_sub(state.bytes, Relaxed);
        }
        drop(state);
        Stored(Arc::clone(self))
    }

    /// This client reads it, over this connection.
    pub(crate) fn read_by(self: &Arc<Footprint>, who: Who, connection: Arc<dyn Connected>) -> Reading {
        let (written, _) = connection.progress();
        let mark = Mark { at: self.memory.env.now(), written, before: None };
        let entry = Entry { client: who.key(), footprint: Arc::clone(self), connection, mark, ended: false };
        let mut readers = self.memory.readers.lock();
        let id = readers.next;
        readers.next += 1;
        readers.all.insert(id, entry);
        drop(readers);
        Reading { memory: Arc::clone(&self.memory), id }
    }

    /// Whether the origin's body waits until a reader has taken more.
    pub(crate) fn set_waits(&self, waits: bool) {
        self.waits.store(waits, Release);
    }

    /// Whether more of it is to come.
    pub(crate) fn set_arrives(&self, arrives: bool) {
        self.arrives.store(arrives, Release);
    }

    /// Whether it is to be kept no longer than a narrow window while it arrives.
    pub(crate) fn is_narrow(&self) -> bool {
        self.is_narrow.load(Acquire)
    }

    /// What of it is not the store's.
    fn outside(&self) -> u64 {
        let state = self.state.lock();
        if state.stored == 0 { state.bytes } else { 0 }
    }

    fn release(&self, cost: u64) {
        let mut state = self.state.lock();
        state.bytes -= cost;
        if state.stored == 0 {
            self.memory.outside.fetch_sub(cost, Relaxed);
        }
    }
}

fn cost(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + OVERHEAD
}

impl Stored {
    pub(crate) fn footprint(&self) -> &Arc<Footprint> {
        &self.0
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.stored -= 1;
        if state.stored == 0 {
            self.0.memory.outside.fetch_add(state.bytes, Relaxed);
        }
    }
}

impl Reading {
    /// The last bytes that this reader gets: it is one until these are written.
    pub(crate) fn until_written(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Last { bytes, _reading: self })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let entry = self.memory.readers.lock().all.remove(&self.id);
        drop(entry);
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Counted<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl<B: AsRef<[u8]>> Drop for Counted<B> {
    fn drop(&mut self) {
        self.footprint.release(cost(self.bytes.as_ref()));
    }
}

impl AsRef<[u8]> for Last {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Two are the same if they are one.
impl PartialEq for Footprint {
    fn eq(&self, other: &Footprint) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Footprint {}
