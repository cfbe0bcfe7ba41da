//! What good users do while somebody attacks, and what it costs the origin.

use std::{
    fmt::Display,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep_until};

use crate::{
    client::{Answer, Request, ask, herd},
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place, World},
};

/// Requests of good users in a second, beside their herds.
const RATE: f64 = 20.0;

/// Calls so many times in a second, for so long. Each call runs by itself; what they gave comes in any order.
pub(crate) async fn paced<F>(rate: f64, lasts: Duration, mut call: impl FnMut(usize) -> F) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let begin = Instant::now();
    let mut calls = JoinSet::new();
    for number in 0.. {
        let due = Duration::from_secs_f64(number as f64 / rate);
        if due >= lasts {
            break;
        }
        sleep_until((begin + due).into()).await;
        calls.spawn(call(number));
    }
    calls.join_all().await
}

/// An attacker who sends so many requests in a second and does not care for the answers.
pub(crate) async fn spam(
    world: &World,
    rate: f64,
    lasts: Duration,
    request: impl Fn(usize) -> Request + Send,
) -> Vec<Answer> {
    let to = world.proxy.at;
    paced(rate, lasts, |number| {
        let request = request(number);
        async move { ask(ATTACKER, to, &request).await }
    })
    .await
}

/// What good users ask for, one after the other: a hit, a miss, a page of their own, a page that is asked about each second.
fn ordinary(number: usize) -> Request {
    let user = format!("user={}", number % 7);
    match number % 4 {
        0 => Request::get("/shop/page-home"),
        1 => Request::get(format!("/shop/page-{number}")),
        2 => Request::get("/account/private-orders").with("cookie", &user),
        _ => Request::get("/news/brief-today"),
    }
}

/// When the first herd comes, and how long after each the next.
const FIRST_HERD: Duration = Duration::from_millis(500);
const NEXT_HERD: Duration = Duration::from_millis(1500);

/// The path of a herd.
fn herd_path(number: impl Display) -> String {
    format!("/shop/page-herd{number}")
}

/// The path of the herd that comes next, or has just come, so long after the beginning.
pub(crate) fn next_herd(after: Duration) -> String {
    let since = after.saturating_sub(FIRST_HERD + NEXT_HERD / 6);
    herd_path(since.as_millis().div_ceil(NEXT_HERD.as_millis()))
}

/// How good users fared: their failures, and the origin requests of each of their cold herds.
pub(crate) struct Fared {
    pub(crate) tally: Tally,
    pub(crate) herds: Vec<usize>,
}

/// Ordinary requests and a cold herd now and then, from these addresses.
pub(crate) async fn use_it(context: &Context, world: &World, from: &[Ipv4Addr], lasts: Duration) -> Fared {
    let to = world.proxy.at;
    let ordinary = paced(RATE, lasts, |number| {
        let from = from[number % from.len()];
        async move { ask(from, to, &ordinary(number)).await }
    });
    let herds = async {
        let mut tally = Tally::default();
        let mut costs = Vec::new();
        let begin = Instant::now();
        for number in 0.. {
            let due = FIRST_HERD + number * NEXT_HERD;
            if due >= lasts {
                break;
            }
            sleep_until((begin + due).into()).await;
            let path = herd_path(number);
            let answers = herd(from, to, context.herd(), |_| Request::get(&path)).await;
            tally.merge(Tally::of(&answers));
            // What attackers cause with their header is theirs, and whether the origin is there is asked with any page.
            costs.push(world.origin.count(|seen| seen.path == path && !seen.is_evil() && !seen.is_probe()));
        }
        (tally, costs)
    };
    let (answers, (mut tally, herds)) = tokio::join!(ordinary, herds);
    tally.merge(Tally::of(&answers));
    Fared { tally, herds }
}

/// An attack beside good users: none of them fails, and none of their herds reaches the origin.
pub(crate) async fn beside(
    findings: &mut Findings,
    context: &Context,
    place: Place,
    (case, rate): (&str, f64),
    most_per_herd: usize,
    request: impl Fn(usize) -> Request + Send,
) {
    let world = context.world(&[]);
    let lasts = context.lasts();
    let addresses = place.addresses();
    let good = use_it(context, &world, &addresses, lasts);
    let (_, fared) = tokio::join!(spam(&world, rate, lasts, request), good);
    judge(findings, case, &fared, most_per_herd);
}

pub(crate) fn judge(findings: &mut Findings, case: &str, fared: &Fared, most_per_herd: usize) {
    findings.nobody_failed(case, "good users", &fared.tally);
    let worst = fared.herds.iter().copied().max().unwrap_or(usize::MAX);
    findings.at_most(case, "origin requests for a cold herd", worst, most_per_herd);
}
