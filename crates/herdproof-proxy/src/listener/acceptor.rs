//! Bound sockets, of TCP and in the file system.
//!
//! The file of a Unix socket outlives its process. One that nobody serves any more is in the way of the next start, and one that
//! somebody serves must not be taken away: who starts a second proxy by mistake would cut off the first. So a file is replaced only
//! if it is a socket and a connection to it is refused; in one step, so that clients find either the old one or the new one. The
//! rights are set before anybody can see it. At the end it is removed, if it is still ours.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::{settings::Listen, stream::Stream};

/// As many as the kernel lets wait to be accepted: it lowers this to its own limit.
const BACKLOG: u32 = 32_767;

/// A bound socket.
#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(unix::Bound),
}

/// Clients who waited in line when it was time to go.
pub(super) enum Last {
    Tcp(std::net::TcpListener),
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener, #[expect(dead_code, reason = "removed when it is dropped")] unix::File),
}

impl Acceptor {
    /// Where it is bound, and to what.
    pub(super) fn bind(place: &Listen, mode: u32) -> io::Result<(Acceptor, Listen)> {
        match place {
            Listen::Address(address) => {
                let socket = Acceptor::tcp(*address)?;
                let address = socket.local_addr()?;
                Ok((Acceptor::Tcp(socket), address.into()))
            }
            #[cfg(unix)]
            Listen::Unix(path) => Ok((Acceptor::Unix(unix::Bound::at(path, mode)?), place.clone())),
            #[cfg(not(unix))]
            Listen::Unix(_) => {
                let _ = mode;
                Err(io::ErrorKind::Unsupported.into())
            }
        }
    }

    fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A restart need not wait until the last connections of the one before are forgotten.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    }

    pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Acceptor::Tcp(socket) => socket.accept().await.map(|(stream, address)| (stream.into(), address)),
            #[cfg(unix)]
            Acceptor::Unix(bound) => bound.accept().await,
        }
    }

    /// Closing the socket would reset those who wait in line, and they may have asked already.
    pub(super) fn last(self) -> io::Result<Last> {
        match self {
            Acceptor::Tcp(socket) => socket.into_std().map(Last::Tcp),
            #[cfg(unix)]
            Acceptor::Unix(unix::Bound { socket, file }) => Ok(Last::Unix(socket.into_std()?, file)),
        }
    }
}

impl Last {
    /// One of those in line.
    pub(super) fn accept(&self) -> io::Result<(io::Result<Stream>, SocketAddr)> {
        match self {
            Last::Tcp(socket) => {
                let (stream, address) = socket.accept()?;
                let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                Ok((stream.map(Stream::Tcp), address))
            }
            #[cfg(unix)]
            Last::Unix(socket, _) => {
                let (stream, _) = socket.accept()?;
                let stream = stream.set_nonblocking(true).and_then(|()| tokio::net::UnixStream::from_std(stream));
                Ok((stream.map(Stream::Unix), unix::CLIENT))
            }
        }
    }
}

#[cfg(unix)]
pub(super) mod unix {
    use std::{
        fs::{self, Permissions},
        io,
        net::SocketAddr,
        os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
        path::{Path, PathBuf},
        process,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
    };

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    use tokio::net::{UnixListener, UnixSocket};

    use crate::{settings::OVER_UNIX, stream::Stream};

    pub(super) const CLIENT: SocketAddr = SocketAddr::new(OVER_UNIX, 0);

    #[derive(Debug)]
    pub(in crate::listener) struct Bound {
        pub(super) socket: UnixListener,
        pub(super) file: File,
    }

    /// The file of a socket of ours; dropping it removes it.
    #[derive(Debug)]
    pub(in crate::listener) struct File {
        path: PathBuf,
        /// Device and number, by which it is known to be ours still.
        id: (u64, u64),
    }

    impl Bound {
        pub(super) fn at(path: &Path, mode: u32) -> io::Result<Bound> {
            /// One process may bind several in one folder.
            static BOUND: AtomicU32 = AtomicU32::new(0);
            make_way(path)?;
            let number = BOUND.fetch_add(1, Relaxed);
            let aside = path.with_file_name(format!(".hp{}-{number}", process::id()));
            // Of a process that had this number.
            fs::remove_file(&aside).ok();
            let bound = || {
                let socket = UnixSocket::new_stream()?;
                socket.bind(&aside)?;
                fs::set_permissions(&aside, Permissions::from_mode(mode))?;
                let socket = socket.listen(super::BACKLOG)?;
                let id = id(&aside)?;
                fs::rename(&aside, path)?;
                Ok(Bound { socket, file: File { path: path.to_owned(), id } })
            };
            bound().inspect_err(|_| drop(fs::remove_file(&aside)))
        }

        pub(super) async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
            self.socket.accept().await.map(|(stream, _)| (Stream::Unix(stream), CLIENT))
        }
    }

    fn id(path: &Path) -> io::Result<(u64, u64)> {
        fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
    }

    /// Whether there may be a socket at this path: nothing is there, or one that nobody serves.
    fn make_way(path: &Path) -> io::Result<()> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if !found.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else than a socket is there"));
        }
        // Without waiting: a line that is full is a sign of life.
        let asking = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
        match connect(&asking, &SocketAddrUnix::new(path)?) {
            Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => Ok(()),
            _ => Err(io::ErrorKind::AddrInUse.into()),
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            if id(&self.path).is_ok_and(|id| id == self.id) {
                fs::remove_file(&self.path).ok();
            }
        }
    }
}
