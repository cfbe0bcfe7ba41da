//! All connections of a listener: who they are, who has to go, and how everybody leaves.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{
            AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::{Context, Waker},
};

use herdproof::{Env, Tick};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{
    ledger::{Book, Unanswered},
    proxy_header::Source,
    pulse::{Ended, Patience, Pulse, Watch},
    tunnel::Tunnel,
};
use crate::{
    memory::{Cause, Connected},
    who::Who,
};

/// Looked at in turn, so that no look at ten thousand connections holds anybody up.
pub(super) const SHARDS: usize = 16;

/// All connections of one listener.
#[derive(Debug)]
pub(super) struct Connections {
    shards: [Mutex<BTreeMap<u64, Watched>>; SHARDS],
    room: Arc<Semaphore>,
    most: usize,
    /// How many there may be from one address, and how many there are; nothing is kept without such a limit.
    per_address: Option<(u32, Mutex<BTreeMap<u64, u32>>)>,
    patience: Patience,
    /// Who writes down what never became a request.
    pub(super) book: Book,
    stage: AtomicU8,
    open: AtomicUsize,
    /// Told whenever the last one is gone.
    emptied: Notify,
    /// How long a stop takes at most, in nanoseconds; said before it is told.
    pub(super) drain: AtomicU64,
    pub(super) counts: Counts,
}

/// What became of connections.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) accepted: AtomicU64,
    pub(super) turned_away: AtomicU64,
    pub(super) accept_errors: AtomicU64,
    pub(super) idle: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) proxy_header: AtomicU64,
    pub(super) slow_head: AtomicU64,
    pub(super) slow_body: AtomicU64,
    pub(super) slow_reader: AtomicU64,
    pub(super) memory: AtomicU64,
    pub(super) seat: AtomicU64,
    pub(super) stopped: AtomicU64,
}

/// How far a listener is in stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    Open,
    /// Whoever asks is answered, and told that it was the last time.
    LastAnswers,
    /// And who does not ask is closed.
    Leaving,
}

#[derive(Debug)]
struct Watched {
    connection: Arc<Connection>,
    watch: Watch,
}

/// One client's connection, as its task, its requests and the listener know it.
#[derive(Debug)]
pub(super) struct Connection {
    /// The other end.
    pub(super) peer: SocketAddr,
    /// Whom the other end named as its client; set before the first request.
    pub(super) source: OnceLock<Source>,
    pub(super) pulse: Pulse,
    pub(super) all: Arc<Connections>,
    /// Whether its task is to end at once.
    over: AtomicBool,
    /// Whether an answer is under way that ends where the connection does, so that an end in order would say that it is whole.
    unended: AtomicBool,
    /// Whether a request's body has begun that was not read to its end.
    unread: AtomicBool,
    /// What comes after the answer that is under way, if that is a 101.
    pub(super) tunnel: Mutex<Option<Tunnel>>,
    /// Its task, so that it can be told.
    waker: Mutex<Option<Waker>>,
}

/// A connection's place among all; dropping it makes room for another.
pub(super) struct Place {
    pub(super) connection: Arc<Connection>,
    id: u64,
    /// Whose share of connections it is of.
    counted: Option<Who>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Connections {
    pub(super) fn new(most: u32, per_address: Option<u32>, patience: Patience, book: Book) -> Connections {
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Connections {
            shards: Default::default(),
            room: Arc::new(Semaphore::new(most)),
            most,
            per_address: per_address.map(|limit| (limit, Mutex::default())),
            patience,
            book,
            stage: AtomicU8::new(Stage::Open as u8),
            open: AtomicUsize::new(0),
            emptied: Notify::new(),
            drain: AtomicU64::new(0),
            counts: Counts::default(),
        }
    }

    /// Waits until there may be one more.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Acquire)
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Acquire) {
            0 => Stage::Open,
            1 => Stage::LastAnswers,
            _ => Stage::Leaving,
        }
    }

    /// Whether answers are the last on their connection. On the way of every request: one load of what never changes.
    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.stage.load(Relaxed) != Stage::Open as u8
    }

    /// A place for this client, unless its address has as many as it may. A trusted proxy has as many as it needs: they are for
    /// its clients.
    pub(super) fn enter(
        self: &Arc<Connections>,
        env: &Env,
        peer: SocketAddr,
        trusted: bool,
        room: Option<OwnedSemaphorePermit>,
    ) -> Option<Place> {
        let counted = (!trusted).then(|| Who::of(peer.ip()));
        if !counted.is_none_or(|who| self.count_in(who)) {
            return None;
        }
        let id = self.counts.accepted.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed);
        let connection = Arc::new(Connection {
            peer,
            source: OnceLock::new(),
            pulse: Pulse::default(),
            all: Arc::clone(self),
            over: AtomicBool::new(false),
            unended: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            tunnel: Mutex::new(None),
            waker: Mutex::new(None),
        });
        let watched = Watched { connection: Arc::clone(&connection), watch: Watch::new(env.coarse()) };
        self.shard(id).lock().insert(id, watched);
        Some(Place { connection, id, counted, _room: room })
    }

    fn shard(&self, id: u64) -> &Mutex<BTreeMap<u64, Watched>> {
        #[expect(clippy::cast_possible_truncation, reason = "only its last bits count")]
        &self.shards[id as usize % SHARDS]
    }

    fn count_in(&self, who: Who) -> bool {
        let Some((limit, counts)) = &self.per_address else { return true };
        let mut counts = counts.lock();
        let count = counts.entry(who.key()).or_default();
        let fits = *count < *limit;
        *count += u32::from(fits);
        self.counts.turned_away.fetch_add(u64::from(!fits), Relaxed);
        fits
    }

    fn count_out(&self, who: Who) {
        let Some((_, counts)) = &self.per_address else { return };
        if let Entry::Occupied(mut count) = counts.lock().entry(who.key()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Ends those of one shard with whom patience is over.
    pub(super) fn look(&self, shard: usize, now: Tick) {
        let mut patience = self.patience;
        // When there is hardly room for newcomers, it is not for those who do nothing.
        if self.open() > self.most - self.most / 8 {
            patience.idle = patience.idle.min(patience.head);
        }
        for watched in self.shards[shard].lock().values_mut() {
            if let Some(ended) = watched.watch.look(&watched.connection.pulse.signs(), now, &patience) {
                self.end(&watched.connection, ended);
            }
        }
    }

    fn end(&self, connection: &Connection, ended: Ended) {
        if connection.over.swap(true, Release) {
            return;
        }
        let count = match ended {
            Ended::Idle => &self.counts.idle,
            Ended::SlowHead => &self.counts.slow_head,
            Ended::SlowBody => &self.counts.slow_body,
            Ended::SlowReader => &self.counts.slow_reader,
            Ended::Memory => &self.counts.memory,
            Ended::Seat => &self.counts.seat,
            Ended::Stopped => &self.counts.stopped,
        };
        count.fetch_add(1, Relaxed);
        if ended == Ended::SlowHead {
            // To within the time between two looks.
            self.book.unanswered(connection.address(), Unanswered::SlowHead, self.patience.head);
        }
        connection.wake();
    }

    /// Tells everybody how far the stop is.
    pub(super) fn tell(&self, stage: Stage) {
        self.stage.store(stage as u8, Release);
        for shard in &self.shards {
            shard.lock().values().for_each(|watched| watched.connection.wake());
        }
    }

    /// Ends everybody; gives how many there were.
    pub(super) fn end_all(&self) -> usize {
        let end = |shard: &Mutex<BTreeMap<u64, Watched>>| {
            let shard = shard.lock();
            shard.values().for_each(|watched| self.end(&watched.connection, Ended::Stopped));
            shard.len()
        };
        self.shards.iter().map(end).sum()
    }

    /// Waits until nobody is left.
    pub(super) async fn empty(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.open() == 0 {
                return;
            }
            emptied.await;
        }
    }
}

impl Connection {
    /// The client: the other end, or the one that a trusted balancer there named.
    pub(super) fn address(&self) -> SocketAddr {
        match self.source.get() {
            Some(Source::Client(address)) => *address,
            Some(Source::Unknown | Source::Local) | None => self.peer,
        }
    }

    /// Has this task told from now on.
    pub(super) fn woken_by(&self, cx: &Context<'_>) {
        *self.waker.lock() = Some(cx.waker().clone());
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock() {
            waker.wake_by_ref();
        }
    }

    /// An answer that ends where the connection does has begun, or all of it is written.
    pub(super) fn set_unended(&self, unended: bool) {
        self.unended.store(unended, Release);
    }

    pub(super) fn is_unended(&self) -> bool {
        self.unended.load(Acquire)
    }

    /// Whether the client may be sending a body that nobody reads. Written only if it changes: most requests have none.
    #[inline]
    pub(super) fn set_unread(&self, unread: bool) {
        if self.unread.load(Relaxed) != unread {
            self.unread.store(unread, Relaxed);
        }
    }

    pub(super) fn has_unread(&self) -> bool {
        self.unread.load(Relaxed)
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Acquire)
    }
}

impl Connected for Connection {
    fn progress(&self) -> (u64, bool) {
        self.pulse.progress()
    }

    fn end(&self, why: Cause) {
        let ended = match why {
            Cause::Memory => Ended::Memory,
            Cause::Seat => Ended::Seat,
        };
        self.all.end(self, ended);
    }
}

impl Place {
    /// From now on this connection is of whom the other end named. False if that one has as many connections as it may.
    pub(super) fn introduce(&mut self, source: Source) -> bool {
        self.connection.source.set(source).ok();
        let Source::Client(address) = source else { return true };
        let who = Who::of(address.ip());
        let fits = self.connection.all.count_in(who);
        self.counted = fits.then_some(who);
        fits
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let all = &self.connection.all;
        all.shard(self.id).lock().remove(&self.id);
        if let Some(who) = self.counted {
            all.count_out(who);
        }
        if all.open.fetch_sub(1, Release) == 1 {
            all.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::Future, task::Poll, time::Duration};

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        stall: Duration::from_secs(30),
        rate: 500,
    };

    #[test]
    fn an_address_has_no_more_than_its_share_and_gets_it_back() {
        let env = herdproof::Sim::new(1).env();
        let all = Arc::new(Connections::new(100, Some(2), PATIENCE, Book::default()));
        let enter = |address: &str| all.enter(&env, address.parse().unwrap(), false, None);
        let first = enter("10.0.0.1:1").unwrap();
        let second = enter("[::ffff:10.0.0.1]:2").unwrap();
        assert!(enter("10.0.0.1:3").is_none());
        assert!(enter("10.0.0.2:1").is_some());
        let six = [enter("[2001:db8::1]:1"), enter("[2001:db8::ffff:2]:1")];
        assert!(six.iter().all(Option::is_some) && enter("[2001:db8::3]:1").is_none());
        drop(first);
        assert!(enter("10.0.0.1:4").is_some());
        drop((second, six));
        assert!(all.per_address.as_ref().unwrap().1.lock().is_empty());
        assert_eq!((all.open(), all.counts.turned_away.load(Relaxed)), (0, 2));
    }

    #[test]
    fn a_trusted_proxy_is_not_counted_but_those_it_names_are() {
        let env = herdproof::Sim::new(1).env();
        let all = Arc::new(Connections::new(100, Some(1), PATIENCE, Book::default()));
        let mut places: Vec<_> =
            (0..4).map(|_| all.enter(&env, "10.0.0.1:1".parse().unwrap(), true, None).unwrap()).collect();
        let client = Source::Client("192.0.2.1:9".parse().unwrap());
        assert!(places[0].introduce(client) && !places[1].introduce(client));
        assert!(places[2].introduce(Source::Unknown) && places[3].introduce(Source::Local));
        assert!(all.enter(&env, "192.0.2.1:1".parse().unwrap(), false, None).is_none(), "by whichever way it comes");
        drop(places);
        assert!(all.per_address.as_ref().unwrap().1.lock().is_empty());
        assert_eq!(all.counts.turned_away.load(Relaxed), 2);
    }

    #[test]
    fn no_more_get_in_than_there_is_room_for() {
        let all = Connections::new(2, None, PATIENCE, Book::default());
        let ask = || std::pin::pin!(all.room()).poll(&mut Context::from_waker(Waker::noop()));
        let held = [ask(), ask()];
        assert!(held.iter().all(|place| matches!(place, Poll::Ready(Some(_)))));
        assert!(ask().is_pending(), "it waits in the kernel's line");
        drop(held);
        assert!(ask().is_ready());
    }

    #[test]
    fn when_there_is_hardly_room_the_idle_go_sooner() {
        let env = herdproof::Sim::new(1).env();
        let ended = |connections: u32| {
            let all = Arc::new(Connections::new(16, None, PATIENCE, Book::default()));
            let places: Vec<_> = (0..connections)
                .map(|_| all.enter(&env, "10.0.0.1:1".parse().unwrap(), false, None).unwrap())
                .collect();
            for seconds in [5, 10] {
                (0..SHARDS).for_each(|shard| all.look(shard, Tick::ZERO + Duration::from_secs(seconds)));
            }
            let ended = places.iter().filter(|place| place.connection.is_over()).count();
            assert_eq!(all.counts.idle.load(Relaxed), ended as u64);
            ended
        };
        assert_eq!((ended(14), ended(15)), (0, 15));
    }
}
