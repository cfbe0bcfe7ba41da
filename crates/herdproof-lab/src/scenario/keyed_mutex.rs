//! An autopsy: the mutex per key that everybody writes first.
//!
//! It lets one caller load at a time, which is not the same as loading once: whoever waited for the lock loads again, so N
//! callers make N loads, one after another. Looking again after the lock is taken helps with that, but the map of locks
//! still never shrinks. A flight group does neither.
//!
//! And looking again helps only if there is something to see. A sample takes the time before the load, and what it has loaded is good
//! from then on; on the day on which a load takes longer than that, it is out of date when it is stored, and everybody loads again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdproof::{Env, Group, Sim, Tick};
use parking_lot::Mutex;

use super::{
    Scenario,
    callers::{Callers, timed},
};
use crate::{
    knob::{Settings, knobs},
    log::{Caller, Tap},
    origin::{Down, Origin},
    report::{Check, Figure, Parameter, Report, Source},
    slowdown::Slowdown,
};

const KEYS: u64 = 50;
const BIN: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Mutex,
    MutexAndRecheck,
    /// The same, and a value is good from before its load on.
    GoodFromBefore,
    Flight,
}

/// What all callers share: the value kept for each key, and what keeps them from loading it together.
#[derive(Clone)]
struct Service {
    origin: Origin,
    group: Group<u64, u64, Down>,
    locks: Arc<Mutex<BTreeMap<u64, Arc<tokio::sync::Mutex<()>>>>>,
    /// The value, and until when it is good.
    kept: Arc<Mutex<BTreeMap<u64, (u64, Tick)>>>,
    ttl: Duration,
}

knobs! {
    /// How many want a key at one instant.
    clients: u64 = 20, 1..=500;
    /// How long a load takes.
    load: Duration = Duration::from_millis(80), Duration::from_millis(1)..=Duration::from_secs(10);
    /// How long a value is good; here for less than a load takes.
    ttl: Duration = Duration::from_millis(60), Duration::from_millis(1)..=Duration::from_secs(10);
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "keyed-mutex",
    title: "autopsy: a mutex per key loads N times in a row, and its map never shrinks",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let knobs = Knobs::of(settings);
    let clients = knobs.clients;
    let ways = [Way::Mutex, Way::MutexAndRecheck, Way::GoodFromBefore, Way::Flight];
    let one_key: [_; 4] = std::array::from_fn(|arm| herd(settings.seed, knobs, ways[arm], 1, settings.tap(arm)));
    let many_keys = ways.map(|way| herd(settings.seed, knobs, way, KEYS, Tap::default()));
    let calls = one_key.each_ref().map(|(callers, _)| callers.origin.calls());
    let left = many_keys.each_ref().map(|(_, left)| *left);
    let serial = knobs.load * u32::try_from(clients).unwrap_or(u32::MAX);
    let checks = vec![
        Check::equal(
            Source::Article,
            "loads for one key: mutex, with re-check, flight",
            &[clients, 1, 1],
            &[calls[0], calls[1], calls[3]],
        )
        .cites("C7")
        .cites("T6"),
        Check::equal(
            Source::Article,
            "with re-check, good from before the load on, which takes longer: loads, and the last waits for every one",
            &(clients, serial),
            &(calls[2], one_key[2].0.quantile(100)),
        )
        .cites("C8"),
        Check::equal(
            Source::Formula,
            "mutex: the last caller waits for every load",
            &serial,
            &one_key[0].0.quantile(100),
        )
        .cites("C7"),
        Check::equal(Source::Formula, "flight: everybody waits for one", &knobs.load, &one_key[3].0.quantile(100))
            .cites("T5"),
        Check::equal(Source::Article, "locks or flights left after 50 keys", &[KEYS, KEYS, KEYS, 0], &left).cites("C7"),
    ];
    let summary = format!(
        "a mutex per key made {} loads of one key, the last caller waited {:?}, and {} locks were left behind; a flight \
         made {}, {:?} and {}.",
        calls[0],
        one_key[0].0.quantile(100),
        left[0],
        calls[3],
        one_key[3].0.quantile(100),
        left[3],
    );
    let names = [
        ("mutex per key", Some("C7")),
        ("mutex, then look again", None),
        ("good from before the load", Some("C8")),
        ("flight", None),
    ];
    let arms = names.into_iter().zip(&one_key).zip(left).map(|(((name, sample), (callers, _)), left)| {
        let mut arm = callers.arm(name);
        arm.samples.extend(sample);
        arm.figures.push(Figure::count("left_after_50_keys", "left behind", left));
        arm
    });
    Report {
        scenario: "keyed-mutex",
        seed: settings.seed,
        parameters: vec![Parameter::new("keys for the last column", KEYS)],
        arms: arms.collect(),
        span: serial,
        checks,
        summary,
        ..Report::default()
    }
}

/// Callers for each key, and how many locks or flights are left when all of them are served.
fn herd(seed: u64, knobs: Knobs, way: Way, keys: u64, tap: Tap) -> (Callers<u64>, u64) {
    let mut sim = Sim::new(seed);
    let env = sim.env();
    let service = Service {
        origin: Origin::up(&env, BIN, Slowdown::alone(knobs.load)).tapped(tap),
        group: Group::new(&env),
        locks: Arc::default(),
        kept: Arc::default(),
        ttl: knobs.ttl,
    };
    let callers = (0..knobs.clients * keys).map(|id| spawn(&env, service.clone(), way, id, id % keys)).collect();
    let callers = Callers::gather(&mut sim, &service.origin, callers);
    let left = match way {
        Way::Flight => service.group.stats().in_air,
        _ => service.locks.lock().len() as u64,
    };
    (callers, left)
}

fn spawn(env: &Env, service: Service, way: Way, id: u64, key: u64) -> herdproof::env::Task<super::callers::Got<u64>> {
    let clock = env.clone();
    let call = async move {
        let Service { origin, group, locks, kept, ttl } = service;
        let known = Arc::clone(&kept);
        let now = clock.clone();
        let load = async move {
            let caller = Caller::of(id, "/key").item(key).in_wave("ttl", 0);
            let before = clock.now();
            let value = origin.call_from(caller).await?;
            let from = if way == Way::GoodFromBefore { before } else { clock.now() };
            kept.lock().insert(key, (value, from + ttl));
            Ok(value)
        };
        if way == Way::Flight {
            return group.run(key, || load).await.map(|landed| landed.value).map_err(|_| Down);
        }
        let lock = Arc::clone(locks.lock().entry(key).or_default());
        let _locked = lock.lock().await;
        let known = known.lock().get(&key).copied();
        match known {
            Some((value, until)) if way != Way::Mutex && now.now() < until => Ok(value),
            _ => load.await,
        }
    };
    env.spawn(timed(env.clone(), call))
}
