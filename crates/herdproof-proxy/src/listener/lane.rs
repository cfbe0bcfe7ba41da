//! The short way for requests that can be answered at once.
//!
//! Between a read and a write, a library for HTTP spends more than the look-up it is there for: a map of the request's headers, a
//! map of the answer's, a future for something that nobody waits for. So the bytes of a request are shown to a [`Lane`] first. If it
//! has the answer it writes it down, and hyper never hears of the request; else hyper gets the bytes as if nothing had been.
//!
//! Two readers of one stream must never disagree on where a request begins. So the lane has a say only while hyper is between two
//! requests: it was given whole heads and nothing else, has called for an answer to each, and has written all of it. The first bytes
//! that are not one whole head without a body, a second request in the same packet, say, or an upload, close the lane for as
//! long as the connection lasts.
//!
//! What a lane answers has no bare LF, and nobody else looks at it: its target has to be without a fragment.

use std::{io, sync::Arc};

use bytes::{Buf, Bytes};
use herdproof::Tick;
use http::StatusCode;

use super::strict::has_bare_lf;
use crate::memory::Footprint;

/// Who knows answers by heart.
pub(crate) trait Lane: Send + Sync {
    /// What there is to say to these bytes. An answer is written down, and nothing if there is none.
    fn ask(&self, bytes: &[u8], answer: &mut Vec<u8>) -> Asked;

    /// An answer has gone out, or as much of it as the client took at once.
    fn written(&self, answered: &Answered);
}

/// What was made of the bytes a client sent.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    /// They are one request, and this is its answer.
    Answered(Answered),
    /// They are one request without a body, to be answered by somebody else.
    Whole,
    /// They are something else.
    Other,
}

/// An answer, of which the head is written down.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// What goes out after what is written down.
    pub(crate) body: Bytes,
    /// Where the memory of that is counted.
    pub(crate) footprint: Option<Arc<Footprint>>,
    pub(crate) status: StatusCode,
    /// How long the whole body is.
    pub(crate) bytes: u64,
    /// When its request was there.
    pub(crate) since: Tick,
}

/// A connection's way past hyper.
pub(super) struct Shortcut {
    lane: Option<Arc<dyn Lane>>,
    /// How many requests hyper had begun when it was given another, until that one is answered.
    given: Option<u64>,
    /// Of an answer that the client did not take at once.
    pub(super) rest: Rest,
}

/// What is still to be written.
#[derive(Default)]
pub(super) struct Rest {
    /// What was written down of it.
    bytes: Vec<u8>,
    written: usize,
    /// What comes after that.
    body: Bytes,
}

impl Shortcut {
    pub(super) fn new(lane: Option<Arc<dyn Lane>>) -> Shortcut {
        Shortcut { lane, given: None, rest: Rest::default() }
    }

    /// What goes out after what is written down, if these bytes are answered here, and hyper is not to see them. It has begun so
    /// many requests.
    #[inline]
    pub(super) fn takes(&mut self, bytes: &[u8], begun: u64, answer: &mut Vec<u8>) -> Option<Answered> {
        // What comes while hyper has a request in hand belongs to that one, or comes too early.
        let asked = match &self.lane {
            Some(lane) if self.given.is_none() && !has_bare_lf(bytes) => lane.ask(bytes, answer),
            Some(_) => Asked::Other,
            None => return None,
        };
        match asked {
            Asked::Answered(answered) => return Some(answered),
            Asked::Whole => self.given = Some(begun),
            Asked::Other => self.close(),
        }
        None
    }

    /// Hyper has written all it has to write, and this is how many requests it has begun, if none is under way.
    #[inline]
    pub(super) fn flushed(&mut self, begun: Option<u64>) {
        if self.given.is_some_and(|given| begun.is_some_and(|begun| begun > given)) {
            self.given = None;
        }
    }

    /// An answer has gone out.
    #[inline]
    pub(super) fn written(&self, answered: &Answered) {
        if let Some(lane) = &self.lane {
            lane.written(answered);
        }
    }

    pub(super) fn close(&mut self) {
        self.lane = None;
    }
}

impl Rest {
    /// What is left after so much was taken of what was written down and what comes after it.
    pub(super) fn after(written: usize, answer: &[u8], body: Bytes) -> Rest {
        let mut rest = Rest { bytes: Vec::new(), written: 0, body };
        match answer.get(written..) {
            Some(bytes) => rest.bytes.extend_from_slice(bytes),
            None => rest.body.advance(written - answer.len()),
        }
        rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// What is to go out next; nothing if that is all.
    pub(super) fn left(&self) -> &[u8] {
        match self.bytes.get(self.written..) {
            None | Some([]) => &self.body,
            Some(bytes) => bytes,
        }
    }

    /// So much of that was taken.
    pub(super) fn taken(&mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        if self.written < self.bytes.len() {
            self.written += bytes;
        } else {
            self.body.advance(bytes.min(self.body.len()));
        }
        if self.is_empty() {
            *self = Rest::default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
