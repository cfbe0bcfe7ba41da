//! A body while it arrives, read by many.
//!
//! If everybody who waits for a response had to wait for all of it, a body that trickles for three seconds would make each
//! of them wait three seconds for the first byte; and if it were read at the pace of one client, a slow one would hold up
//! the rest. So what comes from the origin is appended to a [`Log`], and every client is a [`Reader`] with a place of its
//! own in it. Nobody copies: a chunk is shared.
//!
//! - **The origin sets the pace.** A log that is kept whole takes what comes; a slow reader lags, and slows nobody.
//! - **Memory is bounded.** What grows too large to be kept becomes a *window* ([`Writer::slide`]): the fastest reader sets
//!   the pace then, and whoever lags by more than the window is cut off. What is kept is counted, see
//!   [`memory`](crate::memory), until the last reader is gone.
//! - **A body ends once, and says how.** A log whose writer is dropped before [`Writer::complete`] has failed: every reader
//!   gets an error and none a clean end, wherever it is.
//! - **A crowd is woken once per batch.** [`Writer::push`] wakes nobody; [`Writer::publish`] wakes all.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    memory::{BodyMemory, Footprint},
    sync::Mutex,
};

/// Smaller chunks are copied: a few bytes should not keep a whole read buffer alive.
const SMALL: usize = 4 * 1024;
/// What a chunk costs beside its bytes: a body of single bytes must not be cheap.
const OVERHEAD: u64 = 64;
/// More than one chunk costs: by so much the fastest reader may be behind its window.
const CHUNK: u64 = 256 << 10;

/// A body while it arrives; see the [module](self).
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    footprint: Arc<Footprint>,
}

/// What the writer of a log owes its readers: an end. Dropped before [`complete`](Writer::complete), it is a failure.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Log>);

/// One client's place in a log.
#[derive(Debug)]
pub(crate) struct Reader {
    log: Arc<Log>,
    /// The number of the next chunk, counted from the first that ever came.
    next: usize,
    /// How many bytes it has read.
    read: u64,
    /// Where the waker is kept, and in which round of them.
    seat: Option<(u64, usize)>,
}

/// Why a reader gets no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The body broke off before its end.
    Truncated,
    /// It was too far behind, in a body that is too large to be kept.
    TooSlow,
}

#[derive(Debug, Default)]
struct State {
    /// From number `dropped` on.
    chunks: Vec<Bytes>,
    dropped: usize,
    /// Of all chunks that ever came.
    len: u64,
    /// What all of them cost.
    came: u64,
    /// What the chunks that are kept cost.
    kept: u64,
    /// Up to where the fastest reader has read, as a cost.
    read: u64,
    window: Option<u64>,
    /// Whether the window may be exceeded for what the fastest reader has not read.
    spares_fastest: bool,
    ending: Option<Ending>,
    readers: usize,
    /// Of those who have read all there is. Taken away as a whole when more comes, which begins the next round.
    wakers: Vec<Option<Waker>>,
    round: u64,
    /// Of the writer, to be woken when the last reader leaves.
    writer: Option<Waker>,
    /// Whether the writer waits for the fastest reader too.
    is_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Complete,
    Failed,
}

impl Log {
    /// A log with nothing in it, and its writer.
    pub(crate) fn new(memory: &Arc<BodyMemory>) -> (Arc<Log>, Writer) {
        let footprint = Footprint::new(memory);
        footprint.set_arrives(true);
        let log = Arc::new(Log { state: Mutex::new(State::default()), footprint });
        (Arc::clone(&log), Writer(log))
    }

    /// One more reader, from the first byte on.
    pub(crate) fn reader(self: &Arc<Log>) -> Reader {
        self.state.lock().readers += 1;
        Reader { log: Arc::clone(self), next: 0, read: 0, seat: None }
    }

    /// The memory of what has come.
    pub(crate) fn footprint(&self) -> &Arc<Footprint> {
        &self.footprint
    }

    /// How much has come so far.
    pub(crate) fn len(&self) -> u64 {
        self.state.lock().len
    }

    /// Whether everything that came is still there, and more may come or it is whole.
    pub(crate) fn has_beginning(&self) -> bool {
        let state = self.state.lock();
        state.dropped == 0 && state.ending != Some(Ending::Failed)
    }

    /// Whether it broke off.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().ending == Some(Ending::Failed)
    }
}

fn cost(chunk: &Bytes) -> u64 {
    chunk.len() as u64 + OVERHEAD
}

impl Writer {
    /// Adds what has come. Readers see it, but those who wait are not woken before [`publish`](Writer::publish).
    pub(crate) fn push(&self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let footprint = &self.0.footprint;
        let chunk = if chunk.len() < SMALL { footprint.hold(chunk.to_vec()) } else { footprint.hold(chunk) };
        let costs = cost(&chunk);
        let mut state = self.0.state.lock();
        state.len += chunk.len() as u64;
        state.chunks.push(chunk);
        state.came += costs;
        state.kept += costs;
        let dropped = state.shorten();
        drop(state);
        drop(dropped);
    }

    /// Wakes whoever waits for more.
    pub(crate) fn publish(&self) {
        let wakers = self.0.state.lock().next_round();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Keeps no more than so much behind the newest from now on. What falls out of the window is lost to whoever has not
    /// read it. The fastest reader, who is waited for, loses it only if the window was wider before.
    pub(crate) fn slide(&self, window: u64) {
        let mut state = self.0.state.lock();
        (state.window, state.spares_fastest) = (Some(window), false);
        let dropped = state.shorten();
        drop(state);
        drop(dropped);
    }

    /// As [`slide`](Writer::slide), but nothing is lost to the fastest reader, however far behind it is.
    pub(crate) fn narrow(&self, window: u64) {
        let mut state = self.0.state.lock();
        (state.window, state.spares_fastest) = (Some(window), true);
        let dropped = state.shorten();
        drop(state);
        drop(dropped);
    }

    /// Whether more may be pushed: always, unless there is a window and the fastest reader is a window behind. Asked again
    /// when that has changed, or the last reader leaves.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.state.lock();
        let full = state.window.is_some_and(|window| state.came - state.read >= window) && state.readers > 0;
        state.is_full = full;
        self.0.footprint.set_waits(full);
        if !full {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Has this task woken when the last reader leaves.
    pub(crate) fn wake_when_deserted(&self, cx: &Context<'_>) {
        self.0.state.lock().writer = Some(cx.waker().clone());
    }

    pub(crate) fn readers(&self) -> usize {
        self.0.state.lock().readers
    }

    /// As [`Log::reader`].
    pub(crate) fn reader(&self) -> Reader {
        self.0.reader()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// As [`Log::footprint`].
    pub(crate) fn footprint(&self) -> &Arc<Footprint> {
        &self.0.footprint
    }

    pub(crate) fn memory(&self) -> &BodyMemory {
        self.0.footprint.memory()
    }

    /// All has come. Gives the chunks, if all of them are still there.
    pub(crate) fn complete(self) -> Option<Vec<Bytes>> {
        let mut state = self.0.state.lock();
        state.ending = Some(Ending::Complete);
        let whole = state.dropped == 0;
        let chunks = if whole { state.chunks.clone() } else { Vec::new() };
        drop(state);
        whole.then_some(chunks)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ending.get_or_insert(Ending::Failed);
        let wakers = state.next_round();
        drop(state);
        self.0.footprint.set_waits(false);
        self.0.footprint.set_arrives(false);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl State {
    fn shorten(&mut self) -> Vec<Bytes> {
        let Some(window) = self.window else { return Vec::new() };
        let mut kept = self.kept;
        let wanted = |end: u64| self.readers > 0 && end > self.read;
        let old = self.chunks.iter().take_while(|chunk| {
            let without = kept - cost(chunk);
            // The newest is always there: it may be larger than the window.
            let is_far = !self.spares_fastest && without >= window.saturating_add(CHUNK);
            let spare = without >= window && (is_far || !wanted(self.came - without));
            kept = if spare { without } else { kept };
            spare
        });
        let old = old.count();
        self.kept = kept;
        self.dropped += old;
        self.chunks.drain(..old).collect()
    }

    fn next_round(&mut self) -> Vec<Option<Waker>> {
        self.round += 1;
        std::mem::take(&mut self.wakers)
    }

    /// Keeps the waker of a reader who has read all there is.
    fn wait(&mut self, seat: &mut Option<(u64, usize)>, cx: &Context<'_>) {
        let kept = seat.filter(|(round, _)| *round == self.round).and_then(|(_, index)| self.wakers.get_mut(index));
        match kept {
            Some(Some(waker)) => waker.clone_from(cx.waker()),
            Some(empty) => *empty = Some(cx.waker().clone()),
            None => {
                *seat = Some((self.round, self.wakers.len()));
                self.wakers.push(Some(cx.waker().clone()));
            }
        }
    }
}

impl Reader {
    /// The memory of what it reads.
    pub(crate) fn footprint(&self) -> &Arc<Footprint> {
        &self.log.footprint
    }

    /// The next chunk; `None` at the end of a body that is complete.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let mut state = self.log.state.lock();
        let Some(index) = self.next.checked_sub(state.dropped) else {
            return Poll::Ready(Some(Err(Broken::TooSlow)));
        };
        if let Some(chunk) = state.chunks.get(index).cloned() {
            self.next += 1;
            self.read += cost(&chunk);
            let leads = self.read > state.read;
            state.read = state.read.max(self.read);
            let writer = if leads && state.is_full { state.writer.take() } else { None };
            drop(state);
            writer.into_iter().for_each(Waker::wake);
            return Poll::Ready(Some(Ok(chunk)));
        }
        match state.ending {
            Some(Ending::Complete) => Poll::Ready(None),
            Some(Ending::Failed) => Poll::Ready(Some(Err(Broken::Truncated))),
            None => {
                state.wait(&mut self.seat, cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.log.state.lock();
        state.readers -= 1;
        let round = state.round;
        let seat = self.seat.filter(|(seat, _)| *seat == round);
        let own = seat.and_then(|(_, index)| state.wakers.get_mut(index)).and_then(Option::take);
        while let Some(None) = state.wakers.last() {
            state.wakers.pop();
        }
        let writer = if state.readers == 0 { state.writer.take() } else { None };
        drop(state);
        drop(own);
        writer.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Broken::Truncated => "the body broke off before its end",
            Broken::TooSlow => "too slow for a body that is too large to be kept",
        })
    }
}

impl std::error::Error for Broken {}

#[cfg(all(test, not(herdproof_shuttle)))]
mod tests;

#[cfg(all(test, herdproof_shuttle))]
mod interleavings;
