//! Requests that ask the cache to step aside.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    client::{Request, ask},
    good::{judge, spam, use_it},
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place},
};

const HOT: &str = "/shop/page-home";

pub(crate) async fn no_store_spam(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let addresses = place.addresses();
    let asks = [
        ("cache-control", "no-store"),
        ("cache-control", "no-cache"),
        ("cache-control", "max-age=0"),
        ("pragma", "no-cache"),
        ("cache-control", "min-fresh=100000"),
    ];
    let request = |number: usize| {
        let (name, value) = asks[number % asks.len()];
        Request::get(HOT).with(name, value)
    };
    ask(addresses[0], world.proxy.at, &Request::get(HOT)).await;
    let good = use_it(context, &world, &addresses, context.lasts());
    let (_, fared) = tokio::join!(spam(&world, 50.0, context.lasts(), request), good);
    judge(findings, "", &fared, 1);
    findings.at_most("", "origin requests for the hot page", world.origin.asked_for(HOT), 2);
}

pub(crate) async fn method_spam_invalidates(context: &Context, place: Place, findings: &mut Findings) {
    let gets = |seen: &crate::origin::Seen| seen.path == HOT && seen.head.starts_with("GET ");
    let addresses = place.addresses();
    for method in ["OPTIONS", "HEAD", "TRACE"] {
        let world = context.world(&[]);
        ask(addresses[0], world.proxy.at, &Request::get(HOT)).await;
        for _ in 0..5 {
            ask(ATTACKER, world.proxy.at, &Request::new(method, HOT)).await;
            ask(addresses[0], world.proxy.at, &Request::get(HOT)).await;
        }
        findings.at_most(method, "origin requests for the hot page", world.origin.count(gets), 1);
    }
    // What may have changed has to be asked about, but is still there if nobody answers.
    for method in ["POST", "PURGE", "BREW"] {
        let world = context.world(&[]);
        ask(addresses[0], world.proxy.at, &Request::get(HOT)).await;
        ask(ATTACKER, world.proxy.at, &Request::new(method, HOT).body("x")).await;
        world.origin.refuse();
        sleep(Duration::from_millis(50)).await;
        let good = ask(addresses[0], world.proxy.at, &Request::get(HOT)).await;
        findings.check(method, "the hot page while the origin is down", good.shown(), "200", good.is_ok());
    }
    let world = context.world(&[]);
    let methods = ["OPTIONS", "PURGE", "POST", "BREW"];
    let request = |number: usize| Request::new(methods[number % methods.len()], HOT).body("x");
    let good = use_it(context, &world, &addresses, context.lasts());
    let (_, fared) = tokio::join!(spam(&world, 50.0, context.lasts(), request), good);
    judge(findings, "all of them", &fared, 1);
    findings.note("all of them", "origin requests for the hot page", world.origin.count(gets));
    findings.nobody_failed(
        "all of them",
        "good users, once more",
        &Tally::of(&[ask(addresses[0], world.proxy.at, &Request::get(HOT)).await]),
    );
}
