//! A socket whose answers are read even if the origin has stopped to read.
//!
//! An origin that does not want a body answers (413, say) and closes. A write after that is an error, and hyper ends a
//! connection at that, with an answer unread that is already there. So an error of a write is not told: what is written from then on
//! goes nowhere, and whether there is an answer is found out by reading. Only so if there is a body: all else is written at once.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Link;
use crate::stream::Stream;

pub(super) struct Socket {
    stream: Stream,
    link: Arc<Link>,
}

impl Socket {
    pub(super) fn new(stream: Stream, link: &Arc<Link>) -> Socket {
        Socket { stream, link: Arc::clone(link) }
    }

    fn write(
        &mut self,
        bytes: usize,
        write: impl FnOnce(Pin<&mut Stream>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.link.is_deaf() {
            match ready!(write(Pin::new(&mut self.stream))) {
                Err(error) if is_closed(&error) && self.link.has_carried() => self.link.set_deaf(),
                written => return Poll::Ready(written),
            }
        }
        Poll::Ready(Ok(bytes))
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
    )
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write(bytes.len(), |stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        self.write(bytes, |stream| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
