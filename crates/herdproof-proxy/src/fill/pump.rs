//! A body on its way from the origin into the log: at the pace of those who read it, and no further than it is worth.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, env::Sleep};
use http_body::Body;

use crate::{
    log::{Reader, Writer},
    memory::NARROW,
    origin::Origin,
};

/// Those who wait are woken when so much has come since the last time, or when no more is here.
const BATCH: u64 = 64 << 10;
/// A body that nobody reads any more is fetched to its end if no more than this is missing, or less than half.
/// One that does not say how long it is may have no end, and is given up.
const WORTHWHILE: u64 = 1 << 20;
/// So long after the head those aboard have surely begun to read.
const BOARDING: Duration = Duration::from_secs(1);
/// How often those are looked at who hold a seat by reading slowly.
const LOOK: Duration = Duration::from_secs(5);

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Whole,
    /// The origin broke it off.
    Broken,
    /// Nobody reads it, and it is not worth fetching to its end.
    Unread,
}

pub(super) struct Pump {
    env: Env,
    /// No more than this is kept of a body.
    most: u64,
    audience: Audience,
    boarding: Option<Boarding>,
    /// Where the body holds a seat, and when to look next at who keeps it from being free.
    seats: Option<(Origin, Option<Sleep>)>,
    /// How much those who wait were told of.
    published: u64,
}

/// For whom a body is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// For the store: to its end, though nobody reads it.
    Store,
    /// For those aboard, who may not have begun. Its length, if that is known.
    Aboard(Option<u64>),
    /// For one reader, who is there already.
    One,
}

/// Some who are aboard may not have begun to read. Until somebody has, or it is over, the beginning is not given up.
struct Boarding {
    _place: Reader,
    over: Sleep,
}

impl Pump {
    pub(super) fn new(env: &Env, writer: &Writer, most: u64, audience: Audience) -> Pump {
        let is_aboard = matches!(audience, Audience::Aboard(_));
        let boarding = is_aboard.then(|| Boarding { _place: writer.reader(), over: env.sleep(BOARDING) });
        Pump { env: env.clone(), most, audience, boarding, seats: None, published: 0 }
    }

    /// The body holds a seat at this origin.
    pub(super) fn at(self, origin: &Origin) -> Pump {
        Pump { seats: Some((origin.clone(), None)), ..self }
    }

    /// Ready when the body is over.
    pub(super) fn poll<B: Body<Data = Bytes>>(
        &mut self,
        writer: &Writer,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Over> {
        loop {
            if self.boarding.is_none() && !self.is_worthwhile(writer) {
                return Poll::Ready(Over::Unread);
            }
            if writer.poll_room(cx).is_pending() {
                // Whoever is waited for may be waiting to hear of it.
                self.publish_rest(writer);
                if self.is_boarding(writer, cx) || writer.poll_room(cx).is_pending() {
                    self.look_at_seats(writer, cx);
                    return Poll::Pending;
                }
            }
            match body.as_mut().poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are for one hop.
                    let Ok(chunk) = frame.into_data() else { continue };
                    writer.push(chunk);
                    if writer.len() > self.most {
                        writer.slide(self.most);
                    }
                    if writer.memory().is_short() || writer.footprint().is_narrow() {
                        writer.narrow(NARROW);
                    }
                    if writer.len() - self.published >= BATCH {
                        self.publish(writer);
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Over::Broken),
                Poll::Ready(None) => return Poll::Ready(Over::Whole),
                Poll::Pending => {
                    self.publish_rest(writer);
                    writer.wake_when_deserted(cx);
                    let goes_on = self.is_boarding(writer, cx) || self.is_worthwhile(writer);
                    return if goes_on { Poll::Pending } else { Poll::Ready(Over::Unread) };
                }
            }
        }
    }

    fn publish_rest(&mut self, writer: &Writer) {
        if writer.len() > self.published {
            self.publish(writer);
        }
    }

    fn publish(&mut self, writer: &Writer) {
        self.published = writer.len();
        writer.publish();
    }

    /// Whether nobody reads it, and somebody may be about to.
    fn is_boarding(&mut self, writer: &Writer, cx: &mut Context<'_>) -> bool {
        // One of them holds the place of the others.
        let is_over =
            |boarding: &mut Boarding| writer.readers() > 1 || Pin::new(&mut boarding.over).poll(cx).is_ready();
        if self.boarding.as_mut().is_some_and(is_over) {
            self.boarding = None;
        }
        self.boarding.is_some()
    }

    /// Whether it is to go on: somebody reads it, or it is nearly here.
    fn is_worthwhile(&self, writer: &Writer) -> bool {
        let come = writer.len();
        match self.audience {
            Audience::Store => true,
            _ if writer.readers() > 0 => true,
            // It would be on nobody's account, and others would be ended for it.
            Audience::Aboard(_) if writer.memory().is_filling() => false,
            Audience::Aboard(Some(len)) => {
                let missing = len.saturating_sub(come);
                missing <= WORTHWHILE || missing < come
            }
            Audience::Aboard(None) | Audience::One => false,
        }
    }

    /// While a reader is waited for, the seat is held for it.
    fn look_at_seats(&mut self, writer: &Writer, cx: &mut Context<'_>) {
        let Some((origin, next)) = &mut self.seats else { return };
        while Pin::new(next.get_or_insert_with(|| self.env.sleep(LOOK))).poll(cx).is_ready() {
            *next = None;
            let (taken, seats) = origin.seats();
            writer.memory().free_a_seat(taken, seats);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible, future::poll_fn, sync::Arc};

    use herdproof::Sim;
    use http_body::Frame;

    use super::*;
    use crate::{log::Log, memory::BodyMemory};

    const MOST: u64 = 1_000;
    const CHUNK: usize = 600;

    /// So many chunks, and then nothing for now.
    struct Chunks(VecDeque<Bytes>);

    impl Chunks {
        fn new(count: u8) -> Pin<Box<Chunks>> {
            Box::pin(Chunks((0..count).map(|byte| Bytes::from(vec![byte; CHUNK])).collect()))
        }
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0.pop_front().map_or(Poll::Pending, |chunk| Poll::Ready(Some(Ok(Frame::data(chunk)))))
        }
    }

    /// The first byte of each chunk that can be read now, and whether more may come.
    fn read(reader: &mut Reader, cx: &mut Context<'_>) -> (Vec<u8>, bool) {
        let mut read = Vec::new();
        loop {
            match reader.poll_next(cx) {
                Poll::Ready(Some(Ok(chunk))) => read.push(chunk[0]),
                Poll::Pending => return (read, true),
                Poll::Ready(_) => return (read, false),
            }
        }
    }

    /// With a pump for a body that says nothing of its length and is larger than what is kept.
    fn pumping(run: impl AsyncFnOnce(Env, Arc<Log>, Writer, Pump)) {
        let mut sim = Sim::new(1);
        let env = sim.env();
        sim.run(async move {
            let (log, writer) = Log::new(&BodyMemory::new(&env, u64::MAX));
            let pump = Pump::new(&env, &writer, MOST, Audience::Aboard(None));
            run(env, log, writer, pump).await;
        });
    }

    #[test]
    fn the_beginning_of_what_is_too_large_to_keep_waits_for_those_aboard_who_have_not_begun() {
        pumping(async |_, log, writer, mut pump| {
            let mut body = Chunks::new(5);
            poll_fn(|cx| {
                assert!(pump.poll(&writer, body.as_mut(), cx).is_pending());
                assert!(log.has_beginning() && body.0.len() == 3, "no more is fetched than is kept");
                // The only one who is aboard begins.
                let mut reader = log.reader();
                for more in [vec![0, 1], vec![2, 3], vec![4]] {
                    assert_eq!(read(&mut reader, cx), (more, true));
                    assert!(pump.poll(&writer, body.as_mut(), cx).is_pending());
                }
                Poll::Ready(())
            })
            .await;
        });
    }

    #[test]
    fn what_nobody_begins_to_read_is_given_up() {
        pumping(async |env, _, writer, mut pump| {
            let mut body = Chunks::new(5);
            let begun = env.now();
            let over = poll_fn(|cx| pump.poll(&writer, body.as_mut(), cx)).await;
            assert!(over == Over::Unread && env.now() - begun >= BOARDING);
        });
    }

    #[test]
    fn what_is_for_one_is_read_ahead_as_far_as_may_be_and_given_up_when_that_one_leaves() {
        pumping(async |env, log, writer, aboard| {
            drop(aboard);
            let reader = log.reader();
            let (mut pump, mut body) = (Pump::new(&env, &writer, MOST, Audience::One), Chunks::new(5));
            let polled = poll_fn(|cx| Poll::Ready(pump.poll(&writer, body.as_mut(), cx))).await;
            assert!(polled.is_pending() && body.0.len() == 3);
            drop(reader);
            let polled = poll_fn(|cx| Poll::Ready(pump.poll(&writer, body.as_mut(), cx))).await;
            assert_eq!((polled, body.0.len()), (Poll::Ready(Over::Unread), 3));
        });
    }

    #[test]
    fn what_is_wanted_is_fetched_though_nobody_reads_it() {
        pumping(async |env, _, writer, _| {
            let (mut pump, mut body) = (Pump::new(&env, &writer, u64::MAX, Audience::Store), Chunks::new(5));
            let polled = poll_fn(|cx| Poll::Ready(pump.poll(&writer, body.as_mut(), cx))).await;
            assert!(polled.is_pending());
            assert_eq!(writer.len(), 5 * CHUNK as u64);
        });
    }
}
