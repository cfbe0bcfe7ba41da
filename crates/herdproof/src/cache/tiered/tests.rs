//! A fleet of caches around one tier: each hazard once, in virtual time.

use std::{
    collections::HashSet,
    future::pending,
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use super::*;
use crate::{
    Cache, Env, Sim,
    cache::{Batch, CacheBuilder, GetError, GetMany, Got, Link, Source, TierStats},
    env::Task,
    event::{Counts, Metric},
    limit::Bulkhead,
    tier::{
        Fault, Feed, Lease, Lookup, News, SharedTier, Speaker, Tier, TierError, Want,
        contract::{Faults, Faulty},
        feed,
    },
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);

type Node = Cache<String, u32, String>;
type Answer = Result<Got<u32>, GetError<String>>;
type Many = Pin<Box<dyn Future<Output = Result<Vec<(String, u32)>, String>> + Send>>;

/// Nodes in a simulated world, whose loads take 80 ms, are counted, and give the number of the load. Calls to the tier take
/// 2 ms.
struct Fleet {
    sim: Sim,
    env: Env,
    counts: Arc<Counts>,
    tier: SharedTier<String, u32>,
    faults: Faults<String>,
    nodes: Vec<Node>,
    loads: Arc<AtomicU32>,
    /// The keys of each load of many.
    batches: Arc<Mutex<Vec<String>>>,
}

impl Fleet {
    fn new(nodes: u64, policy: &Policy) -> Fleet {
        Fleet::with(nodes, &Link::default(), |builder| builder.policy(policy.clone()))
    }

    fn with(
        nodes: u64,
        link: &Link,
        settings: impl Fn(CacheBuilder<String, u32>) -> CacheBuilder<String, u32>,
    ) -> Fleet {
        let sim = Sim::new(1);
        let counts = Arc::new(Counts::default());
        let env = sim.env().observed_by(Arc::clone(&counts));
        let (tier, faults) = (SharedTier::new(&env), Faults::default());
        faults.latency(2 * MS);
        let nodes = (0..nodes)
            .map(|id| {
                let env = env.scope(id);
                let tier = Faulty::new(&env, tier.node(), &faults);
                settings(Cache::builder(&env)).tier_with(tier, link.clone()).build()
            })
            .collect();
        Fleet { sim, env, counts, tier, faults, nodes, loads: Arc::default(), batches: Arc::default() }
    }

    /// Another node, with a network of its own.
    fn join(&mut self, policy: Policy) -> Faults<String> {
        let faults = Faults::default();
        let tier = Faulty::new(&self.env, self.tier.node(), &faults);
        self.nodes.push(Cache::builder(&self.env.scope(1_000)).policy(policy).tier(tier).build());
        faults
    }

    fn load(&self, takes: Duration) -> impl Future<Output = Result<u32, String>> + Send + use<> {
        let (env, loads) = (self.env.clone(), Arc::clone(&self.loads));
        async move {
            let number = loads.fetch_add(1, Relaxed) + 1;
            env.sleep(takes).await;
            Ok(number)
        }
    }

    /// All nodes ask at once; what they get.
    fn ask_all(&mut self) -> Vec<Answer> {
        let gets: Vec<Task<Answer>> =
            self.nodes.iter().map(|node| self.env.spawn(node.get("key", || self.load(80 * MS)))).collect();
        gets.into_iter().map(|get| self.sim.run(get).unwrap()).collect()
    }

    fn ask(&mut self, node: usize) -> Answer {
        let get = self.nodes[node].get("key", || self.load(80 * MS));
        self.sim.run(get)
    }

    /// A node asks for many keys, named by a letter each.
    fn ask_many(&self, node: usize, keys: &str, takes: Duration) -> GetMany<String, u32, String> {
        let (load, batches) = (self.batch(takes), Arc::clone(&self.batches));
        self.nodes[node].get_many(&names(keys), move |keys| {
            batches.lock().unwrap().push(keys.concat());
            load(keys)
        })
    }

    /// A load that gives each key the number of the load.
    fn batch(&self, takes: Duration) -> impl FnOnce(Vec<String>) -> Many + Clone + Send + use<> {
        let (env, loads) = (self.env.clone(), Arc::clone(&self.loads));
        move |keys| {
            Box::pin(async move {
                let number = loads.fetch_add(1, Relaxed) + 1;
                env.sleep(takes).await;
                Ok(keys.into_iter().map(|key| (key, number)).collect())
            })
        }
    }

    fn batches(&self) -> Vec<String> {
        self.batches.lock().unwrap().clone()
    }

    fn pass(&mut self, time: Duration) {
        let until = self.env.now() + time;
        self.sim.run_until(until);
    }

    fn loads(&self) -> u32 {
        self.loads.load(Relaxed)
    }
}

#[track_caller]
fn check(answer: &Answer, value: u32, source: Source) {
    match answer {
        Ok(got) => assert_eq!((got.value, got.source), (value, source)),
        Err(error) => panic!("{error}"),
    }
}

fn sources(answers: &[Answer], source: Source) -> usize {
    answers.iter().filter(|answer| answer.as_ref().is_ok_and(|got| got.source == source)).count()
}

#[test]
fn fifty_nodes_that_miss_together_make_one_load() {
    let mut fleet = Fleet::new(50, &Policy::strict(SEC));
    let answers = fleet.ask_all();
    assert_eq!((fleet.loads(), sources(&answers, Source::Loaded), sources(&answers, Source::Tier)), (1, 1, 49));
    assert_eq!(fleet.env.now().as_nanos(), 84_000_000, "a lookup, the load, and a push behind the fill");
    assert_eq!(sources(&fleet.ask_all(), Source::Memory), 50);
    fleet.pass(SEC);
    let answers = fleet.ask_all();
    assert_eq!((fleet.loads(), sources(&answers, Source::Tier)), (2, 49), "and one more when it has expired");
    assert_eq!(fleet.nodes[0].tier_stats().unwrap().lookups, 2);
}

/// Every node is asked every 5 ms for three times to live; how many had to wait after the first second, and what was served.
fn crowd(policy: &Policy) -> (Fleet, usize, Vec<Got<u32>>) {
    let mut fleet = Fleet::new(10, policy);
    let (mut waited, mut served) = (0, Vec::new());
    for round in 0..600 {
        for node in 0..fleet.nodes.len() {
            let get = fleet.nodes[node].get("key", || fleet.load(80 * MS));
            let (env, asked) = (fleet.env.clone(), fleet.env.now());
            let task = fleet.env.spawn(async move { (get.await, env.now() - asked) });
            if round >= 200 {
                fleet.sim.run_until(asked);
                waited += usize::from(!task.is_finished());
                let (answer, _) = fleet.sim.run(task).unwrap();
                served.push(answer.unwrap());
            } else {
                task.detach();
            }
        }
        fleet.pass(5 * MS);
    }
    (fleet, waited, served)
}

#[test]
fn with_grace_the_fleet_makes_one_load_per_expiry_and_nobody_waits() {
    let (fleet, waited, served) = crowd(&Policy::strict(SEC).grace(SEC));
    assert_eq!((fleet.loads(), waited), (3, 0));
    assert!(served.iter().all(|got| got.age() < SEC + 100 * MS), "stale for as long as the load takes");
    let lookups: u64 = fleet.nodes.iter().map(|node| node.tier_stats().unwrap().lookups).sum();
    assert!(lookups <= 3 * 10, "one for each node and expiry: {lookups}");
}

#[test]
fn refreshed_early_the_fleet_makes_one_load_per_expiry_and_nothing_is_stale() {
    let (fleet, waited, served) = crowd(&Policy::new(SEC).jitter(0.0));
    assert!((3..=5).contains(&fleet.loads()), "{}", fleet.loads());
    assert!(waited < 10 && served.iter().all(|got| !got.is_stale()), "{waited}");
}

/// Else the earliest of all nodes would refresh it, the earlier the more there are.
#[test]
fn all_nodes_draw_the_same_lead_for_one_value_and_another_for_the_next() {
    let mut fleet = Fleet::new(20, &Policy::strict(60 * SEC).early(true));
    let mut leads = |key: &str| {
        let gets = fleet.nodes.iter().map(|node| fleet.env.spawn(node.get(key, || fleet.load(80 * MS))));
        for get in gets.collect::<Vec<_>>() {
            fleet.sim.run(get).unwrap().unwrap();
        }
        let lead = |node: &Node| {
            let life = node.0.engine.peek(key).unwrap().life();
            life.fresh_until - life.look_at
        };
        let leads: Vec<Duration> = fleet.nodes.iter().map(lead).collect();
        assert!(leads.iter().all(|lead| *lead == leads[0]), "{leads:?}");
        leads[0]
    };
    let leads: HashSet<Duration> = ["a", "b", "c", "d", "e"].map(&mut leads).into();
    assert!(leads.len() >= 4 && leads.iter().all(|lead| (100 * MS..=260 * MS).contains(lead)), "{leads:?}");
}

#[test]
fn what_the_tier_has_lives_no_longer_in_memory_than_there() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC));
    check(&fleet.ask(0), 1, Source::Loaded);
    fleet.pass(900 * MS);
    let got = fleet.ask(1);
    check(&got, 1, Source::Tier);
    assert!(got.unwrap().age() >= 900 * MS, "it is as old as it is");
    fleet.pass(120 * MS);
    check(&fleet.ask(1), 2, Source::Loaded);
}

#[test]
fn what_one_node_invalidates_no_node_serves() {
    let mut fleet = Fleet::new(5, &Policy::strict(100 * SEC));
    fleet.ask_all();
    fleet.nodes[3].invalidate("key");
    fleet.pass(10 * MS);
    let answers = fleet.ask_all();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().value == 2), "{answers:?}");
    assert_eq!(fleet.loads(), 2);
}

/// A value that does something when it is dropped, until that has worked once.
#[derive(Clone)]
struct Telltale(u32, Arc<Mutex<Option<Parting>>>);

type Parting = Box<dyn FnMut() -> bool + Send>;

impl Drop for Telltale {
    fn drop(&mut self) {
        let parting = self.1.lock().unwrap().take();
        if let Some(mut parting) = parting
            && !parting()
        {
            *self.1.lock().unwrap() = Some(parting);
        }
    }
}

/// A miss right after the entry has left memory, while whoever took it away is still at it.
#[test]
fn who_asks_while_a_key_is_being_changed_does_not_keep_what_the_tier_still_has() {
    type Hearing = Cache<String, Telltale, String>;
    let after = |change: fn(&Hearing, Telltale)| {
        let mut sim = Sim::new(1);
        let (env, parting) = (sim.env(), Arc::default());
        let value = |number| Telltale(number, Arc::clone(&parting));
        let cache: Hearing = Cache::builder(&env)
            .weighed(1_000, 1, |_, value: Option<&Telltale>| value.map_or(0, |value| u64::from(value.0)))
            .policy(Policy::strict(100 * SEC))
            .tier(SharedTier::new(&env))
            .build();
        let (old, new) = (value(1), value(2));
        sim.run(cache.get("key", || async { Ok(old) })).unwrap();
        let asked = cache.clone();
        *parting.lock().unwrap() = Some(Box::new(move || {
            let new = new.clone();
            asked.is_empty() && asked.get("key", || async { Ok(new) }).wait().is_ok()
        }));
        change(&cache, value(1_000_000));
        assert!(parting.lock().unwrap().take().is_none(), "it was asked for in between");
        sim.run_until(env.now() + SEC);
        let newest = value(3);
        let got = sim.run(cache.get("key", || async { Ok(newest) })).unwrap();
        got.value.0
    };
    assert_eq!(after(|cache, _| cache.invalidate("key")), 2);
    assert_eq!(after(|cache, too_heavy| cache.set("key".into(), too_heavy)), 2);
}

/// A value whose next drop panics once it is armed.
#[derive(Clone)]
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(!self.0.swap(false, Relaxed), "drop");
    }
}

/// A tier that panics when it is asked for a bad key, or told of one, and whose news the test makes.
struct Fragile(SharedTier<String, Bomb>, Mutex<Option<Feed<String>>>);

impl Fragile {
    fn check(key: &str) {
        assert!(!key.starts_with("bad"), "{key}");
    }
}

impl Tier<String, Bomb> for Fragile {
    fn lookup(&self, key: &String, want: Want) -> impl Future<Output = Result<Lookup<Bomb>, TierError>> + Send {
        Fragile::check(key);
        self.0.lookup(key, want)
    }

    async fn fill(&self, key: &String, lease: Lease, stored: Stored<Bomb>) -> Result<Filled, TierError> {
        self.0.fill(key, lease, stored).await
    }

    async fn fail(&self, key: &String, lease: Lease, fault: Fault) -> Result<(), TierError> {
        self.0.fail(key, lease, fault).await
    }

    async fn renew(&self, key: &String, lease: Lease, time: Duration) -> Result<Filled, TierError> {
        self.0.renew(key, lease, time).await
    }

    async fn put(&self, key: &String, stored: Stored<Bomb>) -> Result<(), TierError> {
        Fragile::check(key);
        self.0.put(key, stored).await
    }

    async fn invalidate(&self, key: &String) -> Result<(), TierError> {
        self.0.invalidate(key).await
    }

    async fn expire_tag(&self, tag: &str, smear: Duration) -> Result<(), TierError> {
        self.0.expire_tag(tag, smear).await
    }

    fn listen(&self) -> Feed<String> {
        self.1.lock().unwrap().take().unwrap()
    }
}

/// A cache before a fragile tier, another behind the same store, and who tells the first of news.
fn fragile(env: &Env) -> ([Cache<String, Bomb, String>; 2], Speaker<String>) {
    let (tier, (speaker, feed)) = (SharedTier::new(env), feed(10));
    let policy = Policy::strict(100 * SEC);
    let other = Cache::builder(&env.scope(1)).policy(policy.clone()).tier(tier.node()).build();
    let cache = Cache::builder(env).policy(policy).tier(Fragile(tier, Mutex::new(Some(feed)))).build();
    ([cache, other], speaker)
}

#[test]
fn a_tier_that_panics_has_no_answer_and_is_told_of_what_comes_after() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let ([cache, other], _speaker) = fragile(&env);
    let value = Bomb(Arc::default());
    cache.set("bad".to_owned(), value.clone());
    cache.set("good".to_owned(), value.clone());
    sim.run_until(env.now() + SEC);
    let stats = cache.tier_stats().unwrap();
    assert_eq!((stats.dropped, stats.failures), (1, 1), "not tried again: {stats:?}");
    let got = sim.run(other.get("good", || async { unreachable!("the tier was told") })).unwrap();
    assert_eq!(got.source, Source::Tier);
    let asked = cache.get("bad key", || async { Ok(value) });
    assert_eq!(sim.run(asked).unwrap().source, Source::Loaded);
}

#[test]
fn a_value_that_panics_when_it_is_dropped_ends_neither_the_outbox_nor_the_listener_nor_the_sweeper() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let ([cache, other], speaker) = fragile(&env);
    let armed = Arc::new(AtomicBool::new(false));
    cache.set("key".to_owned(), Bomb(Arc::clone(&armed)));
    armed.store(true, Relaxed);
    sim.run_until(env.now() + SEC);
    assert!(!armed.load(Relaxed), "the tier has dropped a clone of it");
    cache.set("other".to_owned(), Bomb(Arc::default()));
    sim.run_until(env.now() + SEC);
    assert!(sim.run(other.get("other", || async { unreachable!("the tier was told") })).is_ok());
    assert_eq!(cache.tier_stats().unwrap().dropped, 1, "it panicked in the tier");
    armed.store(true, Relaxed);
    for key in ["key", "other"] {
        speaker.say(News::Changed(key.to_owned()));
        sim.run_until(env.now() + SEC);
    }
    assert!(!armed.load(Relaxed) && cache.is_empty(), "it has heard of both");
    let swept = Arc::new(AtomicBool::new(false));
    cache.set("key".to_owned(), Bomb(Arc::clone(&swept)));
    sim.run_until(env.now() + 99 * SEC);
    swept.store(true, Relaxed);
    cache.set("other".to_owned(), Bomb(Arc::default()));
    sim.run_until(env.now() + 400 * SEC);
    assert!(cache.is_empty() && cache.stats().swept == 2, "{:?}", cache.stats());
}

#[test]
fn a_key_of_a_batch_that_panics_on_its_way_takes_no_other_along() {
    let weigh = |key: &String, _: Option<&u32>| if key == "a" { panic!("scales") } else { 1 };
    let mut fleet = Fleet::with(2, &Link::default(), |builder| builder.weighed(1_000, 100, weigh));
    let batch = fleet.ask_many(0, "abc", 80 * MS);
    let batch = fleet.sim.run(batch);
    check_many(&batch, &[("a", 1, Source::Loaded), ("b", 1, Source::Loaded), ("c", 1, Source::Loaded)]);
    fleet.pass(SEC);
    let kept = |key| fleet.nodes[0].peek(key).is_some();
    assert!(!kept("a") && kept("b") && kept("c"));
    // From the tier it is on its way into memory when it panics.
    let batch = fleet.ask_many(1, "abc", 80 * MS);
    let batch = fleet.sim.run(batch);
    assert_eq!(batch.found.iter().map(|(key, _)| key.as_str()).collect::<String>(), "bc", "{batch:?}");
    let told = |error: &GetError<String>| matches!(error, GetError::Panicked(panic) if panic.message() == "scales");
    assert!(batch.failed.len() == 1 && told(&batch.failed[0].1), "{batch:?}");
    assert_eq!(fleet.loads(), 1);
}

#[test]
fn what_one_node_sets_all_nodes_serve() {
    let mut fleet = Fleet::new(5, &Policy::new(100 * SEC));
    fleet.ask_all();
    fleet.nodes[3].set("key".to_owned(), 77);
    check(&fleet.ask(3), 77, Source::Memory);
    fleet.pass(10 * MS);
    let answers = fleet.ask_all();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().value == 77), "{answers:?}");
    check(&answers[3], 77, Source::Memory);
    assert_eq!(fleet.loads(), 1);
}

#[test]
fn what_has_not_changed_keeps_its_tags_in_the_tier_too() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC).on_error(60 * SEC));
    fleet.nodes[0].set_with("key".into(), 1, &Keep::ttl(2 * SEC).tag("news"));
    for _ in 0..2 {
        fleet.pass(3 * SEC);
        let get = fleet.nodes[0].get_with("key", |prior| async move { Ok(prior.unwrap().unchanged()) });
        check(&fleet.sim.run(get), 1, Source::Loaded);
    }
    fleet.pass(1_500 * MS);
    let get = fleet.nodes[1].get("key", || async { Err("it is there".to_owned()) });
    check(&fleet.sim.run(get), 1, Source::Tier);
    fleet.nodes[1].expire_tag("news", Duration::ZERO);
    fleet.pass(10 * MS);
    check(&fleet.ask(0), 1, Source::Loaded);
    assert_eq!(fleet.loads(), 1, "the tag was expired in the tier, and in the memory of who had not changed it");
}

#[test]
fn a_failed_load_does_not_put_what_was_in_memory_over_what_is_newer_in_the_tier() {
    for elsewhere in [false, true] {
        let mut fleet = Fleet::new(2, &Policy::strict(SEC).on_error(60 * SEC).failed(SEC));
        check(&fleet.ask(0), 1, Source::Loaded);
        fleet.pass(2 * SEC);
        check(&fleet.ask(1), 2, Source::Loaded);
        fleet.pass(2 * SEC);
        let fail = |fleet: &mut Fleet, node: usize| {
            let get = fleet.nodes[node].get("key", || async { Err("down".to_owned()) });
            fleet.sim.run(get)
        };
        if elsewhere {
            check(&fail(&mut fleet, 1), 2, Source::StaleOnError);
            fleet.pass(10 * MS);
        }
        check(&fail(&mut fleet, 0), 2, Source::StaleOnError);
        assert_eq!(fleet.nodes[0].peek("key").map(|got| got.value), Some(2));
    }
}

#[test]
fn a_tag_expired_in_one_node_is_expired_in_all() {
    let mut fleet = Fleet::new(5, &Policy::strict(100 * SEC));
    let ask_all = |fleet: &mut Fleet| -> Vec<u32> {
        let ask = |node: &Node| {
            let load = fleet.load(80 * MS);
            let tagged = async move { load.await.map(|value| Load::With(value, Keep::tagged("news"))) };
            fleet.env.spawn(node.get_with("key", |_| tagged))
        };
        let gets: Vec<Task<Answer>> = fleet.nodes.iter().map(ask).collect();
        gets.into_iter().map(|get| fleet.sim.run(get).unwrap().unwrap().value).collect()
    };
    assert_eq!(ask_all(&mut fleet), [1; 5]);
    fleet.nodes[2].expire_tag("other", Duration::ZERO);
    fleet.pass(10 * MS);
    assert_eq!(ask_all(&mut fleet), [1; 5]);
    fleet.nodes[2].expire_tag("news", Duration::ZERO);
    fleet.pass(10 * MS);
    assert_eq!(ask_all(&mut fleet), [2; 5]);
    assert_eq!(ask_all(&mut fleet), [2; 5]);
    assert_eq!(fleet.loads(), 2);
}

#[test]
fn a_load_that_was_under_way_when_another_node_invalidated_fills_no_tier() {
    let mut fleet = Fleet::new(3, &Policy::strict(100 * SEC));
    let first = fleet.nodes[0].get("key", || fleet.load(80 * MS));
    fleet.pass(40 * MS);
    fleet.nodes[1].invalidate("key");
    let first = fleet.sim.run(first);
    check(&first, 1, Source::Loaded);
    fleet.pass(10 * MS);
    let answers = fleet.ask_all();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().value == 2), "{answers:?}");
    assert_eq!((fleet.nodes[0].stats().fenced, fleet.loads()), (1, 2));
}

#[test]
fn a_node_does_not_get_back_from_the_tier_what_it_has_just_invalidated() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    fleet.ask_all();
    fleet.faults.latency(100 * MS);
    fleet.nodes[0].invalidate("key");
    check(&fleet.ask(0), 2, Source::Loaded);
    fleet.pass(SEC);
    check(&fleet.ask(0), 2, Source::Memory);
}

#[test]
fn a_load_that_fails_is_tried_by_one_other_node_at_a_time_and_by_three_in_all() {
    for (failing, values, loads) in [(1, 19, 2), (2, 18, 3), (9, 0, 3)] {
        let mut fleet = Fleet::new(20, &Policy::strict(SEC));
        let ask = |node: &Node| {
            let load = fleet.load(80 * MS);
            let get = node.get("key", || async move {
                let number = load.await?;
                if number <= failing { Err("down".to_owned()) } else { Ok(number) }
            });
            fleet.env.spawn(get)
        };
        let gets: Vec<Task<Answer>> = fleet.nodes.iter().map(ask).collect();
        let answers: Vec<Answer> = gets.into_iter().map(|get| fleet.sim.run(get).unwrap()).collect();
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), values, "{failing} fail");
        assert_eq!(fleet.loads(), loads, "{failing} fail");
        let elsewhere = answers.iter().filter(|answer| matches!(answer, Err(GetError::Elsewhere(_)))).count();
        assert_eq!(elsewhere, if values == 0 { 17 } else { 0 });
    }
}

#[test]
fn a_load_that_panics_passes_its_lease_on() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC));
    let env = fleet.env.clone();
    let panics = fleet.nodes[0].get("key", || async move {
        env.sleep(80 * MS).await;
        panic!("as it does");
    });
    let panics = fleet.env.spawn(async move { matches!(panics.await, Err(GetError::Panicked(_))) });
    fleet.pass(10 * MS);
    check(&fleet.ask(1), 1, Source::Loaded);
    assert!(fleet.env.now().as_nanos() < 200_000_000, "without waiting for the lease to expire");
    drop(panics);
}

#[test]
fn the_lease_of_a_node_that_died_is_taken_by_one_other() {
    let mut fleet = Fleet::new(10, &Policy::strict(SEC));
    let network = fleet.join(Policy::strict(SEC));
    drop(fleet.nodes[10].get("key", pending));
    fleet.pass(50 * MS);
    network.silent();
    let doomed = fleet.nodes.pop();
    let answers = fleet.ask_all();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(fleet.loads(), 1);
    assert!(fleet.env.now().as_nanos() < 4_000_000_000, "{:?}", fleet.env.now());
    drop(doomed);
}

#[test]
fn a_load_that_takes_longer_than_the_lease_keeps_it() {
    let mut fleet = Fleet::new(10, &Policy::strict(100 * SEC));
    let slow = fleet.nodes[0].get("key", || fleet.load(8 * SEC));
    fleet.pass(50 * MS);
    let answers = fleet.ask_all();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().value == 1));
    assert_eq!(fleet.loads(), 1);
    drop(slow);
}

#[test]
fn who_has_waited_long_enough_loads_anyway() {
    let mut fleet = Fleet::with(10, &Link::default().wait(5 * SEC), |builder| builder.policy(Policy::strict(SEC)));
    drop(fleet.nodes[0].get("key", pending));
    fleet.pass(50 * MS);
    check(&fleet.ask(1), 1, Source::Loaded);
    let took = fleet.env.now().as_nanos();
    assert!((5_000_000_000..5_200_000_000).contains(&took), "{took}");
    assert_eq!(fleet.nodes[1].tier_stats().unwrap().alone, 1);
}

#[test]
fn while_the_tier_is_away_everybody_is_served_within_the_load_limit() {
    for silent in [false, true] {
        let link = Link::default();
        let mut fleet = Fleet::with(10, &link, |builder| {
            let limit = Bulkhead::new(&builder.env, 1);
            builder.policy(Policy::strict(SEC)).load_limit(limit)
        });
        fleet.ask_all();
        if silent {
            fleet.faults.silent();
        } else {
            fleet.faults.down();
        }
        let mut longest = Duration::ZERO;
        for _ in 0..30 {
            fleet.pass(SEC);
            let from = fleet.env.now();
            let answers = fleet.ask_all();
            assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|got| got.source == Source::Loaded)));
            longest = longest.max(fleet.env.now() - from);
        }
        assert_eq!(fleet.loads(), 1 + 30 * 10, "each for itself, once an expiry");
        assert!(longest <= 332 * MS, "a timeout and a load: {longest:?}");
        let stats = fleet.nodes[0].tier_stats().unwrap();
        assert!(stats.refused >= 15, "and mostly nobody waits for the timeout: {stats:?}");
    }
}

#[test]
fn whoever_watches_sees_all_that_the_tier_does() {
    let link = Link::default().wait(5 * SEC);
    let mut fleet = Fleet::with(10, &link, |builder| builder.policy(Policy::strict(SEC)));
    fleet.ask_all();
    let many = fleet.ask_many(0, "abc", MS);
    fleet.sim.run(many);
    // One is fenced, one has to go on by itself.
    let get = fleet.nodes[0].get("fenced", || fleet.load(80 * MS));
    // The change is in the tier before the fill is, and the news of it come later.
    fleet.pass(82 * MS);
    let elsewhere = fleet.tier.node();
    fleet.sim.run(Box::pin(async move { elsewhere.invalidate(&"fenced".into()).await })).unwrap();
    drop(fleet.sim.run(get));
    fleet.pass(10 * MS);
    drop(fleet.nodes[0].get("slow", pending));
    fleet.pass(50 * MS);
    let get = fleet.nodes[1].get("slow", || fleet.load(80 * MS));
    drop(fleet.sim.run(get));
    fleet.faults.down();
    for _ in 0..30 {
        fleet.pass(SEC);
        fleet.ask_all();
    }
    for change in 0..20_000 {
        fleet.nodes[0].set(change.to_string(), 1);
    }
    let said: Vec<TierStats> = fleet.nodes.iter().map(|node| node.tier_stats().unwrap()).collect();
    let sum = |count: fn(&TierStats) -> u64| said.iter().map(count).sum::<u64>();
    for (metric, sum) in [
        (Metric::TierLookups, sum(|stats| stats.lookups)),
        (Metric::TierHits, sum(|stats| stats.hits)),
        (Metric::TierWaits, sum(|stats| stats.waits)),
        (Metric::TierLeases, sum(|stats| stats.leases)),
        (Metric::TierFenced, sum(|stats| stats.fenced)),
        (Metric::TierFailures, sum(|stats| stats.failures)),
        (Metric::TierRefusals, sum(|stats| stats.refused)),
        (Metric::TierAlone, sum(|stats| stats.alone)),
        (Metric::TierDropped, sum(|stats| stats.dropped)),
    ] {
        assert!(sum > 0, "none of {metric:?}");
        assert_eq!(fleet.counts.get(metric), sum, "{metric:?}");
    }
}

#[test]
fn a_node_that_has_a_lease_fills_though_the_breaker_has_opened_since() {
    let breaker = crate::Breaker::new(&Sim::new(1).env());
    let link = Link::default().breaker(breaker.clone());
    let mut fleet = Fleet::with(2, &link, |builder| builder.policy(Policy::strict(100 * SEC)));
    let get = fleet.nodes[0].get("key", || fleet.load(80 * MS));
    fleet.pass(10 * MS);
    breaker.hold_open();
    check(&fleet.sim.run(get), 1, Source::Loaded);
    fleet.pass(10 * MS);
    breaker.release();
    check(&fleet.ask(1), 1, Source::Tier);
    assert!(fleet.env.now().as_nanos() < 200_000_000, "without waiting for the lease to expire");
}

#[test]
fn what_was_changed_while_the_tier_was_away_is_told_when_it_is_back() {
    let mut fleet = Fleet::new(3, &Policy::strict(1_000 * SEC));
    fleet.ask_all();
    fleet.faults.down();
    fleet.nodes[0].set("key".to_owned(), 77);
    fleet.pass(20 * SEC);
    check(&fleet.ask(0), 77, Source::Memory);
    check(&fleet.ask(1), 1, Source::Memory);
    fleet.faults.up();
    fleet.pass(60 * SEC);
    // What was set may not be the newest any more, and what was there before is not.
    let answers = fleet.ask_all();
    assert!(answers[1..].iter().all(|answer| [2, 3].contains(&answer.as_ref().unwrap().value)), "{answers:?}");
}

#[test]
fn after_news_were_missed_entries_are_looked_up_again_each_at_its_own_moment() {
    let policy = Policy::strict(1_000 * SEC).grace(SEC);
    let mut fleet = Fleet::new(1, &policy);
    let network = fleet.join(policy);
    let keys: Vec<String> = (0..1_000).map(|number| format!("key/{number}")).collect();
    let ask_all = |fleet: &mut Fleet, node: usize| -> Vec<Got<u32>> {
        let get = |key: &String| fleet.env.spawn(fleet.nodes[node].get(key.as_str(), || fleet.load(80 * MS)));
        let gets: Vec<Task<Answer>> = keys.iter().map(get).collect();
        gets.into_iter().map(|get| fleet.sim.run(get).unwrap().unwrap()).collect()
    };
    ask_all(&mut fleet, 0);
    ask_all(&mut fleet, 1);
    assert_eq!(fleet.loads(), 1_000);
    network.down();
    fleet.nodes[0].set("key/7".to_owned(), 77_777);
    fleet.pass(SEC);
    network.up();
    fleet.pass(10 * MS);
    let mut before = fleet.nodes[1].tier_stats().unwrap().lookups;
    let mut lookups = Vec::new();
    for _ in 0..22 {
        ask_all(&mut fleet, 1);
        fleet.pass(500 * MS);
        let now = fleet.nodes[1].tier_stats().unwrap().lookups;
        lookups.push(now - before);
        before = now;
    }
    assert_eq!((lookups.iter().sum::<u64>(), fleet.loads()), (1_000, 1_000), "each once, and nothing is loaded again");
    assert!(lookups.iter().all(|lookups| *lookups <= 90), "over ten seconds: {lookups:?}");
    assert_eq!(ask_all(&mut fleet, 1)[7].value, 77_777);
}

#[test]
fn what_was_being_loaded_while_news_were_missed_is_looked_up_again_too() {
    let policy = Policy::strict(1_000 * SEC);
    let mut fleet = Fleet::new(1, &policy);
    let network = fleet.join(policy);
    check(&fleet.ask(0), 1, Source::Loaded);
    network.down();
    // It loads without the tier, and takes so long that all is well again before it has.
    let load = fleet.load(5 * SEC);
    let alone = fleet.env.spawn(fleet.nodes[1].get("key", || load));
    fleet.pass(SEC);
    fleet.nodes[0].set("key".to_owned(), 77);
    fleet.pass(SEC);
    network.up();
    let answer = fleet.sim.run(alone).unwrap();
    check(&answer, 2, Source::Loaded);
    fleet.pass(10 * SEC);
    check(&fleet.ask(1), 77, Source::Tier);
    // What is loaded after that is not doubted.
    fleet.nodes[1].invalidate("key");
    fleet.pass(SEC);
    check(&fleet.ask(1), 3, Source::Loaded);
    fleet.pass(20 * SEC);
    check(&fleet.ask(1), 3, Source::Memory);
}

#[test]
fn a_cold_node_serves_what_the_tier_keeps_while_it_loads_and_if_that_fails() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC).grace(SEC).on_error(100 * SEC));
    check(&fleet.ask(0), 1, Source::Loaded);
    fleet.pass(1_100 * MS);
    let from = fleet.env.now();
    check(&fleet.ask(1), 1, Source::Stale);
    assert!(fleet.env.now() - from < 5 * MS, "as soon as the tier has answered");
    fleet.pass(100 * MS);
    check(&fleet.ask(1), 2, Source::Memory);
    let policy = Policy::strict(SEC).on_error(100 * SEC);
    let mut fleet = Fleet::new(2, &policy);
    check(&fleet.ask(0), 1, Source::Loaded);
    fleet.pass(5 * SEC);
    let fails = fleet.nodes[1].get("key", || async { Err("down".to_owned()) });
    check(&fleet.sim.run(fails), 1, Source::StaleOnError);
    check(&fleet.ask(1), 1, Source::StaleOnError);
}

#[test]
fn that_there_is_no_such_thing_is_known_to_the_fleet_and_what_is_not_to_be_kept_is_not() {
    let mut fleet = Fleet::new(5, &Policy::strict(SEC));
    let ask_all = |fleet: &mut Fleet, found: fn(u32) -> Load<u32>| -> Vec<Answer> {
        let ask = |node: &Node| {
            let load = fleet.load(80 * MS);
            fleet.env.spawn(node.get_with("key", |_| async move { load.await.map(found) }))
        };
        let gets: Vec<Task<Answer>> = fleet.nodes.iter().map(ask).collect();
        gets.into_iter().map(|get| fleet.sim.run(get).unwrap()).collect()
    };
    let absent = ask_all(&mut fleet, |_| Load::Absent(None));
    assert!(absent.iter().all(|answer| matches!(answer, Err(GetError::Absent))));
    assert_eq!(fleet.loads(), 1);
    fleet.pass(2 * SEC);
    let uncached = ask_all(&mut fleet, Load::Uncached);
    assert!(uncached.iter().all(|answer| answer.as_ref().unwrap().value == 2), "{uncached:?}");
    assert!(fleet.tier.is_empty() && fleet.nodes.iter().all(|node| node.peek("key").is_none()));
    assert_eq!(fleet.loads(), 2);
}

#[test]
fn memory_asks_the_tier_after_its_own_time() {
    let link = Link::default().memory(SEC);
    let mut fleet = Fleet::with(2, &link, |builder| builder.policy(Policy::strict(100 * SEC)));
    check(&fleet.ask(0), 1, Source::Loaded);
    fleet.pass(1_100 * MS);
    check(&fleet.ask(0), 1, Source::Tier);
    check(&fleet.ask(0), 1, Source::Memory);
    assert_eq!(fleet.loads(), 1);
}

#[test]
fn a_tier_and_a_load_that_answer_at_once_answer() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC));
    fleet.faults.latency(Duration::ZERO);
    let get = fleet.nodes[0].get("key", || async { Ok(7) });
    check(&fleet.sim.run(get), 7, Source::Loaded);
    check(&fleet.ask(1), 7, Source::Tier);
}

#[test]
fn a_cache_that_is_gone_does_not_listen() {
    let mut fleet = Fleet::new(2, &Policy::strict(SEC));
    fleet.ask_all();
    drop(fleet.nodes.pop());
    fleet.pass(SEC);
    fleet.nodes[0].invalidate("key");
    fleet.pass(SEC);
    check(&fleet.ask(0), 2, Source::Loaded);
}

fn names(keys: &str) -> Vec<String> {
    keys.chars().map(String::from).collect()
}

/// Which keys were found, with what value, from where.
#[track_caller]
fn check_many(batch: &Batch<String, u32, String>, expected: &[(&str, u32, Source)]) {
    let found: Vec<_> = batch.found.iter().map(|(key, got)| (key.as_str(), got.value, got.source)).collect();
    assert_eq!(found, expected, "absent: {:?}, failed: {:?}", batch.absent, batch.failed);
}

#[test]
fn nodes_with_overlapping_batches_load_each_key_once() {
    let mut fleet = Fleet::new(3, &Policy::strict(100 * SEC));
    let [one, two] = [fleet.ask_many(0, "abcd", 80 * MS), fleet.ask_many(1, "dcbe", 80 * MS)];
    let single = fleet.nodes[2].get("c", || fleet.load(80 * MS));
    let (one, two) = (fleet.sim.run(one), fleet.sim.run(two));
    assert_eq!(fleet.batches(), ["abcd", "e"]);
    check_many(&one, &["a", "b", "c", "d"].map(|key| (key, 1, Source::Loaded)));
    let tier = |key| (key, 1, Source::Tier);
    check_many(&two, &[tier("d"), tier("c"), tier("b"), ("e", 2, Source::Loaded)]);
    check(&fleet.sim.run(single), 1, Source::Tier);
    assert!(fleet.env.now().as_nanos() < 90_000_000, "and nobody waits for more than a load: {:?}", fleet.env.now());
}

#[test]
fn a_batch_takes_from_the_tier_what_is_there_by_one_question() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    let first = fleet.ask_many(0, "abc", 80 * MS);
    drop(fleet.sim.run(first));
    fleet.pass(10 * MS);
    let (calls, from) = (fleet.faults.calls(), fleet.env.now());
    let again = fleet.ask_many(1, "abc", 80 * MS);
    check_many(&fleet.sim.run(again), &["a", "b", "c"].map(|key| (key, 1, Source::Tier)));
    assert_eq!((fleet.faults.calls() - calls, fleet.env.now() - from, fleet.loads()), (1, 2 * MS, 1));
    assert_eq!(fleet.nodes[1].tier_stats().unwrap().lookups, 3);
    let kept = fleet.ask_many(1, "cab", 80 * MS);
    check_many(&fleet.sim.run(kept), &["c", "a", "b"].map(|key| (key, 1, Source::Memory)));
}

#[test]
fn what_a_batch_has_a_lease_for_does_not_wait_for_what_another_node_loads() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    let slow = fleet.nodes[0].get("b", || fleet.load(2 * SEC));
    fleet.pass(10 * MS);
    let batch = fleet.ask_many(1, "ab", 80 * MS);
    let single = fleet.nodes[1].get("a", || async { unreachable!("the batch loads it") });
    check(&fleet.sim.run(single), 2, Source::Joined);
    assert!(fleet.env.now().as_nanos() < 100_000_000, "{:?}", fleet.env.now());
    check_many(&fleet.sim.run(batch), &[("a", 2, Source::Loaded), ("b", 1, Source::Tier)]);
    assert_eq!((fleet.loads(), fleet.batches()), (2, vec!["a".to_owned()]));
    drop(slow);
}

#[test]
fn without_the_tier_a_batch_is_one_load_within_a_timeout() {
    for silent in [false, true] {
        let mut fleet = Fleet::new(1, &Policy::strict(100 * SEC));
        if silent {
            fleet.faults.silent();
        } else {
            fleet.faults.down();
        }
        let batch = fleet.ask_many(0, "abc", 80 * MS);
        check_many(&fleet.sim.run(batch), &["a", "b", "c"].map(|key| (key, 1, Source::Loaded)));
        assert!(fleet.env.now().as_nanos() <= 330_000_000, "a timeout and a load: {:?}", fleet.env.now());
        assert_eq!(fleet.batches(), ["abc"]);
    }
}

#[test]
fn a_batch_that_waits_for_another_node_when_the_tier_goes_away_loads_the_rest_itself() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    drop(fleet.nodes[0].get("b", pending));
    fleet.pass(10 * MS);
    let batch = fleet.ask_many(1, "ab", 80 * MS);
    fleet.pass(200 * MS);
    fleet.faults.silent();
    check_many(&fleet.sim.run(batch), &[("a", 1, Source::Loaded), ("b", 2, Source::Loaded)]);
    assert_eq!(fleet.batches(), ["a", "b"]);
    assert!(fleet.env.now().as_nanos() < 2_500_000_000, "{:?}", fleet.env.now());
}

#[test]
fn a_batch_is_given_the_lease_of_a_node_whose_load_fails_and_passes_on_its_own() {
    let mut fleet = Fleet::new(3, &Policy::strict(100 * SEC));
    let env = fleet.env.clone();
    let failing = fleet.nodes[0].get("b", || async move {
        env.sleep(80 * MS).await;
        Err("down".to_owned())
    });
    fleet.pass(10 * MS);
    let batch = fleet.ask_many(1, "ab", 80 * MS);
    check_many(&fleet.sim.run(batch), &[("a", 1, Source::Loaded), ("b", 2, Source::Loaded)]);
    assert!(fleet.sim.run(failing).is_err() && fleet.batches() == ["a", "b"]);

    let env = fleet.env.clone();
    let panicking = fleet.nodes[0].get_many(&names("cd"), move |_| async move {
        env.sleep(80 * MS).await;
        assert!(env.now() == Tick::ZERO, "as it does");
        Ok(Vec::<(String, u32)>::new())
    });
    fleet.pass(10 * MS);
    let from = fleet.env.now();
    let next = fleet.ask_many(2, "cd", 80 * MS);
    assert_eq!(fleet.sim.run(next).found.len(), 2);
    assert!(fleet.env.now() - from < 500 * MS, "without waiting for a lease to expire");
    let panicked = fleet.sim.run(panicking);
    assert!(panicked.failed.iter().all(|(_, error)| matches!(error, GetError::Panicked(_))), "{panicked:?}");
}

#[test]
fn a_batch_that_takes_longer_than_its_leases_keeps_them_all() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    let slow = fleet.ask_many(0, "abc", 8 * SEC);
    fleet.pass(50 * MS);
    let other = fleet.ask_many(1, "cba", 80 * MS);
    check_many(&fleet.sim.run(other), &["c", "b", "a"].map(|key| (key, 1, Source::Tier)));
    assert_eq!(fleet.loads(), 1);
    drop(slow);
}

#[test]
fn a_batch_is_fenced_in_the_tier_key_by_key() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    let batch = fleet.ask_many(0, "ab", 80 * MS);
    fleet.pass(40 * MS);
    fleet.nodes[1].invalidate("a");
    check_many(&fleet.sim.run(batch), &[("a", 1, Source::Loaded), ("b", 1, Source::Loaded)]);
    fleet.pass(10 * MS);
    let again = fleet.ask_many(1, "ab", 80 * MS);
    check_many(&fleet.sim.run(again), &[("a", 2, Source::Loaded), ("b", 1, Source::Tier)]);
    assert_eq!(fleet.nodes[0].stats().fenced, 1);
}

#[test]
fn stale_keys_of_a_batch_are_refreshed_by_one_node_and_nobody_waits() {
    let mut fleet = Fleet::new(5, &Policy::strict(SEC).grace(SEC));
    for round in 1..=3 {
        let gets: Vec<_> = (0..5).map(|node| fleet.env.spawn(fleet.ask_many(node, "abc", 80 * MS))).collect();
        let from = fleet.env.now();
        let found: usize = gets.into_iter().map(|get| fleet.sim.run(get).unwrap().found.len()).sum();
        assert_eq!(found, 15);
        assert!(round == 1 || fleet.env.now() == from, "served while it is loaded again");
        fleet.pass(1_100 * MS);
        assert_eq!(fleet.loads(), round, "in the whole fleet");
    }
}

#[test]
fn hot_keys_stay_in_memory_for_longer_and_still_hear_of_changes() {
    let link = Link::default().memory(SEC);
    let mut fleet = Fleet::with(2, &link, |builder| builder.policy(Policy::strict(6 * SEC)).hot(0.5));
    let ask = |fleet: &mut Fleet, node: usize, key: &str, times: u32| {
        let mut sources = Vec::new();
        for _ in 0..times {
            let get = fleet.nodes[node].get(key, || fleet.load(MS));
            sources.push(fleet.sim.run(get).unwrap().source);
        }
        sources[0]
    };
    ask(&mut fleet, 0, "hot", 1);
    ask(&mut fleet, 0, "cold", 1);
    fleet.pass(10 * MS);
    ask(&mut fleet, 0, "hot", 2_000);
    assert!(fleet.nodes[0].is_hot("hot") && !fleet.nodes[0].is_hot("cold"));
    fleet.pass(1_100 * MS);
    // As told for all, since nobody knew that it was hot; from now on as told for the hot.
    assert_eq!([ask(&mut fleet, 0, "hot", 1), ask(&mut fleet, 0, "cold", 1)], [Source::Tier; 2]);
    fleet.pass(3_800 * MS);
    assert_eq!([ask(&mut fleet, 0, "hot", 1), ask(&mut fleet, 0, "cold", 1)], [Source::Memory, Source::Tier]);
    fleet.pass(1_200 * MS);
    assert_eq!(ask(&mut fleet, 0, "hot", 1), Source::Loaded, "no longer than in the tier");
    fleet.nodes[1].set("hot".to_owned(), 77);
    fleet.pass(10 * MS);
    check(&fleet.sim.run(fleet.nodes[0].get("hot", pending)), 77, Source::Tier);
    fleet.pass(3_900 * MS);
    assert_eq!(ask(&mut fleet, 0, "hot", 1), Source::Memory);
    fleet.pass(200 * MS);
    assert_eq!(ask(&mut fleet, 0, "hot", 1), Source::Tier, "four times as long as others");
}

#[test]
fn clearing_one_node_sends_nobody_to_the_origin() {
    let mut fleet = Fleet::new(2, &Policy::strict(100 * SEC));
    fleet.ask_all();
    fleet.nodes[0].clear();
    fleet.pass(10 * MS);
    assert!(fleet.nodes[0].is_empty());
    check(&fleet.ask(0), 1, Source::Tier);
    check(&fleet.ask(1), 1, Source::Memory);
    assert_eq!(fleet.loads(), 1);
}
