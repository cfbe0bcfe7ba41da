//! `CDN-Cache-Control` (RFC 9213), as two requests in a row see it.

use super::world::{answer, get, run};

/// Whether what came with this head is there for the next request.
fn is_kept(head: &'static str) -> bool {
    let mut kept = false;
    run(
        move |asked| vec![answer(200, head, &asked.number.to_string())],
        async |world| {
            world.ask(get("/")).await.is(200, "1");
            world.settled().await;
            kept = world.ask(get("/")).await.text() == "1";
        },
    );
    kept
}

#[test]
fn what_is_said_to_caches_like_this_one_takes_the_place_of_cache_control_and_expires() {
    for head in [
        "cdn-cache-control: max-age=60",
        "cdn-cache-control: max-age=60\ncache-control: no-store",
        "cache-control: private, max-age=0\ncdn-cache-control: max-age=60",
        "cdn-cache-control: max-age=60\nexpires: Thu, 01 Jan 1970 00:00:00 GMT",
        "cdn-cache-control: max-age=60\nexpires: 0",
        "cdn-cache-control: s-maxage=60, max-age=0",
        // Another directive, a parameter, and members on two lines.
        "cdn-cache-control: foo=bar, max-age=60;x=1",
        "cdn-cache-control: foo\ncdn-cache-control: max-age=60",
        "cdn-cache-control: max-age=0\ncdn-cache-control: max-age=60",
        "cdn-cache-control: no-store=?0, max-age=60",
    ] {
        assert!(is_kept(head), "{head}");
    }
    for head in [
        "cdn-cache-control: no-store\ncache-control: max-age=60",
        "cdn-cache-control: private\ncache-control: public, max-age=60",
        "cdn-cache-control: no-cache\ncache-control: max-age=60",
        "cdn-cache-control: max-age=0\ncache-control: max-age=60\nexpires: Fri, 01 Jan 2100 00:00:00 GMT",
        // Nothing that it knows: the others are not asked all the same.
        "cdn-cache-control: foo\ncache-control: max-age=60",
        "cdn-cache-control: foo\nexpires: Fri, 01 Jan 2100 00:00:00 GMT",
    ] {
        assert!(!is_kept(head), "{head}");
    }
}

#[test]
fn what_is_no_structured_field_or_empty_leaves_the_decision_to_cache_control() {
    for said in [
        "",
        "max-age=0, &&&&&",
        "max-age=0,",
        "max-age =0",
        "max-age= 0",
        "MAX-AGE=0",
        "max-age=0 no-store",
        "\"",
        "a=(",
    ] {
        let with = |more: &str| &*format!("cdn-cache-control: {said}{more}").leak();
        assert!(is_kept(with("\ncache-control: max-age=60")), "{said}");
        assert!(is_kept(with("\nexpires: Fri, 01 Jan 2100 00:00:00 GMT")), "{said}");
        assert!(!is_kept(with("\ncache-control: no-store")), "{said}");
        assert!(!is_kept(with("")), "{said}");
    }
    // Wrong in one line is wrong.
    assert!(is_kept("cdn-cache-control: no-store\ncdn-cache-control: ,\ncache-control: max-age=60"));
}

#[test]
fn a_member_of_the_wrong_type_permits_nothing() {
    for said in
        ["max-age=\"60\"", "max-age=60.5", "max-age", "max-age=(60)", "max-age=:NjA=:", "max-age=-60", "max-age=sixty"]
    {
        let head = &*format!("cdn-cache-control: {said}\ncache-control: no-store").leak();
        assert!(!is_kept(head), "{said}");
    }
}

#[test]
fn only_what_the_rfc_says_is_overridden() {
    for head in [
        "cdn-cache-control: max-age=60\nset-cookie: a=b",
        "cdn-cache-control: max-age=60\nvary: *",
        "cdn-cache-control: max-age=60\nage: 61",
        "cdn-cache-control: max-age=60\ndate: Thu, 01 Jan 1970 00:00:00 GMT",
    ] {
        assert!(!is_kept(head), "{head}");
    }
    // Fields for other kinds of caches are not on the list.
    assert!(is_kept("surrogate-control: no-store\nbrowser-cache-control: no-store\ncache-control: max-age=60"));
    assert!(!is_kept("surrogate-control: max-age=60\nbrowser-cache-control: max-age=60\ncache-control: no-store"));
}

#[test]
fn caches_behind_this_one_and_browsers_get_both_fields_as_they_came() {
    run(
        |_| vec![answer(200, "cdn-cache-control: max-age=60\ncache-control: no-store", "page")],
        async |world| {
            for _ in 0..2 {
                let reply = world.ask(get("/")).await;
                assert_eq!(
                    (reply.header("cdn-cache-control"), reply.header("cache-control")),
                    ("max-age=60", "no-store")
                );
                world.settled().await;
            }
            assert_eq!(world.origin.requests(), 1);
        },
    );
}
