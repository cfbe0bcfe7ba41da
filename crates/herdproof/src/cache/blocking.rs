//! The cache for threads: the same look-ups, flights and fences, with loads that block.

use std::{borrow::Borrow, future::pending, hash::Hash};

use super::{
    Cache,
    outcome::{GetError, Got, Source},
};
use crate::{
    env::{Died, Env},
    inflight::Chain,
};

impl<K, V, E> Cache<K, V, E>
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// As [`get`](Cache::get), for threads and loads that block; not for tasks, and not in a simulation.
    ///
    /// With a tokio runtime (the cache's [`Env`] was made in one, or this is called in one) the load runs on the runtime's
    /// threads for blocking work. A caller that misses waits for it; a caller that gets a stale value does not.
    ///
    /// Without one, the load runs here, on the thread that is the first to need it. Others who miss wait for it, and others
    /// who find something stale take that. Only the thread that refreshes has to wait, and gets what it has loaded. Nothing
    /// can interrupt the load then: it is not over at its [timeout](super::Policy::load_timeout). Nor can it wait in line, so a
    /// [limit](super::CacheBuilder::load_limit) has to be one that does not let anybody wait.
    ///
    /// ```
    /// use herdproof::{Cache, Env};
    ///
    /// let cache: Cache<String, u64, std::io::Error> = Cache::builder(&Env::system()).build();
    /// let size = cache.get_blocking("Cargo.toml", || Ok(std::fs::metadata("Cargo.toml")?.len()))?;
    /// assert!(size.value > 0);
    /// # Ok::<(), herdproof::cache::GetError<std::io::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As [`Get::wait`](super::Get::wait): if it has to wait on a thread that runs tasks of a tokio runtime.
    #[track_caller]
    pub fn get_blocking<Q, L>(&self, key: &Q, load: L) -> Result<Got<V>, GetError<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
        L: FnOnce() -> Result<V, E> + Send + 'static,
    {
        let env = self.0.env();
        let got = self.get(key, || run(env.clone(), load)).wait()?;
        if got.source != Source::Stale {
            return Ok(got);
        }
        // If the refresh ran here, it is over, and this thread has waited for it.
        Ok(self.peek(key).filter(|now| !now.is_stale()).unwrap_or(got))
    }
}

/// The work, where it disturbs nobody.
async fn run<T: Send + 'static>(env: Env, work: impl FnOnce() -> T + Send + 'static) -> T {
    let chain = Chain::here();
    let task = match env.spawn_blocking(move || chain.enter(work)) {
        Ok(task) => task,
        Err(work) => return work(),
    };
    match task.await {
        Ok(done) => done,
        Err(Died::Panicked(panic)) => panic.resume(),
        // The runtime is going down, and drops what waits here.
        Err(Died::Aborted) => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Barrier,
            atomic::{AtomicU32, Ordering::Relaxed},
            mpsc::{Receiver, Sender, channel},
        },
        thread::{self, ThreadId},
        time::Duration,
    };

    use super::*;
    use crate::cache::{Keep, Policy};

    const HOUR: Duration = Duration::from_secs(3600);

    type Threads = Cache<String, u32, String>;

    /// A cache with a stale one in it.
    fn stale(env: &Env) -> Threads {
        let cache = Cache::builder(env).policy(Policy::strict(HOUR).grace(HOUR)).build();
        cache.set_with("key".into(), 1, &Keep::ttl(Duration::ZERO));
        // Until the coarse clock has seen it too.
        let set = env.now();
        while env.coarse() <= set {
            thread::yield_now();
        }
        cache
    }

    /// A load that says on which thread it runs, and ends when it is told to.
    fn held(value: u32) -> (impl FnOnce() -> Result<u32, String> + Send + 'static, Receiver<ThreadId>, Sender<()>) {
        let ((begun, has_begun), (end, may_end)) = (channel(), channel());
        let load = move || {
            begun.send(thread::current().id()).unwrap();
            may_end.recv().unwrap();
            Ok(value)
        };
        (load, has_begun, end)
    }

    #[test]
    fn threads_that_miss_together_make_one_load_with_a_runtime_and_without() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let inside = runtime.block_on(async { Env::system() });
        for env in [Env::system(), inside] {
            let cache: Threads = Cache::builder(&env).build();
            let (loads, together) = (Arc::new(AtomicU32::new(0)), Barrier::new(8));
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        together.wait();
                        let loads = Arc::clone(&loads);
                        let got = cache.get_blocking("key", move || Ok(loads.fetch_add(1, Relaxed) + 1));
                        assert_eq!(got.unwrap().value, 1);
                    });
                }
            });
            assert_eq!(loads.load(Relaxed), 1);
        }
    }

    #[test]
    fn with_a_runtime_a_refresh_keeps_nobody_waiting() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let cache = stale(&runtime.block_on(async { Env::system() }));
        let (load, has_begun, end) = held(2);
        assert_eq!(cache.get_blocking("key", load).unwrap().source, Source::Stale);
        assert_ne!(has_begun.recv().unwrap(), thread::current().id());
        let again = cache.get_blocking("key", || unreachable!("it is being loaded"));
        assert_eq!(again.unwrap().value, 1);
        end.send(()).unwrap();
    }

    #[test]
    fn without_a_runtime_one_thread_refreshes_in_place_and_has_what_it_loaded_while_others_take_what_is_stale() {
        let cache = stale(&Env::system());
        let (load, has_begun, end) = held(2);
        thread::scope(|scope| {
            let refreshing = scope.spawn(|| (cache.get_blocking("key", load).unwrap(), thread::current().id()));
            let thread = has_begun.recv().unwrap();
            let other = cache.get_blocking("key", || unreachable!("it is being loaded")).unwrap();
            assert_eq!((other.value, other.source), (1, Source::Stale));
            end.send(()).unwrap();
            let (got, here) = refreshing.join().unwrap();
            assert_eq!((got.value, got.source, here), (2, Source::Memory, thread));
        });
    }

    #[test]
    fn a_load_that_panics_is_an_error_for_whoever_waits_wherever_it_ran() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let inside = runtime.block_on(async { Env::system() });
        for env in [Env::system(), inside] {
            let cache: Threads = Cache::builder(&env).policy(Policy::default().failed(Duration::ZERO)).build();
            let panicked = cache.get_blocking("key", || panic!("no such file")).unwrap_err();
            assert!(matches!(panicked, GetError::Panicked(panic) if panic.message() == "no such file"));
            assert_eq!(cache.get_blocking("key", || Ok(3)).unwrap().value, 3);
        }
    }

    #[test]
    fn a_load_that_asks_for_its_own_key_is_refused_not_left_waiting_for_itself() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let inside = runtime.block_on(async { Env::system() });
        for env in [Env::system(), inside] {
            let cache: Threads = Cache::builder(&env).build();
            let own = cache.clone();
            let nested = move || {
                let other = own.get_blocking("other", || Ok(7));
                let same = own.get_blocking("key", || unreachable!("it is being loaded"));
                Ok(other.unwrap().value + u32::from(matches!(same, Err(GetError::Reentrant))))
            };
            assert_eq!(cache.get_blocking("key", nested).unwrap().value, 8);
        }
    }

    #[test]
    fn a_blocking_load_and_a_task_share_one_flight() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let cache: Threads = runtime.block_on(async { Cache::builder(&Env::system()).build() });
        let (load, has_begun, end) = held(5);
        thread::scope(|scope| {
            let thread = scope.spawn(|| cache.get_blocking("key", load).unwrap());
            has_begun.recv().unwrap();
            let get = cache.get("key", || async { unreachable!("it is being loaded") });
            end.send(()).unwrap();
            let task = runtime.block_on(get).unwrap();
            assert_eq!((task.value, task.source), (5, Source::Joined));
            assert_eq!(thread.join().unwrap().source, Source::Loaded);
        });
    }
}
