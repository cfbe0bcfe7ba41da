//! What gates owe to those who enter, wait, leave early or are refused.

use std::{
    future::{Future, pending},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Waker},
};

use parking_lot::Mutex;

use super::*;
use crate::{breaker::Breaker, env::sim::Sim, limit::Bulkhead};

const MS: Duration = Duration::from_millis(1);

/// Writes down what happens to it; lets in while `open`, after a wait if told so.
struct Turnstile {
    name: &'static str,
    env: Env,
    wait: Duration,
    refuse: Option<Refusal>,
    /// What it says to those who come back.
    renew: Result<(), Refusal>,
    log: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

/// What somebody holds, and how it is dropped.
struct Held(&'static str, Log, &'static str);

struct Turn(Held);

struct Pass(Held);

impl Place for Turn {
    type Permit = Pass;

    fn commit(mut self) -> Pass {
        self.0.2 = "cancelled";
        Pass(self.0)
    }
}

impl Permit for Pass {
    fn settle(mut self, verdict: &Verdict, span: Span) {
        let Held(name, log, dropped) = &mut self.0;
        log.lock().push(format!("{name} {verdict:?} {:?}", span.took()));
        *dropped = "";
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.2.is_empty() {
            self.1.lock().push(format!("{} {}", self.0, self.2));
        }
    }
}

impl Gate for Turnstile {
    type Place = Turn;

    fn try_reserve(&self, ask: &Ask) -> Result<Turn, Refusal> {
        self.log.lock().push(format!("{} asked at {:?}", self.name, ask.at - Tick::ZERO));
        self.refuse.map_or_else(|| Ok(Turn(Held(self.name, Arc::clone(&self.log), "given back"))), Err)
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<Turn, Refusal> {
        if !self.wait.is_zero() {
            ask.at = self.env.sleep(self.wait).await;
        }
        self.try_reserve(ask)
    }

    fn renew(&self, _: &mut Turn, ask: &Ask) -> Result<(), Refusal> {
        self.log.lock().push(format!("{} again at {:?}", self.name, ask.at - Tick::ZERO));
        self.renew
    }
}

struct Scene {
    sim: Sim,
    log: Log,
}

impl Scene {
    fn new() -> Scene {
        Scene { sim: Sim::new(1), log: Log::default() }
    }

    fn gate(&self, name: &'static str) -> Turnstile {
        let (env, log) = (self.sim.env(), Arc::clone(&self.log));
        Turnstile { name, env, wait: Duration::ZERO, refuse: None, renew: Ok(()), log }
    }

    /// Guards 10 ms of work that ends with `outcome`, and gives the result and the log.
    fn guard(&mut self, gate: impl Gate, ask: Ask, outcome: Result<u8, u8>) -> (Result<u8, Halt<u8>>, Vec<String>) {
        let env = self.sim.env();
        let result = self.sim.run(guard(&env, &gate, result, ask, || async {
            env.sleep(MS * 10).await;
            outcome
        }));
        (result, std::mem::take(&mut *self.log.lock()))
    }

    fn ask(&self) -> Ask {
        Ask::new(&self.sim.env())
    }
}

#[test]
fn the_inner_gate_judges_by_the_time_after_the_outer_ones_wait() {
    let mut scene = Scene::new();
    let outer = Turnstile { wait: MS * 5, ..scene.gate("outer") };
    let gate = outer.and(scene.gate("inner"));
    let (result, log) = scene.guard(gate, scene.ask(), Ok(1));
    assert_eq!(result, Ok(1));
    let both = ["outer asked at 5ms", "inner asked at 5ms", "outer again at 5ms", "inner Ok 10ms", "outer Ok 10ms"];
    assert_eq!(log, both);
}

#[test]
fn a_gate_that_changed_its_mind_while_the_inner_one_was_waited_for_gives_both_places_back() {
    let mut scene = Scene::new();
    let no = Refusal::new(Why::Tripped).after(MS * 40);
    let outer = Turnstile { renew: Err(no), ..scene.gate("outer") };
    let gate = outer.and(Turnstile { wait: MS * 5, ..scene.gate("inner") });
    let (result, log) = scene.guard(gate, scene.ask(), Ok(1));
    assert_eq!(result, Err(Halt::Refused(no)));
    let given_back = ["inner given back", "outer given back"];
    assert_eq!(log[..3], ["outer asked at 0ns", "inner asked at 5ms", "outer again at 5ms"]);
    assert_eq!(log[3..], given_back, "the work was begun, or a permit was kept");
}

#[test]
fn who_comes_back_is_heard_by_the_gate_itself_however_it_is_wrapped() {
    let scene = Scene::new();
    let no = Refusal::new(Why::Tripped);
    let changed = || Turnstile { renew: Err(no), ..scene.gate("changed") };
    let plain = || scene.gate("plain");
    let shared = Arc::new(changed());
    let mut log = Vec::new();
    let mut check = |renewed: Option<Refusal>| {
        assert_eq!(renewed, Some(no));
        log.extend(scene.log.lock().drain(..).filter(|line| line.contains("again")));
    };
    check(renewed(&changed()));
    check(renewed(&shared));
    check(renewed(&Some(changed())));
    check(renewed(&changed().and(plain())));
    check(renewed(&plain().and(changed())));
    assert_eq!(log.iter().filter(|line| *line == "changed again at 0ns").count(), 5);
    assert_eq!(renewed(&None::<Turnstile>), None);
}

/// What somebody is told who was let in and comes back.
fn renewed<G: Gate>(gate: &G) -> Option<Refusal> {
    let ask = Ask::at(Tick::ZERO);
    let mut place = (&gate).try_reserve(&ask).ok()?;
    (&gate).renew(&mut place, &ask).err()
}

#[test]
fn those_in_a_line_behind_a_breaker_are_not_led_to_an_origin_that_went_down() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let (breaker, room) = (Breaker::builder(&env).faults(1).build(), Bulkhead::new(&env, 1));
    let calls = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (env, calls) = (env.clone(), Arc::clone(&calls));
            let gate = breaker.clone().and(room.clone());
            sim.env().spawn(async move {
                let work = || async {
                    calls.fetch_add(1, Ordering::Relaxed);
                    env.sleep(MS * 10).await;
                    Err::<u8, u8>(9)
                };
                guard(&env, &gate, result, Ask::new(&env), work).await.unwrap_err()
            })
        })
        .collect();
    let refused = sim.run(async {
        let mut refused = 0;
        for task in tasks {
            let halt = task.await.unwrap();
            refused += u32::from(matches!(halt, Halt::Refused(refusal) if refusal.why == Why::Tripped));
        }
        refused
    });
    assert_eq!((calls.load(Ordering::Relaxed), refused), (1, 5), "the first finds out, and the others have waited");
    assert_eq!((room.taken(), room.waiting()), (0, 0), "who was sent away keeps no room");
}

#[test]
fn a_refusal_within_gives_back_what_the_outer_gate_took() {
    let mut scene = Scene::new();
    let no = Refusal::new(Why::Rate).after(MS * 40);
    let gate = scene.gate("outer").and(Turnstile { refuse: Some(no), ..scene.gate("inner") });
    let (result, log) = scene.guard(&gate, scene.ask(), Ok(1));
    assert_eq!(result, Err(Halt::Refused(no)));
    assert_eq!(log, ["outer asked at 0ns", "inner asked at 0ns", "outer given back"]);
    assert_eq!(gate.try_enter(&scene.ask()).err(), Some(no));
    assert_eq!(no.to_string(), "refused: too many in too short a time; come back in 40 ms");
}

#[test]
fn a_failure_is_settled_as_a_fault_and_reaches_the_caller() {
    let mut scene = Scene::new();
    let (result, log) = scene.guard(Some(Arc::new(scene.gate("g"))), scene.ask(), Err(9));
    assert_eq!(result, Err(Halt::Failed(9)));
    assert_eq!(log, ["g asked at 0ns", "g Fault 10ms"]);
}

#[test]
fn a_caller_that_leaves_during_the_work_cancels_its_permit() {
    let scene = Scene::new();
    let (env, gate) = (scene.sim.env(), scene.gate("g"));
    {
        let work = pin!(guard(&env, &gate, result, scene.ask(), pending::<Result<(), ()>>));
        assert!(work.poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(*scene.log.lock(), ["g asked at 0ns", "g cancelled"]);
}

#[test]
fn what_enters_is_committed_and_what_reserves_is_not() {
    let scene = Scene::new();
    let gate = scene.gate("a").and(Some(Arc::new(scene.gate("b"))));
    drop(gate.try_enter(&scene.ask()));
    assert_eq!(scene.log.lock().split_off(2), ["a cancelled", "b cancelled"]);
    scene.log.lock().clear();
    drop(gate.try_reserve(&scene.ask()));
    assert_eq!(scene.log.lock().split_off(2), ["a given back", "b given back"]);
}

#[test]
fn work_that_is_late_is_refused_before_it_takes_anything() {
    let mut scene = Scene::new();
    let late = scene.ask().deadline(Tick::ZERO);
    let (result, log) = scene.guard(scene.gate("g"), late, Ok(1));
    assert_eq!(result, Err(Halt::Refused(Refusal::new(Why::Deadline))));
    assert!(log.is_empty());
}

#[test]
fn a_deadline_that_passes_between_two_gates_gives_the_outer_place_back() {
    let mut scene = Scene::new();
    let outer = Turnstile { wait: MS * 5, ..scene.gate("outer") };
    let gate = outer.and(scene.gate("inner"));
    let ask = scene.ask().deadline(Tick::ZERO + MS * 3);
    let (result, log) = scene.guard(gate, ask, Ok(1));
    assert_eq!(result, Err(Halt::Refused(Refusal::new(Why::Deadline))));
    assert_eq!(log, ["outer asked at 5ms", "outer given back"]);
}

#[test]
fn a_deadline_that_passes_before_the_only_gate_lets_in_gives_its_place_back() {
    let mut scene = Scene::new();
    let gate = Turnstile { wait: MS * 5, ..scene.gate("g") };
    let (result, log) = scene.guard(gate, scene.ask().deadline(Tick::ZERO + MS * 5), Ok(1));
    assert_eq!(result, Err(Halt::Refused(Refusal::new(Why::Deadline))));
    assert_eq!(log, ["g asked at 5ms", "g given back"], "what came too late was begun");
}

#[test]
fn an_absent_gate_stands_open() {
    let mut scene = Scene::new();
    let gate: Option<Turnstile> = None;
    assert!(gate.try_enter(&scene.ask()).is_ok());
    assert_eq!(scene.guard(gate, scene.ask(), Ok(3)).0, Ok(3));
}

#[test]
fn every_reason_has_a_word_and_a_sentence_of_its_own() {
    let words: std::collections::BTreeSet<&str> = Why::ALL.iter().map(|why| why.as_str()).collect();
    let sentences: std::collections::BTreeSet<String> = Why::ALL.iter().map(ToString::to_string).collect();
    assert_eq!((words.len(), sentences.len()), (Why::ALL.len(), Why::ALL.len()));
    assert!(!Why::Tripped.is_retryable() && Why::Rate.is_retryable());
}

/// On other systems the coarse clock is the exact one.
#[cfg(target_os = "linux")]
#[test]
fn who_asks_coarsely_does_not_pay_for_the_exact_clock() {
    let env = Env::system();
    let same = (0..1_000).filter(|_| Ask::coarse(&env) == Ask::coarse(&env)).count();
    assert!(same > 500, "of 1000 pairs of readings only {same} are of the same millisecond");
}

#[test]
fn what_seems_to_have_ended_before_it_began_took_no_time() {
    let (early, late) = (Tick::ZERO + MS, Tick::ZERO + MS * 5);
    assert_eq!(Span { from: late, to: early }.took(), Duration::ZERO);
    assert_eq!(Span { from: early, to: late }.took(), MS * 4);
}
