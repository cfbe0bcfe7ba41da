//! A cache that cannot stampede: each hazard once, in virtual time.

use std::{
    future::{Ready, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{entry::Life, load::Purpose, *};
use crate::{
    env::{Task, Tick, nanos, sim::Sim},
    gate::Gate,
    limit::Bulkhead,
};

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

type Answer = Result<Got<u32>, GetError<String>>;

/// A cache in a simulated world, whose loads take a while, are counted, and give the number of the load.
struct Scene {
    sim: Sim,
    env: Env,
    cache: Cache<String, u32, String>,
    loads: Arc<AtomicU32>,
}

impl Scene {
    fn new(policy: Policy) -> Scene {
        Scene::with(|builder| builder.policy(policy))
    }

    fn with(settings: impl FnOnce(CacheBuilder<String, u32>) -> CacheBuilder<String, u32>) -> Scene {
        let sim = Sim::new(1);
        let env = sim.env();
        let cache = settings(Cache::builder(&env)).build();
        Scene { sim, env, cache, loads: Arc::default() }
    }

    fn load(&self, takes: Duration) -> impl Future<Output = Result<u32, String>> + Send + use<> {
        let (env, loads) = (self.env.clone(), Arc::clone(&self.loads));
        async move {
            let number = loads.fetch_add(1, Ordering::Relaxed) + 1;
            env.sleep(takes).await;
            Ok(number)
        }
    }

    /// A load that fails.
    fn fail(&self, takes: Duration) -> impl Future<Output = Result<u32, String>> + Send + use<> {
        let load = self.load(takes);
        async move { Err(format!("load {} failed", load.await?)) }
    }

    fn get(&self, takes: Duration) -> Get<u32, String> {
        self.cache.get("key", || self.load(takes))
    }

    /// Asks, and gives what came of it once that is known.
    fn ask(&mut self, takes: Duration) -> Answer {
        let get = self.get(takes);
        self.sim.run(get)
    }

    fn ask_failing(&mut self, takes: Duration) -> Answer {
        let get = self.cache.get("key", || self.fail(takes));
        self.sim.run(get)
    }

    fn pass(&mut self, time: Duration) {
        let until = self.env.now() + time;
        self.sim.run_until(until);
    }

    fn loads(&self) -> u32 {
        self.loads.load(Ordering::Relaxed)
    }
}

#[track_caller]
fn check(answer: &Answer, value: u32, source: Source) {
    match answer {
        Ok(got) => assert_eq!((got.value, got.source), (value, source)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn what_is_there_is_not_loaded_again_and_its_age_is_known() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    check(&scene.ask(80 * MS), 1, Source::Loaded);
    scene.pass(7 * SEC);
    let again = scene.ask(80 * MS);
    check(&again, 1, Source::Memory);
    for age in [again.unwrap().age(), scene.cache.peek("key").unwrap().age()] {
        assert!((7 * SEC..=7_060 * MS).contains(&age), "{age:?}, and less than a five hundredth of a minute more");
    }
    assert_eq!(scene.loads(), 1);
}

/// Callers who come every millisecond for three times to live; what they got, and how long each waited.
fn crowd(policy: Policy) -> (Scene, Vec<(Got<u32>, Duration)>) {
    let mut scene = Scene::new(policy);
    let mut answers = Vec::new();
    let mut tasks: Vec<Task<(Answer, Duration)>> = Vec::new();
    for _ in 0..3_000 {
        let (env, get, asked) = (scene.env.clone(), scene.get(80 * MS), scene.env.now());
        tasks.push(scene.env.spawn(async move { (get.await, env.now() - asked) }));
        scene.pass(MS);
    }
    scene.pass(SEC);
    for task in tasks {
        let (answer, waited) = scene.sim.run(task).unwrap();
        answers.push((answer.unwrap(), waited));
    }
    (scene, answers)
}

#[test]
fn with_grace_a_crowd_makes_one_load_per_expiry_and_nobody_waits_after_the_first() {
    let (scene, answers) = crowd(Policy::strict(SEC).grace(SEC));
    assert_eq!(scene.loads(), 3, "one, and one for each of the expiries at 1.08 and 2.08 s");
    assert!(answers.iter().skip(80).all(|(_, waited)| waited.is_zero()));
    let stale = answers.iter().filter(|(got, _)| got.source == Source::Stale).count();
    assert!((160..=164).contains(&stale), "for the 80 ms of two loads: {stale}");
    assert!(answers.iter().all(|(got, _)| got.age() <= SEC + 81 * MS));
}

#[test]
fn without_grace_a_crowd_makes_one_load_per_expiry_and_nobody_gets_anything_stale() {
    let (scene, answers) = crowd(Policy::strict(SEC));
    assert_eq!(scene.loads(), 3);
    assert!(answers.iter().all(|(got, _)| !got.is_stale() && got.age() <= SEC));
    assert!(answers.iter().all(|(_, waited)| *waited <= 80 * MS));
}

#[test]
fn with_early_refresh_a_crowd_neither_waits_nor_gets_anything_stale_nor_loads_more_than_once_at_a_time() {
    let (scene, answers) = crowd(Policy::new(SEC).jitter(0.0));
    assert!((3..=6).contains(&scene.loads()), "{}", scene.loads());
    assert_eq!(scene.cache.stats().refreshes, u64::from(scene.loads()) - 1);
    assert!(answers.iter().skip(80).all(|(got, waited)| waited.is_zero() && got.source == Source::Memory));
}

/// Dice for each reader would begin the earlier the more readers there are.
#[test]
fn a_busy_key_is_refreshed_as_often_as_a_quiet_one() {
    let refreshes = |gap: Duration| {
        let mut scene = Scene::new(Policy::new(10 * SEC).jitter(0.0));
        check(&scene.ask(80 * MS), 1, Source::Loaded);
        let end = scene.env.now() + 100 * SEC;
        while scene.env.now() < end {
            drop(scene.get(80 * MS));
            scene.pass(gap);
        }
        let Stats { misses, refreshes, .. } = scene.cache.stats();
        assert_eq!(misses, 1, "nobody waits after the first, with reads every {gap:?}");
        refreshes
    };
    assert_eq!([8 * MS, MS, MS / 10].map(refreshes), [10; 3]);
}

#[test]
fn who_comes_after_the_end_joins_a_refresh_that_takes_too_long() {
    let mut scene = Scene::new(Policy::strict(SEC).early(true));
    check(&scene.ask(80 * MS), 1, Source::Loaded);
    scene.pass(899 * MS);
    check(&scene.ask(400 * MS), 1, Source::Memory);
    assert_eq!(scene.loads(), 2, "the lead is at least 100 ms");
    scene.pass(200 * MS);
    check(&scene.ask(400 * MS), 2, Source::Joined);
    assert_eq!(scene.loads(), 2);
}

#[test]
fn a_load_that_is_slower_than_every_caller_is_patient_still_fills_the_cache() {
    let mut scene = Scene::new(Policy::default());
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let get = scene.get(100 * MS).by(scene.env.now() + 40 * MS);
        tasks.push(scene.env.spawn(get));
        scene.pass(10 * MS);
    }
    scene.pass(SEC);
    let served = tasks.into_iter().filter_map(|task| scene.sim.run(task).unwrap().ok()).count();
    assert_eq!((scene.loads(), served), (1, 94));
}

#[test]
fn a_failing_origin_is_asked_once_in_a_pause_and_what_is_there_is_served_but_not_for_ever() {
    let mut scene = Scene::new(Policy::strict(10 * SEC).on_error(60 * SEC).pause(4 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(11 * SEC);
    let mut stale = 0;
    let failed = loop {
        match scene.ask_failing(MS) {
            Ok(got) => {
                assert_eq!((got.value, got.source), (1, Source::StaleOnError));
                assert!(got.age() <= 70 * SEC);
                stale += 1;
            }
            Err(error) => break error,
        }
        scene.pass(100 * MS);
    };
    assert!(matches!(failed, GetError::Load(_)));
    assert!(stale > 550, "{stale}");
    let attempts = scene.loads() - 1;
    assert!((15..=31).contains(&attempts), "59 s in pauses of 2 to 4 s: {attempts}");
    assert_eq!(scene.cache.stats().failures, u64::from(attempts));
}

#[test]
fn a_failed_refresh_within_the_grace_is_not_tried_again_by_the_next_caller() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC).pause(2 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    check(&scene.ask_failing(MS), 1, Source::Stale);
    scene.pass(10 * MS);
    assert_eq!(scene.loads(), 2);
    for _ in 0..9 {
        check(&scene.ask_failing(MS), 1, Source::StaleOnError);
        scene.pass(100 * MS);
    }
    assert_eq!(scene.loads(), 2, "the pause is a second at least");
    scene.pass(SEC);
    check(&scene.ask(MS), 1, Source::Stale);
    scene.pass(10 * MS);
    check(&scene.ask(MS), 3, Source::Memory);
}

#[test]
fn a_refresh_that_fails_shortly_before_the_end_does_not_make_stale_what_is_fresh() {
    let mut scene = Scene::new(Policy::new(10 * SEC).jitter(0.0).pause(4 * SEC).on_error(60 * SEC));
    check(&scene.ask(SEC), 1, Source::Loaded);
    scene.pass(9 * SEC + 900 * MS);
    while scene.loads() == 1 {
        check(&scene.ask_failing(MS), 1, Source::Memory);
        scene.pass(2 * MS);
    }
    check(&scene.ask(MS), 1, Source::Memory);
    assert_eq!(scene.cache.peek("key").unwrap().source, Source::Memory);
    assert_eq!(scene.cache.stats().stale, 0);
    scene.pass(100 * MS);
    check(&scene.ask(MS), 1, Source::StaleOnError);
    assert_eq!((scene.loads(), scene.cache.stats().stale), (2, 1));
}

#[test]
fn a_slow_load_is_waited_for_only_as_long_as_patience_lasts_and_then_fills_all_the_same() {
    let mut scene = Scene::new(Policy::strict(SEC).on_error(60 * SEC).patience(50 * MS));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let asked = scene.env.now();
    check(&scene.ask(300 * MS), 1, Source::StaleOnError);
    assert_eq!(scene.env.now() - asked, 50 * MS);
    check(&scene.ask(300 * MS), 1, Source::StaleOnError);
    scene.pass(300 * MS);
    check(&scene.ask(MS), 2, Source::Memory);
}

#[test]
fn a_load_that_hangs_fails_everybody_in_time_and_holds_nobody_up() {
    let mut scene = Scene::new(Policy::default().load_timeout(5 * SEC));
    let hung = scene.cache.get("key", pending);
    let joined = scene.get(MS);
    let asked = scene.env.now();
    assert!(matches!(scene.sim.run(hung), Err(GetError::TimedOut)));
    assert!(matches!(scene.sim.run(joined), Err(GetError::TimedOut)));
    assert_eq!(scene.env.now() - asked, 5 * SEC);
    check(&scene.ask(MS), 1, Source::Loaded);
}

#[test]
fn a_panic_in_a_refresh_does_not_reach_the_callers_that_were_served_and_it_is_tried_again_after_a_pause() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let get = scene.cache.get("key", || async { panic!("refresh") });
    check(&scene.sim.run(get), 1, Source::Stale);
    check(&scene.ask(MS), 1, Source::StaleOnError);
    scene.pass(2 * SEC);
    check(&scene.ask(MS), 1, Source::Stale);
    scene.pass(10 * MS);
    check(&scene.ask(MS), 2, Source::Memory);
}

#[test]
fn a_load_that_panics_is_an_error_for_whoever_began_it_too_early_or_late_unless_there_is_something_to_serve() {
    let mut scene = Scene::new(Policy::strict(SEC).on_error(60 * SEC));
    let panic = |scene: &Scene, takes: Duration| {
        let load = scene.load(takes);
        scene.cache.get("key", move || async move {
            if !takes.is_zero() {
                load.await?;
            }
            panic!("load")
        })
    };
    for takes in [Duration::ZERO, MS] {
        let get = panic(&scene, takes);
        assert!(matches!(scene.sim.run(get), Err(GetError::Panicked(_))));
    }
    scene.cache.set("key".into(), 7);
    scene.pass(2 * SEC);
    for takes in [Duration::ZERO, MS] {
        let get = panic(&scene, takes);
        check(&scene.sim.run(get), 7, Source::StaleOnError);
    }
}

#[test]
fn what_is_absent_for_no_time_takes_no_room_but_that_of_a_value_which_is_no_longer_true() {
    let mut scene = Scene::new(Policy::strict(SEC).on_error(60 * SEC));
    let absent = |scene: &mut Scene| {
        let get = scene.cache.get_with("key", |_| async { Ok(Load::Absent(Some(Duration::ZERO))) });
        assert!(matches!(scene.sim.run(get), Err(GetError::Absent)));
    };
    absent(&mut scene);
    assert_eq!(scene.cache.len(), 0);
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    absent(&mut scene);
    assert!(scene.ask_failing(MS).is_err(), "what was there is not served for what is not there any more");
}

#[test]
fn what_does_not_exist_and_what_failed_is_remembered_for_a_while_unless_told_otherwise() {
    let absent = |scene: &mut Scene| {
        let loads = Arc::clone(&scene.loads);
        let get = scene.cache.get_with("key", |_| async move {
            loads.fetch_add(1, Ordering::Relaxed);
            Ok(Load::Absent(None))
        });
        assert!(matches!(scene.sim.run(get), Err(GetError::Absent)));
    };
    let mut scene = Scene::new(Policy::strict(60 * SEC).absent(5 * SEC).failed(2 * SEC));
    absent(&mut scene);
    scene.pass(4 * SEC);
    absent(&mut scene);
    assert_eq!(scene.loads(), 1);
    scene.pass(SEC);
    assert!(matches!(scene.ask_failing(MS), Err(GetError::Load(_))));
    assert!(matches!(scene.ask(MS), Err(GetError::Load(error)) if *error == "load 2 failed"));
    scene.pass(2 * SEC);
    check(&scene.ask(MS), 3, Source::Loaded);

    let mut forgetful = Scene::new(Policy::strict(60 * SEC).failed(Duration::ZERO));
    assert!(matches!(forgetful.ask_failing(MS), Err(GetError::Load(_))));
    check(&forgetful.ask(MS), 2, Source::Loaded);
}

#[test]
fn an_origin_that_fails_at_once_is_not_asked_once_for_each_caller() {
    let mut scene = Scene::new(Policy::default());
    for _ in 0..1_000 {
        assert!(matches!(scene.ask_failing(Duration::ZERO), Err(GetError::Load(_))));
        scene.pass(MS);
    }
    assert!((10..=12).contains(&scene.loads()), "{} in a second", scene.loads());
}

#[test]
fn a_fill_after_its_key_was_invalidated_is_refused_and_a_newcomer_does_not_join_the_old_load() {
    let mut scene = Scene::new(Policy::default());
    let before = scene.get(100 * MS);
    scene.pass(50 * MS);
    scene.cache.invalidate("key");
    let after = scene.get(10 * MS);
    check(&scene.sim.run(before), 1, Source::Loaded);
    check(&scene.sim.run(after), 2, Source::Loaded);
    check(&scene.ask(MS), 2, Source::Memory);
    assert_eq!(scene.cache.stats().fenced, 1);

    scene.cache.invalidate("key");
    let alone = scene.get(100 * MS);
    scene.pass(50 * MS);
    scene.cache.invalidate("key");
    check(&scene.sim.run(alone), 3, Source::Loaded);
    assert!(scene.cache.peek("key").is_none());
}

#[test]
fn a_fill_after_its_key_was_set_is_refused() {
    let mut scene = Scene::new(Policy::default());
    let before = scene.get(100 * MS);
    scene.pass(50 * MS);
    scene.cache.set("key".into(), 77);
    check(&scene.ask(MS), 77, Source::Memory);
    check(&scene.sim.run(before), 1, Source::Loaded);
    check(&scene.ask(MS), 77, Source::Memory);
}

#[test]
fn a_failed_load_does_not_bring_back_what_was_invalidated_meanwhile() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    check(&scene.ask_failing(100 * MS), 1, Source::Stale);
    scene.cache.invalidate("key");
    scene.pass(SEC);
    assert!(scene.cache.peek("key").is_none());
}

/// A cache in which something happens to the key between its being looked up and the beginning of its load, which fails.
fn in_between(policy: Policy, ask: fn(&mut Scene), act: fn(&Cache<String, u32, String>)) -> Option<(u32, Source)> {
    let late: Arc<OnceLock<Cache<String, u32, String>>> = Arc::default();
    let acts = Arc::clone(&late);
    let mut scene = Scene::with(|builder| {
        let meanwhile = move |_: &String| {
            // The policy is asked for after the lookup; and by what is done here, which is not to be done again then.
            static INSIDE: Mutex<()> = Mutex::new(());
            if let (Some(cache), Ok(_inside)) = (acts.get(), INSIDE.try_lock()) {
                act(cache);
            }
            None
        };
        builder.policy(policy).policies(meanwhile)
    });
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    late.set(scene.cache.clone()).unwrap();
    ask(&mut scene);
    scene.pass(100 * MS);
    scene.cache.peek("key").map(|got| (got.value, got.source))
}

#[test]
fn a_failed_load_does_not_bring_back_what_was_changed_between_the_lookup_and_its_beginning() {
    let (stale, kept) = (Policy::strict(SEC).grace(60 * SEC), Policy::strict(SEC).on_error(60 * SEC));
    let one: fn(&mut Scene) = |scene| drop(scene.ask_failing(MS));
    let many: fn(&mut Scene) = |scene| {
        let load = |_: Vec<String>| async { Err::<Vec<(String, u32)>, _>("down".to_owned()) };
        let get = scene.cache.get_many(&["key".to_owned()], load);
        drop(scene.sim.run(get));
    };
    let prime: fn(&mut Scene) = |scene| {
        let cache = scene.cache.clone();
        let down = |_| async { Err("down".to_owned()) };
        scene.sim.run(async move { cache.prime(["key".to_owned()], 1, down).await });
    };
    let ways = [(&stale, one), (&kept, one), (&stale, many), (&kept, many), (&kept, prime)];
    for (number, (policy, ask)) in ways.into_iter().enumerate() {
        let after = |act| in_between(policy.clone(), ask, act);
        assert_eq!(after(|cache| cache.invalidate("key")), None, "{number}");
        assert_eq!(after(Cache::clear), None, "{number}");
        let set = after(|cache| cache.set_with("key".into(), 7, &Keep::ttl(3600 * SEC)));
        assert_eq!(set, Some((7, Source::Memory)), "{number}");
        assert!(after(|_| ()).is_some(), "{number}: else it is served for longer");
    }
}

#[test]
fn a_fill_after_its_tag_was_expired_is_refused() {
    let mut scene = Scene::new(Policy::default());
    let tagged = |scene: &Scene, tag: &'static str| {
        let load = scene.load(100 * MS);
        scene.cache.get_with("key", move |_| async move { Ok(Load::With(load.await?, Keep::tagged(tag))) })
    };
    let one = tagged(&scene, "shop/1");
    scene.pass(50 * MS);
    scene.cache.expire_tag("shop/1", Duration::ZERO);
    check(&scene.sim.run(one), 1, Source::Loaded);
    assert!(scene.cache.peek("key").is_none());
    let other = tagged(&scene, "shop/2");
    scene.pass(50 * MS);
    scene.cache.expire_tag("shop/1", Duration::ZERO);
    check(&scene.sim.run(other), 2, Source::Loaded);
    assert!(scene.cache.peek("key").is_some());
}

#[test]
fn who_asks_after_a_tag_was_expired_does_not_get_what_was_being_loaded_before() {
    let mut scene = Scene::new(Policy::strict(SEC));
    let tagged = |scene: &Scene| {
        let load = scene.load(100 * MS);
        scene.cache.get_with("key", move |_| async move { Ok(Load::With(load.await?, Keep::tagged("shop"))) })
    };
    let first = tagged(&scene);
    check(&scene.sim.run(first), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let before = tagged(&scene);
    scene.pass(50 * MS);
    scene.cache.expire_tag("toys", Duration::ZERO);
    let joined = tagged(&scene);
    scene.cache.expire_tag("shop", HOUR);
    let after = [tagged(&scene), tagged(&scene)];
    check(&scene.sim.run(before), 2, Source::Loaded);
    check(&scene.sim.run(joined), 2, Source::Joined);
    let [led, followed] = after.map(|get| scene.sim.run(get));
    check(&led, 3, Source::Loaded);
    check(&followed, 3, Source::Joined);
    assert_eq!(scene.cache.peek("key").unwrap().value, 3);
}

#[test]
fn expiring_a_tag_makes_its_entries_stale_one_by_one_and_no_others() {
    let sim = Sim::new(1);
    let env = sim.env();
    let cache: Cache<u32, u32> = Cache::builder(&env).policy(Policy::strict(3600 * SEC).grace(3600 * SEC)).build();
    for key in 0..1_000 {
        let tag = if key % 2 == 0 { "even" } else { "odd" };
        cache.set_with(key, key, &Keep::tagged(tag).tag("all"));
    }
    let mut sim = sim;
    cache.expire_tag("even", 100 * SEC);
    let stale = |cache: &Cache<u32, u32>| (0..1_000).filter(|key| cache.peek(key).unwrap().is_stale()).count();
    assert!(stale(&cache) < 5);
    for tenth in 1..=10 {
        sim.run_until(Tick::ZERO + 10 * SEC * tenth);
        let so_far = usize::try_from(tenth * 50).unwrap();
        assert!(stale(&cache).abs_diff(so_far) < 30, "{tenth}: {}", stale(&cache));
    }
    assert_eq!(stale(&cache), 500);
    cache.set_with(2, 0, &Keep::tagged("even"));
    assert!(!cache.peek(&2).unwrap().is_stale(), "what is set after is not touched");
    cache.expire_tag("all", Duration::ZERO);
    assert_eq!(stale(&cache), 999);
}

#[test]
fn what_was_set_between_two_expiries_of_its_tag_is_stale_though_no_time_has_passed() {
    let cache: Cache<u32, u32> = Cache::builder(&Sim::new(1).env()).policy(Policy::strict(SEC).grace(SEC)).build();
    for _ in 0..3 {
        cache.set_with(1, 1, &Keep::tagged("all"));
        assert!(!cache.peek(&1).unwrap().is_stale());
        cache.expire_tag("all", Duration::ZERO);
        assert!(cache.peek(&1).unwrap().is_stale());
    }
}

#[test]
fn a_tag_that_is_expired_again_and_again_does_not_keep_its_entries_fresh_for_ever() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let cache: Cache<u32, u32> = Cache::builder(&env).policy(Policy::strict(3600 * SEC).grace(3600 * SEC)).build();
    for key in 0..100 {
        cache.set_with(key, key, &Keep::tagged("all"));
    }
    for second in 0..21 {
        sim.run_until(Tick::ZERO + SEC * second);
        cache.expire_tag("all", 10 * SEC);
    }
    assert!((0..100).all(|key| cache.peek(&key).unwrap().is_stale()));
}

#[test]
fn a_load_says_how_long_its_value_is_kept_or_that_it_is_not() {
    let mut scene = Scene::new(Policy::strict(60 * SEC));
    let get = scene.cache.get_with("key", |_| async { Ok(Load::Uncached(5)) });
    check(&scene.sim.run(get), 5, Source::Loaded);
    assert!(scene.cache.is_empty());
    let get = scene.cache.get_with("key", |_| async { Ok(Load::With(6, Keep::ttl(2 * SEC).grace(SEC))) });
    check(&scene.sim.run(get), 6, Source::Loaded);
    scene.pass(1_999 * MS);
    check(&scene.ask(MS), 6, Source::Memory);
    scene.pass(2 * MS);
    assert_eq!(scene.cache.peek("key").unwrap().source, Source::Stale);
    scene.pass(SEC);
    assert!(scene.cache.peek("key").is_none());
}

#[test]
fn a_load_that_finds_nothing_changed_keeps_what_is_there_for_another_time_to_live() {
    let mut scene = Scene::new(Policy::strict(10 * SEC).grace(10 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(12 * SEC);
    let get = scene.cache.get_with("key", |prior| async move {
        let prior = prior.expect("it is there still");
        assert_eq!(prior.age, 12 * SEC);
        Ok(prior.unchanged())
    });
    check(&scene.sim.run(get), 1, Source::Stale);
    check(&scene.ask(MS), 1, Source::Memory);
    assert_eq!(scene.loads(), 1);
}

#[test]
fn however_many_tags_are_expired_no_more_are_remembered_than_may_be_and_no_entry_is_fresh_again() {
    let mut sim = Sim::new(1);
    let cache: Cache<u32, u32, String> = Cache::builder(&sim.env()).policy(Policy::new(3_600 * SEC)).build();
    cache.set_with(1, 1, &Keep::tagged("mine"));
    cache.set_with(2, 2, &Keep::tagged("other"));
    cache.set(3, 3);
    cache.expire_tag("mine", Duration::ZERO);
    for number in 0..70_000 {
        cache.expire_tag(&number.to_string(), Duration::ZERO);
    }
    assert!(cache.0.tags.remembered() <= 1 << 16);
    cache.set_with(4, 4, &Keep::tagged("mine"));
    let until = sim.env().now() + SEC;
    sim.run_until(until);
    let is_fresh = [1, 2, 3, 4].map(|key| cache.peek(&key).is_some_and(|got| got.source == Source::Memory));
    assert_eq!(is_fresh, [false, false, true, true]);
}

/// Callers come every millisecond for a second to what is stale, and each of their loads panics.
#[test]
fn a_load_that_panics_is_paused_as_one_that_fails_and_what_is_stale_is_served() {
    type Panicking = fn(&Scene) -> Get<u32, String>;
    let at_once: Panicking =
        |scene| scene.cache.get("key", || -> Ready<Result<u32, String>> { panic_quietly(&scene.loads) });
    let when_polled: Panicking = |scene| {
        let loads = Arc::clone(&scene.loads);
        scene.cache.get("key", || async move { panic_quietly(&loads) })
    };
    let later: Panicking = |scene| {
        let (env, loads) = (scene.env.clone(), Arc::clone(&scene.loads));
        scene.cache.get("key", || async move {
            env.sleep(MS).await;
            panic_quietly(&loads)
        })
    };
    for (limited, panicking) in [at_once, when_polled, later].into_iter().flat_map(|load| [(false, load), (true, load)])
    {
        for policy in [Policy::new(SEC).grace(600 * SEC), Policy::strict(SEC).on_error(600 * SEC)] {
            let mut scene = Scene::new(policy.clone());
            if limited {
                let limit = Bulkhead::new(&scene.env, 10);
                scene.cache = Cache::builder(&scene.env).policy(policy).load_limit(limit).build();
            }
            check(&scene.ask(MS), 1, Source::Loaded);
            scene.pass(2 * SEC);
            for _ in 0..1_000 {
                let get = panicking(&scene);
                assert_eq!(scene.sim.run(get).unwrap().value, 1);
                scene.pass(MS);
            }
            assert!(scene.loads() - 1 <= 3, "{} loads in a second", scene.loads() - 1);
            assert_eq!(scene.cache.stats().failures, u64::from(scene.loads() - 1));
        }
    }
}

/// A dashboard that shows hits while the origin is down and nobody is served.
#[test]
fn a_failure_that_is_remembered_is_no_hit() {
    let mut scene = Scene::new(Policy::new(60 * SEC).failed(SEC));
    for _ in 0..5 {
        assert!(matches!(scene.ask_failing(MS), Err(GetError::Load(_))));
    }
    let stats = scene.cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.loads), (0, 5, 1));
}

#[test]
fn a_panic_is_remembered_as_a_failure_is() {
    let mut scene = Scene::new(Policy::new(60 * SEC).failed(SEC));
    for _ in 0..100 {
        let loads = Arc::clone(&scene.loads);
        let get = scene.cache.get("key", || async move { panic_quietly(&loads) });
        assert!(matches!(scene.sim.run(get), Err(GetError::Panicked(panic)) if panic.message() == "no such file"));
    }
    assert_eq!(scene.loads(), 1);
    scene.pass(2 * SEC);
    check(&scene.ask(MS), 2, Source::Loaded);
}

/// Counts itself, and panics without a word on the terminal.
fn panic_quietly(loads: &AtomicU32) -> ! {
    loads.fetch_add(1, Ordering::Relaxed);
    std::panic::resume_unwind(Box::new("no such file"))
}

#[test]
fn what_has_not_changed_keeps_its_tags_and_what_was_said_of_it() {
    let mut scene = Scene::new(Policy::strict(10 * SEC).grace(100 * SEC));
    scene.cache.set_with("key".into(), 1, &Keep::ttl(2 * SEC).grace(20 * SEC).tag("shop"));
    for _ in 0..3 {
        scene.pass(3 * SEC);
        let get = scene.cache.get_with("key", |prior| async move { Ok(prior.unwrap().unchanged()) });
        check(&scene.sim.run(get), 1, Source::Stale);
    }
    scene.pass(SEC);
    assert_eq!(scene.cache.peek("key").unwrap().source, Source::Memory);
    scene.cache.expire_tag("shop", Duration::ZERO);
    assert_eq!(scene.cache.peek("key").unwrap().source, Source::Stale, "it has its tag");
    scene.pass(21 * SEC);
    assert!(scene.cache.peek("key").is_none(), "its own grace is over, and the policy's is not");
}

#[test]
fn entries_that_were_stored_together_do_not_expire_together() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let policy = Policy::new(100 * SEC).jitter(0.2).early(false);
    let cache: Cache<u32, u32> = Cache::builder(&env).policy(policy).build();
    (0..2_000).for_each(|key| cache.set(key, key));
    let fresh = |cache: &Cache<u32, u32>| (0..2_000).filter(|key| cache.peek(key).is_some()).count();
    sim.run_until(Tick::ZERO + 80 * SEC);
    assert_eq!(fresh(&cache), 2_000, "none before its time");
    let mut before = 2_000;
    for second in 81..=100 {
        sim.run_until(Tick::ZERO + SEC * second);
        let now = fresh(&cache);
        assert!((50..=150).contains(&(before - now)), "{second}: {}", before - now);
        before = now;
    }
    assert_eq!(before, 0);
}

#[test]
fn a_crowd_of_different_keys_stays_within_the_limit_and_misses_go_before_refreshes() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let policy = Policy::strict(SEC).grace(3600 * SEC);
    let cache: Cache<u32, u32> = Cache::builder(&env)
        .capacity(40_000)
        .policy(policy)
        .load_limit(Bulkhead::new(&env, 10).max_waiting(100_000))
        .build();
    let (now_loading, most, order) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let get = |key: u32| {
        let (env, now_loading, most, order) =
            (env.clone(), Arc::clone(&now_loading), Arc::clone(&most), Arc::clone(&order));
        cache.get(&key, move || async move {
            order.lock().unwrap().push(key);
            most.fetch_max(now_loading.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            env.sleep(MS).await;
            now_loading.fetch_sub(1, Ordering::Relaxed);
            Ok(key)
        })
    };
    (0..20_000).for_each(|key| cache.set(key, key));
    sim.run_until(Tick::ZERO + 2 * SEC);
    let refreshed: Vec<_> = (0..20_000).map(get).collect();
    let missed: Vec<_> = (20_000..30_000).map(get).collect();
    for answer in refreshed {
        assert_eq!(sim.run(answer).unwrap().source, Source::Stale);
    }
    for answer in missed {
        assert_eq!(sim.run(answer).unwrap().source, Source::Loaded);
    }
    assert_eq!(most.load(Ordering::Relaxed), 10);
    let begun = order.lock().unwrap().clone();
    let refreshes_before_misses = begun.iter().take(10_010).filter(|key| **key < 20_000).count();
    assert_eq!(refreshes_before_misses, 10, "those that had begun when the first miss came");
}

#[test]
fn a_refused_refresh_costs_nobody_anything_and_a_refused_miss_says_so() {
    let mut scene = Scene::with(|builder| builder.policy(Policy::strict(SEC).grace(60 * SEC)));
    scene.cache.set("key".into(), 7);
    let full = Bulkhead::new(&scene.env, 1).max_waiting(0);
    let cache: Cache<String, u32, String> =
        Cache::builder(&scene.env).policy(Policy::strict(SEC).grace(60 * SEC)).load_limit(full.clone()).build();
    let _taken = full.try_enter(&crate::gate::Ask::new(&scene.env)).unwrap();
    cache.set("key".into(), 7);
    scene.pass(2 * SEC);
    check(&scene.sim.run(cache.get("key", pending)), 7, Source::Stale);
    check(&scene.sim.run(cache.get("key", pending)), 7, Source::StaleOnError);
    assert!(matches!(scene.sim.run(cache.get("other", pending)), Err(GetError::Refused(_))));
}

#[test]
fn who_joins_a_refresh_that_waits_in_line_goes_before_all_other_refreshes() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let limit = Bulkhead::new(&env, 1).max_waiting(100);
    let policy = Policy::strict(SEC).grace(SEC);
    let cache: Cache<u32, u32> = Cache::builder(&env).policy(policy).load_limit(limit.clone()).build();
    let order = Arc::new(Mutex::new(Vec::new()));
    let get = |key: u32| {
        let (env, order) = (env.clone(), Arc::clone(&order));
        cache.get(&key, move || async move {
            order.lock().unwrap().push(key);
            env.sleep(MS).await;
            Ok(key)
        })
    };
    (0..10).for_each(|key| cache.set(key, key));
    let taken = limit.try_enter(&crate::gate::Ask::new(&env)).unwrap();
    sim.run_until(Tick::ZERO + 1_500 * MS);
    for key in 0..10 {
        assert_eq!(sim.run(get(key)).unwrap().source, Source::Stale);
    }
    // Now they can be served no longer, and one of them is missed.
    sim.run_until(Tick::ZERO + 2_500 * MS);
    let missed = get(7);
    sim.run_until(Tick::ZERO + 2_600 * MS);
    drop(taken);
    assert_eq!(sim.run(missed).unwrap().source, Source::Joined);
    sim.run_until(Tick::ZERO + 3 * SEC);
    assert_eq!(order.lock().unwrap().clone(), [7, 0, 1, 2, 3, 4, 5, 6, 8, 9]);
    assert_eq!(cache.stats().loads, 10);
}

#[test]
fn who_joins_a_load_that_the_limit_never_lets_in_does_not_wait_for_ever() {
    let mut scene = Scene::new(Policy::default());
    let full = Bulkhead::new(&scene.env, 1).max_waiting(10);
    let policy = Policy::strict(SEC).grace(SEC).load_timeout(5 * SEC);
    let cache: Cache<String, u32, String> = Cache::builder(&scene.env).policy(policy).load_limit(full.clone()).build();
    let _taken = full.try_enter(&crate::gate::Ask::new(&scene.env)).unwrap();
    cache.set("key".into(), 7);
    scene.pass(1_500 * MS);
    check(&scene.sim.run(cache.get("key", pending)), 7, Source::Stale);
    scene.pass(SEC);
    assert!(matches!(scene.sim.run(cache.get("key", pending)), Err(GetError::Refused(_))));
    assert_eq!(scene.env.now(), Tick::ZERO + 7_500 * MS);
}

#[test]
fn one_cache_holds_what_must_never_be_stale_and_what_may_be() {
    let mut scene = Scene::with(|builder| {
        builder
            .policy(Policy::strict(SEC).grace(60 * SEC))
            .policies(|key| (key == "stock").then(|| Policy::strict(SEC)))
    });
    for key in ["stock", "description"] {
        let get = scene.cache.get(key, || scene.load(MS));
        scene.sim.run(get).unwrap();
    }
    scene.pass(2 * SEC);
    let mut source = |key| {
        let get = scene.cache.get(key, || scene.load(MS));
        scene.sim.run(get).unwrap().source
    };
    assert_eq!((source("stock"), source("description")), (Source::Loaded, Source::Stale));
}

#[test]
fn an_entry_costs_little_more_than_its_value() {
    assert_eq!(size_of::<Entry<u64, String>>(), 24);
    assert_eq!(size_of::<Entry<Arc<str>, String>>(), 32);
}

#[test]
fn what_takes_too_much_room_is_not_kept_and_that_is_counted() {
    let sim = Sim::new(1);
    let env = sim.env();
    let cache: Cache<u32, Arc<[u8]>> = Cache::builder(&env)
        .weighed(16 * 1_000, 1_000, |_, value: Option<&Arc<[u8]>>| value.map_or(0, |value| value.len() as u64))
        .build();
    cache.set(1, vec![0; 900].into());
    cache.set(2, vec![0; 1_100].into());
    assert!(cache.peek(&1).is_some() && cache.peek(&2).is_none());
    assert_eq!(cache.stats().too_heavy, 1);
    (10..100).for_each(|key| cache.set(key, vec![0; 500].into()));
    let stats = cache.stats();
    assert!(stats.weight <= 16_000 && stats.evictions >= 58, "{stats:?}");
}

#[test]
fn scales_that_panic_end_the_load_for_everybody_and_the_key_is_free_again() {
    let weigh = |_: &String, value: Option<&u32>| if value == Some(&1) { panic!("scales") } else { 1 };
    for slow in [false, true] {
        let mut scene = Scene::with(|builder| builder.weighed(1_000, 100, weigh));
        if slow {
            for get in [scene.get(MS), scene.get(MS)] {
                let answer = scene.sim.run(get);
                assert!(matches!(answer, Err(GetError::Panicked(_))), "{answer:?}");
            }
        } else {
            // Ready at once: the caller weighs it, and has the panic.
            let get = || drop(scene.cache.get("key", || async { Ok(1) }));
            catch_unwind(AssertUnwindSafe(get)).expect_err("the weigher panics");
        }
        assert_eq!((scene.cache.0.engine.in_progress(), scene.cache.len()), (0, 0));
        scene.loads.store(1, Ordering::Relaxed);
        assert_eq!(scene.ask(MS).unwrap().value, 2);
    }
}

#[test]
fn who_is_served_what_is_stale_does_not_get_the_panic_of_its_refresh() {
    let weigh = |_: &String, value: Option<&u32>| if value == Some(&2) { panic!("scales") } else { 1 };
    let mut scene = Scene::with(|builder| builder.weighed(1_000, 100, weigh).policy(Policy::strict(SEC).grace(HOUR)));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let refreshing = scene.cache.get("key", || async { Ok(2) });
    check(&scene.sim.run(refreshing), 1, Source::Stale);
    assert_eq!((scene.cache.stats().failures, scene.cache.0.engine.in_progress()), (1, 0));
    scene.loads.store(2, Ordering::Relaxed);
    scene.pass(60 * SEC);
    check(&scene.ask(MS), 1, Source::Stale);
    scene.pass(SEC);
    check(&scene.ask(MS), 3, Source::Memory);
}

#[test]
fn what_is_replaced_or_never_let_in_was_not_pushed_out_by_others() {
    let env = Sim::new(1).env();
    let cache: Cache<u32, u32> = Cache::builder(&env)
        .weighed(16 * 50, 16, |_, value: Option<&u32>| value.map_or(0, |value| u64::from(*value)))
        .build();
    (0..10).for_each(|_| cache.set(1, 40));
    let stats = cache.stats();
    assert_eq!((stats.too_heavy, stats.evictions), (0, 0), "{stats:?}");
    cache.set(2, 1_000);
    cache.set(1, 1_000);
    let stats = cache.stats();
    assert_eq!((stats.too_heavy, stats.evictions, cache.len()), (2, 0, 0), "{stats:?}");
    (10..200).for_each(|key| cache.set(key, 40));
    let stats = cache.stats();
    assert_eq!(stats.evictions + stats.entries, 190, "{stats:?}");
}

#[test]
fn what_is_past_its_time_is_swept_away_and_nothing_else() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let policy = Policy::strict(10 * SEC).grace(10 * SEC).on_error(30 * SEC);
    let cache: Cache<u32, u32> = Cache::builder(&env).policy(policy).sweep(SEC).build();
    (0..1_000).for_each(|key| cache.set(key, key));
    sim.run_until(Tick::ZERO + 20 * SEC);
    (1_000..2_000).for_each(|key| cache.set(key, key));
    sim.run_until(Tick::ZERO + 39 * SEC);
    assert_eq!(cache.len(), 2_000);
    sim.run_until(Tick::ZERO + 42 * SEC);
    assert_eq!((cache.len(), cache.stats().swept), (1_000, 1_000));
    assert!(cache.peek(&1_500).is_none(), "it is kept for errors only");
}

#[test]
fn what_is_kept_for_ever_has_an_age_and_a_sweeper_that_never_comes() {
    let mut scene = Scene::with(|builder| builder.policy(Policy::new(Duration::MAX)).sweep(Duration::MAX));
    scene.cache.set("key".into(), 7);
    scene.cache.set_with("other".into(), 7, &Keep::tagged("tag"));
    scene.pass(60 * SEC);
    for key in ["key", "other"] {
        let get = scene.cache.get(key, || scene.load(MS));
        assert_eq!(scene.sim.run(get).unwrap().age(), 60 * SEC, "{key}");
    }
}

#[test]
fn a_sweeper_does_not_outlive_its_cache() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    drop(Cache::<u32, u32>::builder(&env).sweep(SEC).build::<AnyError>());
    sim.run_until(Tick::ZERO + 3 * SEC);
    assert!(sim.finish().is_ok());
}

#[test]
fn a_thread_gets_the_same_as_a_task_without_a_runtime() {
    let cache: Cache<String, u64, String> = Cache::builder(&Env::system()).build();
    assert_eq!(cache.get("key", || async { Ok(17) }).wait().unwrap().value, 17);
    assert_eq!(cache.get("key", || async { Ok(18) }).wait().unwrap().value, 17);
}

#[test]
fn times_survive_being_kept_in_little_room() {
    for micros in [0u64, 1, 7, 8, 17, 2_047, 80_000, 5_000_000, 3_600_000_000] {
        let time = micros * 1_000;
        let kept = entry::LoadTime::new(time).get();
        assert!(kept <= time && time <= kept + time / 8, "{time:?}: {kept:?}");
    }
    assert!(entry::LoadTime::new(u64::MAX).get() > nanos(3600 * SEC));
    let now = Tick::ZERO + 1_000 * SEC;
    let kept = |life| Entry::<u32, String>::new(life, Content::Value(1, None)).life();
    for ttl in [MS, 17 * MS, SEC, 60 * SEC, 3_601 * SEC, 86_400 * SEC, 1_000 * 86_400 * SEC] {
        let ttl = ttl + Duration::from_nanos(123);
        let life = Life::begin(now, nanos(ttl), nanos(5 * ttl), nanos(10 * ttl), Some(7 << 60));
        let kept = kept(life);
        assert_eq!((kept.look_at, kept.fresh_until), (life.look_at, now + ttl), "its end is exact");
        assert!(kept.born() <= now && now - kept.born() <= MS + ttl / 500, "{ttl:?}: {:?}", kept.born());
        let grace = Duration::from_nanos(kept.grace);
        assert!(grace >= 5 * ttl && grace <= MS + 5 * ttl + ttl / 100, "{ttl:?}: {grace:?}");
    }
    let early = Life::begin(now, nanos(60 * SEC), 0, nanos(80 * MS), Some(0));
    assert_eq!(early.look_at, now + 59_900 * MS, "one and a quarter load times before the end");
    let short = Life::begin(now, nanos(SEC), 0, nanos(SEC), Some(0));
    assert_eq!(short.look_at, now + 500 * MS, "but not before half of its life");
    let life = Life::begin(now, nanos(60 * SEC), nanos(300 * SEC), nanos(80 * MS), Some(0));
    assert_eq!(life.look_at, life.fresh_until, "with a grace, at the end");
    let put_off = life.put_off(now + 61 * SEC, 2 * SEC, Duration::ZERO);
    assert_eq!((put_off.look_at, put_off.fresh_until), (now + 63 * SEC, now + 60 * SEC));
    assert_eq!((kept(put_off).look_at, kept(put_off).fresh_until), (put_off.look_at, put_off.fresh_until));
    let last = life.put_off(now + 359 * SEC, 2 * SEC, Duration::ZERO).look_at;
    assert!(last <= now + 360 * SEC && last > now + 359 * SEC, "nothing is stale for ever");
    let long = life.put_off(now + 36_000 * SEC, SEC, 86_400 * SEC).look_at;
    assert!(long > now + 36_000 * SEC, "it is put off in any case");
    let early = life.put_off(now + 57 * SEC, SEC, Duration::ZERO);
    assert_eq!(kept(early).fresh_until, now + 60 * SEC);
}

#[test]
fn a_plain_value_lives_as_long_as_one_of_which_more_is_said() {
    let rng = Sim::new(1).env().rng("lives");
    for _ in 0..1_000 {
        let time = |most: Duration| rng.between(Duration::ZERO, most);
        let (ttl, grace, load) = (time(10_000 * SEC), time(100 * SEC), time(SEC));
        let (is_early, draw) = (rng.chance(0.8), rng.bits());
        let grace = if rng.chance(0.5) { grace } else { Duration::ZERO };
        let policy = Policy::new(ttl).grace(grace).early(is_early).jitter(0.0);
        let now = Tick::ZERO + time(1_000 * SEC);
        let bits = is_early.then_some(draw.rotate_left(32));
        let life = Life::begin(now, nanos(ttl), nanos(grace), nanos(load), bits);
        let said = Entry::<u32, String>::new(life, Content::Value(1, None));
        let plain = Entry::<u32, String>::plain(now, Terms::of(&policy), draw, nanos(load), 1);
        assert_eq!(plain.life(), said.life(), "{policy:?}");
        // Chance takes what it may, and no more.
        let terms = Terms::of(&policy.jitter(0.25));
        let end = |draw| Entry::<u32, String>::plain(now, terms, draw, nanos(load), 1).life().fresh_until;
        let least = now + ttl.mul_f64(0.75);
        assert!(end(u64::MAX) - least < MS && least - end(u64::MAX) < MS && end(0) == now + ttl, "{ttl:?}");
    }
    let endless = Entry::<u32, String>::plain(Tick::ZERO, Terms::of(&Policy::new(Duration::MAX)), 0, u64::MAX, 1);
    assert!(endless.life().fresh_until > Tick::ZERO + 30 * 365 * 86_400 * SEC);
}

/// Between a look-up and the lock under which its load would begin, somebody else may have loaded the key, or failed to.
#[test]
fn what_another_has_put_off_meanwhile_is_not_passed_off_as_just_loaded() {
    let scene = Scene::new(Policy::strict(SEC).on_error(60 * SEC));
    let now = Tick::ZERO + 10 * SEC;
    let source = |life| {
        scene.cache.0.put("key".into(), Entry::new(life, Content::Value(7, None)));
        let hash = scene.cache.0.engine.hash("key");
        let load = |_| async { unreachable!("it is there") };
        scene.cache.load(hash, "key".into(), now, None, Purpose::Miss, load).wait().unwrap().source
    };
    let fresh = Life::begin(now, nanos(SEC), 0, nanos(MS), None);
    let old = Life::begin(Tick::ZERO, nanos(SEC), 0, nanos(MS), None);
    assert_eq!(source(fresh), Source::Memory);
    assert_eq!(source(old.put_off(now, SEC, 60 * SEC)), Source::StaleOnError);
}

#[test]
fn a_refresh_that_replaces_nothing_leaves_the_entry_to_the_next_reader() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let loads = Arc::clone(&scene.loads);
    let uncached = || {
        let loads = Arc::clone(&loads);
        move |_| async move { Ok(Load::Uncached(loads.fetch_add(1, Ordering::Relaxed))) }
    };
    for load in 2..10 {
        let stale = scene.cache.get_with("key", uncached()).wait().unwrap();
        assert_eq!((stale.value, stale.source, scene.loads()), (1, Source::Stale, load));
    }
}

#[test]
fn a_claim_whose_load_never_began_lapses() {
    let mut scene = Scene::new(Policy::strict(SEC).grace(60 * SEC));
    check(&scene.ask(MS), 1, Source::Loaded);
    scene.pass(2 * SEC);
    let (now, hash) = (scene.env.now(), scene.cache.0.engine.hash("key"));
    assert!(scene.cache.0.engine.claim(hash, "key", now, now + SEC));
    for _ in 0..100 {
        check(&scene.ask(MS), 1, Source::Stale);
    }
    assert_eq!(scene.loads(), 1, "somebody else has claimed it");
    scene.pass(2 * SEC);
    check(&scene.ask(MS), 1, Source::Stale);
    assert_eq!(scene.loads(), 2);
}

/// A load is started inside its flight, whatever stands before it.
#[test]
fn a_load_that_asks_for_its_own_key_when_it_is_started_is_refused_with_a_limit_and_without() {
    for limited in [false, true] {
        let mut scene = Scene::with(|builder| {
            let limit = Bulkhead::new(&builder.env, 4);
            if limited { builder.load_limit(limit) } else { builder }
        });
        let cache = scene.cache.clone();
        let load = move || {
            let own = cache.get("key", || async { unreachable!("it is being loaded") });
            async move { own.await.map(|got| got.value).map_err(|error| error.to_string()) }
        };
        let asked = scene.cache.get("key", load);
        let error = scene.sim.run(asked).unwrap_err();
        assert!(matches!(&error, GetError::Load(why) if why.contains("same key")), "{error}");
    }
}

/// A large value is cloned by who gets it, and by nobody else.
#[test]
fn the_sweeper_clones_no_values() {
    struct Counted(Arc<AtomicU32>);
    impl Clone for Counted {
        fn clone(&self) -> Counted {
            self.0.fetch_add(1, Ordering::Relaxed);
            Counted(Arc::clone(&self.0))
        }
    }
    let mut sim = Sim::new(1);
    let (env, clones) = (sim.env(), Arc::new(AtomicU32::new(0)));
    let cache: Cache<u32, Counted> =
        Cache::builder(&env).policy(Policy::strict(SEC)).sweep(10 * SEC).capacity(10_000).build();
    (0..1_000).for_each(|key| cache.set(key, Counted(Arc::clone(&clones))));
    sim.run_until(Tick::ZERO + 60 * SEC);
    assert_eq!((cache.len(), cache.stats().swept, clones.load(Ordering::Relaxed)), (0, 1_000, 0));
}

/// A crowd of keys that are asked for once must not push out one that is found all the time.
#[test]
fn what_is_found_is_used_and_what_is_peeked_at_is_not() {
    let kept = |look: fn(&Cache<u32, u32>) -> bool| {
        let cache: Cache<u32, u32> = Cache::builder(&Sim::new(1).env()).capacity(64).build();
        // Those who come first are kept as if they were used.
        (1..1_000).for_each(|key| cache.set(key, key));
        cache.set(0, 0);
        (1_000..10_000).for_each(|key| {
            look(&cache);
            cache.set(key, key);
        });
        cache.peek(&0).is_some()
    };
    assert!(kept(|cache| cache.find(&0).is_some()) && kept(|cache| cache.find_if(&0, |_| true).is_some()));
    assert!(!kept(|cache| cache.peek(&0).is_some()));
    let cache: Cache<u32, u32> = Cache::builder(&Sim::new(1).env()).build();
    cache.set(1, 1);
    assert_eq!((cache.find(&1).map(|got| got.value), cache.find(&2).map(|got| got.value)), (Some(1), None));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (1, 1));
    // What will not do is as if nobody had asked: whoever asks again is counted then.
    assert_eq!(cache.find_if(&1, |value| *value == 1).map(|got| got.value), Some(1));
    assert!(cache.find_if(&1, |value| *value == 2).is_none() && cache.find_if(&2, |_| true).is_none());
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (2, 1));
}
