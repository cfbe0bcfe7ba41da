//! What is read off HTTP, and what is written onto it.

use ::http::Method;

use super::*;
use crate::{Tick, env::sim::Sim, gate::Classify, retry::Retry};

const MS: Duration = Duration::from_millis(1);

type Outcome = Result<Response<()>, &'static str>;

fn env() -> Env {
    Sim::new(1).env()
}

fn response(status: u16, fields: &[(&'static str, &'static str)]) -> Response<()> {
    let response = Response::builder().status(status);
    fields.iter().fold(response, |response, (name, value)| response.header(*name, *value)).body(()).unwrap()
}

fn request(fields: &[(&'static str, &str)]) -> Request<()> {
    fields.iter().fold(Request::get("/"), |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

/// As a client judges this, which could not connect if the error is `"connect"`.
fn judged(outcome: &Outcome) -> Judgement {
    judge(&env(), |error: &&str| *error == "connect").judge(outcome)
}

#[test]
fn a_status_says_whether_trying_again_could_help() {
    let busy = Verdict::Overload { after: None };
    for (status, verdict) in [
        (200, Verdict::Ok),
        (304, Verdict::Ok),
        (404, Verdict::Final),
        (429, busy),
        (500, Verdict::Fault),
        (501, Verdict::Final),
        (502, Verdict::Fault),
        (503, busy),
        (504, Verdict::Fault),
        (505, Verdict::Final),
    ] {
        assert_eq!(judged(&Ok(response(status, &[]))), Judgement::Plain(verdict), "{status}");
    }
}

#[test]
fn a_server_that_says_when_to_come_back_is_heard_to_the_millisecond_if_it_said_so() {
    let after = |fields| match judged(&Ok(response(503, fields))).verdict() {
        Verdict::Overload { after } => after,
        verdict => panic!("{verdict:?}"),
    };
    assert_eq!(after(&[("retry-after", "2")]), Some(MS * 2000));
    assert_eq!(after(&[("retry-after", "2"), ("retry-after-ms", "1153")]), Some(MS * 1153));
    assert_eq!(after(&[("retry-after", "2"), ("retry-after-ms", "soon")]), Some(MS * 2000));
    assert_eq!(after(&[("retry-after", "Thu, 01 Jan 1970 00:00:00 GMT")]), Some(Duration::ZERO));
    assert_eq!(after(&[("retry-after", "soon")]), None);
}

#[test]
fn a_server_below_that_gave_up_is_not_asked_again() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let retry = Retry::new(&env);
    let no = |(): &()| false;
    let mut tries = 0;
    let mut ask_for = |answer: fn() -> Response<()>| {
        tries = 0;
        let work = |_| {
            tries += 1;
            std::future::ready(Ok(answer()))
        };
        let status = sim.run(retry.run(&env, judge(&env, no), Ask::new(&env), work)).unwrap().status();
        (status.as_u16(), tries)
    };
    assert_eq!(ask_for(|| response(503, &[("x-no-retry", "overloaded")])), (503, 1));
    assert_eq!(ask_for(|| response(503, &[("x-no-retry", "perhaps")])), (503, 3), "nonsense says nothing");
    let gave_up = || {
        let mut response = response(500, &[]);
        no_retry(&mut response);
        response
    };
    assert_eq!(ask_for(gave_up), (500, 1));
}

#[test]
fn an_error_is_unsent_only_if_the_client_could_not_connect() {
    assert_eq!(judged(&Err("connect")), Judgement::Unsent(Verdict::Fault));
    assert_eq!(judged(&Err("reset")), Judgement::Plain(Verdict::Fault));
}

#[test]
fn only_methods_that_may_be_repeated_are_unless_the_server_would_notice() {
    let once = |method: Method| at_most_once(&Request::builder().method(method).body(()).unwrap());
    assert!([Method::POST, Method::PATCH, Method::CONNECT].into_iter().all(once));
    assert!(![Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS].into_iter().any(once));
    let keyed = Request::post("/orders").header("idempotency-key", "8e03").body(()).unwrap();
    assert!(!at_most_once(&keyed));
}

#[test]
fn a_server_knows_of_a_request_what_its_client_stamped_onto_it() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let here = Ask::new(&env).attempt(2).deadline(Tick::ZERO + MS * 250);
    sim.run_until(Tick::ZERO + MS * 50);
    let mut sent = request(&[]);
    stamp(&env, &mut sent, &here);
    assert_eq!(sent.headers()["x-deadline-ms"], "200", "50 ms have passed");
    assert_eq!(sent.headers()["x-retry-attempt"], "2");
    let read = ask(&env, &sent);
    assert_eq!((read.attempt, read.deadline), (2, here.deadline));
}

#[test]
fn what_a_caller_said_is_not_passed_on_as_ours() {
    let env = env();
    let mut passed_on = request(&[("x-deadline-ms", "900"), ("x-retry-attempt", "3"), ("accept", "*/*")]);
    stamp(&env, &mut passed_on, &Ask::new(&env));
    assert_eq!(passed_on.headers().keys().collect::<Vec<_>>(), ["accept"], "a first attempt without a deadline");
}

#[test]
fn nonsense_in_one_header_does_not_unsay_the_other() {
    let env = env();
    let read = ask(&env, &request(&[("x-deadline-ms", "soon"), ("x-retry-attempt", "1")]));
    assert_eq!((read.attempt, read.deadline), (1, None));
    let read = ask(&env, &request(&[("x-deadline-ms", "40"), ("x-retry-attempt", "-1")]));
    assert_eq!((read.attempt, read.deadline), (0, Some(Tick::ZERO + MS * 40)));
    assert_eq!(ask(&env, &request(&[])), Ask::new(&env));
}
