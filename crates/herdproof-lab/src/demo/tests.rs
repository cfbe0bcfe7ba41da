//! Small herds on real sockets; no test here looks at how long anything took.

use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::real::Failed;

const MS: Duration = Duration::from_millis(1);
const QUICK: Slowdown = Slowdown::alone(MS).at(100, Duration::from_millis(100));

fn on_sockets<F: Future>(test: impl FnOnce(Env) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { test(Env::system()).await })
}

fn herd(clients: u32, path: &str) -> Herd {
    Herd { clients, path: path.into(), spread: MS, seed: 1, patience: PATIENCE }
}

fn compare(clients: u32) -> Comparison {
    let demo = Demo { clients, clients_asked: clients, seed: 1 };
    on_sockets(|env| async move { demo.run_at(&env, QUICK, |_| ()).await.unwrap() })
}

#[test]
fn every_client_costs_the_origin_a_request_until_they_share_one() {
    let both = compare(40);
    assert_eq!((both.without.origin_requests, both.with.origin_requests), (40, 1), "{both}");
    assert_eq!((both.with.peak_in_flight, both.without.errors, both.with.errors), (1, 0, 0), "{both}");
    assert_eq!((both.without.arrivals.total(), both.with.arrivals.total()), (40, 1));
    assert!(both.passed());
}

#[test]
fn a_herd_of_one_is_spared_nothing_and_that_is_no_failure() {
    let both = compare(1);
    assert_eq!((both.without.origin_requests, both.with.origin_requests), (1, 1));
    assert!(both.passed() && both.summary.contains("no fewer than the 1 without"), "{}", both.summary);
}

#[test]
fn followers_get_the_leaders_bytes_and_other_paths_their_own() {
    on_sockets(|env| async move {
        let origin = FragileOrigin::start_cacheable(&env, QUICK, KEPT).unwrap();
        let edge = Edge::start(&env, origin.address()).unwrap();
        for path in ["/a", "/b"] {
            let answers = herd(10, path).run(&env, edge.address()).await;
            let expected = format!("the answer to {path}\n");
            assert!(answers.all().iter().all(|answer| answer.outcome.as_ref().unwrap() == expected.as_bytes()));
        }
        assert_eq!(origin.requests(), 2);
    });
}

#[test]
fn an_origin_that_is_gone_is_an_error_for_everybody_and_nobody_hangs() {
    on_sockets(|env| async move {
        let origin = FragileOrigin::start_cacheable(&env, QUICK, KEPT).unwrap();
        let address = origin.address();
        origin.close().await;
        let edge = Edge::start(&env, address).unwrap();
        let answers = herd(10, "/gone").run(&env, edge.address()).await;
        assert_eq!(answers.failures().count(), 10);
        // Or the breaker has tripped before the last attempt.
        let is_said = |failed: &Failed| match failed {
            Failed::Status(status, text) if *status == 502 => text.contains("connection_refused"),
            Failed::Status(status, text) if *status == 503 => text.contains("failed too often"),
            _ => false,
        };
        assert!(answers.failures().all(is_said));
    });
}

#[test]
fn dropping_an_origin_ends_the_requests_it_has() {
    on_sockets(|env| async move {
        let never = Slowdown::alone(Duration::from_secs(1_000_000));
        let origin = FragileOrigin::start(&env, never).unwrap();
        let address = origin.address();
        let crowd = env.spawn({
            let env = env.clone();
            async move { herd(5, "/").run(&env, address).await }
        });
        while origin.requests() < 5 {
            tokio::task::yield_now().await;
        }
        drop(origin);
        let answers = crowd.await.unwrap();
        assert!(answers.failures().all(|failed| matches!(failed, Failed::Exchange(_))));
        assert_eq!(answers.failures().count(), 5);
    });
}

#[test]
fn a_client_without_an_answer_gives_up() {
    on_sockets(|env| async move {
        let origin = FragileOrigin::start(&env, Slowdown::alone(Duration::from_secs(1_000_000))).unwrap();
        let answers = Herd { patience: 20 * MS, ..herd(3, "/") }.run(&env, origin.address()).await;
        assert_eq!(answers.failures().filter(|failed| matches!(failed, Failed::GaveUp)).count(), 3);
    });
}

#[test]
fn nobody_listening_is_an_error_per_client() {
    on_sockets(|env| async move {
        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let answers = herd(3, "/").run(&env, nobody).await;
        assert_eq!(answers.failures().filter(|failed| matches!(failed, Failed::Connect(_))).count(), 3);
        assert_eq!(answers.quantile(0.5), None);
    });
}

#[test]
fn a_remedy_that_fails_clients_or_spares_nothing_does_not_pass() {
    let fine = compare(2);
    let Comparison { demo, without, with, summary } = fine;
    let broken = Comparison { demo, without, with: Outcome { errors: 1, ..with }, summary };
    assert!(!broken.passed());
    let Comparison { demo, with, summary, .. } = broken;
    let without = Outcome { errors: 0, origin_requests: 2, ..compare(2).with };
    let useless = Comparison { demo, without, with: Outcome { errors: 0, origin_requests: 2, ..with }, summary };
    assert!(!useless.passed());
}
