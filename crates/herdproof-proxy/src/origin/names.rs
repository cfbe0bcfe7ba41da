//! Where the origin is.
//!
//! A name is looked up at the start and again from time to time, each proxy at its own pace: after a failover a fleet that asks
//! in step is a herd at the name server, and one that never asks again is an outage. A name that cannot be found does not keep
//! the proxy from starting, as nobody wants to start services in order; requests are answered with 502 until it can.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use herdproof::{Env, env::Rng};
use parking_lot::RwLock;
use tokio::{net::TcpStream, sync::Notify};

use crate::{settings::OVER_UNIX, stream::Stream};

/// How long after a look-up that failed there is another, about.
const AGAIN: Duration = Duration::from_secs(1);

/// Cheap to clone, and clones share.
#[derive(Clone)]
pub(super) struct Names(Arc<Shared>);

struct Shared {
    found: RwLock<Found>,
    /// Told when there is something new.
    news: Notify,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Found {
    addresses: Vec<SocketAddr>,
    /// The path of a socket, instead of an address.
    unix: Option<PathBuf>,
    /// Those that could not be connected to since the last look-up.
    failed: Vec<SocketAddr>,
    /// Why there are none. Nothing at all while it is looked up for the first time.
    error: Option<Arc<io::Error>>,
}

impl Names {
    /// The addresses of a host, kept up to date in the background if it is a name.
    pub(super) fn new(env: &Env, host: &str, port: u16, every: Duration) -> Names {
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            let names = Names::unknown();
            names.0.found.write().addresses = vec![SocketAddr::new(address, port)];
            return names;
        }
        let host: Arc<str> = host.into();
        Names::looked_up(env, every, move || {
            let host = Arc::clone(&host);
            async move { tokio::net::lookup_host((&*host, port)).await.map(Iterator::collect) }
        })
    }

    /// A socket in the file system, which has no address.
    pub(super) fn unix(path: PathBuf) -> Names {
        let names = Names::unknown();
        *names.0.found.write() =
            Found { addresses: vec![SocketAddr::new(OVER_UNIX, 0)], unix: Some(path), ..Found::default() };
        names
    }

    /// Whatever addresses a look-up finds, which is made again and again in the background.
    pub(super) fn looked_up<F>(env: &Env, every: Duration, look_up: impl Fn() -> F + Send + 'static) -> Names
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        let names = Names::unknown();
        let weak = Arc::downgrade(&names.0);
        let (world, rng) = (env.clone(), env.rng("origin/names"));
        env.spawn(async move {
            loop {
                let looked = look_up().await;
                let Some(shared) = weak.upgrade() else { return };
                let pause = pause(looked.is_ok(), every, &rng);
                shared.learn(looked);
                drop(shared);
                world.sleep(pause).await;
            }
        })
        .detach();
        names
    }

    fn unknown() -> Names {
        Names(Arc::new(Shared { found: RwLock::default(), news: Notify::new(), turn: AtomicUsize::new(0) }))
    }

    /// All addresses in the order to try them in: one after the other is the first, those that failed last.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        loop {
            let news = self.0.news.notified();
            if let Some(known) = self.known() {
                return known;
            }
            news.await;
        }
    }

    fn known(&self) -> Option<io::Result<Vec<SocketAddr>>> {
        let found = self.0.found.read();
        if found.addresses.is_empty() {
            let error = found.error.as_ref()?;
            return Some(Err(io::Error::new(error.kind(), error.to_string())));
        }
        Some(Ok(found.in_order(self.0.turn.fetch_add(1, Relaxed))))
    }

    /// A connection to one of the addresses.
    pub(super) async fn connect(&self, address: SocketAddr) -> io::Result<Stream> {
        #[cfg(unix)]
        {
            let path = self.0.found.read().unix.clone();
            if let Some(path) = path {
                return tokio::net::UnixStream::connect(path).await.map(Stream::Unix);
            }
        }
        let stream = Stream::Tcp(TcpStream::connect(address).await?);
        stream.set_nodelay()?;
        Ok(stream)
    }

    /// Whether this is still one of the origin's addresses.
    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.0.found.read().addresses.contains(&address)
    }

    /// Could not be connected to: the last to be tried until the next look-up.
    pub(super) fn failed(&self, address: SocketAddr) {
        let mut found = self.0.found.write();
        if found.addresses.len() > 1 && !found.failed.contains(&address) {
            found.failed.push(address);
        }
    }
}

impl Shared {
    fn learn(&self, looked: io::Result<Vec<SocketAddr>>) {
        let mut found = self.found.write();
        match looked {
            Ok(addresses) if !addresses.is_empty() => *found = Found { addresses, ..Found::default() },
            // What was known before is better than nothing.
            Ok(_) => found.error = Some(Arc::new(io::Error::new(io::ErrorKind::NotFound, "it has no address"))),
            Err(error) => found.error = Some(Arc::new(error)),
        }
        drop(found);
        self.news.notify_waiters();
    }
}

impl Found {
    fn in_order(&self, turn: usize) -> Vec<SocketAddr> {
        let mut all = self.addresses.clone();
        let count = all.len();
        all.rotate_left(turn % count.max(1));
        all.sort_by_key(|address| self.failed.contains(address));
        all
    }
}

/// How long until the next look-up: a quarter either way, so that a fleet does not ask in step.
fn pause(found: bool, every: Duration, rng: &Rng) -> Duration {
    let about = if found { every } else { AGAIN.min(every) };
    rng.between(about.saturating_sub(about / 4), about.saturating_add(about / 4))
}

#[cfg(test)]
mod tests {
    use herdproof::Sim;

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    #[test]
    fn each_address_has_its_turn_and_those_that_failed_are_the_last() {
        let found = Found { addresses: (1..=3).map(address).collect(), failed: vec![address(2)], ..Found::default() };
        let order = |turn| found.in_order(turn).iter().map(|address| address.ip().to_string()).collect::<Vec<_>>();
        assert_eq!(order(0), ["10.0.0.1", "10.0.0.3", "10.0.0.2"]);
        assert_eq!(order(1), ["10.0.0.3", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(order(2), ["10.0.0.3", "10.0.0.1", "10.0.0.2"]);
        assert_eq!(order(usize::MAX).len(), 3);
        assert_eq!(Found::default().in_order(7), []);
    }

    #[test]
    fn a_look_up_that_fails_leaves_what_was_known() {
        let names = Names::new(&Env::system(), "10.0.0.1", 80, Duration::from_secs(30));
        names.0.learn(Err(io::Error::other("no answer")));
        assert!(names.has(address(1)));
        names.0.learn(Ok(vec![address(2), address(3)]));
        names.failed(address(2));
        assert!(!names.has(address(1)) && names.0.found.read().failed.contains(&address(2)));
        names.0.learn(Ok(vec![address(2), address(3)]));
        assert!(names.0.found.read().failed.is_empty(), "and is tried anew after each");
        names.0.learn(Ok(Vec::new()));
        assert!(names.has(address(2)));
    }

    #[test]
    fn a_name_is_looked_up_again_and_again_and_sooner_after_a_failure() {
        let mut sim = Sim::new(1);
        let (env, every) = (sim.env(), Duration::from_secs(30));
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&looks);
        let names = Names::looked_up(&env, every, move || {
            let look = counted.fetch_add(1, Relaxed);
            async move {
                match look {
                    0 => Ok(vec![address(1)]),
                    1..=10 => Err(io::Error::other("no answer")),
                    _ => Ok(vec![address(2)]),
                }
            }
        });
        sim.run(env.sleep(every / 2));
        assert!(names.has(address(1)) && looks.load(Relaxed) == 1);
        // A pause and a quarter, and ten short ones.
        sim.run(env.sleep(every * 2));
        assert!(names.has(address(2)) && !names.has(address(1)));
        let before = looks.load(Relaxed);
        sim.run(env.sleep(every * 100));
        assert!((80..=134).contains(&(looks.load(Relaxed) - before)), "{looks:?}");
        drop(names);
        sim.run(env.sleep(every * 2));
        let last = looks.load(Relaxed);
        sim.run(env.sleep(every * 2));
        assert_eq!(looks.load(Relaxed), last, "nobody wants to know any more");
    }

    #[test]
    fn a_fleet_does_not_look_up_in_step() {
        let env = Env::system();
        let (rng, every) = (env.rng("test"), Duration::from_secs(30));
        let pauses: Vec<_> = (0..100).map(|_| pause(true, every, &rng)).collect();
        assert!(pauses.iter().all(|pause| (every * 3 / 4..=every * 5 / 4).contains(pause)));
        assert!(pauses.iter().max() > pauses.iter().min());
        assert!(pause(false, every, &rng) <= AGAIN * 5 / 4);
    }
}
