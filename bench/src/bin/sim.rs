//! The simulated world: its event queue alone, and clients as tasks on it.
//! needs: valgrind, simpy

use std::{cmp::Reverse, collections::BinaryHeap, process::ExitCode, time::Duration};

use herdproof::{Sim, env::sim::EventQueue};
use herdproof_bench::{Bench, Case, Counting, Goal, Run, Subject, Value, cpu_time, live_bytes, peak_bytes, reset_peak};
use radix_heap::RadixHeapMap;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    herdproof_bench::main(&Bench {
        name: "sim",
        cases: vec![
            Case {
                name: "hold-1000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|ops| hold::<EventQueue<u32>>(1_000, ops)) },
                    Subject { name: "BinaryHeap", run: Run::Here(|ops| hold::<Binary>(1_000, ops)) },
                    Subject { name: "radix-heap", run: Run::Here(|ops| hold::<Radix>(1_000, ops)) },
                ],
                goals: vec![Goal { peer: "BinaryHeap", unit: "ns/event", at_least: 1.0 }],
                ops: 4_000_000,
                instructions: true,
            },
            Case {
                name: "hold-200000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|ops| hold::<EventQueue<u32>>(200_000, ops)) },
                    Subject { name: "BinaryHeap", run: Run::Here(|ops| hold::<Binary>(200_000, ops)) },
                    Subject { name: "radix-heap", run: Run::Here(|ops| hold::<Radix>(200_000, ops)) },
                ],
                goals: vec![Goal { peer: "BinaryHeap", unit: "ns/event", at_least: 3.5 }],
                ops: 4_000_000,
                instructions: true,
            },
            Case {
                name: "hold-1000000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|ops| hold::<EventQueue<u32>>(1_000_000, ops)) },
                    Subject { name: "BinaryHeap", run: Run::Here(|ops| hold::<Binary>(1_000_000, ops)) },
                    Subject { name: "radix-heap", run: Run::Here(|ops| hold::<Radix>(1_000_000, ops)) },
                ],
                goals: vec![Goal { peer: "BinaryHeap", unit: "ns/event", at_least: 6.0 }],
                ops: 4_000_000,
                instructions: false,
            },
            Case {
                name: "simpy-200000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|ops| hold::<EventQueue<u32>>(200_000, ops * 10)) },
                    Subject { name: "SimPy", run: Run::Python { script: "peers/simpy_hold.py", args: &["200000"] } },
                ],
                goals: vec![Goal { peer: "SimPy", unit: "ns/event", at_least: 100.0 }],
                ops: 200_000,
                instructions: false,
            },
            Case {
                name: "simpy-1000000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|ops| hold::<EventQueue<u32>>(1_000_000, ops * 20)) },
                    Subject { name: "SimPy", run: Run::Python { script: "peers/simpy_hold.py", args: &["1000000"] } },
                ],
                goals: vec![Goal { peer: "SimPy", unit: "ns/event", at_least: 100.0 }],
                ops: 100_000,
                instructions: false,
            },
            Case {
                name: "clients-200000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|clients| clients_on_sim(clients, spread())) },
                    Subject { name: "tokio paused", run: Run::Here(|clients| clients_on_tokio(clients, spread())) },
                ],
                goals: vec![
                    Goal { peer: "tokio paused", unit: "ns/event", at_least: 2.0 },
                    Goal { peer: "limit", unit: "bytes/client", at_least: 200.0 },
                ],
                ops: 200_000,
                instructions: false,
            },
            Case {
                name: "in-step-200000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|clients| clients_on_sim(clients, &IN_STEP)) },
                    Subject { name: "tokio paused", run: Run::Here(|clients| clients_on_tokio(clients, &IN_STEP)) },
                ],
                goals: vec![Goal { peer: "tokio paused", unit: "ns/event", at_least: 2.0 }],
                ops: 200_000,
                instructions: false,
            },
            Case {
                name: "clients-1000000",
                subjects: vec![
                    Subject { name: "herdproof", run: Run::Here(|clients| clients_on_sim(clients, spread())) },
                    Subject { name: "tokio paused", run: Run::Here(|clients| clients_on_tokio(clients, spread())) },
                ],
                goals: vec![Goal { peer: "limit", unit: "bytes/client", at_least: 200.0 }],
                ops: 1_000_000,
                instructions: false,
            },
        ],
    })
}

/// What a queue of timers must do.
trait Queue: Default {
    fn push(&mut self, tick: u64, entity: u32);
    fn pop(&mut self) -> (u64, u32);
    /// Reads ahead what the next events will touch, if the queue can say what they are.
    fn look_ahead(&mut self, _state: &[u64]) {}
}

impl Queue for EventQueue<u32> {
    fn look_ahead(&mut self, state: &[u64]) {
        if self.upcoming().is_empty() {
            self.load(u64::MAX);
            std::hint::black_box(self.upcoming().iter().fold(0, |seen, event| seen ^ state[event.1 as usize]));
        }
    }

    fn push(&mut self, tick: u64, entity: u32) {
        EventQueue::push(self, tick, entity);
    }

    fn pop(&mut self) -> (u64, u32) {
        EventQueue::pop(self).expect("an entity is always pending")
    }
}

/// Ordered by (tick, sequence), as a simulation needs it.
#[derive(Default)]
struct Binary {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    sequence: u64,
}

impl Queue for Binary {
    fn push(&mut self, tick: u64, entity: u32) {
        self.sequence += 1;
        self.heap.push(Reverse((tick, self.sequence, entity)));
    }

    fn pop(&mut self) -> (u64, u32) {
        let Reverse((tick, _, entity)) = self.heap.pop().expect("an entity is always pending");
        (tick, entity)
    }
}

/// Ordered by tick only: ties come out in any order.
#[derive(Default)]
struct Radix(RadixHeapMap<Reverse<u64>, u32>);

impl Queue for Radix {
    fn push(&mut self, tick: u64, entity: u32) {
        self.0.push(Reverse(tick), entity);
    }

    fn pop(&mut self) -> (u64, u32) {
        let (Reverse(tick), entity) = self.0.pop().expect("an entity is always pending");
        (tick, entity)
    }
}

/// The hold model: one pending timer per entity, exponential delays of one second, the entity's state touched per event.
fn hold<Q: Queue>(entities: u32, events: u64) -> Vec<Value> {
    let delays = delays();
    let mut state = vec![0u64; entities as usize];
    let mut random = 1;
    let mut queue = Q::default();
    for entity in 0..entities {
        queue.push(delays[step(&mut random)], entity);
    }
    let mut last = 0;
    let before = cpu_time();
    for _ in 0..events {
        queue.look_ahead(&state);
        let (tick, entity) = queue.pop();
        assert!(tick >= last, "out of order");
        last = tick;
        state[entity as usize] += 1;
        queue.push(tick + delays[step(&mut random)], entity);
    }
    let used = cpu_time() - before;
    assert_eq!(state.iter().sum::<u64>(), events);
    vec![Value { unit: "ns/event", value: used.as_nanos() as f64 / events as f64 }]
}

const ATTEMPTS: u32 = 10;

/// Everybody waits the same time, so that every instant has the whole crowd.
static IN_STEP: [u64; 4096] = [10_000_000; 4096];

fn spread() -> &'static [u64] {
    Vec::leak(delays())
}

fn clients_on_sim(clients: u64, delays: &'static [u64]) -> Vec<Value> {
    measure_clients(clients, || {
        let mut sim = Sim::new(1);
        let env = sim.env();
        for client in 0..clients {
            let env = env.scope(client);
            env.clone()
                .spawn(async move {
                    let rng = env.rng("retry");
                    for _ in 0..ATTEMPTS {
                        env.sleep(Duration::from_nanos(delays[rng.bits() as usize & 4095])).await;
                    }
                })
                .detach();
        }
        sim.finish().expect("every client ends");
    })
}

fn clients_on_tokio(clients: u64, delays: &'static [u64]) -> Vec<Value> {
    measure_clients(clients, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..clients)
                .map(|client| {
                    tokio::spawn(async move {
                        let mut random = client.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                        for _ in 0..ATTEMPTS {
                            tokio::time::sleep(Duration::from_nanos(delays[step(&mut random)])).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("every client ends");
            }
        });
    })
}

/// CPU time per timed attempt, and the most bytes alive per client, all of it: tasks, timers, queues.
fn measure_clients(clients: u64, run: impl FnOnce()) -> Vec<Value> {
    reset_peak();
    let (before, bytes) = (cpu_time(), live_bytes());
    run();
    let used = cpu_time() - before;
    vec![
        Value { unit: "ns/event", value: used.as_nanos() as f64 / (clients * u64::from(ATTEMPTS)) as f64 },
        Value { unit: "bytes/client", value: (peak_bytes() - bytes) as f64 / clients as f64 },
    ]
}

/// 4096 exponential delays with a mean of one second, in nanoseconds.
fn delays() -> Vec<u64> {
    let mut random = 7;
    (0..4096).map(|_| (-(1.0 - unit(&mut random)).ln() * 1e9) as u64).collect()
}

/// An index into the delays.
fn step(random: &mut u64) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random >> 20) as usize & 4095
}

fn unit(random: &mut u64) -> f64 {
    step(random);
    (*random >> 11) as f64 / (1u64 << 53) as f64
}
