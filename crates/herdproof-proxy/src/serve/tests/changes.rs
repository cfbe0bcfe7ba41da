//! What changed is not given out as it was, also if it was under way when it changed.

use http::Method;

use super::world::{Gate, Step, World, answer, bytes, fresh, get, head, obeying, request, run, run_with, with};

const HERD: usize = 50;

#[test]
fn a_change_takes_away_what_is_kept() {
    run(
        |asked| match asked.method {
            Method::GET => vec![fresh(&asked.number.to_string())],
            _ => vec![answer(200, "", "changed")],
        },
        async |world| {
            for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, "MOVE".parse().unwrap()] {
                let before = world.ask(get("/")).await;
                world.settled().await;
                world.ask(get("/")).await.is(200, before.text());
                world.ask(request(method.clone(), "/", &[], "x")).await.is(200, "changed");
                assert_ne!(world.ask(get("/")).await.text(), before.text(), "{method}");
                world.settled().await;
            }
        },
    );
}

#[test]
fn a_method_that_changes_nothing_leaves_what_is_kept_and_one_that_nobody_knows_does_not() {
    run(
        |asked| match asked.method {
            Method::GET => vec![fresh(&asked.number.to_string())],
            _ => vec![answer(200, "", "done")],
        },
        async |world| {
            let ask = async |method: &str| {
                world.ask(request(method.parse().unwrap(), "/", &[], "x")).await.is(200, "done");
                world.settled().await;
            };
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            for method in ["OPTIONS", "PROPFIND", "REPORT", "SEARCH", "QUERY"] {
                ask(method).await;
                world.ask(get("/")).await.is(200, "1");
            }
            for method in ["PURGE", "FOO"] {
                ask(method).await;
                let now = world.origin.requests() + 1;
                world.ask(get("/")).await.is(200, &now.to_string());
                world.settled().await;
            }
        },
    );
}

#[test]
fn what_one_asks_for_by_itself_is_kept_though_another_page_changes_meanwhile_and_not_if_it_changes_itself() {
    for (changes, kept) in [("/pages/other", true), ("/pages/new", false)] {
        let gate = Gate::new();
        let hold = gate.clone();
        run(
            move |asked| match (&asked.method, &*asked.target) {
                (&Method::GET, "/pages/new") => vec![Step::Hold(hold.clone()), fresh("fine")],
                (&Method::GET, _) => vec![answer(200, "cache-control: private", "")],
                _ => vec![answer(200, "", "changed")],
            },
            async |world| {
                for page in 0..8 {
                    world.ask(get(&format!("/pages/{page}"))).await;
                }
                // Its route is known to be private, so nobody else waits for it.
                let new = world.spawn_from([127, 0, 0, 1], get("/pages/new"));
                world.origin.asked(9).await;
                world.ask(request(Method::PUT, changes, &[], "x")).await.is(200, "changed");
                gate.open();
                new.await.unwrap().is(200, "fine");
                world.settled().await;
                world.ask(get("/pages/new")).await.is(200, "fine");
                assert_eq!(world.origin.requests(), if kept { 10 } else { 11 }, "{changes}");
            },
        );
    }
}

/// A page is kept, and a request has changed it. What the origin answers from then on is the test's.
fn after_a_change(headers: &'static str, then: Step, gate: Gate, test: impl AsyncFnOnce(&World)) {
    run_with(
        obeying,
        move |asked| match (&asked.method, asked.number) {
            (&Method::GET, 1) => vec![answer(200, headers, "kept")],
            (&Method::GET, _) => vec![Step::Hold(gate.clone()), then.clone()],
            _ => vec![answer(204, "", "")],
        },
        async |world| {
            let asking = [("accept-language", "en")];
            world.ask(with("/", &asking)).await.is(200, "kept");
            world.settled().await;
            world.ask(request(Method::POST, "/", &[], "x")).await;
            test(world).await;
        },
    );
}

#[test]
fn after_a_change_a_crowd_is_one_question_and_the_body_is_not_sent_again() {
    for headers in [
        "cache-control: max-age=600\netag: \"1\"",
        "cache-control: max-age=600, stale-while-revalidate=600\netag: \"1\"",
        "cache-control: max-age=600\netag: \"1\"\nvary: accept-language",
    ] {
        let gate = Gate::new();
        let same = answer(304, headers, "");
        after_a_change(headers, same, gate.clone(), async |world| {
            let herd = world.herd(HERD, |_| with("/", &[("accept-language", "en"), ("cache-control", "max-stale")]));
            world.aboard(HERD + 1).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "kept");
            }
            let asked = world.origin.log();
            assert_eq!((asked.len(), asked[2].header("if-none-match")), (3, "\"1\""), "{headers}");
            world.settled().await;
            // It is as it was: until the next change nobody asks.
            world.ask(with("/", &[("accept-language", "en")])).await.is(200, "kept");
            assert_eq!(world.origin.requests(), 3);
        });
    }
}

#[test]
fn after_a_change_what_was_before_it_stands_in_for_an_origin_that_fails() {
    for headers in ["cache-control: max-age=600", "cache-control: max-age=600\nvary: accept-language"] {
        let gate = Gate::new();
        gate.open();
        after_a_change(headers, answer(500, "", "broken"), gate, async |world| {
            for reply in world.herd(HERD, |_| with("/", &[("accept-language", "en")])).replies().await {
                reply.is(200, "kept");
                assert!(reply.cache().ends_with("detail=origin-failed"), "{}", reply.cache());
            }
        });
    }
}

#[test]
fn after_a_change_nothing_stands_in_where_the_origin_forbids_it() {
    let gate = Gate::new();
    gate.open();
    let headers = "cache-control: max-age=600, must-revalidate\netag: \"1\"";
    after_a_change(headers, answer(500, "", "broken"), gate, async |world| {
        world.ask(with("/", &[("accept-language", "en")])).await.is(500, "broken");
    });
}

#[test]
fn a_change_that_failed_changes_nothing_and_one_that_points_elsewhere_changes_that() {
    run(
        |asked| match (&asked.method, &*asked.target) {
            (&Method::GET, _) => vec![fresh(&asked.number.to_string())],
            (_, "/there") => vec![answer(201, "location: /\ncontent-location: http://b/other", "")],
            _ => vec![answer(500, "", "")],
        },
        async |world| {
            let before = world.ask(get("/")).await;
            world.settled().await;
            world.ask(request(Method::POST, "/", &[], "x")).await;
            world.ask(get("/")).await.is(200, before.text());
            world.ask(request(Method::POST, "/there", &[], "x")).await;
            assert_ne!(world.ask(get("/")).await.text(), before.text());
        },
    );
}

/// A fill is under way when what it fetches changes. Who waits for it has it; nobody later does.
fn change_during_a_fill(headers: &'static str, known: bool) {
    let gates = [Gate::new(), Gate::new()];
    let hold = gates.clone();
    run(
        move |asked| {
            let [before_head, before_body] = hold.clone();
            match (&asked.method, asked.header("x-held")) {
                (&Method::POST, _) => vec![answer(204, "", "")],
                (_, "") => vec![answer(200, headers, "new")],
                _ => {
                    let head = head(200, &format!("content-length: 3\r\n{}\r\n", headers.replace('\n', "\r\n")));
                    vec![Step::Hold(before_head), bytes(head), Step::Hold(before_body), bytes("old")]
                }
            }
        },
        async |world| {
            if known {
                world.ask(with("/", &[("accept-language", "de")])).await.is(200, "new");
                world.settled().await;
            }
            let before = world.origin.requests();
            let asking = [("x-held", "1"), ("accept-language", "en")];
            let old = world.env.spawn(world.begin_later(with("/", &asking)));
            world.origin.asked(before + 1).await;
            let change = async |world: &World| {
                assert_eq!(world.ask(request(Method::POST, "/", &[], "x")).await.status, 204);
            };
            change(world).await;
            gates[0].open();
            let old = old.await.unwrap();
            // It is known by now, and under way: all the same it is old.
            world.ask(with("/", &asking[1..])).await.is(200, "new");
            gates[1].open();
            old.rest().await.is(200, "old");
            world.settled().await;
            for _ in 0..3 {
                world.ask(with("/", &asking[1..])).await.is(200, "new");
            }
        },
    );
}

#[test]
fn a_fill_that_a_change_overtakes_is_not_kept() {
    change_during_a_fill("cache-control: max-age=60", false);
}

#[test]
fn nor_one_that_turns_out_to_vary() {
    change_during_a_fill("cache-control: max-age=60\nvary: accept-language", false);
}

#[test]
fn nor_one_of_a_variant() {
    change_during_a_fill("cache-control: max-age=60\nvary: accept-language", true);
}

#[test]
fn nor_one_that_comes_stale_and_would_be_served_so() {
    change_during_a_fill("cache-control: max-age=60, stale-while-revalidate=600\nage: 65", false);
}

#[test]
fn nor_one_whose_body_is_on_its_way_when_it_changes() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| {
            if asked.method == Method::POST {
                return vec![answer(204, "", "")];
            }
            if asked.number > 1 {
                return vec![fresh("new")];
            }
            let head = head(200, "content-length: 3\r\ncache-control: max-age=60\r\n");
            vec![bytes(head), bytes("o"), Step::Hold(hold.clone()), bytes("ld")]
        },
        async |world| {
            let mut old = world.begin(get("/")).await;
            assert_eq!(old.next().await.unwrap().unwrap(), "o");
            world.ask(request(Method::POST, "/", &[], "x")).await;
            world.ask(get("/")).await.is(200, "new");
            gate.open();
            old.rest().await.is(200, "ld");
            world.settled().await;
            world.ask(get("/")).await.is(200, "new");
        },
    );
}

#[test]
fn half_a_variant_does_not_stand_in_for_an_origin_that_fails_after_a_change() {
    let gate = Gate::new();
    let hold = gate.clone();
    run(
        move |asked| match (&asked.method, asked.number) {
            (&Method::GET, 1) => {
                let head = head(200, "content-length: 4\r\ncache-control: max-age=60\r\nvary: accept-language\r\n");
                vec![bytes(head), bytes("ha"), Step::Hold(hold.clone()), Step::Reset]
            }
            (&Method::GET, _) => vec![answer(500, "", "broken")],
            _ => vec![answer(204, "", "")],
        },
        async |world| {
            let mut half = world.begin(get("/")).await;
            assert_eq!(half.next().await.unwrap().unwrap(), "ha");
            world.ask(request(Method::POST, "/", &[], "x")).await;
            gate.open();
            assert!(!half.rest().await.whole);
            world.settled().await;
            assert_eq!(world.proxy.0.store.stats().entries, 0, "it would hold the memory of what arrives");
            assert_eq!(world.ask(get("/")).await.status, 500);
        },
    );
}

#[test]
fn a_part_is_never_kept_as_the_whole() {
    run(
        |asked| match asked.number {
            1 => vec![answer(206, "cache-control: max-age=60\ncontent-range: bytes 0-3/10", "0123")],
            _ => vec![fresh("0123456789")],
        },
        async |world| {
            world.ask(get("/")).await.is(206, "0123");
            world.ask(get("/")).await.is(200, "0123456789");
            world.settled().await;
            world.ask(with("/", &[("range", "bytes=0-3")])).await.is(206, "0123");
            assert_eq!(world.origin.requests(), 2);
        },
    );
}
