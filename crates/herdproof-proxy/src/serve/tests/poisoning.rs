//! Errors that one client provokes and the origin labels as everything: they are for that client.

use super::world::{answer, get, run, with};

#[test]
fn an_error_about_one_request_is_not_what_others_get() {
    for status in [400, 405, 406, 413, 414, 415, 417, 422, 426, 428, 431, 501, 505] {
        run(
            move |asked| match asked.header("x-bad") {
                "" => vec![answer(200, "cache-control: max-age=60", "for all")],
                _ => vec![answer(status, "cache-control: public, max-age=60", "for one")],
            },
            async |world| {
                world.ask(with("/", &[("x-bad", "1")])).await.is(status, "for one");
                world.settled().await;
                for _ in 0..2 {
                    world.ask(get("/")).await.is(200, "for all");
                    world.settled().await;
                }
                assert_eq!(world.origin.requests(), 2, "{status}");
            },
        );
    }
}
