//! How connections are begun, and how old they get.

use super::*;

/// So many requests at once; each is read to its end.
fn herd(env: &Env, origin: &Origin, size: u32) -> Vec<Task<String>> {
    let ask = |_| {
        let origin = origin.clone();
        env.spawn(async move { text(origin.get("/").await.unwrap()).await.unwrap() })
    };
    (0..size).map(ask).collect()
}

#[test]
fn a_herd_at_an_empty_pool_does_not_dial_all_at_once() {
    const HERD: u32 = 200;
    run_on_one_thread(|env| async move {
        let raw = Raw::says(&env, HELLO).await;
        let (known, address) = (Arc::new(Notify::new()), raw.address);
        let knows = Arc::clone(&known);
        // Whoever may dial waits to learn where to.
        let names = Names::looked_up(&env, Duration::from_secs(60), move || {
            let knows = Arc::clone(&knows);
            async move {
                knows.notified().await;
                Ok(vec![address])
            }
        });
        let settings = OriginSettings { limit: 2 * HERD, connect_timeout: Duration::from_secs(30), ..raw.settings() };
        let origin = Origin::at(&env, &settings, names);
        let herd = herd(&env, &origin, HERD);
        until(|| origin.stats().in_flight == HERD).await;
        assert_eq!(origin.stats().dialling, 32, "the others wait");
        known.notify_one();
        until(|| {
            assert!(origin.stats().dialling <= 32);
            herd.iter().all(Task::is_finished)
        })
        .await;
        for one in herd {
            assert_eq!(one.await.unwrap(), "hello");
        }
        assert_eq!((origin.stats().faults, origin.stats().unreachable), (0, 0));
    });
}

#[test]
fn a_connection_that_is_too_old_is_not_used_again() {
    run(|env| async move {
        let raw = Raw::says(&env, HELLO).await;
        for (max_age, connections) in [(Duration::ZERO, 3), (MS, 3), (Duration::from_secs(300), 1)] {
            let before = raw.connections();
            let origin = raw.origin_with(|settings| settings.max_age = max_age);
            for _ in 0..3 {
                text(origin.get("/").await.unwrap()).await.unwrap();
                let old = env.coarse() + 2 * MS;
                until(|| env.coarse() >= old).await;
            }
            assert_eq!(raw.connections() - before, connections, "{max_age:?}");
        }
    });
}

#[test]
fn connections_that_began_together_do_not_end_together() {
    run(|env| async move {
        let go = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&go);
        let raw = Raw::new(&env, move |mut talk, _| {
            let gate = Arc::clone(&gate);
            async move {
                while talk.request().await.is_some() {
                    gate.acquire().await.unwrap().forget();
                    talk.say(HELLO).await;
                }
            }
        })
        .await;
        let origin = raw.origin();
        let herd = herd(&env, &origin, 20);
        until(|| raw.connections() == 20).await;
        go.add_permits(20);
        for one in herd {
            one.await.unwrap();
        }
        until(|| origin.stats().idle == 20).await;
        let ends = origin.0.pool.ends();
        let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        // Of five minutes, half a minute or more either way.
        assert!(*last - *first > Duration::from_secs(10), "{ends:?}");
    });
}
