//! The library between a crowd and its origin: one load per path, whoever asks.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use herdproof::{Env, Group};
use hyper::{HeaderMap, StatusCode};
use parking_lot::Mutex;

use super::{
    client::{self, Failed},
    server::Server,
};

/// More paths than this are loaded anew each time, so that the edge's memory is bounded.
const KEPT: usize = 1_000;

/// An HTTP server on loopback that loads each path from an origin once, and gives everybody that answer. Dropping it ends
/// it.
///
/// An answer that was loaded is kept, so that a client which comes a moment after the flight has landed does not begin
/// another. This is what a cache does, and what a key is cold in; it takes the flight to make the first load one load.
#[derive(Debug)]
pub struct Edge {
    server: Server,
}

struct Front {
    origin: SocketAddr,
    flights: Group<String, Bytes, Failed>,
    kept: Mutex<BTreeMap<String, Bytes>>,
}

impl Edge {
    /// Starts one on a free port of 127.0.0.1, in front of this origin.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O and time enabled.
    pub fn start(env: &Env, origin: SocketAddr) -> io::Result<Edge> {
        let front = Arc::new(Front { origin, flights: Group::new(env), kept: Mutex::default() });
        let server = Server::start(env, HeaderMap::new(), move |path| {
            let front = Arc::clone(&front);
            async move {
                let load = || Front::load(Arc::clone(&front), path.clone());
                match front.flights.run(path.clone(), load).await {
                    Ok(landed) => (StatusCode::OK, landed.value),
                    Err(error) => (StatusCode::BAD_GATEWAY, Bytes::from(format!("{error}\n"))),
                }
            }
        })?;
        Ok(Edge { server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Ends it, and waits until every client's socket is closed.
    pub async fn close(self) {
        self.server.close().await;
    }
}

impl Front {
    /// From what was kept, else from the origin. It is looked for in here, not before the flight is joined:
    ///
    /// 1. A client looks, and nothing is kept yet.
    /// 2. The flight lands, the answer is kept, the flight is over.
    /// 3. The client finds no flight to join, and begins a second load.
    ///
    /// Inside the load, nobody can be between looking and joining.
    async fn load(front: Arc<Front>, path: String) -> Result<Bytes, Failed> {
        let kept = front.kept.lock().get(&path).cloned();
        if let Some(answer) = kept {
            return Ok(answer);
        }
        let answer = client::get(client::connect(front.origin).await?, &path).await?;
        let mut kept = front.kept.lock();
        if kept.len() < KEPT {
            kept.insert(path, answer.clone());
        }
        Ok(answer)
    }
}
