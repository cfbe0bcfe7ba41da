//! One cache or group used from several tokio runtimes, from threads outside of them, and from blocking code inside them.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, mpsc},
    thread,
};

use herdproof::{
    Cache, Env,
    env::Died,
    flight::{Flight, Group},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
    task::{block_in_place, spawn_blocking, yield_now},
};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .expect("a panic with a message")
}

/// Does it in the context of a runtime.
fn within<T>(runtime: &Runtime, act: impl FnOnce() -> T) -> T {
    let _entered = runtime.enter();
    act()
}

/// An `Env` whose runtime has been shut down.
fn orphan() -> Env {
    current_thread().block_on(async { Env::system() })
}

#[test]
fn followers_keep_their_load_when_the_runtime_of_its_leader_is_dropped() {
    for home in [current_thread(), multi_thread()] {
        let env = home.block_on(async { Env::system() });
        let group: Group<&str, u32> = Group::new(&env);
        let (end, ended) = oneshot::channel();
        let leaders = multi_thread();
        let leader = within(&leaders, || group.run("key", || async { Ok(ended.await.unwrap()) }));
        let follower = group.run("key", || async { unreachable!("it is being loaded") });
        drop(leader);
        drop(leaders);
        end.send(7).unwrap();
        assert_eq!(home.block_on(follower).unwrap().value, 7);
    }
}

#[test]
fn what_a_load_opens_at_its_first_poll_outlives_the_runtime_of_the_leader() {
    async fn accept(address: mpsc::Sender<SocketAddr>) -> Result<u32, Infallible> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        address.send(listener.local_addr().unwrap()).unwrap();
        listener.accept().await.unwrap();
        Ok(1)
    }
    let home = multi_thread();
    let env = home.block_on(async { Env::system() });
    let (group, cache): (Group<&str, u32>, Cache<&str, u32, Infallible>) =
        (Group::new(&env), Cache::builder(&env).build());

    let (tell, address) = mpsc::channel();
    let leaders = current_thread();
    let flight = within(&leaders, || group.run("key", || accept(tell)));
    drop(leaders);
    let got = home.block_on(async {
        TcpStream::connect(address.recv().unwrap()).await.unwrap();
        flight.await.unwrap()
    });
    assert_eq!(got.value, 1);

    let (tell, address) = mpsc::channel();
    let leaders = current_thread();
    let batch =
        within(&leaders, || cache.get_many(&["key"], |_| async { accept(tell).await.map(|value| [("key", value)]) }));
    drop(leaders);
    let got = home.block_on(async {
        TcpStream::connect(address.recv().unwrap()).await.unwrap();
        batch.await
    });
    assert_eq!(got.found.into_iter().map(|(_, got)| got.value).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_static_cache_serves_one_runtime_after_another() {
    static CACHE: LazyLock<Cache<u32, u32, Infallible>> = LazyLock::new(|| Cache::builder(&Env::system()).build());
    for (round, runtime) in
        [current_thread(), current_thread(), multi_thread(), current_thread()].into_iter().enumerate()
    {
        let round = u32::try_from(round).unwrap();
        runtime.block_on(async {
            let load = || async move {
                yield_now().await;
                Ok(round)
            };
            let (leader, follower) = tokio::join!(CACHE.get(&round, load), CACHE.get(&round, load));
            assert_eq!((leader.unwrap().value, follower.unwrap().value), (round, round));
            let blocking = spawn_blocking(move || CACHE.get_blocking(&(round + 100), move || Ok(round)));
            assert_eq!(blocking.await.unwrap().unwrap().value, round);
        });
        let thread = thread::spawn(move || CACHE.get_blocking(&round, || unreachable!("it was loaded")));
        assert_eq!(thread.join().unwrap().unwrap().value, round);
    }
}

#[test]
fn an_env_made_outside_of_a_runtime_uses_the_runtime_of_the_call() {
    for env in [Env::system(), Env::unbound(), multi_thread().block_on(async { Env::unbound() }), orphan()] {
        let group: Group<&str, u32> = Group::new(&env);
        for runtime in [current_thread(), multi_thread()] {
            let id = runtime.handle().id();
            let load = || async move {
                yield_now().await;
                assert_eq!(Handle::current().id(), id);
                Ok(1)
            };
            assert_eq!(runtime.block_on(async { group.run("key", load).await }).unwrap().value, 1);
            let spawned = runtime.block_on(async { env.spawn(async { Handle::current().id() }).await });
            assert_eq!(spawned.unwrap(), id);
            runtime.block_on(env.sleep(std::time::Duration::from_nanos(1)));
        }
    }
}

#[test]
fn all_that_an_env_spawns_runs_in_the_runtime_it_was_made_in() {
    let home = multi_thread();
    let (id, env) = home.block_on(async { (Handle::current().id(), Env::system()) });
    let spawn = || env.spawn(async { Handle::current().id() });
    let elsewhere = current_thread();
    let tasks = [spawn(), within(&home, spawn), within(&elsewhere, spawn)];
    for task in tasks {
        assert_eq!(home.block_on(task).unwrap(), id);
    }
    elsewhere.block_on(async { assert_eq!(Handle::current().id(), elsewhere.handle().id(), "left again") });
}

#[test]
fn without_any_runtime_the_call_that_needs_one_says_so() {
    for env in [Env::system(), orphan()] {
        let group: Group<&str, u32> = Group::new(&env);
        assert_eq!(group.run("key", || async { Ok(1) }).wait().unwrap().value, 1, "a ready load needs none");
        let pending = || group.run("key", std::future::pending);
        let panic = catch_unwind(AssertUnwindSafe(|| drop(pending()))).unwrap_err();
        assert!(message(&*panic).contains("needs a tokio runtime to spawn a task"), "{}", message(&*panic));
        assert_eq!(group.run("key", || async { Ok(2) }).wait().unwrap().value, 2, "the flight has ended");
    }
}

#[test]
fn a_task_ends_when_the_runtime_of_its_env_does() {
    let home = current_thread();
    let env = home.block_on(async { Env::system() });
    let group: Group<&str, u32> = Group::new(&env);
    let elsewhere = current_thread();
    let task = within(&elsewhere, || env.spawn(std::future::pending::<()>()));
    let flight = within(&elsewhere, || group.run("key", std::future::pending));
    drop(home);
    assert!(matches!(elsewhere.block_on(task), Err(Died::Aborted)));
    assert!(elsewhere.block_on(flight).unwrap_err().to_string().contains("dropped before it ended"));
    assert!(elsewhere.block_on(async { env.spawn(async { 1 }).await }).is_ok(), "and the next runs elsewhere");
}

/// A caller of a load that ends when the channel is sent to.
fn pending(env: &Env) -> (Flight<u32, Infallible>, oneshot::Sender<u32>) {
    let (end, ended) = oneshot::channel();
    (Group::new(env).run("key", || async { Ok(ended.await.expect("it is ended")) }), end)
}

fn refused<T>(wait: impl FnOnce() -> T) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(wait)) else { panic!("it waited where that blocks tasks") };
    let message = message(&*panic);
    assert!(message.contains("spawn_blocking") && message.contains(".await"), "{message}");
}

#[test]
fn a_thread_that_may_block_waits() {
    type Waiting = Flight<u32, Infallible>;
    /// Waits, after having said that it is about to.
    fn wait(flight: Waiting, begin: oneshot::Sender<()>) -> u32 {
        begin.send(()).unwrap();
        flight.wait().unwrap().value
    }
    fn outside(flight: Waiting, begin: oneshot::Sender<()>) -> u32 {
        thread::spawn(move || wait(flight, begin)).join().unwrap()
    }
    fn entered(flight: Waiting, begin: oneshot::Sender<()>) -> u32 {
        let runtime = Handle::current();
        let wait = move || {
            let _entered = runtime.enter();
            wait(flight, begin)
        };
        thread::spawn(wait).join().unwrap()
    }
    fn in_place(flight: Waiting, begin: oneshot::Sender<()>) -> u32 {
        multi_thread().block_on(async { block_in_place(|| wait(flight, begin)) })
    }
    for runtime in [current_thread(), multi_thread()] {
        for act in [wait, outside, entered, in_place] {
            runtime.block_on(async {
                let (flight, end) = pending(&Env::system());
                let (begin, begun) = oneshot::channel();
                let waiting = spawn_blocking(move || act(flight, begin));
                begun.await.unwrap();
                end.send(3).unwrap();
                assert_eq!(waiting.await.unwrap(), 3);
            });
        }
    }
}

#[test]
fn waiting_where_it_would_block_tasks_is_refused_with_the_remedy() {
    for runtime in [current_thread(), multi_thread()] {
        let refuse = || {
            let env = Env::system();
            let group: Group<&str, u32> = Group::new(&env);
            let _flight = group.run("key", std::future::pending);
            refused(|| group.run("key", std::future::pending).wait());
            refused(|| group.run_blocking("key", || unreachable!("it is being loaded")));
            let cache: Cache<u32, u32, Infallible> = Cache::builder(&env).build();
            refused(|| cache.get(&1, std::future::pending::<Result<u32, Infallible>>).wait());
            refused(|| cache.get_many(&[2], |_| std::future::pending::<Result<Vec<(u32, u32)>, _>>()).wait());
            let (_end, ended) = mpsc::channel();
            refused(|| cache.get_blocking(&3, move || Ok(ended.recv().unwrap_or(1))));
        };
        runtime.block_on(async { refuse() });
        runtime.block_on(runtime.spawn(async move { refuse() })).unwrap();
    }
}

#[test]
fn a_value_that_is_there_needs_no_waiting() {
    for runtime in [current_thread(), multi_thread()] {
        runtime.block_on(async {
            let env = Env::system();
            let group: Group<&str, u32> = Group::new(&env);
            assert_eq!(group.run("key", || async { Ok(1) }).wait().unwrap().value, 1);
            assert_eq!(group.run_blocking("key", || Ok(2)).unwrap().value, 2);
            let cache: Cache<u32, u32, Infallible> = Cache::builder(&env).build();
            cache.set(1, 3);
            assert_eq!(cache.get_blocking(&1, || unreachable!("it is there")).unwrap().value, 3);
        });
    }
}
