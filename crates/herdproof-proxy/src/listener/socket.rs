//! A socket that counts what goes through it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::connections::Connection;

/// A client's socket, whose bytes its [`Connection`] hears of.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    pub(super) connection: Arc<Connection>,
}

impl Socket {
    #[inline]
    fn wrote(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.connection.pulse.written(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.pulse.blocked(),
        }
        result
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, into);
        let bytes = into.filled().len() - before;
        if bytes > 0 {
            self.connection.pulse.read(bytes);
        }
        result
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

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket holds nothing back.
        Poll::Ready(Ok(()))
    }

    /// Called when all is written, and only then: hyper lets go of a socket without it when an answer breaks off.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.set_unended(false);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.connection.is_unended() {
            // What is not whole must not look as if it were: the client gets an error instead of an end.
            self.stream.set_zero_linger().ok();
        }
    }
}
