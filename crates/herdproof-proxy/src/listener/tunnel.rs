//! A connection that was upgraded: bytes both ways, until either side closes or nothing moves.
//!
//! It stays one of the listener's connections: it has its place among them, is looked at like all (a client that takes bytes too
//! slowly is ended), and goes with a stop. There is no way to tell a client of an unknown protocol that a stop has come, so its
//! connection is closed; at a moment of its own within three quarters of the time that there is, because clients come back at
//! once, and thousands of them together are a herd at the next process.
//!
//! What is silent holds no buffer: bytes are read into the task's stack, and only what the other side does not take is kept, 16 KiB
//! each way at most.

use std::{
    fmt,
    future::Future,
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use herdproof::{Env, Tick, env::Sleep};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{connections::Connection, socket::Socket};

/// Bytes that are read at a time.
const READ: usize = 16 << 10;
/// When one side has closed: how long the other may still say something.
const LAST: Duration = Duration::from_secs(1);

/// Where an upgraded connection leads to.
pub(crate) struct Tunnel {
    /// The other end.
    pub(crate) origin: Upgraded,
    /// How long nothing may move.
    pub(crate) idle: Duration,
    /// What it takes up, dropped when it is over.
    pub(crate) seat: Box<dyn Send>,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// A tunnel with both its ends.
pub(super) struct Open {
    env: Env,
    connection: Arc<Connection>,
    client: Raw,
    origin: TokioIo<Upgraded>,
    up: Way,
    down: Way,
    idle: Duration,
    /// Bytes that had moved, and when that was noticed.
    moved: (u64, Tick),
    look: Sleep,
    /// There from when one side has closed.
    last: Option<Sleep>,
    /// There from when the listener stops.
    leave: Option<Sleep>,
    _seat: Box<dyn Send>,
}

impl Open {
    /// These bytes came from the client after its request. None if they were taken for another request already, and for one that
    /// cannot be read.
    pub(super) fn new(env: &Env, socket: Socket, came: Bytes, tunnel: Tunnel) -> Option<Open> {
        let Tunnel { origin, idle, seat } = tunnel;
        let connection = socket.connection()?;
        connection.pulse.begin();
        Some(Open {
            env: env.clone(),
            connection,
            client: Raw(socket),
            origin: TokioIo::new(origin),
            up: Way::new(came),
            down: Way::new(Bytes::new()),
            idle,
            moved: (0, env.now()),
            look: env.sleep(idle),
            last: None,
            leave: None,
            _seat: seat,
        })
    }

    fn copy(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let up = self.up.poll(cx, &mut self.client, &mut self.origin);
        let down = self.down.poll(cx, &mut self.origin, &mut self.client);
        let origin_broke = matches!(up, Poll::Ready(Err(Broken::To))) || matches!(down, Poll::Ready(Err(Broken::From)));
        if origin_broke {
            // The client gets an error, too, and no end in order.
            self.connection.set_unended(true);
        }
        match (up, down) {
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) | (Poll::Ready(Err(_)), _) | (_, Poll::Ready(Err(_))) => {
                Poll::Ready(())
            }
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Pin::new(self.last.get_or_insert_with(|| self.env.sleep(LAST))).poll(cx).map(drop),
        }
    }

    /// Whether nothing has moved for too long.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = ready!(Pin::new(&mut self.look).poll(cx));
            let (moved, since) = (self.up.moved + self.down.moved, self.moved.1);
            if moved == self.moved.0 && now - since >= self.idle {
                return Poll::Ready(());
            }
            if moved != self.moved.0 {
                self.moved = (moved, now);
            }
            // So it ends after half as much again at the latest, and no byte sets a timer.
            self.look = self.env.sleep(self.idle / 2);
        }
    }

    /// Whether it is its turn to go, now that the listener stops.
    fn poll_leave(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.connection.all.is_stopping() {
            return Poll::Pending;
        }
        let leave = self.leave.get_or_insert_with(|| {
            let within = Duration::from_nanos(self.connection.all.drain.load(Relaxed)) * 3 / 4;
            self.env.sleep(self.env.rng("listener/tunnel").between(Duration::ZERO, within))
        });
        Pin::new(leave).poll(cx).map(drop)
    }
}

impl Future for Open {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.copy(cx).is_ready() || this.poll_idle(cx).is_ready() {
            return Poll::Ready(());
        }
        this.poll_leave(cx)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.pulse.end();
    }
}

/// What broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    From,
    To,
}

/// One direction.
struct Way {
    /// Read, and not written.
    rest: Bytes,
    moved: u64,
    /// The end was read.
    ended: bool,
    /// And said.
    over: bool,
}

impl Way {
    fn new(rest: Bytes) -> Way {
        Way { rest, moved: 0, ended: false, over: false }
    }

    /// Moves what there is; ready when the end has been handed on. How long one turn may be, tokio's sockets say: they are not ready
    /// any more after a while.
    fn poll<F, T>(&mut self, cx: &mut Context<'_>, from: &mut F, to: &mut T) -> Poll<Result<(), Broken>>
    where
        F: AsyncRead + Unpin,
        T: AsyncWrite + Unpin,
    {
        let closed = |_: io::Error| Broken::To;
        while !self.over {
            while !self.rest.is_empty() {
                let written = ready!(Pin::new(&mut *to).poll_write(cx, &self.rest)).map_err(closed)?;
                if written == 0 {
                    return Poll::Ready(Err(Broken::To));
                }
                self.rest.advance(written);
                self.moved += written as u64;
            }
            if self.ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(closed)?;
                self.over = true;
                break;
            }
            let mut space = [MaybeUninit::uninit(); READ];
            let mut into = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut *from).poll_read(cx, &mut into)).map_err(|_| Broken::From)?;
            let read = into.filled();
            if read.is_empty() {
                self.ended = true;
                continue;
            }
            let written = match Pin::new(&mut *to).poll_write(cx, read).map_err(closed)? {
                Poll::Ready(written) => written,
                Poll::Pending => 0,
            };
            self.moved += written as u64;
            self.rest = Bytes::copy_from_slice(read.get(written..).unwrap_or_default());
        }
        Poll::Ready(Ok(()))
    }
}

/// A client's socket without HTTP.
struct Raw(Socket);

impl AsyncRead for Raw {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_raw(cx, into)
    }
}

impl AsyncWrite for Raw {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_shutdown_raw(cx)
    }
}
