//! How much the origin gets to do at a time, and who waits, is refused or goes first.

use std::{future::poll_fn, pin::pin, task::Poll};

use herdproof::env::sim::Sim;

use super::*;
use crate::origin::{
    limit::Ending,
    stack::{Lesson, Request as Whose, Stack},
};

/// Whichever is over first; says whether it was the first.
async fn first<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> bool {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| {
        if one.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(cx).map(|_| false)
    })
    .await
}

/// An origin that holds its answers until it is told, and counts.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) permits: Arc<Semaphore>,
    now: Arc<AtomicU32>,
    peak: Arc<AtomicU32>,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Held {
    pub(super) fn new() -> Held {
        let permits = Arc::new(Semaphore::new(0));
        Held { permits, now: Arc::default(), peak: Arc::default(), targets: Arc::default() }
    }

    pub(super) async fn raw(&self, env: &Env) -> Raw {
        let held = self.clone();
        Raw::new(env, move |talk, _| held.clone().handle(talk)).await
    }

    async fn handle(self, mut talk: Talk) {
        while let Some(head) = talk.request().await {
            self.targets.lock().push(head.split(' ').nth(1).unwrap().to_owned());
            let now = self.now.fetch_add(1, SeqCst) + 1;
            self.peak.fetch_max(now, SeqCst);
            let told = first(self.permits.acquire(), talk.closed()).await;
            // Before the answer, after which we may be asked again.
            self.now.fetch_sub(1, SeqCst);
            if !told {
                return;
            }
            self.permits.forget_permits(1);
            talk.say(HELLO).await;
        }
    }

    pub(super) fn targets(&self) -> usize {
        self.targets.lock().len()
    }
}

#[test]
fn a_herd_reaches_the_origin_a_few_at_a_time() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.limit = 4);
        let herd: Vec<_> = (0..60)
            .map(|n| {
                let origin = origin.clone();
                env.spawn(async move {
                    let answer = if n % 2 == 0 {
                        origin.get("/").await
                    } else {
                        origin.post(Full::new(Bytes::from_static(b""))).await
                    };
                    text(answer.unwrap()).await.unwrap()
                })
            })
            .collect();
        until(|| held.targets() == 4 && origin.stats().waiting == 56).await;
        held.permits.add_permits(60);
        for one in herd {
            assert_eq!(one.await.unwrap(), "hello");
        }
        assert_eq!((held.targets(), held.peak.load(SeqCst)), (60, 4));
        assert!(raw.connections() <= 4, "{} connections", raw.connections());
    });
}

#[test]
fn clients_that_come_and_leave_make_no_more_connections_than_there_are_seats() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.limit = 4);
        for round in 0..20 {
            let seen = held.targets();
            let herd: Vec<_> = (0..8)
                .map(|n| {
                    let origin = origin.clone();
                    env.spawn(async move {
                        let answer = if n % 2 == 0 {
                            origin.get("/").await
                        } else {
                            origin.post(Full::new(Bytes::from_static(b"data"))).await
                        };
                        drop(answer); // whatever came of it, and before its end
                    })
                })
                .collect();
            until(|| held.targets() > seen).await;
            let stats = origin.stats();
            assert!(stats.in_flight <= 4 && stats.connections <= 4, "round {round}: {stats:?}");
            herd.iter().for_each(Task::abort);
            until(|| herd.iter().all(Task::is_finished)).await;
            // What was sent keeps its seat until the origin has answered.
            until(|| {
                held.permits.add_permits(usize::from(held.permits.available_permits() == 0));
                origin.stats().in_flight == 0
            })
            .await;
        }
        let stats = origin.stats();
        assert_eq!((stats.waiting, stats.connections, stats.idle), (0, 0, 0));
        assert_eq!(
            (stats.breaker, stats.limit, stats.faults),
            (Phase::Closed, 4, 0),
            "that clients leave says nothing"
        );
    });
}

#[test]
fn who_does_not_fit_is_told_when_and_no_two_the_same() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| (settings.limit, settings.line) = (1, 1));
        let herd: Vec<_> = (0..2)
            .map(|_| {
                let origin = origin.clone();
                env.spawn(async move { text(origin.get("/").await.unwrap()).await.unwrap() })
            })
            .collect();
        until(|| held.targets() == 1 && origin.stats().waiting == 1).await;
        let mut told = Vec::new();
        for _ in 0..50 {
            let OriginError::Refused(refusal) = origin.get("/").await.unwrap_err() else { panic!("not refused") };
            assert_eq!(refusal.why, Why::Queue);
            told.push(env.now() + refusal.after.unwrap());
        }
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len(), 50);
        held.permits.add_permits(2);
        for one in herd {
            assert_eq!(one.await.unwrap(), "hello");
        }
        assert_eq!((held.targets(), held.peak.load(SeqCst)), (2, 1));
    });
}

#[test]
fn misses_and_passes_go_before_refreshes() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.limit = 1);
        let mut tasks = Vec::new();
        let order = [("/first", Priority::Normal), ("/refresh", Priority::Background), ("/miss", Priority::Normal)];
        for (waiting, (path, priority)) in order.into_iter().enumerate() {
            let (there, world) = (origin.clone(), env.clone());
            tasks.push(env.spawn(async move {
                let answer = there.fetch(&get(path), Ask::new(&world).priority(priority)).await;
                text(answer.unwrap()).await.unwrap()
            }));
            until(|| held.targets() == 1 && origin.stats().waiting as usize == waiting).await;
        }
        held.permits.add_permits(3);
        for task in tasks {
            assert_eq!(task.await.unwrap(), "hello");
        }
        assert_eq!(*held.targets.lock(), ["/first", "/miss", "/refresh"]);
    });
}

#[test]
fn a_first_answer_that_hangs_is_overtaken_by_one_other_request() {
    run(|env| async move {
        let closed = Arc::new(Notify::new());
        let told = Arc::clone(&closed);
        let raw = Raw::new(&env, move |mut talk, number| {
            let told = Arc::clone(&told);
            async move {
                talk.request().await.unwrap();
                if number > 0 {
                    talk.say(HELLO).await;
                }
                talk.closed().await;
                if number == 0 {
                    told.notify_one();
                }
            }
        })
        .await;
        let origin = raw.origin_with(|settings| settings.hedge_after = Some(MS * 20));
        assert_eq!(text(origin.get("/").await.unwrap()).await.unwrap(), "hello");
        closed.notified().await;
        until(|| origin.stats().in_flight == 0).await;
        let stats = origin.stats();
        assert_eq!((raw.connections(), stats.hedges, stats.retries, stats.faults), (2, 1, 0, 0));
        assert_eq!(stats.connections, stats.idle, "what lost is closed");
    });
}

#[test]
fn what_is_not_needed_any_more_is_not_kept() {
    run(|env| async move {
        let held = Held::new();
        let raw = held.raw(&env).await;
        let origin = raw.origin_with(|settings| settings.max_idle = 2);
        let herd: Vec<_> = (0..6)
            .map(|_| {
                let origin = origin.clone();
                env.spawn(async move { text(origin.get("/").await.unwrap()).await.unwrap() })
            })
            .collect();
        until(|| held.targets() == 6).await;
        held.permits.add_permits(6);
        for one in herd {
            assert_eq!(one.await.unwrap(), "hello");
        }
        until(|| origin.stats().connections == 2 && origin.stats().idle == 2).await;
        // With nobody to use them, they are closed.
        drop(origin);
        until(|| held.now.load(SeqCst) == 0).await;
    });
}

/// What a status says, with this Retry-After.
fn lesson(status: u16, after: Option<&str>, env: &Env) -> Lesson {
    let mut headers = HeaderMap::new();
    headers.extend(after.map(|after| (header::RETRY_AFTER, after.parse().unwrap())));
    Lesson::of_answer(StatusCode::from_u16(status).unwrap(), &headers, env)
}

#[test]
fn what_an_answer_says_about_the_origin() {
    let env = Env::system();
    let of = |status: u16| {
        let Lesson { verdict, reached, ending } = lesson(status, None, &env);
        (verdict, reached, ending)
    };
    let overload = |after: Option<u64>| Verdict::Overload { after: after.map(Duration::from_secs) };
    for (status, said) in [
        (200, (Verdict::Ok, Verdict::Ok, Ending::Served)),
        (304, (Verdict::Ok, Verdict::Ok, Ending::Served)),
        (404, (Verdict::Final, Verdict::Ok, Ending::Served)),
        (429, (Verdict::Final, Verdict::Ok, Ending::Other)),
        (500, (Verdict::Fault, Verdict::Ok, Ending::Other)),
        (502, (Verdict::Fault, Verdict::Ignored, Ending::Other)),
        (503, (overload(None), Verdict::Ok, Ending::Shed)),
        (504, (Verdict::Fault, Verdict::Ignored, Ending::Late)),
    ] {
        assert_eq!(of(status), said, "{status}");
        assert_eq!(lesson(status, None, &env).is_suspicious(), matches!(status, 502 | 504), "{status}");
    }
    assert_eq!(lesson(503, Some("7"), &env).verdict, overload(Some(7)));
    assert_eq!(lesson(503, Some("soon"), &env).verdict, overload(None));
    let refused = Lesson::of_error(&OriginError::Refused(Refusal::new(Why::Queue)), false);
    assert_eq!((refused.verdict, refused.is_suspicious()), (Verdict::Ignored, false));
    let late = Lesson::of_error(&OriginError::TimedOut, true);
    assert_eq!((late.verdict, late.reached, late.is_suspicious()), (Verdict::Fault, Verdict::Ignored, true));
    let garbled = Lesson::of_error(&OriginError::BadResponse(BadResponse::Length), false);
    assert_eq!((garbled.verdict, garbled.reached, garbled.is_suspicious()), (Verdict::Fault, Verdict::Ignored, true));
    let nobody = Lesson::of_error(&OriginError::Connect(io::ErrorKind::ConnectionRefused.into()), false);
    assert_eq!((nobody.reached, nobody.is_suspicious()), (Verdict::Fault, true));
}

/// The policies alone, before an origin in virtual time.
struct Scene {
    sim: Sim,
    stack: Arc<Stack>,
}

impl Scene {
    fn new(change: impl FnOnce(&mut OriginSettings)) -> Scene {
        let sim = Sim::new(42);
        let mut settings = OriginSettings::default();
        change(&mut settings);
        let stack = Arc::new(Stack::new(&sim.env(), &settings));
        Scene { sim, stack }
    }

    /// So many clients, each of whom asks again as soon as it has its answer, which takes `head` and then `body`.
    fn clients(&mut self, clients: u32, rounds: u32, head: Duration, body: Duration, status: fn(u32) -> u16) -> Lowest {
        let lowest = Arc::new(Mutex::new(Lowest { limit: u32::MAX, refused: 0, served: 0 }));
        let env = self.sim.env();
        let tasks: Vec<_> = (0..clients)
            .map(|client| {
                let (env, stack, lowest) = (env.clone(), Arc::clone(&self.stack), Arc::clone(&lowest));
                env.clone().spawn(async move {
                    for round in 0..rounds {
                        let lesson = lesson(status(client + round), None, &env);
                        let mut ask = Ask::new(&env).user(u64::from(client) + 1);
                        let Ok(mut entry) = stack.enter(&mut ask).await else {
                            lowest.lock().refused += 1;
                            env.sleep(head).await;
                            continue;
                        };
                        env.sleep(head).await;
                        let span = Span { from: ask.at, to: env.now() };
                        let whose = Whose { user: client.into(), route: u64::from(round % 5) };
                        stack.learn(entry.pass, &mut entry.place, &lesson, whose, span);
                        env.sleep(body).await;
                        drop(entry.place);
                        let mut lowest = lowest.lock();
                        lowest.served += 1;
                        lowest.limit = lowest.limit.min(stack.queue.seats());
                    }
                })
            })
            .collect();
        self.sim.run(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        *lowest.lock()
    }
}

#[derive(Clone, Copy, Debug)]
struct Lowest {
    limit: u32,
    refused: u32,
    served: u32,
}

#[test]
fn an_origin_that_is_simply_slow_does_not_lose_its_seats() {
    // From the start.
    let mut scene = Scene::new(|_| {});
    let seen = scene.clients(100, 20, Duration::from_secs(8), MS, |_| 200);
    assert_eq!((seen.refused, seen.served), (0, 2_000));
    assert!(seen.limit >= 200, "{seen:?}");
    // And after it was quick: put to the test, and given back what it needs.
    let mut scene = Scene::new(|_| {});
    let quick = scene.clients(100, 200, MS * 80, MS, |_| 200);
    assert_eq!((quick.limit, quick.refused), (256, 0));
    let slow = scene.clients(100, 40, Duration::from_secs(8), MS, |_| 200);
    assert!(slow.limit >= 100, "nobody had to wait: {slow:?}");
    assert_eq!(slow.refused, 0);
}

#[test]
fn readers_that_take_their_time_are_not_held_against_the_origin() {
    let mut scene = Scene::new(|_| {});
    let quick = scene.clients(200, 50, MS * 80, MS, |_| 200);
    let slow = scene.clients(200, 50, MS * 80, Duration::from_secs(60), |_| 200);
    assert_eq!((quick.limit, slow.limit, slow.refused), (256, 256, 0));
}

/// An origin that serves so many at once, each within 50 ms, and refuses what is more within 2 ms.
#[derive(Clone)]
struct Shedder {
    most: u32,
    now: Arc<AtomicU32>,
    good: Arc<AtomicU32>,
    refused: Arc<AtomicU32>,
}

impl Shedder {
    fn new(most: u32) -> Shedder {
        Shedder { most, now: Arc::default(), good: Arc::default(), refused: Arc::default() }
    }

    async fn answer(&self, env: &Env) -> u16 {
        if self.now.fetch_add(1, SeqCst) >= self.most {
            self.now.fetch_sub(1, SeqCst);
            env.sleep(2 * MS).await;
            return 503;
        }
        env.sleep(50 * MS).await;
        self.now.fetch_sub(1, SeqCst);
        self.good.fetch_add(1, SeqCst);
        200
    }
}

/// Good answers, as a share of what the origin can give or is asked for, whichever is less.
fn goodput_of_a_shedder(users: u64, load: f64) -> f64 {
    const MOST: u32 = 20;
    const SECONDS: u32 = 60;
    let mut scene = Scene::new(|_| {});
    let shedder = Shedder::new(MOST);
    let capacity = f64::from(MOST) / 0.05;
    let (env, stack, origin) = (scene.sim.env(), Arc::clone(&scene.stack), shedder.clone());
    scene.sim.run(async move {
        let rng = env.rng("clients");
        let end = env.now() + Duration::from_secs(SECONDS.into());
        while env.now() < end {
            env.sleep(Duration::from_secs_f64(-(1.0 - rng.unit()).ln() / (load * capacity))).await;
            let whose = Whose { user: rng.below(users) + 1, route: rng.below(5) };
            let (world, stack, origin) = (env.clone(), Arc::clone(&stack), origin.clone());
            env.spawn(async move {
                let mut ask = Ask::new(&world).user(whose.user);
                let Ok(mut entry) = stack.enter(&mut ask).await else {
                    origin.refused.fetch_add(1, SeqCst);
                    return;
                };
                let status = origin.answer(&world).await;
                let span = Span { from: ask.at, to: world.now() };
                stack.learn(entry.pass, &mut entry.place, &lesson(status, None, &world), whose, span);
            })
            .detach();
        }
    });
    f64::from(shedder.good.load(SeqCst)) / (f64::from(SECONDS) * capacity * load.min(1.0))
}

#[test]
fn an_origin_that_sheds_with_quick_503s_keeps_its_goodput_with_few_clients_and_with_many() {
    for users in [1, 2, 200] {
        for load in [0.8, 1.0, 1.2, 2.0] {
            let goodput = goodput_of_a_shedder(users, load);
            assert!(goodput >= 0.9, "{users} users, load {load}: {goodput:.3}");
        }
    }
}

/// What an attacker's requests come to, how long they take, and how many of them there are in a second.
#[derive(Clone, Copy, Debug)]
struct Attack {
    status: u16,
    takes: Duration,
    rate: u32,
}

/// The lowest limit, the last one, and how many of the good were refused, while one client attacks with requests for one route
/// beside 40 good ones a second from so many others: evenly, or in bursts of which each has some time to itself.
fn under_attack(attack: Attack, others: u64, bursts: bool) -> (u32, u32, u32) {
    let mut scene = Scene::new(|_| {});
    let (env, stack) = (scene.sim.env(), Arc::clone(&scene.stack));
    let (lowest, refused) = (Arc::new(AtomicU32::new(u32::MAX)), Arc::new(AtomicU32::new(0)));
    let (low, no) = (Arc::clone(&lowest), Arc::clone(&refused));
    scene.sim.run(async move {
        let rng = env.rng("clients");
        let good = Attack { status: 200, takes: 80 * MS, rate: 40 };
        let rate = attack.rate + good.rate;
        for number in 0..120 * rate {
            env.sleep(Duration::from_secs(1) / rate).await;
            let so_far = |number: u32| number * attack.rate / rate;
            let bad = if bursts { number % rate < attack.rate } else { so_far(number) < so_far(number + 1) };
            let what = if bad { attack } else { good };
            let user = if bad || others == 0 { 1 } else { 2 + rng.below(others) };
            let whose = Whose { user, route: if bad { 99 } else { rng.below(5) } };
            let (env, stack, low, no) = (env.clone(), Arc::clone(&stack), Arc::clone(&low), Arc::clone(&no));
            env.clone()
                .spawn(async move {
                    let mut ask = Ask::new(&env).user(whose.user);
                    let Ok(mut entry) = stack.enter(&mut ask).await else {
                        no.fetch_add(u32::from(!bad), SeqCst);
                        return;
                    };
                    env.sleep(what.takes).await;
                    let span = Span { from: ask.at, to: env.now() };
                    let lesson = match what.status {
                        0 => Lesson::of_error(&OriginError::TimedOut, false),
                        status => lesson(status, None, &env),
                    };
                    stack.learn(entry.pass, &mut entry.place, &lesson, whose, span);
                    drop(entry.place);
                    low.fetch_min(stack.queue.seats(), SeqCst);
                })
                .detach();
        }
    });
    (lowest.load(SeqCst), scene.stack.queue.seats(), refused.load(SeqCst))
}

/// Refused or failed at once, slow, and never answered.
fn attacks() -> Vec<Attack> {
    let quick = [429, 500, 503].map(|status| [20, 50].map(|rate| Attack { status, takes: 2 * MS, rate }));
    let slow = [0, 200, 503].map(|status| Attack { status, takes: Duration::from_secs(4), rate: 20 });
    quick.into_iter().flatten().chain(slow).collect()
}

#[test]
fn one_client_whose_requests_fail_or_take_long_does_not_lower_the_limit() {
    for attack in attacks() {
        for others in [1, 2, 10, 100] {
            assert_eq!(under_attack(attack, others, false), (256, 256, 0), "{attack:?} beside {others}");
        }
    }
}

#[test]
fn one_client_that_has_the_origin_to_itself_for_a_moment_harms_nobody_who_comes_after_it() {
    for attack in attacks() {
        let (lowest, last, refused) = under_attack(attack, 10, true);
        assert_eq!((last, refused), (256, 0), "{attack:?}: {lowest}");
    }
}

#[test]
fn behind_one_address_what_one_client_causes_is_tried_and_undone_and_nobody_is_refused() {
    for attack in attacks() {
        let (lowest, last, refused) = under_attack(attack, 0, false);
        assert_eq!((last, refused), (256, 0), "{attack:?}: {lowest}");
    }
}

#[test]
fn the_limit_never_goes_above_what_was_set() {
    let mut scene = Scene::new(|settings| (settings.limit, settings.queue_wait) = (8, Duration::from_secs(600)));
    let seen = scene.clients(64, 200, MS, MS, |_| 200);
    assert!(seen.served > 0);
    assert_eq!(scene.stack.queue.seats(), 8);
}

#[test]
fn a_line_is_not_led_to_an_origin_that_went_down_meanwhile() {
    let mut scene = Scene::new(|settings| settings.limit = 8);
    let (env, stack) = (scene.sim.env(), Arc::clone(&scene.stack));
    scene.sim.run(async move {
        let mut inside = Vec::new();
        for user in 1..=8 {
            inside.push(stack.enter(&mut Ask::new(&env).user(user)).await.unwrap());
        }
        let waiting: Vec<_> = (100..200)
            .map(|user| {
                let (env, stack) = (env.clone(), Arc::clone(&stack));
                env.clone().spawn(async move {
                    stack.enter(&mut Ask::new(&env).user(user)).await.map(drop).map_err(|no| no.why)
                })
            })
            .collect();
        env.sleep(MS).await;
        assert_eq!(stack.queue.waiting(), 100);
        for mut entry in inside {
            let span = Span { from: env.now(), to: env.now() };
            entry.pass.settle(&Verdict::Fault, span);
            entry.place.learn(&Verdict::Fault, span);
        }
        let mut led = 0;
        for one in waiting {
            match one.await.unwrap() {
                Ok(()) => led += 1,
                Err(why) => assert_eq!(why, Why::Tripped),
            }
        }
        assert!(led <= 7, "{led} of those who waited were led to it");
        assert_eq!((stack.queue.inside(), stack.queue.waiting()), (0, 0));
    });
}

#[test]
fn a_wait_for_a_seat_ends() {
    let mut scene = Scene::new(|settings| (settings.limit, settings.queue_wait) = (1, Duration::from_secs(3)));
    let (env, stack) = (scene.sim.env(), Arc::clone(&scene.stack));
    scene.sim.run(async move {
        let inside = stack.enter(&mut Ask::new(&env)).await;
        let began = env.now();
        let refusal = stack.enter(&mut Ask::new(&env)).await.map(drop).unwrap_err();
        assert_eq!((refusal.why, env.now() - began), (Why::Shed, Duration::from_secs(3)));
        assert!(refusal.after.is_some());
        drop(inside);
    });
}
