//! Web cache deception: a link that makes a user's page look like one for everybody.

use std::time::Duration;

use super::world::{Asked, Step, World, answer, get, run, run_with, with};
use crate::{
    Settings,
    policy::{Cookies, Route as Rules},
    settings::Route,
};

/// The two routes of the guide.
fn guide(settings: &mut Settings) {
    let rules = settings.rules.clone();
    let catalogue = Rules { cookies: Cookies::Ignore, ttl: Some(Duration::from_secs(10)), ..rules.clone() };
    settings.routes = vec![
        Route { prefix: "/catalogue".into(), share: true, rules: catalogue, fallback: None, compress: Vec::new() },
        Route { prefix: "/account".into(), share: false, rules, fallback: None, compress: Vec::new() },
    ];
}

/// Tells each user who they are, whatever it was asked for, and says nothing about caches.
fn account(asked: &Asked) -> Vec<Step> {
    vec![answer(200, "content-type: text/html", &format!("hello {}", asked.header("cookie")))]
}

/// A user follows a link, then the one who made it.
async fn nobody_else_gets(world: &World, path: &str) {
    world.ask(with(path, &[("cookie", "ann")])).await.is(200, "hello ann");
    world.settled().await;
    world.ask(get(path)).await.is(200, "hello ");
    world.ask(with(path, &[("cookie", "eve")])).await.is(200, "hello eve");
}

#[test]
fn a_path_that_the_origin_reads_as_another_does_not_get_anothers_page() {
    run_with(guide, account, async |world| {
        for path in [
            "/catalogue/..%2faccount",
            "/catalogue/%2e%2e/account",
            "/catalogue/%252e%252e%252faccount",
            "/catalogue/..;/account",
            "/catalogue/..%5caccount",
            "/catalogue/x/..//../account",
        ] {
            nobody_else_gets(world, path).await;
        }
    });
}

#[test]
fn a_page_that_is_called_like_a_file_is_not_shared_for_that() {
    run(account, async |world| {
        for path in [
            "/account/x.css",
            "/account%2fx.css",
            "/account;x.css",
            "/account?x.css",
            "/account%3fx.css",
            "/x.js/../account",
        ] {
            nobody_else_gets(world, path).await;
        }
    });
}

#[test]
fn a_page_of_a_route_for_all_is_still_shared_where_it_is_written_oddly() {
    run_with(guide, account, async |world| {
        for path in ["/catalogue/a%20b", "/catalogue//x", "/catalogue/y;v=1"] {
            world.ask(with(path, &[("cookie", "ann")])).await.is(200, "hello ann");
            world.settled().await;
            world.ask(get(path)).await.is(200, "hello ann");
        }
    });
}
