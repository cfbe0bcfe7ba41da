//! A socket that counts what goes through it, and answers some of it by itself.

use std::{
    cell::RefCell,
    future::Future,
    io::{self, IoSlice},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use herdproof::{Env, env::Sleep};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    connections::Connection,
    lane::{Lane, Rest, Shortcut},
    strict::{Looked, Strict},
};
use crate::{stream::Stream, who::Who};

thread_local! {
    /// Where answers are written down before they go out.
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How much is still read of a client that is answered while it sends. Closing a socket with unread bytes resets the connection,
/// and a client that is reset while it sends may never see why.
const LINGER_BYTES: usize = 256 << 10;
/// And for how long.
const LINGER: Duration = Duration::from_secs(1);

/// Hyper reads no head that has not ended, if it came in more than one piece.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// A client's socket, whose bytes its [`Connection`] hears of.
pub(super) struct Socket {
    env: Env,
    stream: Stream,
    connection: Arc<Connection>,
    shortcut: Shortcut,
    strict: Strict,
    /// Of a head that was refused, and after it nothing.
    refused: Option<&'static [u8]>,
    lingering: Option<Lingering>,
}

/// All is written, and the client may not have noticed.
struct Lingering {
    until: Sleep,
    left: usize,
}

impl Socket {
    pub(super) fn new(env: &Env, stream: Stream, connection: Arc<Connection>, lane: Option<Arc<dyn Lane>>) -> Socket {
        Socket {
            env: env.clone(),
            stream,
            connection,
            shortcut: Shortcut::new(lane),
            strict: Strict::default(),
            refused: None,
            lingering: None,
        }
    }

    /// Whose it is; none if something came that cannot be read.
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.refused.is_none().then(|| Arc::clone(&self.connection))
    }

    /// Reads what is not HTTP.
    pub(super) fn poll_read_raw(&mut self, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, into))?;
        self.connection.pulse.read(into.filled().len() - before);
        Poll::Ready(Ok(()))
    }

    /// Closes our side, and nothing more.
    pub(super) fn poll_shutdown_raw(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    /// Reads what a client sends of a body that nobody wants or after a head that was refused, until it closes its side as well.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.connection.has_unread() && self.refused.is_none() {
            return Poll::Ready(());
        }
        let env = &self.env;
        let Lingering { until, left } =
            self.lingering.get_or_insert_with(|| Lingering { until: env.sleep(LINGER), left: LINGER_BYTES });
        let mut bytes = [0; 4096];
        loop {
            let mut into = ReadBuf::new(&mut bytes);
            match Pin::new(&mut self.stream).poll_read(cx, &mut into) {
                Poll::Ready(Ok(())) if !into.filled().is_empty() && into.filled().len() <= *left => {
                    *left -= into.filled().len();
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Pin::new(until).poll(cx).map(|_| ()),
            }
        }
    }

    #[inline]
    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.connection.pulse.written(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.pulse.blocked(),
        }
        result
    }

    /// Answers these bytes, if they need nobody else; true if that is so. What the client does not take at once is kept.
    #[inline]
    fn answers(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> io::Result<bool> {
        let pulse = &self.connection.pulse;
        ANSWER.with_borrow_mut(|answer| {
            answer.clear();
            let Some(mut answered) = self.shortcut.takes(bytes, pulse.requests(), answer) else {
                return Ok(false);
            };
            pulse.begin();
            let stream = Pin::new(&mut self.stream);
            let mut body = mem::take(&mut answered.body);
            let written = if body.is_empty() {
                stream.poll_write(cx, answer)
            } else {
                stream.poll_write_vectored(cx, &[IoSlice::new(answer), IoSlice::new(&body)])
            };
            self.shortcut.written(&answered);
            let written = match written {
                Poll::Ready(written) => written?,
                Poll::Pending => 0,
            };
            pulse.written(written);
            if written == answer.len() + body.len() {
                pulse.end();
            } else {
                if let Some(footprint) = answered.footprint {
                    let who = Who::of(self.connection.address().ip());
                    let connection = Arc::clone(&self.connection);
                    body = footprint.read_by(who, connection).until_written(body);
                }
                self.shortcut.rest = Rest::after(written, answer, body);
            }
            Ok(true)
        })
    }

    /// Writes what is left of an answer.
    #[inline]
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.shortcut.rest.is_empty() {
            let result = Pin::new(&mut self.stream).poll_write(cx, self.shortcut.rest.left());
            let bytes = ready!(self.wrote(result))?;
            self.shortcut.rest.taken(bytes)?;
            if self.shortcut.rest.is_empty() {
                self.connection.pulse.end();
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = into.filled().len();
        loop {
            ready!(this.poll_rest(cx))?;
            if let Some(end) = &mut this.refused {
                let (now, later) = end.split_at(end.len().min(into.remaining()));
                into.put_slice(now);
                *end = later;
                return Poll::Ready(Ok(()));
            }
            ready!(Pin::new(&mut this.stream).poll_read(cx, into))?;
            let bytes = into.filled().get(before..).unwrap_or_default();
            if bytes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.connection.pulse.read(bytes.len());
            if this.connection.all.is_stopping() {
                // The answer has to say that it is the last.
                this.shortcut.close();
            }
            if !this.answers(cx, bytes)? {
                let bytes = into.filled_mut().get_mut(before..).unwrap_or_default();
                if let Looked::Refused(count) = this.strict.look(bytes) {
                    into.set_filled(before + count);
                    this.refused = Some(END_OF_HEAD);
                    this.shortcut.close();
                }
                return Poll::Ready(Ok(()));
            }
            into.set_filled(before);
        }
    }
}

impl AsyncWrite for Socket {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(result)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.wrote(result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket holds nothing back. Called when hyper holds nothing back either.
    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let begun = self.connection.pulse.begun();
        self.shortcut.flushed(begun);
        Poll::Ready(Ok(()))
    }

    /// Called when all is written, and only then: hyper lets go of a socket without it when an answer breaks off.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(cx))?;
        self.connection.set_unended(false);
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.connection.is_unended() {
            // What is not whole must not look as if it were: the client gets an error instead of an end.
            self.stream.set_broken();
        }
    }
}
