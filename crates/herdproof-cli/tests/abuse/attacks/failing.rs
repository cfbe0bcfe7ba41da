//! Failures that one client causes, or that are made to look like everybody's.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::sleep;

use crate::{
    client::{Request, ask, herd},
    good::{beside, judge, next_herd, paced, spam, use_it},
    origin::most_in_a_second,
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place},
};

pub(crate) async fn poisoned_failure(context: &Context, place: Place, findings: &mut Findings) {
    let full = [("500", 2.5), ("500", 50.0), ("503", 50.0), ("429", 50.0), ("reset", 50.0)];
    let short = [("500", 50.0), ("reset", 50.0)];
    for &(evil, rate) in context.pick(&full[..], &short[..]) {
        // The URLs that good users ask for, those of the coming herds included.
        let poison = |number: usize| {
            let path = match number % 4 {
                0 => "/account/private-orders".into(),
                1 => "/news/brief-today".into(),
                _ => next_herd(Duration::from_secs_f64(number as f64 / rate)),
            };
            Request::get(path).with("x-evil", evil)
        };
        beside(findings, context, place, (&format!("{evil} at {rate}/s"), rate), 1, poison).await;
    }
}

pub(crate) async fn fallback_for_others(context: &Context, place: Place, findings: &mut Findings) {
    // A status of its own, so that a client that gets it is noticed.
    let settings = "[[route]]\nprefix = \"/\"\nfallback = { status = 599, body = \"default\" }\n";
    let world = context.configured(settings, &[]);
    let rate = 50.0;
    let poison = |number: usize| {
        let path = next_herd(Duration::from_secs_f64(number as f64 / rate));
        Request::get(path).with("x-evil", "500")
    };
    let (lasts, addresses) = (context.lasts(), place.addresses());
    let attack = spam(&world, rate, lasts, poison);
    let (answers, fared) = tokio::join!(attack, use_it(context, &world, &addresses, lasts));
    judge(findings, "", &fared, 1);
    let got = answers.iter().filter(|answer| answer.status == Ok(599)).count();
    findings.check("", "defaults that the attacker got", got, "more than 0", got > 0);
}

pub(crate) async fn poisoned_body(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (addresses, path) = (place.addresses(), "/shop/page-poisoned");
    let crowd = || herd(&addresses, world.proxy.at, context.herd(), |_| Request::get(path));
    let attack = spam(&world, 50.0, Duration::from_millis(2500), |_| Request::get(path).with("x-evil", "truncate"));
    let (_, (first, second)) = tokio::join!(attack, async {
        sleep(Duration::from_millis(200)).await;
        let first = crowd().await;
        sleep(Duration::from_millis(1500)).await;
        (first, crowd().await)
    });
    // Who has had the head when the body breaks off cannot be helped; nobody after them may be harmed.
    findings.note("", "the herd that comes meanwhile", Tally::of(&first).shown());
    findings.nobody_failed("", "the next herd", &Tally::of(&second));
    let own = world.origin.count(|seen| seen.path == path && !seen.is_evil());
    findings.at_most("", "origin requests for both herds", own, 2);
}

pub(crate) async fn status_429_of_one_client(context: &Context, place: Place, findings: &mut Findings) {
    let limited = |number| Request::get(format!("/shop/limited-{number}"));
    beside(findings, context, place, ("", 50.0), 1, limited).await;
}

pub(crate) async fn fast_503_of_one_feature(context: &Context, place: Place, findings: &mut Findings) {
    let feature = |number| Request::get(format!("/feature/overloaded-{number}"));
    beside(findings, context, place, ("", 50.0), 1, feature).await;
}

pub(crate) async fn errors_500_on_an_idle_proxy(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let lasts = context.pick(Duration::from_secs(10), Duration::from_secs(3));
    spam(&world, 20.0, lasts, |number| Request::get(format!("/bug/fails-{number}"))).await;
    let limit = world.proxy.metric("herdproof_origin_limit").await.unwrap_or(0);
    findings.check("", "limit afterwards, of 256", limit, "at least 128", limit >= 128);
    let misses = |number| Request::get(format!("/reports/hold-{number}"));
    let answers = herd(&place.addresses(), world.proxy.at, 60, misses).await;
    findings.nobody_failed("", "60 misses afterwards", &Tally::of(&answers));
}

pub(crate) async fn failing_url(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    paced(100.0, context.lasts(), |number| {
        let from = from[number % from.len()];
        async move { ask(from, to, &Request::get("/bug/fails-always")).await }
    })
    .await;
    let seen = world.origin.seen(|seen| seen.path == "/bug/fails-always");
    findings.at_most("", "origin requests in any second", most_in_a_second(&seen), 3);
    // That it is asked at all, or nobody would learn that it works again.
    findings.check("", "origin requests", seen.len(), "at least 1", !seen.is_empty());
}

pub(crate) async fn failing_herd(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    for how in ["fails", "reset"] {
        let mut worst = 0;
        for number in 0..context.pick(5, 1) {
            let path = format!("/bug/{how}-{number}");
            herd(&place.addresses(), world.proxy.at, 200, |_| Request::get(&path)).await;
            worst = worst.max(world.origin.asked_for(&path));
        }
        findings.at_most(how, "origin requests for a herd of 200", worst, 2);
    }
}

pub(crate) async fn broken_body_herd(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (mut worst, mut whole) = (0, 0);
    for number in 0..context.pick(6, 3) {
        let path = format!("/shop/broken-{number}");
        let answers = herd(&place.addresses(), world.proxy.at, 50, |_| Request::get(&path)).await;
        worst = worst.max(world.origin.asked_for(&path));
        whole += answers.iter().filter(|answer| answer.is_ok()).count();
    }
    findings.at_most("", "origin requests for a herd of 50", worst, 3);
    findings.at_most("", "bodies that broke off and look whole", whole, 0);
}

pub(crate) async fn cpdos_statuses(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    for status in ["400", "405", "413", "414", "415", "416", "421", "431", "501", "505"] {
        let path = format!("/shop/page-{status}");
        ask(ATTACKER, to, &Request::get(&path).with("x-evil", status)).await;
        let good = ask(from[0], to, &Request::get(&path)).await;
        findings.check(status, "a good user afterwards", good.shown(), "200", good.is_ok());
    }
}

pub(crate) async fn os_error_text(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    world.origin.refuse();
    sleep(Duration::from_millis(100)).await;
    let port = world.origin.address.port().to_string();
    let inside = ["os error", "connection refused", "127.0.0.1", "errno", &port];
    let mut leaked = BTreeSet::new();
    for number in 0..context.pick(20, 8) {
        let path = format!("/shop/page-{number}");
        let answer = ask(place.addresses()[0], world.proxy.at, &Request::get(path)).await;
        let said = format!("{}{}", answer.head, answer.text()).to_lowercase();
        leaked.extend(inside.into_iter().filter(|word| said.contains(word)));
    }
    let got = if leaked.is_empty() { "nothing".into() } else { Vec::from_iter(leaked.clone()).join(", ") };
    findings.check("", "tells of the inside", got, "nothing", leaked.is_empty());
}
