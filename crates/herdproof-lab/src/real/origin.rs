//! An origin that answers one request quickly and a crowd slowly.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use herdproof::{Env, Tick};
use hyper::{
    HeaderMap, StatusCode,
    header::{CACHE_CONTROL, HeaderValue},
};
use parking_lot::Mutex;

use super::server::Server;
use crate::{
    crowd::{Arrival, Crowd},
    slowdown::Slowdown,
    timeline::Timeline,
};

const BIN: Duration = Duration::from_millis(1);
/// What comes later than this after the first request is counted in the last bin, so that an origin may run for ever.
const RECORDED: Duration = Duration::from_secs(120);

/// An HTTP server on loopback whose answers take as long as a [`Slowdown`] says. Dropping it ends it.
///
/// A request takes the time that belongs to the largest crowd it was part of: those who come first suffer from those who
/// come after them.
#[derive(Debug)]
pub struct FragileOrigin {
    server: Server,
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    env: Env,
    law: Slowdown,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    crowd: Crowd,
    first: Option<Tick>,
    arrivals: Timeline,
}

impl FragileOrigin {
    /// Bears one visitor well and a crowd badly: 80 ms alone, 5 s with 800 in flight.
    pub const LAW: Slowdown = Slowdown::alone(Duration::from_millis(80)).at(800, Duration::from_secs(5));

    /// Starts one on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime that has I/O and time enabled.
    pub fn start(env: &Env, law: Slowdown) -> io::Result<FragileOrigin> {
        FragileOrigin::saying(env, law, HeaderMap::new())
    }

    /// Starts one whose answers may be kept for so long, to the second.
    ///
    /// # Panics
    ///
    /// As [`start`](FragileOrigin::start).
    pub fn start_cacheable(env: &Env, law: Slowdown, max_age: Duration) -> io::Result<FragileOrigin> {
        let said = HeaderValue::try_from(format!("max-age={}", max_age.as_secs())).map_err(io::Error::other)?;
        FragileOrigin::saying(env, law, HeaderMap::from_iter([(CACHE_CONTROL, said)]))
    }

    fn saying(env: &Env, law: Slowdown, headers: HeaderMap) -> io::Result<FragileOrigin> {
        let log = Log { crowd: Crowd::default(), first: None, arrivals: Timeline::new(BIN) };
        let seen = Arc::new(Seen { env: env.clone(), law, log: Mutex::new(log) });
        let serving = Arc::clone(&seen);
        let server = Server::start(env, headers, move |path| {
            let stay = Stay::begin(&serving);
            async move {
                stay.last().await;
                (StatusCode::OK, Bytes::from(format!("the answer to {path}\n")))
            }
        })?;
        Ok(FragileOrigin { server, seen })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// How many requests came.
    pub fn requests(&self) -> u64 {
        self.seen.log.lock().crowd.arrived()
    }

    /// The most requests that were in flight at one time.
    pub fn peak_in_flight(&self) -> u64 {
        self.seen.log.lock().crowd.peak()
    }

    /// When requests came, counted from the first.
    pub fn arrivals(&self) -> Timeline {
        self.seen.log.lock().arrivals.clone()
    }

    /// Ends it, and waits until every socket is closed.
    pub async fn close(self) {
        self.server.close().await;
    }
}

/// One request's stay, over when it is dropped: answered, or given up by its client.
struct Stay {
    seen: Arc<Seen>,
    since: Tick,
    /// There until it is given back on drop.
    arrival: Option<Arrival>,
}

impl Stay {
    fn begin(seen: &Arc<Seen>) -> Stay {
        let mut log = seen.log.lock();
        let since = seen.env.now();
        let after = since - *log.first.get_or_insert(since);
        log.arrivals.record(Tick::ZERO + after.min(RECORDED));
        let arrival = Some(log.crowd.enter());
        drop(log);
        Stay { seen: Arc::clone(seen), since, arrival }
    }

    /// When it is over, if nobody else comes.
    fn due(&self) -> Tick {
        let most = self.arrival.as_ref().map_or(1, |arrival| self.seen.log.lock().crowd.most_since(arrival));
        self.since + self.seen.law.time(most)
    }

    /// Waits until it is over, which others who come meanwhile put off.
    async fn last(&self) {
        let mut now = self.since;
        loop {
            let due = self.due();
            if now >= due {
                return;
            }
            now = self.seen.env.sleep_until(due).await;
        }
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        if let Some(arrival) = self.arrival.take() {
            self.seen.log.lock().crowd.leave(arrival);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdproof::Sim;

    const MS: Duration = Duration::from_millis(1);

    fn seen(env: &Env) -> Arc<Seen> {
        let log = Log { crowd: Crowd::default(), first: None, arrivals: Timeline::new(BIN) };
        let law = Slowdown::alone(10 * MS).at(11, 110 * MS);
        Arc::new(Seen { env: env.clone(), law, log: Mutex::new(log) })
    }

    #[test]
    fn those_who_came_first_suffer_from_those_who_come_after() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let seen = seen(&env);
        let first = Stay::begin(&seen);
        let ended = sim.run(async {
            env.sleep(9 * MS).await;
            let crowd: Vec<Stay> = (0..10).map(|_| Stay::begin(&seen)).collect();
            drop(crowd);
            first.last().await;
            env.now()
        });
        assert_eq!(ended, Tick::ZERO + 110 * MS);
    }

    #[test]
    fn a_client_that_leaves_is_no_longer_in_flight() {
        let env = Sim::new(1).env();
        let seen = seen(&env);
        drop(Stay::begin(&seen));
        assert_eq!(Stay::begin(&seen).due(), Tick::ZERO + 10 * MS);
        let log = seen.log.lock();
        assert_eq!((log.crowd.arrived(), log.crowd.peak()), (2, 1));
    }

    #[test]
    fn an_origin_that_runs_for_days_keeps_a_bounded_record() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let seen = seen(&env);
        drop(Stay::begin(&seen));
        sim.run(async { env.sleep(Duration::from_secs(864_000)).await });
        drop(Stay::begin(&seen));
        let log = seen.log.lock();
        assert_eq!(log.arrivals.total(), 2);
        assert!(log.arrivals.counts().len() <= 120_001);
    }
}
