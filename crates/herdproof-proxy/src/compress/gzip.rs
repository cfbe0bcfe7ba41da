//! A body that is compressed while it comes, a slice at a time.

use std::{
    io::Write,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use herdproof::{Env, Tick};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

/// Bodies at a time. An encoder takes some 300 KiB.
const MOST: u32 = 48;
/// Bytes in a second, and how many may come at once after quiet times: less than half of one processor, and a cold start.
const RATE: u64 = 16 << 20;
const BURST: i64 = 64 << 20;
/// Bytes that are compressed before others on this thread have their turn: a fraction of a millisecond.
const SLICE: usize = 16 << 10;
/// Bytes that go out together.
const BATCH: usize = 16 << 10;
/// As small as can be had for the half of the time that the smallest takes.
const LEVEL: u32 = 5;

/// What compressing may cost. Cheap to clone, and clones share.
#[derive(Clone)]
pub(crate) struct Press(Arc<Shared>);

struct Shared {
    env: Env,
    busy: AtomicU32,
    budget: Mutex<Budget>,
    done: AtomicU64,
    skipped: AtomicU64,
}

/// Bytes that may be compressed, at a tick. Below zero what was begun has to be earned before anything else begins: how long a body
/// is nobody knows before it is over.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Budget {
    left: i64,
    at: Tick,
}

impl Budget {
    fn now(self, now: Tick) -> Budget {
        let earned = (now - self.at).as_secs_f64() * RATE as f64;
        #[expect(clippy::cast_possible_truncation, reason = "a cast that is too large is as large as can be")]
        let earned = earned as i64;
        Budget { left: self.left.saturating_add(earned).min(BURST), at: now }
    }
}

impl Press {
    pub(crate) fn new(env: &Env) -> Press {
        Press(Arc::new(Shared {
            env: env.clone(),
            busy: AtomicU32::new(0),
            budget: Mutex::new(Budget { left: BURST, at: env.now() }),
            done: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        }))
    }

    /// A turn at it; none if there is too much to do.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let one_more = |busy: u32| (busy < MOST).then_some(busy + 1);
        let is_paid = {
            let mut budget = self.0.budget.lock();
            *budget = budget.now(self.0.env.now());
            budget.left > 0
        };
        if !is_paid || self.0.busy.fetch_update(SeqCst, SeqCst, one_more).is_err() {
            self.0.skipped.fetch_add(1, Relaxed);
            return None;
        }
        self.0.done.fetch_add(1, Relaxed);
        Some(Turn(self.clone()))
    }

    /// How many bodies were compressed, and how many were not as there was too much to do, in all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.0.done.load(Relaxed), self.0.skipped.load(Relaxed))
    }
}

/// The right to compress one body.
pub(crate) struct Turn(Press);

impl Turn {
    fn spend(&self, bytes: usize) {
        let mut budget = self.0.0.budget.lock();
        budget.left = budget.left.saturating_sub_unsigned(bytes as u64);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.busy.fetch_sub(1, SeqCst);
    }
}

/// A body that comes as it is, or compressed.
pub(crate) enum Coming<B> {
    Plain(B),
    Gzip(Box<Gzip<B>>),
}

impl<B: Body<Data = Bytes>> Coming<B> {
    pub(crate) fn new(body: B, turn: Option<Turn>) -> Coming<B> {
        match turn {
            Some(turn) => Coming::Gzip(Box::new(Gzip::new(body, turn))),
            None => Coming::Plain(body),
        }
    }
}

pub(crate) struct Gzip<B> {
    body: B,
    /// Read, and not compressed.
    input: Bytes,
    /// There until the end of the body.
    work: Option<(GzEncoder<Vec<u8>>, Turn)>,
    /// A body that does not say how long it is may pause: what has come goes out then.
    pauses: bool,
    /// Something has gone in since the last time that everything came out.
    holds: bool,
}

impl<B: Body<Data = Bytes>> Gzip<B> {
    fn new(body: B, turn: Turn) -> Gzip<B> {
        let pauses = body.size_hint().exact().is_none();
        let encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
        Gzip { body, input: Bytes::new(), work: Some((encoder, turn)), pauses, holds: false }
    }
}

fn data(bytes: Vec<u8>) -> Frame<Bytes> {
    Frame::data(bytes.into())
}

impl<B: Body<Data = Bytes> + Unpin> Gzip<B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            let Some((encoder, turn)) = &mut self.work else { return Poll::Ready(None) };
            if !self.input.is_empty() {
                let slice = self.input.split_to(SLICE.min(self.input.len()));
                turn.spend(slice.len());
                // To memory it always works.
                encoder.write_all(&slice).ok();
                self.holds = true;
                if encoder.get_ref().len() >= BATCH {
                    return Poll::Ready(Some(Ok(data(mem::take(encoder.get_mut())))));
                }
                if !self.input.is_empty() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending if self.pauses && self.holds => {
                    self.holds = false;
                    encoder.flush().ok();
                    return Poll::Ready(Some(Ok(data(mem::take(encoder.get_mut())))));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => self.input = frame.into_data().unwrap_or_default(),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => {
                    let Some((encoder, _)) = self.work.take() else { return Poll::Ready(None) };
                    return Poll::Ready(encoder.finish().ok().map(|rest| Ok(data(rest))));
                }
            }
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Coming<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.get_mut() {
            Coming::Plain(body) => Pin::new(body).poll_frame(cx),
            Coming::Gzip(gzip) => gzip.poll(cx),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Coming::Plain(body) => body.size_hint(),
            Coming::Gzip(_) => SizeHint::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::poll_fn, io::Read, time::Duration};

    use flate2::read::GzDecoder;
    use herdproof::Sim;
    use http_body_util::BodyExt;

    use super::*;

    /// Chunks of so many bytes, so often, with a pause before each.
    struct Chunks(Env, Option<Pin<Box<dyn Future<Output = Tick> + Send>>>, usize, usize);

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let Chunks(env, pause, size, left) = self.get_mut();
            if *left == 0 {
                return Poll::Ready(None);
            }
            let sleep = pause.get_or_insert_with(|| Box::pin(env.sleep(Duration::from_secs(1))));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            (*pause, *left) = (None, *left - 1);
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![if *left % 2 == 0 { b'a' } else { b'b' }; *size])))))
        }
    }

    fn unzipped(bytes: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
        plain
    }

    #[test]
    fn what_goes_in_comes_out_whatever_the_pieces() {
        for (size, chunks) in [(1, 3), (5_000, 10), (1_000_000, 3)] {
            let mut sim = Sim::new(1);
            let env = sim.env();
            let press = Press::new(&env);
            let coming = Coming::new(Chunks(env.clone(), None, size, chunks), press.turn());
            let told = sim.run(coming.collect()).unwrap().to_bytes();
            assert!(told.len() < size * chunks + 100);
            assert_eq!(unzipped(&told).len(), size * chunks);
            assert_eq!((press.0.busy.load(SeqCst), press.counts()), (0, (1, 0)));
        }
    }

    #[test]
    fn what_has_come_goes_out_when_a_body_pauses() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let mut coming = Coming::new(Chunks(env.clone(), None, 100, 2), Press::new(&env).turn());
        let mut told = Vec::new();
        sim.run(async {
            for _ in 0..2 {
                let frame = poll_fn(|cx| Pin::new(&mut coming).poll_frame(cx)).await.unwrap().unwrap();
                told.extend_from_slice(&frame.into_data().unwrap());
            }
        });
        // The end has not come, and all but that can be read.
        let mut plain = [0; 100];
        GzDecoder::new(&*told).read_exact(&mut plain).unwrap();
        assert_eq!(plain, [b'b'; 100]);
    }

    #[test]
    fn a_large_piece_is_compressed_in_slices_between_which_others_have_their_turn() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let mut coming = Coming::new(Chunks(env.clone(), None, 10 * SLICE, 1), Press::new(&env).turn());
        let mut polls = 0;
        sim.run(poll_fn(|cx| {
            polls += 1;
            Pin::new(&mut coming).poll_frame(cx).map(drop)
        }));
        assert!(polls > 10, "{polls}");
    }

    #[test]
    fn no_more_is_spent_than_there_is_and_it_comes_back() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let press = Press::new(&env);
        let mut turns: Vec<_> = std::iter::from_fn(|| press.turn()).collect();
        assert_eq!(turns.len(), usize::try_from(MOST).unwrap());
        turns.truncate(1);
        let burst = usize::try_from(BURST).unwrap();
        turns[0].spend(burst);
        assert!(press.turn().is_none());
        sim.run(env.sleep(Duration::from_secs(1)));
        assert!(press.turn().is_some());
        // Large bodies, each begun while there was a little left: all of them have to be earned before another begins.
        (0..3).for_each(|_| turns[0].spend(burst));
        for _ in 0..3 {
            sim.run(env.sleep(Duration::from_secs(3)));
            assert!(press.turn().is_none());
        }
        sim.run(env.sleep(Duration::from_secs(1_000_000)));
        assert!(press.turn().is_some());
        assert_eq!(press.0.budget.lock().left, BURST);
    }
}
