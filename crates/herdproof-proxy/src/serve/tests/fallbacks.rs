//! What a route answers with while the origin cannot: in place of errors, never kept, and nowhere else.

use std::{sync::Arc, time::Duration};

use http::Method;

use super::world::{Asked, Gate, Step, answer, fresh, get, request, run_with, with};
use crate::{
    Settings,
    settings::{Fallback, Route},
};

fn empty_list(settings: &mut Settings) {
    let fallback =
        Fallback { status: http::StatusCode::OK, content_type: "application/json".parse().unwrap(), body: "[]".into() };
    let rules = settings.rules.clone();
    settings.routes = vec![Route {
        prefix: "/list".into(),
        share: true,
        rules,
        fallback: Some(Arc::new(fallback)),
        compress: Vec::new(),
    }];
}

fn fails(asked: &Asked) -> Vec<Step> {
    let kind = asked.target.rsplit('-').next().unwrap_or_default();
    match kind {
        "reset" => vec![Step::Reset],
        "private" => vec![answer(500, "cache-control: private", "secret")],
        "missing" => vec![answer(404, "", "no")],
        "limited" => vec![answer(429, "retry-after: 9", "slow down")],
        "stale" if asked.number == 1 => vec![answer(200, "cache-control: max-age=1\r\nage: 5", "old")],
        _ => vec![answer(503, "retry-after: 7", "busy")],
    }
}

#[test]
fn a_failure_is_answered_with_the_routes_own_answer_and_it_is_not_kept() {
    run_with(empty_list, fails, async |world| {
        for path in ["/list/1-busy", "/list/2-reset", "/list/3-private"] {
            for _ in 0..2 {
                let reply = world.ask(get(path)).await;
                reply.is(200, "[]");
                assert_eq!(
                    (reply.header("content-type"), reply.header("cache-control")),
                    ("application/json", "no-store")
                );
                assert_eq!(reply.cache(), "herdproof; fwd=miss; detail=fallback", "{path}");
            }
            let head = world.ask(request(Method::HEAD, path, &[], "")).await;
            assert_eq!((head.status.as_u16(), head.header("content-length"), head.body.len()), (200, "2", 0));
            assert_eq!(world.proxy.0.store.stats().entries, 0);
        }
        let busy = world.ask(get("/list/4-busy")).await;
        assert!(!busy.header("retry-after").is_empty(), "{busy:?}");
        // Elsewhere nothing has changed.
        assert_eq!(world.ask(get("/other-busy")).await.status, 503);
    });
}

#[test]
fn what_is_kept_and_what_the_origin_says_of_one_request_come_before_it() {
    run_with(empty_list, fails, async |world| {
        world.ask(get("/list/1-stale")).await.is(200, "old");
        world.ask(get("/list/1-stale")).await.is(200, "old");
        world.ask(get("/list/2-missing")).await.is(404, "no");
        let limited = world.ask(get("/list/3-limited")).await;
        assert_eq!((limited.status.as_u16(), limited.header("retry-after")), (429, "9"));
        world.ask(request(Method::POST, "/list/4-busy", &[], "x")).await.is(503, "busy");
        let only = with("/list/5-busy", &[("cache-control", "only-if-cached")]);
        assert_eq!(world.ask(only).await.status, 504);
    });
}

#[test]
fn who_is_refused_gets_it_too_and_the_page_when_there_is_room() {
    let gate = Gate::new();
    let held = gate.clone();
    let narrow = |settings: &mut Settings| {
        empty_list(settings);
        settings.origin.limit = 1;
        settings.origin.line = 0;
        settings.origin.queue_wait = Duration::ZERO;
    };
    let script = move |asked: &Asked| match &*asked.target {
        "/held" => vec![Step::Hold(held.clone()), fresh("held")],
        _ => vec![fresh("page")],
    };
    run_with(narrow, script, async |world| {
        let holding = world.herd(1, |_| get("/held"));
        world.origin.asked(1).await;
        let reply = world.ask(get("/list/1")).await;
        reply.is(200, "[]");
        assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
        gate.open();
        holding.replies().await[0].is(200, "held");
        world.settled().await;
        world.ask(get("/list/1")).await.is(200, "page");
    });
}
