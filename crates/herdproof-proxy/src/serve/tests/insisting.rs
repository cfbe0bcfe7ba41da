//! Clients that want more than what is stored.

use std::time::Duration;

use super::world::{Gate, Step, fresh, get, obeying, run_with, with};

const HERD: usize = 40;
const DEMANDS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cache-control", "no-cache"),
    ("cache-control", "max-age=0"),
    ("cache-control", "no-cache, no-store, max-age=0"),
    ("pragma", "no-cache"),
];

#[test]
fn a_client_that_insists_costs_the_origin_nothing() {
    run_with(
        |settings| settings.rules.validate_every = Duration::ZERO,
        |asked| vec![fresh(&asked.number.to_string())],
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            for demand in DEMANDS {
                for reply in world.herd(HERD, |_| with("/", &[demand])).replies().await {
                    reply.is(200, "1");
                }
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn where_clients_are_obeyed_what_was_just_confirmed_is_not_asked_about_again() {
    run_with(
        |settings| {
            settings.rules.obey_clients = true;
            settings.rules.validate_every = Duration::from_secs(3600);
        },
        |asked| vec![fresh(&asked.number.to_string())],
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            for demand in DEMANDS {
                for _ in 0..3 {
                    world.ask(with("/", &[demand])).await.is(200, "1");
                }
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}

#[test]
fn a_crowd_with_no_store_is_one_request_and_nothing_of_it_is_kept() {
    let gate = Gate::new();
    let hold = gate.clone();
    run_with(
        obeying,
        move |asked| vec![Step::Hold(hold.clone()), fresh(&asked.number.to_string())],
        async |world| {
            let no_store = || with("/", &[("cache-control", "no-store")]);
            let herd = world.herd(HERD, |_| no_store());
            world.aboard(HERD).await;
            gate.open();
            for reply in herd.replies().await {
                reply.is(200, "1");
            }
            world.settled().await;
            world.ask(get("/")).await.is(200, "2");
            world.settled().await;
            // What was kept for another is there for all.
            world.ask(no_store()).await.is(200, "2");
            assert_eq!(world.origin.requests(), 2);
        },
    );
}

#[test]
fn what_is_kept_for_all_is_renewed_also_by_one_who_would_not_have_its_answer_kept() {
    run_with(
        obeying,
        |asked| vec![fresh(&asked.number.to_string())],
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            assert_eq!(world.ask(with("/", &[("cache-control", "no-cache, no-store")])).await.status, 200);
            world.origin.asked(2).await;
            world.settled().await;
            world.ask(get("/")).await.is(200, "2");
            assert_eq!(world.origin.requests(), 2);
        },
    );
}
