//! What turns a lost connection into a storm, and what must not.

use std::{
    cell::{Cell, RefCell},
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use super::*;
use crate::{
    backoff::Backoff,
    env::{Env, Tick, sim::Sim},
    event::{Counts, Metric},
    gate::{Ask, Gate, Permit, Span, Verdict, guard, result},
};

const SEC: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const MIN: Duration = Duration::from_secs(60);

mod reconnect {
    use super::*;

    /// When attempts were made, with connections that live as long as `up` says of each, until `until`.
    fn dials(
        seed: u64,
        reconnect: &Reconnect,
        until: Duration,
        up: impl Fn(usize) -> Option<Duration>,
    ) -> Vec<Duration> {
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let at = RefCell::new(Vec::new());
        let connect = || {
            at.borrow_mut().push(env.now() - Tick::ZERO);
            ready(up(at.borrow().len() - 1).ok_or("refused"))
        };
        let serve = |up| {
            let sleep = env.sleep(up);
            async move {
                sleep.await;
            }
        };
        let ended = sim.run(reconnect.run(&env, env.sleep(until), connect, serve));
        assert_eq!(ended, Ok(()));
        at.into_inner()
    }

    /// There may be a hundred thousand of them.
    #[test]
    fn a_dial_under_way_is_kept_once() {
        let env = Sim::new(1).env();
        let dial = || async {
            let large = [0_u8; 4_096];
            pending::<()>().await;
            Ok::<u8, ()>(large[0])
        };
        let reconnect = Reconnect::new();
        let client = reconnect.run(&env, pending::<()>(), dial, |_| pending());
        assert!(size_of_val(&client) < 2 * 4_096, "{} bytes", size_of_val(&client));
    }

    #[test]
    fn those_who_lost_a_steady_connection_together_come_back_spread_over_the_whole_window() {
        let reconnect = Reconnect::new().crowd(1_000, 50.0);
        let mut fifths = [0; 5];
        for seed in 0..1_000 {
            let dials = dials(seed, &reconnect, MIN * 2 + SEC * 21, |_| Some(MIN * 2));
            let after = dials[1].abs_diff(MIN * 2).as_secs() / 4;
            fifths[usize::try_from(after).unwrap()] += 1;
        }
        assert!(fifths.iter().all(|n| (140..=260).contains(n)), "{fifths:?}");
    }

    #[test]
    fn a_connection_that_flaps_is_not_dialled_again_at_full_speed() {
        let flapping = dials(1, &Reconnect::new(), MIN * 10, |_| Some(MS));
        let refused = dials(1, &Reconnect::new(), MIN * 10, |_| None);
        for dials in [&flapping, &refused] {
            // Fifteen seconds apart on average at the cap.
            assert!((20..=80).contains(&dials.len()), "{} dials in ten minutes", dials.len());
        }
    }

    #[test]
    fn only_a_steady_connection_makes_it_forget_its_failures() {
        let far = |steady: Duration| {
            // Half of the delay for certain, so that a long one cannot be drawn short.
            let backoff = Backoff::exponential(MS * 100).cap(SEC * 30).jitter(crate::backoff::Jitter::Equal);
            let dials = dials(3, &Reconnect::new().backoff(backoff), MIN * 60, |n| (n == 12).then_some(steady));
            (dials[13].abs_diff(dials[12] + steady), dials)
        };
        let (short, _) = far(Duration::from_millis(59_999));
        let (steady, dials) = far(MIN);
        assert!(steady <= SEC, "a steady connection is dialled again within the spread, and not after {steady:?}");
        assert!(short >= SEC * 15, "a connection that was lost too soon counts as a failure: {short:?}");
        // And from there on as from the beginning.
        assert!(dials[14].abs_diff(dials[13]) <= MS * 100);
    }

    #[test]
    fn nobody_is_pinned_to_the_cap() {
        let mut waits = std::collections::BTreeSet::new();
        for seed in 0..300 {
            let dials = dials(seed, &Reconnect::new(), MIN * 60, |_| None);
            let last = dials[dials.len() - 1].abs_diff(dials[dials.len() - 2]);
            assert!(last < SEC * 30 && waits.insert(last), "two clients waited {last:?}");
        }
    }

    #[test]
    fn it_gives_up_after_as_many_attempts_as_it_has_with_the_last_error() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let tries = Cell::new(0);
        let reconnect = Reconnect::new().attempts(10).backoff(Backoff::exponential(MS * 100).cap(SEC * 2));
        let gave_up = sim.run(reconnect.run(
            &env,
            pending::<()>(),
            || {
                tries.set(tries.get() + 1);
                ready(Err::<(), _>(tries.get()))
            },
            |()| ready(()),
        ));
        assert_eq!(gave_up, Err(GaveUp { failed: Failed::Unconnected(10), attempts: 10 }));
        // No wait after the last attempt: nine delays up to 0.1, 0.2, 0.4, 0.8, 1.6 and then 2 s.
        assert!(env.now() < Tick::ZERO + MS * 11_100);
    }

    #[test]
    fn a_connection_that_flaps_for_ever_uses_up_the_attempts() {
        let flap = |steady: Option<u32>| {
            let mut sim = Sim::new(1);
            let env = sim.env();
            let tries = Cell::new(0);
            let connect = || {
                tries.set(tries.get() + 1);
                ready(Ok::<_, ()>(if Some(tries.get()) == steady { MIN } else { MS }))
            };
            let serve = |up| {
                let sleep = env.sleep(up);
                async move {
                    sleep.await;
                }
            };
            let gave_up = sim.run(Reconnect::new().attempts(5).run(&env, env.sleep(MIN * 60), connect, serve));
            (gave_up, tries.get())
        };
        let unsteady = Err(GaveUp { failed: Failed::Unsteady, attempts: 5 });
        assert_eq!(flap(None), (unsteady, 5));
        assert_eq!(flap(Some(4)), (unsteady, 9), "a steady connection makes it forget");
    }

    #[test]
    fn word_to_stop_ends_dialling_serving_and_waiting() {
        for way in 0..3 {
            let mut sim = Sim::new(1);
            let env = sim.env();
            let stop = env.sleep(SEC * 5);
            let connect = || async move {
                match way {
                    0 => pending().await,
                    1 => Ok(()),
                    _ => Err(()),
                }
            };
            let slow = Reconnect::new().backoff(Backoff::constant(MIN).jitter(crate::backoff::Jitter::None));
            assert_eq!(sim.run(slow.run(&env, stop, connect, |()| pending())), Ok(()));
            assert_eq!(env.now(), Tick::ZERO + SEC * 5);
        }
    }
}

mod age {
    use super::*;

    /// How much in step so many connections are that were made together and have been replaced `k` times.
    fn synchrony(age: MaxAge, first_crowded: bool, rounds: usize) -> f64 {
        let rng = Sim::new(5).env().rng("age");
        let (mut x, mut y) = (0.0, 0.0);
        for _ in 0..4_000 {
            let mut at = Duration::ZERO;
            for round in 0..rounds {
                at += age.lifetime(first_crowded && round == 0, &rng).life;
            }
            let (sin, cos) = (std::f64::consts::TAU * at.as_secs_f64() / 1800.0).sin_cos();
            (x, y) = (x + cos, y + sin);
        }
        f64::hypot(x, y) / 4_000.0
    }

    /// sqlx#2854 and the outage that followed from it: a pool filled at once expires at once.
    #[test]
    fn connections_made_together_do_not_end_together() {
        let age = MaxAge::new(MIN * 30);
        assert!((synchrony(age.spread(0.0), false, 10) - 1.0).abs() < 1e-9);
        // |sin x / x|^k with x = 2 pi 0.1.
        assert!((synchrony(age, false, 1) - 0.935).abs() < 0.02);
        assert!((synchrony(age, false, 10) - 0.512).abs() < 0.05);
        assert!(synchrony(age, true, 1) < 0.05);
    }

    #[test]
    fn the_time_to_drain_is_spread_too() {
        let age = MaxAge::new(MIN * 30).drain(MIN);
        assert_eq!(age.draining(), SEC * 54..=SEC * 66);
        let rng = Sim::new(5).env().rng("age");
        assert_ne!(age.lifetime(false, &rng).drain, age.lifetime(false, &rng).drain);
    }

    #[test]
    fn an_age_without_end_or_a_spread_without_sense_does_not_panic() {
        for share in [f64::NAN, -1.0, 9.0] {
            let age = MaxAge::new(Duration::MAX).drain(Duration::MAX).spread(share);
            assert!(*age.life(true).end() >= *age.life(true).start());
            assert!(*age.draining().end() >= MIN);
            assert_eq!(MaxAge::new(Duration::ZERO).spread(share).life(true), Duration::ZERO..=Duration::ZERO);
        }
    }
}

mod gate {
    use super::*;

    /// When each of many who want to connect at once may begin, with handshakes that take as long as `work` says of when
    /// they began; and the most that were under way.
    fn begun(
        gate: &ConnectGate,
        sim: &mut Sim,
        env: &Env,
        people: u32,
        work: fn(Duration) -> Duration,
    ) -> (Vec<Duration>, u32) {
        let under_way = Arc::new(parking_lot::Mutex::new((0, 0)));
        let tasks: Vec<_> = (0..people)
            .map(|_| {
                let (gate, env, under_way) = (gate.clone(), env.clone(), Arc::clone(&under_way));
                env.clone().spawn(async move {
                    guard(&env.clone(), &gate, result, Ask::new(&env), || async {
                        let at = env.now() - Tick::ZERO;
                        {
                            let mut under_way = under_way.lock();
                            under_way.0 += 1;
                            under_way.1 = under_way.1.max(under_way.0);
                        }
                        env.sleep(work(at)).await;
                        under_way.lock().0 -= 1;
                        Ok::<_, ()>(at)
                    })
                    .await
                    .unwrap()
                })
            })
            .collect();
        let mut at = sim.run(async {
            let mut at = Vec::new();
            for task in tasks {
                at.push(task.await.unwrap());
            }
            at
        });
        at.sort_unstable();
        let most = under_way.lock().1;
        (at, most)
    }

    #[test]
    fn a_pool_that_wants_everything_at_once_gets_two_at_a_time_and_three_a_second() {
        let mut sim = Sim::new(1);
        let counts = Arc::new(Counts::default());
        let env = sim.env().observed_by(Arc::clone(&counts));
        let gate = ConnectGate::dialling(&env).build();
        let (begun, most) = begun(&gate, &mut sim, &env, 20, |_| MS * 10);
        assert_eq!(begun[..2], [Duration::ZERO; 2]);
        // Then one in a third of a second.
        for (n, at) in (1..).zip(&begun[2..]) {
            assert!(at.abs_diff(SEC * n / 3) <= MS, "connection {n} at {at:?}");
        }
        assert_eq!((most, counts.get(Metric::Handshakes)), (2, 20));
    }

    #[test]
    fn a_slow_server_gets_two_at_a_time_however_many_slots_have_passed() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gate = ConnectGate::dialling(&env).per_second(1_000).build();
        let (begun, most) = begun(&gate, &mut sim, &env, 6, |_| SEC);
        assert_eq!(most, 2);
        assert!(begun[5] >= SEC * 2);
    }

    #[test]
    fn a_server_that_is_quick_again_is_not_overrun_by_those_who_waited_for_it() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gate = ConnectGate::dialling(&env).build();
        let (begun, _) = begun(&gate, &mut sim, &env, 20, |at| if at < SEC { SEC * 8 } else { MS });
        let after: Vec<_> = begun.into_iter().filter(|at| *at > SEC).collect();
        // The two that may begin at once after a pause, then one in a third of a second.
        assert!(after.windows(3).all(|three| three[2].abs_diff(three[0]) >= MS * 330), "{after:?}");
    }

    #[test]
    fn a_dial_that_is_given_up_makes_room_but_is_not_a_free_one() {
        let sim = Sim::new(1);
        let env = sim.env();
        let gate = ConnectGate::dialling(&env).build();
        for _ in 0..2 {
            drop(gate.try_enter(&Ask::new(&env)).unwrap());
        }
        let refusal = gate.try_enter(&Ask::new(&env)).unwrap_err();
        assert_eq!(refusal.why, crate::gate::Why::Rate);
        assert!(refusal.after.unwrap() > MS * 300);
    }

    #[test]
    fn dials_that_are_given_up_do_not_shorten_what_those_refused_are_told() {
        let env = Sim::new(1).env();
        let gate = ConnectGate::dialling(&env).at_once(1).per_second(1_000_000).max_waiting(0).build();
        let told = |ask: &Ask| {
            let _inside = gate.try_enter(ask).unwrap();
            gate.try_enter(ask).unwrap_err().after.unwrap()
        };
        let at = |secs| Ask::at(Tick::ZERO + SEC * secs);
        gate.try_enter(&at(1)).unwrap().settle(&Verdict::Ok, Span { from: Tick::ZERO, to: Tick::ZERO + SEC });
        for n in 0..100 {
            drop(gate.try_enter(&at(10 + n)).unwrap());
        }
        assert_eq!(told(&at(1_000)), SEC);
    }

    #[test]
    fn a_failed_handshake_is_not_counted_as_a_connection() {
        let counts = Arc::new(Counts::default());
        let env = Sim::new(1).env().observed_by(Arc::clone(&counts));
        let gate = ConnectGate::accepting(&env, 100, 2).build();
        let span = Span { from: Tick::ZERO, to: Tick::ZERO };
        gate.try_enter(&Ask::new(&env)).unwrap().settle(&Verdict::Fault, span);
        gate.try_enter(&Ask::new(&env)).unwrap().settle(&Verdict::Ok, span);
        assert_eq!(counts.get(Metric::Handshakes), 1);
    }

    #[test]
    fn an_acceptor_has_four_handshakes_under_way_for_each_core() {
        let env = Sim::new(1).env();
        let gate = ConnectGate::accepting(&env, 1_000_000, 2).build();
        let held: Vec<_> = (0..8).map(|_| gate.try_enter(&Ask::new(&env)).unwrap()).collect();
        assert_eq!(gate.try_enter(&Ask::new(&env)).unwrap_err().why, crate::gate::Why::Concurrency);
        drop(held);
    }
}
