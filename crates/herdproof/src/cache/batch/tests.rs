//! Batches: each hazard once, in virtual time.

use std::{future::pending, sync::Mutex, time::Duration};

use super::*;
use crate::{
    cache::{Keep, Policy, Source},
    env::{Env, sim::Sim},
    limit::Bulkhead,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

type Words = Cache<String, u32, String>;

/// A cache in a simulated world, and the keys of every load of many.
struct Scene {
    sim: Sim,
    env: Env,
    cache: Words,
    batches: Arc<Mutex<Vec<Vec<String>>>>,
}

impl Scene {
    fn new(policy: Policy) -> Scene {
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = Cache::builder(&env).policy(policy).build();
        Scene { sim, env, cache, batches: Arc::default() }
    }

    /// Asks for the keys, named by a letter each. A load takes a while, and gives the number of the load for all of them
    /// but "x".
    fn ask(&self, keys: &str, takes: Duration) -> GetMany<String, u32, String> {
        let (env, batches) = (self.env.clone(), Arc::clone(&self.batches));
        self.cache.get_many(&names(keys), move |missing| async move {
            let number = {
                let mut batches = batches.lock().unwrap();
                batches.push(missing.clone());
                u32::try_from(batches.len()).unwrap()
            };
            env.sleep(takes).await;
            Ok(missing.into_iter().filter(|key| key != "x").map(|key| (key, number)).collect::<Vec<_>>())
        })
    }

    /// Asks for one key with a load of its own, which gives a hundred.
    fn ask_one(&self, key: &str, takes: Duration) -> Get<u32, String> {
        let env = self.env.clone();
        self.cache.get(key, || async move {
            env.sleep(takes).await;
            Ok(100)
        })
    }

    fn batches(&self) -> Vec<String> {
        self.batches.lock().unwrap().iter().map(|batch| batch.concat()).collect()
    }

    fn pass(&mut self, time: Duration) {
        let until = self.env.now() + time;
        self.sim.run_until(until);
    }
}

fn names(keys: &str) -> Vec<String> {
    keys.chars().map(String::from).collect()
}

/// What was found, as `a1 b2`, what is absent, and what failed.
#[track_caller]
fn check(batch: &Batch<String, u32, String>, found: &str, absent: &str, failed: &str) {
    let words: Vec<_> = batch.found.iter().map(|(key, got)| format!("{key}{}", got.value)).collect();
    let keys: String = batch.failed.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!((words.join(" ").as_str(), batch.absent.concat().as_str(), keys.as_str()), (found, absent, failed));
}

#[test]
fn many_keys_are_one_load_in_order_and_a_key_given_twice_counts_once() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    scene.cache.set("b".into(), 7);
    let first = scene.ask("dxbada", 50 * MS);
    check(&scene.sim.run(first), "d1 b7 a1", "x", "");
    let again = scene.ask("abdx", 50 * MS);
    check(&scene.sim.run(again), "a1 b7 d1", "x", "");
    assert_eq!(scene.batches(), ["dxa"], "and it is remembered that there is no x");
    let stats = scene.cache.stats();
    assert_eq!((stats.loads, stats.misses, stats.hits), (1, 3, 5));
}

#[test]
fn a_batch_joins_single_loads_and_single_gets_join_a_batch() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    let single = scene.ask_one("a", 100 * MS);
    let batch = scene.ask("abc", 50 * MS);
    let other = scene.ask("bcd", 50 * MS);
    let late = scene.ask_one("c", 100 * MS);
    let late = scene.sim.run(late).unwrap();
    assert_eq!((late.value, late.source), (1, Source::Joined));
    assert_eq!(scene.sim.run(single).unwrap().value, 100);
    let batch = scene.sim.run(batch);
    check(&batch, "a100 b1 c1", "", "");
    let sources: Vec<_> = batch.found.iter().map(|(_, got)| got.source).collect();
    assert_eq!(sources, [Source::Joined, Source::Loaded, Source::Loaded]);
    check(&scene.sim.run(other), "b1 c1 d2", "", "");
    assert_eq!(scene.batches(), ["bc", "d"]);
    assert_eq!(scene.cache.stats().joins, 4);
}

#[test]
fn each_key_of_a_batch_is_fenced_by_itself() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    let batch = scene.ask("abc", 100 * MS);
    scene.pass(50 * MS);
    scene.cache.invalidate("a");
    scene.cache.set("b".into(), 77);
    let newer = scene.ask_one("a", 10 * MS);
    assert_eq!(scene.sim.run(newer).unwrap().value, 100);
    check(&scene.sim.run(batch), "a1 b1 c1", "", "");
    let kept = ["a", "b", "c"].map(|key| scene.cache.peek(key).unwrap().value);
    assert_eq!(kept, [100, 77, 1]);
    assert_eq!(scene.cache.stats().fenced, 2);
}

#[test]
fn a_tag_that_expires_during_a_batch_fences_only_what_has_it() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    let env = scene.env.clone();
    let batch = scene.cache.get_many(&names("ab"), |_| async move {
        env.sleep(100 * MS).await;
        Ok([("a".into(), Load::With(1, Keep::tagged("shop"))), ("b".into(), Load::With(2, Keep::tagged("other")))])
    });
    scene.pass(50 * MS);
    scene.cache.expire_tag("shop", Duration::ZERO);
    check(&scene.sim.run(batch), "a1 b2", "", "");
    assert!(scene.cache.peek("a").is_none() && scene.cache.peek("b").is_some());
}

#[test]
fn stale_keys_are_served_at_once_and_loaded_again_by_one_load_in_the_background() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    let first = scene.ask("abc", MS);
    scene.sim.run(first);
    scene.pass(2 * SEC);
    let asked = scene.env.now();
    for _ in 0..3 {
        let stale = scene.ask("abc", 80 * MS);
        let stale = scene.sim.run(stale);
        check(&stale, "a1 b1 c1", "", "");
        assert!(stale.found.iter().all(|(_, got)| got.source == Source::Stale));
    }
    assert_eq!(scene.env.now(), asked, "nobody waits");
    scene.pass(100 * MS);
    let fresh = scene.ask("abc", 80 * MS);
    check(&scene.sim.run(fresh), "a2 b2 c2", "", "");
    assert_eq!(scene.batches(), ["abc", "abc"]);
    assert_eq!(scene.cache.stats().refreshes, 1);
}

#[test]
fn what_is_missing_and_what_is_stale_share_one_load() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    let first = scene.ask("a", MS);
    scene.sim.run(first);
    scene.pass(2 * SEC);
    let both = scene.ask("ab", 80 * MS);
    check(&scene.sim.run(both), "a1 b2", "", "");
    assert_eq!(scene.batches(), ["a", "ab"]);
    assert_eq!(scene.cache.peek("a").unwrap().value, 2);
}

#[test]
fn a_load_that_fails_fails_all_its_keys_and_no_others() {
    let mut scene = Scene::new(Policy::strict(60 * SEC).failed(Duration::ZERO));
    scene.cache.set("a".into(), 7);
    let failing = scene.cache.get_many(&names("abc"), |_| async { Err::<Vec<(String, u32)>, _>("down".to_string()) });
    let batch = scene.sim.run(failing);
    check(&batch, "a7", "", "bc");
    assert!(batch.failed.iter().all(|(_, error)| matches!(error, GetError::Load(error) if **error == "down")));
    let again = scene.ask("abc", MS);
    check(&scene.sim.run(again), "a7 b1 c1", "", "");
    assert_eq!(scene.cache.stats().failures, 1);
}

#[test]
fn a_failed_batch_puts_off_the_next_for_what_can_still_be_served() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC).pause(10 * SEC));
    let first = scene.ask("ab", MS);
    scene.sim.run(first);
    scene.pass(2 * SEC);
    let failing = scene.cache.get_many(&names("ab"), |_| async { Err::<Vec<(String, u32)>, _>("down".to_string()) });
    check(&scene.sim.run(failing), "a1 b1", "", "");
    let put_off = scene.ask("ab", MS);
    let put_off = scene.sim.run(put_off);
    assert!(put_off.found.iter().all(|(_, got)| got.source == Source::StaleOnError));
    assert_eq!(scene.batches(), ["ab"]);
}

#[test]
fn a_load_that_panics_fails_all_its_keys_and_whoever_joined_them() {
    for at_once in [true, false] {
        let mut scene = Scene::new(Policy::strict(60 * SEC));
        let env = scene.env.clone();
        let panicking = scene.cache.get_many(&names("ab"), move |_| async move {
            if !at_once {
                env.sleep(50 * MS).await;
            }
            assert!(!at_once && env.now() == Tick::ZERO, "no such table");
            Ok(Vec::<(String, u32)>::new())
        });
        let joined = (!at_once).then(|| scene.ask_one("a", MS));
        let batch = scene.sim.run(panicking);
        check(&batch, "", "", "ab");
        let told =
            |error: &GetError<String>| matches!(error, GetError::Panicked(panic) if panic.message() == "no such table");
        assert!(batch.failed.iter().all(|(_, error)| told(error)));
        if let Some(joined) = joined {
            assert!(told(&scene.sim.run(joined).unwrap_err()));
        }
        let until = scene.env.now() + 2 * SEC;
        scene.sim.run_until(until);
        let again = scene.ask("ab", MS);
        check(&scene.sim.run(again), "a1 b1", "", "");
    }
}

#[test]
fn a_load_that_hangs_fails_in_the_shortest_time_that_one_of_its_keys_allows() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let policies = |key: &String| (key == "a").then(|| Policy::default().load_timeout(2 * SEC));
    let cache: Words = Cache::builder(&env).policies(policies).build();
    let hung = cache.get_many(&names("ab"), |_| pending::<Result<Vec<(String, u32)>, String>>());
    let batch = sim.run(hung);
    check(&batch, "", "", "ab");
    assert!(batch.failed.iter().all(|(_, error)| matches!(error, GetError::TimedOut)));
    assert_eq!(env.now(), Tick::ZERO + 2 * SEC);
}

#[test]
fn a_batch_passes_the_limit_once_however_many_keys_it_has() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = Bulkhead::new(&env, 1).max_waiting(0);
    let cache: Words = Cache::builder(&env).load_limit(limit.clone()).build();
    let clock = env.clone();
    let batch = cache.get_many(&names("abcdef"), |missing| async move {
        clock.sleep(MS).await;
        Ok(missing.into_iter().map(|key| (key, 1)).collect::<Vec<_>>())
    });
    let refused = cache.get_many(&names("fgh"), |_| pending::<Result<Vec<(String, u32)>, String>>());
    check(&sim.run(batch), "a1 b1 c1 d1 e1 f1", "", "");
    let refused = sim.run(refused);
    check(&refused, "f1", "", "gh");
    assert!(refused.failed.iter().all(|(_, error)| matches!(error, GetError::Refused(_))));
}

#[test]
fn a_batch_goes_on_without_its_callers() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    drop(scene.ask("ab", 100 * MS));
    let impatient = scene.ask("ac", 100 * MS).by(scene.env.now() + 40 * MS);
    let impatient = scene.sim.run(impatient);
    check(&impatient, "", "", "ac");
    assert_eq!(scene.env.now(), Tick::ZERO + 40 * MS, "one deadline for all");
    scene.pass(100 * MS);
    let all = scene.ask("abc", MS);
    check(&scene.sim.run(all), "a1 b1 c2", "", "");
    assert_eq!(scene.batches(), ["ab", "c"]);
}

#[test]
fn a_batch_that_asks_for_one_of_its_own_keys_is_refused_not_left_waiting_for_itself() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    let (env, cache) = (scene.env.clone(), scene.cache.clone());
    let batch = scene.cache.get_many(&names("abc"), |_| async move {
        let mut seen = Vec::new();
        for key in ["a", "c"] {
            let nested = cache.get(key, || async { unreachable!("it is being loaded") });
            seen.push((key.to_string(), u32::from(matches!(nested.await, Err(GetError::Reentrant)))));
            env.sleep(MS).await;
        }
        Ok(seen)
    });
    check(&scene.sim.run(batch), "a1 c1", "b", "");
    assert_eq!(scene.env.now(), Tick::ZERO + 2 * MS);
}

#[test]
fn a_thread_without_a_runtime_gets_a_batch_that_is_ready_at_once() {
    let cache: Cache<u32, u32, String> = Cache::builder(&Env::system()).build();
    let batch = cache.get_many(&[1, 2], |missing| async move { Ok(missing.into_iter().map(|key| (key, key))) }).wait();
    assert_eq!(batch.found.len(), 2);
}
