//! An origin that was away is back: nobody should notice for long, and it should not be run over.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{
    client::{Request, ask},
    origin::Origin,
    report::Findings,
    world::{Context, Place, Proxy},
};

/// Requests of good users at each proxy in a second, each for another page.
const RATE: u32 = 10;
const LIMIT: u32 = 16;

/// What one return of the origin was like.
struct Return {
    first_good: Option<Duration>,
    last_bad: Duration,
    peak: usize,
}

pub(crate) async fn slow_recovery(context: &Context, _: Place, findings: &mut Findings) {
    let proxies = context.pick(3, 1);
    let mut returns = Vec::new();
    for _ in 0..context.pick(10, 1) {
        returns.push(come_back(context, proxies).await);
    }
    let peak = returns.iter().map(|back| back.peak).max().unwrap_or(0);
    findings.at_most("", "most requests at the origin at a time", peak, proxies * LIMIT as usize);
    let served = returns.iter().filter(|back| back.first_good.is_some()).count();
    findings.check("", "times that all proxies served again", served, returns.len(), served == returns.len());
    let first = returns.iter().filter_map(|back| back.first_good).max().unwrap_or_default().as_secs_f64();
    let last = returns.iter().map(|back| back.last_bad).max().unwrap_or_default().as_secs_f64();
    if context.is_full() {
        findings.check("", "until the first 200, worst", format!("{first:.2} s"), "at most 1 s", first <= 1.0);
        findings.check("", "until the last failure, worst", format!("{last:.2} s"), "at most 2 s", last <= 2.0);
    } else {
        findings.note("", "until the first 200", format!("{first:.2} s"));
        findings.note("", "until the last failure", format!("{last:.2} s"));
    }
}

async fn come_back(context: &Context, proxies: usize) -> Return {
    let (before, away, after) = context.pick((1, 10, 6), (1, 2, 6));
    let seconds = |seconds: u32| Duration::from_secs(u64::from(seconds));
    let origin = Arc::new(Origin::start());
    let proxies: Vec<Proxy> =
        (0..proxies).map(|_| context.proxy(&origin, "", &["--limit", &LIMIT.to_string()])).collect();
    let begin = Instant::now();
    let back = begin + seconds(before + away);
    let switching = Arc::clone(&origin);
    tokio::spawn(async move {
        sleep(seconds(before)).await;
        switching.refuse();
        sleep_until(back.into()).await;
        switching.accept();
    });
    let mut asking = JoinSet::new();
    let from = Place::Apart.addresses();
    for number in 0..(before + away + after) * RATE {
        sleep_until((begin + Duration::from_secs(1) / RATE * number).into()).await;
        for (which, proxy) in proxies.iter().enumerate() {
            let (from, to) = (from[number as usize % from.len()], proxy.at);
            let asked = Instant::now();
            asking.spawn(async move {
                let answer = ask(from, to, &Request::get(format!("/shop/page-{which}x{number}"))).await;
                (which, asked, answer)
            });
        }
    }
    let answers = asking.join_all().await;
    let after: Vec<_> = answers.iter().filter(|(_, asked, answer)| *asked >= back && answer.at >= back).collect();
    let first_good = |which: usize| {
        let good = answers.iter().filter(|(whose, _, answer)| *whose == which && answer.is_ok() && answer.at >= back);
        good.map(|(_, _, answer)| answer.at - back).min()
    };
    let firsts: Option<Vec<Duration>> = (0..proxies.len()).map(first_good).collect();
    let bad = after.iter().filter(|(_, _, answer)| !answer.is_ok());
    Return {
        first_good: firsts.and_then(|firsts| firsts.into_iter().max()),
        last_bad: bad.map(|(_, _, answer)| answer.at - back).max().unwrap_or_default(),
        peak: origin.peak(),
    }
}
