//! Every row of the table that peers were measured by: how many requests a herd becomes.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Weak},
    time::Duration,
};

use http::{HeaderMap, Method};
use tokio::io::AsyncWriteExt;

use super::world::{Gate, Step, answer, bytes, fresh, get, head, run, run_with, with};
use crate::{
    failing::By,
    fill::{Job, Kind, Landed, fill},
    key::Scheme,
    learn::width,
    origin::Outgoing,
    policy::classify,
    store::Place,
    who::Who,
};

const HERD: usize = 200;
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_herd_for_what_may_be_kept_is_one_request() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| vec![Step::Hold(hold.clone()), fresh("hello")],
        async |world| {
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(HERD).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "hello");
            }
            world.settled().await;
            world.ask(get("/")).await.is(200, "hello");
            assert_eq!((world.origin.requests(), world.origin.peak()), (1, 1));
        },
    );
}

#[test]
fn who_looked_a_moment_before_it_came_does_not_ask_again() {
    run(
        |asked| match &*asked.target {
            "/varies" => vec![answer(200, "cache-control: max-age=60\nvary: x", "hello")],
            _ => vec![fresh("hello")],
        },
        async |world| {
            let core = &world.proxy.0;
            for path in ["/", "/varies"] {
                world.ask(get(path)).await;
            }
            world.settled().await;
            let asked = world.origin.requests();
            for path in ["/", "/varies"] {
                // As one that has found nothing, before the others came.
                let key = core.keyer.key(Scheme::Http, "a", path).unwrap().to_key();
                let route = core.routes.of(path).into_owned();
                let job = Job {
                    class: classify(&Method::GET, &HeaderMap::new(), &route.rules),
                    route,
                    outgoing: Outgoing {
                        method: Method::GET,
                        target: path.parse().unwrap(),
                        headers: HeaderMap::new(),
                        route: 0,
                    },
                    headers: HeaderMap::new(),
                    place: Place::Plain(key.clone()),
                    key,
                    prior: None,
                    template: core.learned.template("a", path, false),
                    who: Who::of(Ipv4Addr::LOCALHOST.into()),
                    by: By::Client(1),
                    leader: Weak::new(),
                    again: false,
                    kind: Kind::Miss,
                };
                let place = job.place.key().clone();
                let flight = core.flights.run_landing(place, |landing| fill(Arc::clone(core), job, landing));
                let landed = flight.await.unwrap().value;
                assert!(matches!(landed, Landed::Shared(_)), "{landed:?}");
                assert_eq!(world.origin.requests(), asked, "{path}");
            }
        },
    );
}

#[test]
fn a_private_herd_is_paced_and_the_next_one_waits_for_nobody() {
    const LIMIT: u32 = 20;
    run_with(
        |settings| settings.origin.limit = LIMIT,
        |asked| {
            let body = format!("for {}", asked.header("x-user"));
            vec![answer(200, "cache-control: private, no-store", &body)]
        },
        async |world| {
            for round in 1..=2 {
                let herd = (0..HERD).map(|user| {
                    let from = [127, 0, 0, 1 + u8::try_from(user % 200).unwrap()];
                    world.spawn_from(from, with("/", &[("x-user", &user.to_string())]))
                });
                for (user, reply) in herd.collect::<Vec<_>>().into_iter().enumerate() {
                    reply.await.unwrap().is(200, &format!("for {user}"));
                }
                assert_eq!(world.origin.requests(), round * HERD);
                assert!(world.origin.peak() <= LIMIT as usize, "{}", world.origin.peak());
            }
            let key = world.proxy.0.keyer.key(Scheme::Http, "a", "/").unwrap().hash();
            let times = world.proxy.0.private.times(key, world.env.now());
            assert!(times.is_some_and(|times| width(times) >= LIMIT), "{times:?}: no wait for anybody of the next");
        },
    );
}

/// Where the route cannot say, the key does.
#[test]
fn a_private_page_among_public_ones_is_waited_for_once() {
    run(
        |asked| match &*asked.target {
            "/pages/1" => vec![answer(200, "cache-control: private", "1")],
            _ => vec![fresh("2")],
        },
        async |world| {
            world.ask(get("/pages/1")).await.is(200, "1");
            world.ask(get("/pages/2")).await.is(200, "2");
            world.settled().await;
            let joins = world.proxy.0.flights.stats().joins;
            for reply in world.herd(20, |_| get("/pages/1")).replies().await {
                assert!(reply.cache().ends_with("detail=private"), "{}", reply.cache());
            }
            assert_eq!(world.proxy.0.flights.stats().joins, joins, "nobody waits for another's");
        },
    );
}

#[test]
fn private_urls_that_nobody_has_seen_are_not_waited_for_once_their_route_is_known() {
    run(
        |asked| vec![answer(200, "cache-control: private", &asked.target)],
        async |world| {
            for order in 0..8 {
                world.ask(get(&format!("/orders/{order}"))).await;
            }
            let before = world.proxy.0.flights.stats().joins;
            for reply in world.herd(20, |_| get("/orders/99")).replies().await {
                reply.is(200, "/orders/99");
            }
            assert_eq!(world.proxy.0.flights.stats().joins, before, "nobody waits for another's");
        },
    );
}

#[test]
fn a_cookie_is_set_for_the_one_it_was_made_for() {
    run_with(
        |settings| settings.origin.limit = 20,
        |asked| {
            let headers = format!("cache-control: max-age=60\nset-cookie: session={}", asked.number);
            vec![answer(200, &headers, &format!("session {}", asked.number))]
        },
        async |world| {
            let mut seen = Vec::new();
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                let session = reply.header("set-cookie").strip_prefix("session=").unwrap().to_owned();
                reply.is(200, &format!("session {session}"));
                seen.push(session);
            }
            seen.sort();
            seen.dedup();
            assert_eq!((seen.len(), world.origin.requests()), (HERD, HERD), "nobody has another's");
            assert!(world.origin.peak() <= 20);
        },
    );
}

#[test]
fn a_failing_herd_is_two_requests_and_the_origins_bytes_are_for_one() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.failed = MINUTE..MINUTE * 2,
        move |_| vec![Step::Hold(hold.clone()), answer(503, "x-secret: 1", "from the origin")],
        async |world| {
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(HERD).await;
            gate.open();
            let replies = herd.replies().await;
            let own: Vec<_> = replies.iter().filter(|reply| reply.text() != "from the origin").collect();
            assert_eq!(own.len(), HERD - 1, "the origin's bytes answer one request");
            for reply in &replies {
                assert!(reply.status == 503 && reply.whole);
            }
            for reply in own {
                assert!(reply.text().starts_with("503"), "{}", reply.text());
                assert_eq!(reply.header("x-secret"), "");
                assert_ne!(reply.header("retry-after"), "");
            }
            // Remembered: nobody asks.
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                assert_eq!((reply.status.as_u16(), reply.header("x-secret")), (503, ""));
            }
            assert_eq!((world.origin.requests(), world.origin.peak()), (2, 1), "one client's, and one of our own");
        },
    );
}

#[test]
fn when_a_failure_is_forgotten_a_herd_is_two_requests() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.failed = Duration::from_nanos(1)..Duration::from_nanos(2),
        move |asked| match asked.number {
            1 => vec![answer(503, "", "")],
            _ => vec![Step::Hold(hold.clone()), answer(503, "", "")],
        },
        async |world| {
            assert_eq!(world.ask(get("/")).await.status, 503);
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(HERD + 1).await;
            gate.open();
            for reply in herd.replies().await {
                assert_eq!(reply.status, 503);
            }
            assert_eq!((world.origin.requests(), world.origin.peak()), (3, 1));
        },
    );
}

#[test]
fn a_herd_at_an_origin_that_resets_is_two_requests() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.failed = MINUTE..MINUTE * 2,
        move |_| vec![Step::Hold(hold.clone()), Step::Reset],
        async |world| {
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(HERD).await;
            gate.open();
            for reply in herd.replies().await {
                assert!(matches!(reply.status.as_u16(), 502 | 503) && reply.whole, "{reply:?}");
            }
            assert_eq!((world.origin.requests(), world.origin.peak()), (2, 1));
        },
    );
}

#[test]
fn one_who_waits_alone_has_all_attempts_for_its_own_request() {
    run(
        |asked| if asked.number < 3 { vec![Step::Reset] } else { vec![fresh("at last")] },
        async |world| {
            world.ask(with("/", &[("x-mine", "yes")])).await.is(200, "at last");
            assert!(world.origin.log().iter().all(|asked| asked.header("x-mine") == "yes"));
            assert_eq!(world.origin.requests(), 3);
        },
    );
}

#[test]
fn followers_have_the_first_byte_while_the_body_still_trickles() {
    let [aboard, first, last] = [Gate::new(), Gate::new(), Gate::new()];
    let hold = (aboard.clone(), first.clone(), last.clone());
    run(
        move |_| {
            let head = head(200, "cache-control: max-age=60\r\ncontent-length: 10\r\n");
            let (aboard, first, last) = hold.clone();
            vec![Step::Hold(aboard), bytes(head), Step::Hold(first), bytes("first"), Step::Hold(last), bytes("/last")]
        },
        async |world| {
            let leader = world.env.spawn(world.begin_later(get("/")));
            world.origin.asked(1).await;
            let followers: Vec<_> = (0..20).map(|_| world.env.spawn(world.begin_later(get("/")))).collect();
            world.aboard(21).await;
            aboard.open();
            let mut readers = vec![leader.await.unwrap()];
            for follower in followers {
                readers.push(follower.await.unwrap());
            }
            first.open();
            for reader in &mut readers {
                assert_eq!(reader.next().await.unwrap().unwrap(), "first");
            }
            // Who comes now begins at the beginning.
            let mut late = world.begin(get("/")).await;
            assert_eq!(late.next().await.unwrap().unwrap(), "first");
            readers.push(late);
            last.open();
            for reader in readers {
                reader.rest().await.is(200, "/last");
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

/// A body that breaks off, in one of the ways to say how long it is.
fn broken_off(framing: &'static str, half: &'static str) {
    let gates = [Gate::new(), Gate::new()];
    let hold = gates.clone();
    run(
        move |asked| {
            if asked.number > 1 {
                return vec![fresh("all of it")];
            }
            let [aboard, broken] = hold.clone();
            let head = head(200, &format!("cache-control: max-age=60\r\n{framing}\r\n"));
            vec![Step::Hold(aboard), bytes(head), bytes(half), Step::Hold(broken), Step::Close]
        },
        async |world| {
            let herd: Vec<_> = (0..50).map(|_| world.env.spawn(world.begin_later(get("/")))).collect();
            world.aboard(50).await;
            gates[0].open();
            let mut readers = Vec::new();
            for reading in herd {
                let mut reader = reading.await.unwrap();
                assert_eq!(reader.next().await.unwrap().unwrap(), "half");
                readers.push(reader);
            }
            gates[1].open();
            for reader in readers {
                assert!(!reader.rest().await.whole, "nobody takes it for the whole");
            }
            world.settled().await;
            world.ask(get("/")).await.is(200, "all of it");
            assert_eq!(world.origin.requests(), 2);
            world.until(|| world.proxy.0.memory.bytes() == 0).await;
        },
    );
}

#[test]
fn a_body_that_breaks_off_is_an_error_for_every_reader_and_is_not_kept() {
    broken_off("content-length: 8", "half");
}

#[test]
fn so_is_one_whose_length_nobody_knew() {
    broken_off("transfer-encoding: chunked", "4\r\nhalf\r\n");
}

#[test]
fn four_variants_are_four_requests_and_none_waits_for_another() {
    let gates: [Gate; 4] = std::array::from_fn(|_| Gate::new());
    let hold = gates.clone();
    run(
        move |asked| {
            let language = asked.header("accept-language");
            let answer = answer(200, "cache-control: max-age=60\nvary: accept-language", language);
            vec![Step::Hold(hold[asked.number - 1].clone()), answer]
        },
        async |world| {
            const LANGUAGES: [&str; 4] = ["de", "en", "fr", "it"];
            let language = |number: usize| LANGUAGES[number % 4];
            let herd = world.herd(100, |number| with("/", &[("accept-language", language(number))]));
            world.aboard(100).await;
            gates[0].open();
            // The other three are there at the same time, though none of them is answered.
            world.origin.asked(4).await;
            world.until(|| world.proxy.0.flights.stats().in_air == 3).await;
            gates.iter().for_each(Gate::open);
            for (number, reply) in herd.replies().await.into_iter().enumerate() {
                reply.is(200, language(number));
            }
            for language in LANGUAGES {
                world.ask(with("/", &[("accept-language", language)])).await.is(200, language);
            }
            assert_eq!(world.origin.requests(), 4);
        },
    );
}

#[test]
fn what_is_stale_at_once_is_for_those_aboard_and_nobody_later() {
    let gates = [Gate::new(), Gate::new()];
    let hold = gates.clone();
    run(
        move |asked| {
            let [first, body] = hold.clone();
            let head = head(200, "cache-control: max-age=0, must-revalidate\r\ncontent-length: 1\r\n");
            match asked.number {
                1 => vec![Step::Hold(first), bytes(head), Step::Hold(body), bytes("1")],
                number => vec![bytes(head), bytes(number.to_string())],
            }
        },
        async |world| {
            let herd: Vec<_> = (0..HERD).map(|_| world.env.spawn(world.begin_later(get("/")))).collect();
            world.aboard(HERD).await;
            gates[0].open();
            let mut readers = Vec::new();
            for reading in herd {
                readers.push(reading.await.unwrap());
            }
            // The first is still arriving, and all the same it is not for this one.
            world.ask(get("/")).await.is(200, "2");
            gates[1].open();
            for reader in readers {
                reader.rest().await.is(200, "1");
            }
            world.ask(get("/")).await.is(200, "3");
        },
    );
}

#[test]
fn a_leader_that_leaves_takes_nothing_with_it() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| vec![Step::Hold(hold.clone()), fresh("hello")],
        async |world| {
            let mut leader = world.connect().await;
            leader.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            world.origin.asked(1).await;
            let herd = world.herd(20, |_| get("/"));
            world.aboard(21).await;
            drop(leader);
            world.until(|| world.server.connections() == 20).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "hello");
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn an_answer_is_kept_though_everybody_who_asked_has_left() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |_| vec![Step::Hold(hold.clone()), fresh("hello")],
        async |world| {
            let mut leader = world.connect().await;
            leader.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            world.origin.asked(1).await;
            drop(leader);
            world.until(|| world.server.connections() == 0).await;
            gate.open();
            world.settled().await;
            world.ask(get("/")).await.is(200, "hello");
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_slow_origin_is_asked_twice_at_most_and_whoever_answers_first_answers_all() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.origin.hedge_after = Some(Duration::from_millis(50)),
        move |asked| match asked.number {
            1 => vec![Step::Hold(hold.clone()), fresh("late")],
            _ => vec![fresh("second")],
        },
        async |world| {
            let herd = world.herd(HERD, |_| get("/"));
            for reply in herd.replies().await {
                reply.is(200, "second");
            }
            assert_eq!(world.origin.requests(), 2);
            gate.open();
        },
    );
}

#[test]
fn unique_urls_meet_the_limit_too() {
    run_with(
        |settings| settings.origin.limit = 10,
        |asked| vec![fresh(&asked.target)],
        async |world| {
            let path = |number: usize| format!("/?cb={number}");
            let replies = world.herd(HERD, |number| get(&path(number))).replies().await;
            for (number, reply) in replies.into_iter().enumerate() {
                reply.is(200, &path(number));
            }
            assert_eq!(world.origin.requests(), HERD);
            assert!(world.origin.peak() <= 10, "{}", world.origin.peak());
        },
    );
}

#[test]
fn no_more_wait_for_one_fill_than_may() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.max_followers = 10,
        move |_| vec![Step::Hold(hold.clone()), fresh("hello")],
        async |world| {
            let herd = world.herd(50, |_| get("/"));
            world.until(|| world.proxy.0.flights.stats().overloaded == 39).await;
            gate.open();
            let replies = herd.replies().await;
            let (served, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
            assert_eq!((served.len(), refused.len(), world.origin.requests()), (11, 39, 1));
            for reply in refused {
                assert!(reply.status == 503 && !reply.header("retry-after").is_empty(), "{reply:?}");
            }
        },
    );
}
