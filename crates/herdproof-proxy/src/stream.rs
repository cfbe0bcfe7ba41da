//! A connection over TCP or over a Unix socket, to a client or to the origin.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

/// The same for either.
macro_rules! either {
    ($stream:expr, $inner:ident => $done:expr) => {
        match $stream {
            Stream::Tcp($inner) => $done,
            #[cfg(unix)]
            Stream::Unix($inner) => $done,
        }
    };
}

impl Stream {
    /// What is written goes out at once.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            #[cfg(unix)]
            Stream::Unix(_) => Ok(()),
        }
    }

    /// When it is dropped, the other side is to see an error; over a Unix socket it sees an end.
    pub(crate) fn set_broken(&self) {
        match self {
            // It is closed in either case.
            Stream::Tcp(stream) => drop(stream.set_zero_linger()),
            #[cfg(unix)]
            Stream::Unix(_) => {}
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        either!(self, stream => stream.readable().await)
    }

    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.try_read(into))
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Stream {
        Stream::Tcp(stream)
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
