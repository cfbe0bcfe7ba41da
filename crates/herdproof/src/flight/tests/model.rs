//! Random callers against a plain reference model.
//!
//! The model knows nothing of wakers, slots or shards: it says, for a script of calls, drops, forgets and passing time, how
//! many loads there are and what every caller gets.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use proptest::prelude::*;

use super::poll_once;
use crate::{
    env::{Tick, sim::Sim},
    flight::{Abandon, Flight, FlightError, Group},
};

const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A caller for this key, whose load would take so many milliseconds and fail or not.
    Call {
        key: u8,
        takes: u8,
        fails: bool,
    },
    /// The caller with this index, of those still there, leaves.
    Leave(u8),
    Forget(u8),
    Pass(u8),
}

/// A key that hashes like every other, so that they all meet in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clash(u8);

impl Hash for Clash {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3u8, 0..20u8, any::<bool>()).prop_map(|(key, takes, fails)| Step::Call { key, takes, fails }),
        2 => any::<u8>().prop_map(Step::Leave),
        1 => (0..3u8).prop_map(Step::Forget),
        2 => (0..10u8).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..80)
}

/// A load as the model sees it.
struct Load {
    ends: u64,
    fails: bool,
    callers: usize,
    /// The tick at which a load nobody waits for is dropped.
    dropped_at: Option<u64>,
}

#[derive(Default)]
struct Model {
    now: u64,
    loads: Vec<Load>,
    joinable: BTreeMap<u8, usize>,
    finish: Option<u64>,
}

impl Model {
    fn is_over(&self, load: usize) -> bool {
        let load = &self.loads[load];
        load.ends <= self.now || load.dropped_at.is_some_and(|at| at <= self.now && at < load.ends)
    }

    /// The load that the caller follows.
    fn call(&mut self, key: u8, takes: u8, fails: bool) -> usize {
        match self.joinable.get(&key) {
            Some(&load) if !self.is_over(load) => {
                self.loads[load].callers += 1;
                self.loads[load].dropped_at = None;
                load
            }
            _ => {
                self.loads.push(Load { ends: self.now + u64::from(takes), fails, callers: 1, dropped_at: None });
                self.joinable.insert(key, self.loads.len() - 1);
                self.loads.len() - 1
            }
        }
    }

    fn leave(&mut self, load: usize) {
        if self.is_over(load) {
            return;
        }
        let within = self.finish.unwrap_or(0);
        let left = &mut self.loads[load];
        left.callers -= 1;
        if left.callers == 0 {
            left.dropped_at = Some(self.now + within);
        }
    }

    fn in_air(&self) -> u64 {
        (0..self.loads.len()).filter(|&load| !self.is_over(load)).count() as u64
    }
}

fn play(steps: &[Step], finish: Option<u8>, shuffle: bool) -> Result<(), TestCaseError> {
    let mut sim = Sim::new(7);
    if shuffle {
        sim = sim.shuffle_ties();
    }
    let env = sim.env();
    let abandon = finish.map_or(Abandon::Cancel, |within| Abandon::Finish { within: MS * u32::from(within) });
    let group: Group<Clash, u32, u32> = Group::builder(&env).abandon(abandon).build();
    let mut model = Model { finish: finish.map(u64::from), ..Model::default() };
    let begun = Arc::new(AtomicU32::new(0));
    let mut callers: Vec<(usize, Flight<u32, u32>)> = Vec::new();
    for step in steps {
        match *step {
            Step::Call { key, takes, fails } => {
                let (sleeper, begun) = (env.clone(), Arc::clone(&begun));
                let flight = group.run(Clash(key), || async move {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    sleeper.sleep(MS * u32::from(takes)).await;
                    if fails { Err(number) } else { Ok(number) }
                });
                callers.push((model.call(key, takes, fails), flight));
            }
            Step::Leave(index) if !callers.is_empty() => {
                let (load, flight) = callers.swap_remove(usize::from(index) % callers.len());
                drop(flight);
                model.leave(load);
            }
            Step::Leave(_) => {}
            Step::Forget(key) => {
                let known = model.joinable.remove(&key).is_some_and(|load| !model.is_over(load));
                prop_assert_eq!(group.forget(&Clash(key)), known);
            }
            Step::Pass(time) => {
                model.now += u64::from(time);
                sim.run_until(Tick::ZERO + MS * u32::try_from(model.now).unwrap());
            }
        }
        prop_assert_eq!(begun.load(Ordering::Relaxed) as usize, model.loads.len(), "loads begun after {:?}", step);
        prop_assert_eq!(group.stats().in_air, model.in_air(), "flights after {:?}", step);
    }
    // Whoever stayed gets the answer of the load it joined.
    for (load, flight) in callers {
        let answer = sim.try_run(flight).map_err(|deadlock| TestCaseError::fail(deadlock.to_string()))?;
        let expected = u32::try_from(load).unwrap();
        match answer {
            Ok(landed) => prop_assert!(!model.loads[load].fails && landed.value == expected),
            Err(FlightError::Load(number)) => prop_assert!(model.loads[load].fails && *number == expected),
            Err(other) => return Err(TestCaseError::fail(format!("{other:?}"))),
        }
    }
    prop_assert!(sim.finish().is_ok());
    prop_assert_eq!(group.stats().in_air, 0);
    let ready = pin!(group.run(Clash(0), || async { Ok(1) }));
    prop_assert!(matches!(poll_once(ready), Poll::Ready(Ok(_))));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]
    #[test]
    fn any_script_of_callers_agrees_with_the_plain_model(
        steps in steps(), finish in prop::option::of(1..30u8), shuffle in any::<bool>()
    ) {
        play(&steps, finish, shuffle)?;
    }
}
