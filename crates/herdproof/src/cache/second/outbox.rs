//! What the tier is still to be told, in order.
//!
//! Nothing said to the tier is lost while it is away: what cannot be delivered is tried again, later each time, and until then
//! this process does not believe what the tier says of the same key or tag.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    hash::Hash,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use super::{Second, Silence};
use crate::{
    backoff::{Backoff, Delays},
    env::{Env, MapHasher},
    error::{caught, quietly},
    event::Event,
    tier::{Fault, Lease, Stored},
};

/// How many changes are remembered while the tier is away.
const ROOM: usize = 10_000;

/// What the tier is to be told, in this order.
pub(in crate::cache) enum Change<K, V> {
    Put(K, Stored<V>),
    Invalidate(K),
    ExpireTag(Arc<str>, Duration),
    Fail(K, Lease, Fault),
    Renew(K, Lease, Duration),
}

impl<K, V> Change<K, V> {
    /// What the tier does not know the truth about until it was told of this.
    fn subject(&self) -> Option<Subject<K>>
    where
        K: Clone,
    {
        match self {
            Change::Put(key, _) | Change::Invalidate(key) => Some(Subject::Key(key.clone())),
            Change::ExpireTag(tag, _) => Some(Subject::Tag(Arc::clone(tag))),
            Change::Fail(..) | Change::Renew(..) => None,
        }
    }

    /// What is to be said when this could not be said at once; nothing, if it does not matter any more. A value that was put
    /// some time ago may not be the newest, so what remains of it is that there is another.
    fn late(self) -> Option<Change<K, V>> {
        match self {
            Change::Put(key, stored) => {
                quietly(|| drop(stored));
                Some(Change::Invalidate(key))
            }
            Change::Invalidate(_) | Change::ExpireTag(..) => Some(self),
            Change::Fail(..) | Change::Renew(..) => None,
        }
    }
}

/// What a change is about.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Subject<K> {
    Key(K),
    Tag(Arc<str>),
}

/// What is still to be delivered.
pub(super) struct Outbox<K, V> {
    changes: VecDeque<Change<K, V>>,
    /// What the tier does not know the truth about yet, and how many changes of it are under way.
    pending: HashMap<Subject<K>, u32, MapHasher>,
    closed: bool,
    waker: Option<Waker>,
}

impl<K, V> Outbox<K, V> {
    pub(super) fn new(env: &Env) -> Outbox<K, V> {
        let pending = HashMap::with_hasher(env.hasher("cache/outbox"));
        Outbox { changes: VecDeque::new(), pending, closed: false, waker: None }
    }
}

impl<K: Hash + Eq, V> Outbox<K, V> {
    /// A change of this is over.
    fn done(&mut self, subject: Option<&Subject<K>>) {
        let Some(subject) = subject else { return };
        if let Some(count) = self.pending.get_mut(subject) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(subject);
            }
        }
    }
}

impl<K, V> Second<K, V> {
    /// There will be no more changes.
    pub(super) fn close(&self) {
        let mut outbox = self.outbox.lock();
        outbox.closed = true;
        let waker = outbox.waker.take();
        drop(outbox);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K, V> Second<K, V>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Tells the tier something, in its turn.
    pub(in crate::cache) fn tell(&self, change: Change<K, V>) {
        let mut outbox = self.outbox.lock();
        if outbox.closed {
            return;
        }
        let is_full = outbox.changes.len() >= ROOM;
        // Dropped when no lock is held: its value may come back here.
        let mut oldest = None;
        if is_full {
            oldest = outbox.changes.pop_front();
            let subject = oldest.as_ref().and_then(Change::subject);
            outbox.done(subject.as_ref());
        }
        if let Some(subject) = change.subject() {
            *outbox.pending.entry(subject).or_default() += 1;
        }
        outbox.changes.push_back(change);
        let waker = outbox.waker.take();
        drop(outbox);
        quietly(|| drop(oldest));
        if is_full {
            self.count(&self.tally.dropped, &Event::TierDropped);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether something was changed here that the tier has not been told of yet.
    pub(super) fn does_not_know(&self, subjects: &[Subject<K>]) -> bool {
        let outbox = self.outbox.lock();
        !outbox.pending.is_empty() && subjects.iter().any(|subject| outbox.pending.contains_key(subject))
    }

    /// The next change; `None` once there will be no more.
    async fn next_change(&self) -> Option<Change<K, V>> {
        poll_fn(|cx| {
            let mut outbox = self.outbox.lock();
            match outbox.changes.pop_front() {
                None if !outbox.closed => {
                    outbox.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                change => Poll::Ready(change),
            }
        })
        .await
    }

    /// Delivers what the tier is to be told, one after another. What cannot be delivered is tried again, later each time; but
    /// what panics is not, or it would keep all that comes after it waiting.
    pub(super) async fn deliver(self: Arc<Self>) {
        let mut delays = Backoff::exponential(Duration::from_millis(100)).cap(Duration::from_secs(5)).delays();
        while let Some(change) = self.next_change().await {
            let subject = change.subject();
            if !matches!(caught(self.deliver_one(change, &mut delays)).await, Ok(Ok(()))) {
                self.count(&self.tally.dropped, &Event::TierDropped);
            }
            self.outbox.lock().done(subject.as_ref());
        }
    }

    async fn deliver_one(&self, change: Change<K, V>, delays: &mut Delays) -> Result<(), Silence> {
        let mut change = Some(change);
        while let Some(trying) = change.take() {
            let owed = matches!(trying, Change::Fail(..) | Change::Renew(..));
            let answer = self.call(owed, self.tier.deliver(&trying)).await;
            change = match answer {
                Err(Silence::Away) if !self.outbox.lock().closed => trying.late(),
                Ok(()) | Err(_) => {
                    quietly(|| drop(trying));
                    None
                }
            };
            match answer {
                Ok(()) => delays.reset(),
                Err(Silence::Panicked) => return answer,
                Err(Silence::Away) if change.is_some() => {
                    self.env.sleep(delays.next(&self.rng)).await;
                }
                Err(Silence::Away) => {}
            }
        }
        Ok(())
    }
}
