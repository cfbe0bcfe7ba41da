//! What is past its time: for whom, for how long, and at what price for the origin.

use std::time::Duration;

use super::world::{Gate, Step, World, answer, fresh, get, obeying, run, run_with, with};

const HERD: usize = 100;
const MINUTE: Duration = Duration::from_secs(60);

/// An answer that is past its time when it comes.
fn old(control: &str, more: &str, body: &str) -> Step {
    answer(200, &format!("cache-control: max-age=60, {control}\nage: 65\n{more}"), body)
}

/// So that it is there.
async fn keep(world: &World) {
    world.ask(get("/")).await.is(200, "1");
    world.settled().await;
    // What comes stale is put there when all else is over.
    world.until(|| world.proxy.0.store.stats().entries > 0).await;
}

#[test]
fn a_crowd_is_served_stale_while_one_request_refreshes() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => vec![old("stale-while-revalidate=60", "", "1")],
            _ => vec![Step::Hold(hold.clone()), fresh("2")],
        },
        async |world| {
            keep(world).await;
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "1");
                assert!(reply.cache().contains("stale-while-revalidate"), "{}", reply.cache());
            }
            world.origin.asked(2).await;
            gate.open();
            world.settled().await;
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "2");
            }
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn a_refresh_that_fails_is_not_begun_again_at_once() {
    for failing in [answer(500, "", "broken"), Step::Reset, answer(503, "", "")] {
        run_with(
            |settings| {
                settings.failed = MINUTE..MINUTE * 2;
            },
            move |asked| match asked.number {
                1 => vec![old("stale-while-revalidate=60", "", "1")],
                _ => vec![failing.clone()],
            },
            async |world| {
                keep(world).await;
                for _ in 0..5 {
                    for reply in world.herd(HERD, |_| get("/")).replies().await {
                        reply.is(200, "1");
                    }
                    world.settled().await;
                }
                assert_eq!(world.origin.requests(), 2);
            },
        );
    }
}

#[test]
fn nor_when_whoever_began_it_has_had_its_time() {
    run_with(
        |settings| settings.failed = MINUTE..MINUTE * 2,
        move |asked| match asked.number {
            1 => vec![old("stale-while-revalidate=60", "", "1")],
            _ => vec![answer(500, "", "broken")],
        },
        async |world| {
            keep(world).await;
            world.ask(get("/")).await.is(200, "1");
            world.origin.asked(2).await;
            world.settled().await;
            // Nobody else tries for a second after one has begun; it is the failure that counts from then on.
            world.env.sleep(Duration::from_millis(1_010)).await;
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "1");
            }
            world.settled().await;
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn what_may_stand_in_for_an_error_does_and_the_origin_is_left_alone_then() {
    for failing in
        [answer(500, "", "broken"), Step::Reset, Step::Close, answer(503, "", ""), answer(200, "content-length: 9", "")]
    {
        let gate = Gate::new();
        let hold = gate.clone();
        run_with(
            |settings| {
                settings.failed = MINUTE..MINUTE * 2;
                settings.origin.attempts = 1;
            },
            move |asked| match asked.number {
                1 => vec![old("stale-if-error=60", "", "1")],
                _ => vec![Step::Hold(hold.clone()), failing.clone()],
            },
            async |world| {
                keep(world).await;
                let before = usize::try_from(world.proxy.0.flights.stats().flights).unwrap();
                let herd = world.herd(HERD, |_| get("/"));
                world.aboard(before + HERD).await;
                gate.open();
                for reply in herd.replies().await {
                    reply.is(200, "1");
                }
                for _ in 0..2 {
                    for reply in world.herd(HERD, |_| get("/")).replies().await {
                        reply.is(200, "1");
                    }
                }
                assert_eq!(world.origin.requests(), 3, "one client's, and one of our own");
            },
        );
    }
}

#[test]
fn a_hung_origin_is_waited_for_once_and_then_not_by_everybody() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => vec![old("stale-if-error=60", "", "1")],
            _ => vec![Step::Hold(hold.clone()), fresh("2")],
        },
        async |world| {
            keep(world).await;
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "1");
            }
            let waited = world.proxy.0.flights.stats();
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "1");
            }
            assert_eq!(world.proxy.0.flights.stats(), waited, "nobody waits to see it again");
            assert_eq!(world.origin.requests(), 2);
            // If it comes to itself, what it says counts.
            gate.open();
            world.settled().await;
            world.ask(get("/")).await.is(200, "2");
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

/// One slow answer that comes to nothing is no reason to serve what is old for as long as an answer may take.
#[test]
fn an_origin_that_was_slow_and_then_failed_is_asked_again() {
    for control in ["stale-if-error=60", "stale-while-revalidate=60"] {
        let gate = Gate::new();
        let hold = gate.clone();
        run_with(
            |settings| {
                settings.failed = Duration::from_nanos(1)..Duration::from_nanos(2);
                obeying(settings);
            },
            move |asked| match asked.number {
                1 => vec![old(control, "", "1")],
                2 => vec![Step::Hold(hold.clone()), answer(500, "", "broken")],
                _ => vec![fresh("3")],
            },
            async |world| {
                keep(world).await;
                // Who insists waits, even where others need not.
                let insists = || with("/", &[("cache-control", "no-cache")]);
                for _ in 0..2 {
                    let reply = world.ask(insists()).await;
                    reply.is(200, "1");
                    assert!(reply.cache().ends_with("detail=origin-slow"), "{}", reply.cache());
                }
                gate.open();
                world.settled().await;
                // One is enough to begin another; where what is old may be served meanwhile, that is when it comes.
                world.ask(get("/")).await;
                world.origin.asked(3).await;
                world.settled().await;
                world.ask(get("/")).await.is(200, "3");
                assert_eq!(world.origin.requests(), 3);
            },
        );
    }
}

#[test]
fn what_must_be_asked_about_is_never_served_stale() {
    for control in [
        "must-revalidate",
        "proxy-revalidate",
        "must-revalidate, stale-while-revalidate=60, stale-if-error=60",
        "s-maxage=60",
    ] {
        run_with(
            |settings| {
                settings.rules.grace = MINUTE;
                obeying(settings);
            },
            move |asked| match asked.number {
                1 => vec![old(control, "etag: \"1\"", "1")],
                _ => vec![answer(500, "", "broken")],
            },
            async |world| {
                keep(world).await;
                for headers in
                    [[("x", "y")], [("cache-control", "max-stale")], [("cache-control", "stale-if-error=60")]]
                {
                    for reply in world.herd(10, |_| with("/", &headers)).replies().await {
                        assert_eq!(reply.status, 500, "{control}");
                    }
                }
            },
        );
    }
}

#[test]
fn what_s_maxage_allows_to_be_stale_is_served_so() {
    run(
        |asked| match asked.number {
            1 => vec![old("s-maxage=60, stale-if-error=60", "", "1")],
            _ => vec![answer(500, "", "broken")],
        },
        async |world| {
            keep(world).await;
            world.ask(get("/")).await.is(200, "1");
        },
    );
}

#[test]
fn who_asks_for_more_than_what_is_there_has_the_origin_asked() {
    run_with(
        obeying,
        |asked| vec![answer(200, "cache-control: max-age=600\nage: 100", &asked.number.to_string())],
        async |world| {
            keep(world).await;
            for (number, control) in ["no-cache", "max-age=50", "min-fresh=590", "max-age=0"].into_iter().enumerate() {
                // If that takes long, what is there is good enough.
                assert_eq!(world.ask(with("/", &[("cache-control", control)])).await.status, 200);
                world.origin.asked(number + 2).await;
                world.settled().await;
            }
            let before = world.origin.requests();
            for control in ["max-age=200", "min-fresh=100", "only-if-cached", "max-stale"] {
                world.ask(with("/", &[("cache-control", control)])).await.is(200, "5");
            }
            assert_eq!(world.origin.requests(), before);
            assert_eq!(world.ask(with("/none", &[("cache-control", "only-if-cached")])).await.status, 504);
            assert_eq!(world.origin.requests(), before);
        },
    );
}

#[test]
fn a_crowd_that_insists_on_asking_is_one_request() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        obeying,
        move |asked| match asked.number {
            1 => vec![answer(200, "cache-control: max-age=600", "1")],
            _ => vec![Step::Hold(hold.clone()), fresh("2")],
        },
        async |world| {
            keep(world).await;
            // So that no copy is served if the origin is slow.
            world.proxy.0.store.changed(&world.proxy.0.keyer.key(crate::key::Scheme::Http, "a", "/").unwrap().to_key());
            let herd = world.herd(HERD, |_| with("/", &[("cache-control", "no-cache")]));
            world.aboard(HERD + 1).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "2");
            }
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn max_stale_takes_what_the_origin_allows() {
    run_with(
        obeying,
        |asked| match asked.number {
            // With a tag, so that it is kept at all.
            1 => vec![old("stale-if-error=0", "etag: \"1\"", "1")],
            number => vec![fresh(&number.to_string())],
        },
        async |world| {
            keep(world).await;
            let reply = world.ask(with("/", &[("cache-control", "max-stale=60")])).await;
            reply.is(200, "1");
            assert!(reply.cache().contains("max-stale"), "{}", reply.cache());
            world.origin.asked(2).await;
            world.settled().await;
            world.ask(get("/")).await.is(200, "2");
        },
    );
}

#[test]
fn a_refresh_under_way_is_no_failure() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        obeying,
        move |asked| match asked.number {
            1 => vec![old("stale-while-revalidate=60", "", "1")],
            _ => vec![Step::Hold(hold.clone()), fresh("2")],
        },
        async |world| {
            keep(world).await;
            world.ask(get("/")).await.is(200, "1");
            world.origin.asked(2).await;
            // Who insists is not told that the origin has failed: it joins who asks.
            let joins = world.proxy.0.flights.stats().joins;
            let reply = world.ask(with("/", &[("cache-control", "no-cache")])).await;
            assert!(!reply.cache().contains("origin-failed"), "{}", reply.cache());
            assert_eq!(world.proxy.0.flights.stats().joins, joins + 1);
            gate.open();
        },
    );
}

#[test]
fn what_was_confirmed_after_a_failure_is_not_said_to_be_served_because_of_that_failure() {
    run_with(
        |settings| {
            obeying(settings);
            settings.failed = Duration::from_millis(1)..Duration::from_millis(2);
        },
        |asked| {
            let control = "stale-while-revalidate=600, stale-if-error=600";
            match asked.number {
                1 => vec![old(control, "etag: \"1\"", "1")],
                2 => vec![answer(500, "", "broken")],
                // Right still, and past its time all the same.
                _ => vec![Step::Send(
                    format!("HTTP/1.1 304 X\r\ncache-control: max-age=60, {control}\r\nage: 65\r\netag: \"1\"\r\n\r\n")
                        .into(),
                )],
            }
        },
        async |world| {
            keep(world).await;
            let insisting = || with("/", &[("cache-control", "no-cache")]);
            let reply = world.ask(insisting()).await;
            reply.is(200, "1");
            assert!(reply.cache().ends_with("herdproof; hit; detail=origin-failed"), "{}", reply.cache());
            // Until that is forgotten.
            while !world.ask(insisting()).await.cache().starts_with("herdproof; fwd=stale; fwd-status=304") {}
            world.settled().await;
            for _ in 0..3 {
                let reply = world.ask(get("/")).await;
                assert!(reply.cache().ends_with("detail=stale-while-revalidate"), "{}", reply.cache());
                world.settled().await;
            }
        },
    );
}

#[test]
fn an_origin_that_declines_a_request_of_our_own_has_not_failed() {
    run_with(
        |settings| {
            obeying(settings);
            settings.failed = MINUTE..MINUTE * 2;
        },
        |asked| match asked.number {
            1 => vec![old("stale-while-revalidate=600", "", "1")],
            _ => vec![answer(403, "", "who are you?")],
        },
        async |world| {
            keep(world).await;
            world.ask(get("/")).await.is(200, "1");
            world.origin.asked(2).await;
            world.settled().await;
            // While it rests, who insists is told why it is served all the same.
            let reply = world.ask(with("/", &[("cache-control", "no-cache")])).await;
            reply.is(200, "1");
            assert!(reply.cache().ends_with("detail=refresh-refused"), "{}", reply.cache());
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn a_crowd_that_has_to_ask_asks_once_and_the_body_is_not_sent_again() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.number {
            1 => vec![old("must-revalidate", "etag: \"1\"\nx-old: 1", "1")],
            _ => {
                assert_eq!(asked.header("if-none-match"), "\"1\"");
                vec![
                    Step::Hold(hold.clone()),
                    Step::Send(
                        "HTTP/1.1 304 X\r\ncache-control: max-age=600\r\netag: \"1\"\r\nx-new: 1\r\n\r\n".into(),
                    ),
                ]
            }
        },
        async |world| {
            keep(world).await;
            let herd = world.herd(HERD, |_| get("/"));
            world.aboard(HERD + 1).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "1");
                assert_eq!((reply.header("x-old"), reply.header("x-new")), ("1", "1"));
            }
            world.settled().await;
            let reply = world.ask(get("/")).await;
            reply.is(200, "1");
            assert!(reply.cache().ends_with("hit"), "{}", reply.cache());
            assert_eq!((reply.header("x-new"), world.origin.requests()), ("1", 2));
            assert_eq!(world.origin.connections(), 1, "a 304 leaves the connection free");
        },
    );
}

#[test]
fn a_304_that_makes_it_private_takes_it_from_the_others() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.failed = Duration::from_nanos(1)..Duration::from_nanos(2),
        move |asked| match asked.number {
            1 => vec![old("stale-if-error=600", "etag: \"1\"", "1")],
            2 => vec![
                Step::Hold(hold.clone()),
                Step::Send("HTTP/1.1 304 X\r\ncache-control: private\r\netag: \"1\"\r\n\r\n".into()),
            ],
            _ if asked.header("x-user").is_empty() => vec![answer(500, "", "broken")],
            _ => vec![answer(200, "cache-control: private", asked.header("x-user"))],
        },
        async |world| {
            keep(world).await;
            let first = world.herd(1, |_| get("/"));
            world.origin.asked(2).await;
            gate.open();
            first.replies().await[0].is(200, "1");
            world.settled().await;
            // Not even when the origin fails.
            assert_eq!(world.ask(get("/")).await.status, 500);
            for reply in world.herd(20, |_| with("/", &[("x-user", "me")])).replies().await {
                reply.is(200, "me");
            }
        },
    );
}

#[test]
fn what_is_not_to_be_used_unasked_is_asked_about_by_each() {
    run(
        |asked| {
            if asked.header("if-none-match") == "\"1\"" {
                return vec![Step::Send("HTTP/1.1 304 X\r\ncache-control: no-cache\r\netag: \"1\"\r\n\r\n".into())];
            }
            vec![answer(200, "cache-control: no-cache\netag: \"1\"", "1")]
        },
        async |world| {
            keep(world).await;
            for reply in world.herd(20, |_| get("/")).replies().await {
                reply.is(200, "1");
            }
            let log = world.origin.log();
            assert_eq!(log.len(), 21);
            assert!(log[1..].iter().all(|asked| asked.header("if-none-match") == "\"1\""), "the body came once");
        },
    );
}

/// What each has to ask about is kept on the first visit, also where no page of the site can be shared.
#[test]
fn a_site_that_is_asked_about_page_by_page_sends_each_body_once() {
    run(
        |asked| match asked.header("if-none-match") {
            "\"1\"" => vec![Step::Send("HTTP/1.1 304 X\r\ncache-control: no-cache\r\netag: \"1\"\r\n\r\n".into())],
            _ => vec![answer(200, "cache-control: no-cache\netag: \"1\"", "1")],
        },
        async |world| {
            for page in 0..12 {
                let page = format!("/pages/{page}");
                world.ask(get(&page)).await.is(200, "1");
                world.settled().await;
                world.ask(get(&page)).await.is(200, "1");
                world.settled().await;
            }
            let asked = world.origin.log();
            assert_eq!(asked.iter().filter(|asked| asked.header("if-none-match") == "\"1\"").count(), 12);
            assert_eq!(asked.len(), 24);
        },
    );
}

#[test]
fn what_has_just_come_is_no_younger_than_the_origin_said() {
    run(
        |_| vec![answer(200, "cache-control: max-age=600\nage: 100", "1")],
        async |world| {
            for path in ["/", "/", "/other"] {
                let age: u64 = world.ask(get(path)).await.header("age").parse().unwrap();
                assert!(age >= 100, "{age}");
            }
        },
    );
}

#[test]
fn a_refresh_uses_a_connection_that_is_there() {
    run(
        |asked| match asked.number {
            1 => vec![old("stale-while-revalidate=60", "", "1")],
            _ => vec![fresh("2")],
        },
        async |world| {
            keep(world).await;
            world.ask(get("/")).await.is(200, "1");
            world.origin.asked(2).await;
            assert_eq!(world.origin.connections(), 1);
        },
    );
}
