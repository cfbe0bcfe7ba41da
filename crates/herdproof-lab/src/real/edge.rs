//! The real proxy between a crowd and its origin, in this process.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use herdproof::Env;
use herdproof_proxy::{
    Listener, Proxy, Server, Settings,
    settings::{ClientSettings, OriginSettings},
};

/// A proxy on loopback with the usual settings, in front of an origin. Dropping it ends it.
#[derive(Debug)]
pub struct Edge {
    server: Server,
}

impl Edge {
    /// Starts one on a free port of 127.0.0.1, in front of this origin.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O and time enabled.
    pub fn start(env: &Env, origin: SocketAddr) -> io::Result<Edge> {
        let origin = OriginSettings { url: format!("http://{origin}"), ..OriginSettings::default() };
        // As many clients as there are: it is the demo that looks how many descriptors there are.
        let clients = ClientSettings { max_connections: u32::MAX >> 8, ..ClientSettings::default() };
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &clients).map_err(|cannot| cannot.error)?;
        let proxy =
            Proxy::new(env, Settings { origin, clients, ..Settings::default() }, None).map_err(io::Error::other)?;
        Ok(Edge { server: proxy.serve_on(env, listener) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Ends it, and waits until every client's socket is closed.
    pub async fn close(self) {
        self.server.stop(Duration::ZERO).await;
    }
}
