//! News from the other processes, in order, and never more of it than there is room for.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

/// What another process did, or that it may have done something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News<K> {
    /// The value of a key was put or invalidated: what is known of it is out of date.
    Changed(K),
    /// A tag was expired.
    TagExpired {
        /// The tag.
        tag: Arc<str>,
        /// The time over which its keys expire.
        smear: Duration,
    },
    /// Something was missed: the connection was lost, or nobody listened for too long. Whatever is known may be out of date.
    Lost,
}

/// Where news come out; from [`feed`].
pub struct Feed<K>(Arc<Mutex<Queue<K>>>);

/// Where news go in; from [`feed`].
pub struct Speaker<K>(Arc<Mutex<Queue<K>>>);

struct Queue<K> {
    news: VecDeque<News<K>>,
    room: usize,
    /// One end is gone.
    closed: bool,
    waker: Option<Waker>,
}

/// A queue of news for one listener. If there is no room, all of it becomes one [`News::Lost`]: somebody who has to look at
/// everything again need not know what else there was.
pub fn feed<K>(room: usize) -> (Speaker<K>, Feed<K>) {
    let queue = Queue { news: VecDeque::new(), room: room.max(1), closed: false, waker: None };
    let queue = Arc::new(Mutex::new(queue));
    (Speaker(Arc::clone(&queue)), Feed(queue))
}

impl<K> Speaker<K> {
    /// Tells the listener; false if there is none any more.
    pub fn say(&self, news: News<K>) -> bool {
        let mut queue = self.0.lock();
        if queue.closed {
            return false;
        }
        if queue.news.len() >= queue.room || matches!(news, News::Lost) {
            queue.news.clear();
            queue.news.push_back(News::Lost);
        } else {
            queue.news.push_back(news);
        }
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Whether nobody listens any more.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl<K> Feed<K> {
    /// The next news; `None` once nobody will speak any more.
    pub async fn next(&mut self) -> Option<News<K>> {
        poll_fn(|cx| {
            let mut queue = self.0.lock();
            match queue.news.pop_front() {
                None if !queue.closed => {
                    queue.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                next => Poll::Ready(next),
            }
        })
        .await
    }
}

impl<K> Drop for Feed<K> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
    }
}

impl<K> Drop for Speaker<K> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K> fmt::Debug for Feed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Feed")
    }
}

impl<K> fmt::Debug for Speaker<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Speaker")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::sim::Sim;

    #[test]
    fn a_listener_who_is_too_slow_is_told_that_something_was_missed_and_nothing_older() {
        let mut sim = Sim::new(1);
        let (speaker, mut feed) = feed(2);
        for key in [1, 2, 3] {
            assert!(speaker.say(News::Changed(key)));
        }
        assert!(speaker.say(News::Changed(4)));
        drop(speaker);
        let heard = sim.run(async move { [feed.next().await, feed.next().await, feed.next().await] });
        assert_eq!(heard, [Some(News::Lost), Some(News::Changed(4)), None]);
    }

    #[test]
    fn nobody_speaks_to_who_has_left() {
        let (speaker, feed) = feed::<u32>(2);
        drop(feed);
        assert!(!speaker.say(News::Lost) && speaker.is_closed());
    }
}
