//! Failures that one client causes, or that are made to look like everybody's.

use std::time::Duration;

use crate::{
    client::{Request, ask, herd},
    good::{beside, herd_path, judge, paced, spam, use_it},
    origin::most_in_a_second,
    report::{Findings, Tally},
    world::{Context, Place},
};

pub(crate) async fn status_429_of_one_client(context: &Context, findings: &mut Findings) {
    for place in Place::BOTH {
        beside(findings, context, ("429", 50.0), place, 1, |number| Request::get(format!("/shop/limited-{number}"))).await;
    }
}

pub(crate) async fn fast_503_of_one_feature(context: &Context, findings: &mut Findings) {
    for place in Place::BOTH {
        let feature = |number| Request::get(format!("/feature/overloaded-{number}"));
        beside(findings, context, ("503", 50.0), place, 1, feature).await;
    }
}

pub(crate) async fn errors_500_on_an_idle_proxy(context: &Context, findings: &mut Findings) {
    for place in Place::BOTH {
        let world = context.world(&[]);
        spam(&world, 20.0, context.lasts(), |number| Request::get(format!("/bug/fails-{number}"))).await;
        let misses = |number| Request::get(format!("/shop/page-{number}"));
        let answers = herd(&place.addresses(), world.proxy.at, 60, misses).await;
        findings.nobody_failed(place.shown(), "60 misses afterwards", &Tally::of(&answers));
    }
}

pub(crate) async fn poisoned_failure(context: &Context, findings: &mut Findings) {
    let cases = [("500", 2.5), ("500", 50.0), ("503", 50.0), ("429", 50.0), ("reset", 50.0), ("truncate", 50.0)];
    for place in Place::BOTH {
        for (evil, rate) in cases {
            // The URLs that good users ask for, those of the coming herds included.
            let poison = |number: usize| {
                let path = match number % 4 {
                    0 => "/account/private-orders".into(),
                    1 => "/news/brief-today".into(),
                    2 => herd_path(number / 75),
                    _ => herd_path(number / 75 + 1),
                };
                Request::get(path).with("x-evil", evil)
            };
            let world = context.world(&[]);
            let addresses = place.addresses();
            let good = use_it(context, &world, &addresses, context.lasts());
            let (_, fared) = tokio::join!(spam(&world, rate, context.lasts(), poison), good);
            judge(findings, &format!("{evil} {rate}/s, {}", place.shown()), &fared, 1);
        }
    }
}

pub(crate) async fn failing_url(context: &Context, findings: &mut Findings) {
    for place in Place::BOTH {
        let world = context.world(&[]);
        let (from, to) = (place.addresses(), world.proxy.at);
        paced(100.0, context.lasts(), |number| {
            let from = from[number % from.len()];
            async move { ask(from, to, &Request::get("/bug/fails-always")).await }
        })
        .await;
        let seen = world.origin.seen(|seen| seen.path == "/bug/fails-always");
        findings.at_most(place.shown(), "origin requests in any second", most_in_a_second(&seen), 3);
        // That it is asked at all, or nobody would learn that it works again.
        findings.check(place.shown(), "origin requests", seen.len(), "at least 1", !seen.is_empty());
    }
}

pub(crate) async fn failing_herd(context: &Context, findings: &mut Findings) {
    for place in Place::BOTH {
        let world = context.world(&[]);
        let mut worst = 0;
        for number in 0..context.pick(5, 1) {
            let path = format!("/bug/fails-{number}");
            herd(&place.addresses(), world.proxy.at, 200, |_| Request::get(&path)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            worst = worst.max(world.origin.asked_for(&path));
        }
        findings.at_most(place.shown(), "origin requests for a herd of 200, worst", worst, 2);
    }
}
