//! What one client can do to the others with failures and with what is learned: nothing.

use std::time::Duration;

use http::Method;
use tokio::io::AsyncWriteExt;

use super::world::{Asked, Gate, Reply, Step, World, answer, bytes, fresh, get, head, request, run, run_with, with};

const HERD: usize = 100;
const EVIL: [u8; 4] = [127, 0, 0, 66];
const GOOD: [u8; 4] = [127, 0, 0, 10];
const EVIL_HEADER: [(&str, &str); 1] = [("x-evil", "1")];
/// A usual field, with a value that the origin does not like.
const EVIL_VALUE: [(&str, &str); 1] = [("user-agent", "evil/1")];

fn is_evil(asked: &Asked) -> bool {
    !asked.header("x-evil").is_empty() || asked.header("user-agent").starts_with("evil")
}

/// A request of the proxy's own: nothing that a client sends, and nobody's address.
fn is_ours(asked: &Asked) -> bool {
    asked.header("user-agent") == "herdproof" && asked.header("x-forwarded-for").is_empty()
}

/// The evil one leads a flight, so many others are aboard, and then the origin may answer.
async fn led_by_evil(world: &World, gate: &Gate, header: &[(&str, &str)]) -> (Reply, Vec<Reply>) {
    let path = "/";
    let before = world.origin.requests();
    let evil = world.spawn_from(EVIL, with(path, header));
    world.origin.asked(before + 1).await;
    let stats = world.proxy.0.flights.stats();
    let aboard = usize::try_from(stats.flights + stats.joins).unwrap();
    let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, get(path))).collect();
    world.aboard(aboard + HERD).await;
    gate.open();
    let mut replies = Vec::new();
    for reply in herd {
        replies.push(reply.await.unwrap());
    }
    (evil.await.unwrap(), replies)
}

#[test]
fn a_failure_that_one_client_provokes_is_not_shared_with_those_aboard() {
    for failing in
        [answer(500, "cache-control: max-age=60", "evil"), answer(503, "retry-after: 60", "evil"), Step::Reset]
    {
        let (gate, reset) = (Gate::new(), matches!(failing, Step::Reset));
        let hold = gate.clone();
        run_with(
            |_| {},
            move |asked| {
                if is_evil(asked) { vec![Step::Hold(hold.clone()), failing.clone()] } else { vec![fresh("fine")] }
            },
            async |world| {
                let (evil, good) = led_by_evil(world, &gate, &EVIL_HEADER).await;
                // Its further attempts would have been its own: the one for all is as good for it.
                assert!(evil.status.is_server_error() || reset && evil.status == 200);
                for reply in good {
                    reply.is(200, "fine");
                }
                assert_eq!(world.origin.requests(), 2);
                assert!(is_ours(&world.origin.log()[1]), "{:?}", world.origin.log()[1]);
            },
        );
    }
}

#[test]
fn a_refusal_that_one_client_provokes_does_not_send_those_aboard_to_the_origin() {
    let evils = [EVIL_HEADER, EVIL_VALUE];
    for (status, header) in
        [400, 401, 403, 404, 429, 431].into_iter().flat_map(|status| evils.map(|evil| (status, evil)))
    {
        let gate = Gate::new();
        let hold = gate.clone();
        run(
            move |asked| {
                if is_evil(asked) {
                    vec![Step::Hold(hold.clone()), answer(status, "", "evil")]
                } else {
                    vec![fresh("fine")]
                }
            },
            async |world| {
                let (evil, good) = led_by_evil(world, &gate, &header).await;
                assert_eq!(evil.status, status);
                for reply in good {
                    reply.is(200, "fine");
                }
                assert_eq!(world.origin.requests(), 2, "{status}: the evil one's, and ours");
                assert!(is_ours(&world.origin.log()[1]), "{status}: {:?}", world.origin.log()[1]);
            },
        );
    }
}

#[test]
fn a_failure_that_one_client_provokes_is_not_remembered_for_newcomers() {
    for page in [
        "cache-control: private",
        "cache-control: max-age=1, must-revalidate\nage: 1\netag: \"1\"",
        "cache-control: no-store",
    ] {
        run(
            move |asked| {
                if is_evil(asked) { vec![answer(500, "", "evil")] } else { vec![answer(200, page, "fine")] }
            },
            async |world| {
                for _ in 0..3 {
                    world.spawn_from(EVIL, with("/", &EVIL_HEADER)).await.unwrap();
                    world.spawn_from(GOOD, get("/")).await.unwrap().is(200, "fine");
                    // And behind one address.
                    world.spawn_from(EVIL, get("/")).await.unwrap().is(200, "fine");
                }
            },
        );
    }
}

#[test]
fn a_page_that_needs_more_than_a_request_of_our_own_has_is_not_failed_by_one_client() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match asked.header("x-key") {
            _ if is_evil(asked) => vec![Step::Hold(hold.clone()), answer(500, "", "evil")],
            "" => vec![answer(401, "", "who are you")],
            _ => vec![fresh("fine")],
        },
        async |world| {
            let evil = world.spawn_from(EVIL, with("/", &EVIL_HEADER));
            world.origin.asked(1).await;
            let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, with("/", &[("x-key", "1")]))).collect();
            world.aboard(HERD + 1).await;
            gate.open();
            for reply in herd {
                reply.await.unwrap().is(200, "fine");
            }
            assert_eq!(evil.await.unwrap().status, 500);
            assert_eq!(world.origin.requests(), 3, "the evil one's, ours, and a client's");
        },
    );
}

#[test]
fn a_refresh_goes_without_the_headers_of_whoever_came_upon_the_stale_page() {
    run_with(
        |settings| settings.rules.grace = Duration::from_secs(600),
        |asked| match asked.number {
            1 => vec![answer(200, "cache-control: max-age=1\nage: 1", "old")],
            _ if is_evil(asked) => vec![answer(500, "", "evil")],
            _ => vec![fresh("new")],
        },
        async |world| {
            world.ask(get("/")).await.is(200, "old");
            world.settled().await;
            world.spawn_from(EVIL, with("/", &EVIL_HEADER)).await.unwrap().is(200, "old");
            world.origin.asked(2).await;
            world.settled().await;
            assert!(is_ours(&world.origin.log()[1]));
            world.spawn_from(GOOD, get("/")).await.unwrap().is(200, "new");
        },
    );
}

#[test]
fn one_private_answer_does_not_send_the_whole_herd_to_the_origin() {
    let [evils, others] = [Gate::new(), Gate::new()];
    let hold = (evils.clone(), others.clone());
    run(
        move |asked| {
            if is_evil(asked) {
                vec![Step::Hold(hold.0.clone()), answer(200, "cache-control: private, no-store", "evil's own")]
            } else {
                vec![Step::Hold(hold.1.clone()), fresh("fine")]
            }
        },
        async |world| {
            let evil = world.spawn_from(EVIL, with("/", &EVIL_HEADER));
            world.origin.asked(1).await;
            let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, get("/"))).collect();
            world.aboard(HERD + 1).await;
            evils.open();
            evil.await.unwrap().is(200, "evil's own");
            world.until(|| world.proxy.0.widening.len() == HERD).await;
            others.open();
            for reply in herd {
                reply.await.unwrap().is(200, "fine");
            }
            assert!(world.origin.requests() <= 1 + 16, "{}", world.origin.requests());
        },
    );
}

#[test]
fn private_neighbours_make_a_herd_eight_requests_and_not_as_many_as_it_has_members() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match &*asked.target {
            "/pages/shared" => vec![Step::Hold(hold.clone()), fresh("fine")],
            _ => vec![answer(200, "cache-control: private", "")],
        },
        async |world| {
            for page in 0..30 {
                world.spawn_from(EVIL, get(&format!("/pages/{page}"))).await.unwrap();
            }
            let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, get("/pages/shared"))).collect();
            world.until(|| world.proxy.0.widening.len() == HERD).await;
            gate.open();
            for reply in herd {
                reply.await.unwrap().is(200, "fine");
            }
            let asked = world.origin.requests() - 30;
            assert!((1..=8).contains(&asked), "{asked}");
            world.settled().await;
            world.spawn_from(GOOD, get("/pages/shared")).await.unwrap().is(200, "fine");
            assert_eq!(world.origin.requests() - 30, asked, "what could be shared was stored");
        },
    );
}

#[test]
fn pages_that_are_missing_teach_nothing() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match &*asked.target {
            "/pages/shared" => vec![Step::Hold(hold.clone()), fresh("fine")],
            _ => vec![answer(404, "", "no such page")],
        },
        async |world| {
            for page in 0..30 {
                world.spawn_from(EVIL, get(&format!("/pages/{page}"))).await.unwrap().is(404, "no such page");
            }
            let stats = world.proxy.0.flights.stats();
            let before = usize::try_from(stats.flights + stats.joins).unwrap();
            let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, get("/pages/shared"))).collect();
            world.aboard(before + HERD).await;
            gate.open();
            for reply in herd {
                reply.await.unwrap().is(200, "fine");
            }
            assert_eq!(world.origin.requests(), 31);
        },
    );
}

#[test]
fn a_body_that_breaks_off_costs_one_request_more_and_not_one_for_each() {
    let [first, second] = [Gate::new(), Gate::new()];
    let hold = (first.clone(), second.clone());
    run(
        move |asked| {
            if asked.number > 1 {
                return vec![fresh("whole")];
            }
            let half = head(200, "cache-control: max-age=60\r\ncontent-length: 10\r\n");
            let (first, second) = hold.clone();
            vec![bytes(half + "half"), Step::Hold(first), Step::Reset, Step::Hold(second)]
        },
        async |world| {
            let mut leader = world.begin(get("/")).await;
            assert!(leader.next().await.unwrap().is_ok());
            first.open();
            let cut = leader.rest().await;
            assert!(!cut.whole, "half is not taken for the whole");
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "whole");
            }
            assert_eq!(world.origin.requests(), 2);
            assert!(is_ours(&world.origin.log()[1]));
            second.open();
        },
    );
}

#[test]
fn a_herd_at_a_url_that_fails_for_everybody_is_two_requests_from_one_address_and_from_many() {
    for many in [false, true] {
        let gate = Gate::new();
        let hold = gate.clone();
        run(
            move |_| vec![Step::Hold(hold.clone()), answer(500, "", "broken")],
            async |world| {
                let from = |number: usize| [127, 0, 0, if many { 10 + u8::try_from(number % 40).unwrap() } else { 10 }];
                let herd: Vec<_> = (0..HERD).map(|number| world.spawn_from(from(number), get("/"))).collect();
                world.aboard(HERD).await;
                gate.open();
                for reply in herd {
                    assert_eq!(reply.await.unwrap().status, 500);
                }
                assert_eq!(world.origin.requests(), 2);
            },
        );
    }
}

#[test]
fn an_error_that_one_client_provokes_does_not_keep_an_old_page_in_service() {
    for status in [400, 429, 500, 503] {
        run(
            move |asked| match asked.number {
                1 => vec![answer(200, "cache-control: max-age=1, stale-if-error=600\nage: 1", "old")],
                _ if is_evil(asked) => vec![answer(status, "", "evil")],
                _ => vec![fresh("new")],
            },
            async |world| {
                world.ask(get("/")).await.is(200, "old");
                world.settled().await;
                world.spawn_from(EVIL, with("/", &EVIL_HEADER)).await.unwrap();
                world.spawn_from(GOOD, get("/")).await.unwrap().is(200, "new");
            },
        );
    }
}

#[test]
fn an_error_that_says_it_may_be_kept_is_kept_only_if_others_get_it_too() {
    for status in [403, 404, 410, 500, 503] {
        // For one request only, and for all.
        for (for_all, header) in [(false, EVIL_HEADER), (false, EVIL_VALUE), (true, EVIL_HEADER), (true, EVIL_VALUE)] {
            run(
                move |asked| {
                    if for_all || is_evil(asked) {
                        vec![answer(status, "cache-control: max-age=600", "error")]
                    } else {
                        vec![fresh("fine")]
                    }
                },
                async |world| {
                    for _ in 0..2 {
                        assert_eq!(world.spawn_from(EVIL, with("/", &header)).await.unwrap().text(), "error");
                        world.settled().await;
                        let good = world.spawn_from(GOOD, get("/")).await.unwrap();
                        assert_eq!(good.text(), if for_all { "error" } else { "fine" }, "{status}");
                        world.settled().await;
                        if !for_all {
                            break;
                        }
                    }
                    assert_eq!(world.origin.requests(), 2, "what is for all is kept: {status}");
                },
            );
        }
    }
}

#[test]
fn one_client_whose_request_hangs_does_not_hold_those_aboard() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        |settings| settings.origin.hedge_after = Some(Duration::from_millis(1)),
        move |asked| {
            if is_evil(asked) { vec![Step::Hold(hold.clone()), fresh("late")] } else { vec![fresh("fine")] }
        },
        async |world| {
            let evil = world.spawn_from(EVIL, with("/", &EVIL_HEADER));
            world.origin.asked(1).await;
            for reply in world.herd(HERD, |_| get("/")).replies().await {
                reply.is(200, "fine");
            }
            assert!(is_ours(&world.origin.log()[1]));
            gate.open();
            assert_eq!(evil.await.unwrap().status, 200);
        },
    );
}

#[test]
fn a_client_that_leaves_before_its_request_breaks_does_not_have_it_repeated_for_those_aboard() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| if is_evil(asked) { vec![Step::Hold(hold.clone()), Step::Reset] } else { vec![fresh("fine")] },
        async |world| {
            let mut evil = world.connect_from(EVIL).await;
            evil.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-evil: 1\r\n\r\n").await.unwrap();
            world.origin.asked(1).await;
            let good = world.spawn_from(GOOD, get("/"));
            world.aboard(2).await;
            drop(evil);
            world.until(|| world.server.connections() == 1).await;
            gate.open();
            good.await.unwrap().is(200, "fine");
            assert_eq!(world.origin.requests(), 2);
            assert!(is_ours(&world.origin.log()[1]), "{:?}", world.origin.log()[1]);
        },
    );
}

#[test]
fn a_page_that_is_gone_for_one_after_another_is_not_served_when_the_origin_fails() {
    run_with(
        |settings| settings.rules.grace = Duration::ZERO,
        |asked| match asked.number {
            1 => vec![answer(200, "cache-control: max-age=1\nage: 1", "there")],
            2..=4 => vec![answer(404, "cache-control: no-store", "gone")],
            _ => vec![Step::Reset],
        },
        async |world| {
            world.ask(get("/")).await.is(200, "there");
            world.settled().await;
            world.ask(get("/")).await.is(404, "gone");
            world.ask(get("/")).await.is(404, "gone");
            assert!(world.origin.log().iter().any(is_ours), "{:?}", world.origin.log());
            assert!(world.ask(get("/")).await.status.is_server_error());
        },
    );
}

#[test]
fn a_page_that_is_gone_is_not_served_stale_for_ever() {
    for status in [404, 410] {
        run_with(
            |settings| settings.rules.grace = Duration::from_secs(600),
            move |asked| match asked.number {
                1 => vec![answer(200, "cache-control: max-age=1\nage: 1", "old")],
                _ => vec![answer(status, "cache-control: no-store", "gone")],
            },
            async |world| {
                for _ in 0..2 {
                    world.ask(get("/")).await.is(200, "old");
                    world.settled().await;
                }
                world.ask(get("/")).await.is(status, "gone");
            },
        );
    }
}

#[test]
fn a_request_of_our_own_asks_for_the_variant_that_it_is_kept_as() {
    for field in ["accept", "user-agent", "x-theme"] {
        run_with(
            |settings| settings.rules.grace = Duration::from_secs(600),
            move |asked| {
                let (said, theirs) = (asked.header(field).to_owned(), asked.number > 1);
                let age = if theirs { "" } else { "\nage: 60" };
                vec![answer(200, &format!("cache-control: max-age=60\nvary: {field}{age}"), &said)]
            },
            async |world| {
                let ask = async || world.ask(with("/", &[(field, "json")])).await;
                ask().await.is(200, "json");
                world.settled().await;
                // It is stale: this one has it refreshed.
                ask().await.is(200, "json");
                world.origin.asked(2).await;
                world.settled().await;
                ask().await.is(200, "json");
                assert_eq!(world.origin.requests(), 2, "{field}");
            },
        );
    }
}

#[test]
fn a_page_that_fails_on_a_route_learned_private_is_no_herd_at_the_origin() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match &*asked.target {
            "/api/new" => vec![Step::Hold(hold.clone()), answer(500, "", "broken")],
            _ => vec![answer(200, "cache-control: private", "")],
        },
        async |world| {
            for page in 0..8 {
                world.spawn_from(EVIL, get(&format!("/api/{page}"))).await.unwrap();
            }
            let herd: Vec<_> = (0..HERD).map(|_| world.spawn_from(GOOD, get("/api/new"))).collect();
            world.until(|| world.proxy.0.widening.len() == HERD).await;
            gate.open();
            for reply in herd {
                assert_eq!(reply.await.unwrap().status, 500);
            }
            let asked = world.origin.requests() - 8;
            assert!(asked <= 9, "{asked}");
        },
    );
}

#[test]
fn one_client_whose_page_fails_on_a_route_learned_private_asks_once_each_time() {
    run(
        |asked| match &*asked.target {
            "/api/new" => vec![answer(500, "", "broken")],
            _ => vec![answer(200, "cache-control: private", "")],
        },
        async |world| {
            for page in 0..8 {
                world.spawn_from(EVIL, get(&format!("/api/{page}"))).await.unwrap();
            }
            for _ in 0..2 {
                world.spawn_from(GOOD, with("/api/new", &[("x-key", "1")])).await.unwrap().is(500, "broken");
            }
            let asked = world.origin.log();
            let ours = asked.iter().filter(|asked| is_ours(asked)).count();
            assert_eq!((asked.len() - 8, ours), (2, 0), "nobody else waits for it");
        },
    );
}

#[test]
fn an_error_that_may_be_kept_is_kept_for_the_client_that_got_it_and_asked_in_the_same_way() {
    for (status, said) in [
        (404, "cache-control: max-age=600"),
        (500, "cache-control: max-age=600"),
        (503, "cache-control: public, max-age=600"),
        (400, "cache-control: max-age=600"),
        (501, "cache-control: max-age=600"),
    ] {
        run(
            move |asked| match asked.method {
                Method::GET => vec![answer(status, said, &asked.number.to_string())],
                _ => vec![answer(204, "", "")],
            },
            async |world| {
                let ask = async |from, header: &[(&str, &str)]| {
                    let reply = world.spawn_from(from, with("/", header)).await.unwrap();
                    assert_eq!(reply.status, status);
                    reply.text().to_owned()
                };
                assert_eq!(ask(EVIL, &[("x-number", "1")]).await, "1");
                // A number of its own in each request is the same way to ask; another field is not, nor another language.
                assert_eq!(ask(EVIL, &[("x-number", "2")]).await, "1");
                assert_ne!(ask(EVIL, &[("x-other", "1")]).await, "1");
                assert_ne!(ask(EVIL, &[("x-number", "1"), ("accept-language", "de")]).await, "1");
                assert_ne!(ask(GOOD, &[("x-number", "1")]).await, "1");
                world.spawn_from(EVIL, request(Method::PUT, "/", &[], "x")).await.unwrap();
                assert_ne!(ask(EVIL, &[("x-number", "1")]).await, "1", "it has changed it");
            },
        );
    }
}

#[test]
fn an_error_is_kept_for_nobody_where_it_says_no_such_thing() {
    for (status, said) in [
        (404, ""),
        (404, "cache-control: max-age=0"),
        (404, "cache-control: max-age=600, private"),
        (404, "cache-control: max-age=600\nset-cookie: a=b"),
        (404, "cache-control: max-age=600\nvary: x-number"),
        (400, "cache-control: no-store, max-age=600"),
        (400, ""),
        (429, "cache-control: max-age=600"),
        (416, "cache-control: max-age=600"),
        (408, "cache-control: max-age=600"),
    ] {
        run(
            move |asked| vec![answer(status, said, &asked.number.to_string())],
            async |world| {
                let ask = async || world.spawn_from(EVIL, with("/", &[("x-number", "1")])).await.unwrap();
                ask().await.is(status, "1");
                assert_ne!(ask().await.text(), "1", "{status} {said}");
            },
        );
    }
}

#[test]
fn a_bad_request_does_not_make_a_failing_url_look_well() {
    run(
        |asked| if is_evil(asked) { vec![answer(400, "", "bad")] } else { vec![answer(500, "", "broken")] },
        async |world| {
            let key = world.proxy.0.keyer.key(crate::key::Scheme::Http, "a", "/").unwrap().hash();
            world.spawn_from(GOOD, get("/")).await.unwrap();
            assert!(world.proxy.0.failing.knows(key));
            world.spawn_from(EVIL, with("/", &EVIL_HEADER)).await.unwrap().is(400, "bad");
            assert!(world.proxy.0.failing.knows(key), "it is still paced");
        },
    );
}
