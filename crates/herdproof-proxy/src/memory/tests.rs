//! The account with its readers, in virtual time.

use std::{net::IpAddr, sync::atomic::AtomicU32};

use herdproof::Sim;

use super::*;

/// A client's side of a connection.
#[derive(Debug, Default)]
struct Side {
    written: AtomicU64,
    blocked: AtomicBool,
    ended: AtomicU32,
}

impl Connected for Side {
    fn progress(&self) -> (u64, bool) {
        (self.written.load(Relaxed), self.blocked.load(Relaxed))
    }

    fn end(&self, _: Cause) {
        self.ended.fetch_add(1, Relaxed);
    }
}

impl Side {
    fn is_ended(&self) -> bool {
        self.ended.load(Relaxed) > 0
    }
}

fn who(last: u8) -> Who {
    Who::of(IpAddr::from([10, 0, 0, last]))
}

/// A body of so many bytes, and a client that reads it and is blocked.
fn read(memory: &Arc<BodyMemory>, client: u8, bytes: usize) -> (Arc<Side>, Bytes, Reading) {
    let footprint = Footprint::new(memory);
    let side = Arc::new(Side::default());
    side.blocked.store(true, Relaxed);
    let bytes = footprint.hold(vec![0; bytes]);
    let reading = footprint.read_by(who(client), Arc::clone(&side) as Arc<dyn Connected>);
    (side, bytes, reading)
}

#[test]
fn who_reads_least_lately_is_ended_and_not_who_read_least_at_first() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let memory = BodyMemory::new(&env, 1_000_000);
    sim.run(async move {
        // Each holds less than an eighth.
        let readers: Vec<_> = (0..9).map(|client| read(&memory, client, 110_000)).collect();
        let (stalled, started) = (&readers[0].0, &readers[1].0);
        let go = |side: &Side, bytes| side.written.fetch_add(bytes, Relaxed);
        for second in 0..20 {
            for (side, ..) in &readers[2..] {
                go(side, 10_000_000);
            }
            go(if second < 10 { stalled } else { started }, 10_000_000);
            env.sleep(Duration::from_secs(1)).await;
            assert!(!memory.is_short());
        }
        let last = read(&memory, 9, 100_000);
        assert!(!memory.is_short());
        assert!(stalled.is_ended());
        assert!(readers[1..].iter().all(|(side, ..)| !side.is_ended()) && !last.0.is_ended());
    });
}

#[test]
fn memory_that_nobody_is_to_be_ended_for_is_short_and_then_not() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let memory = BodyMemory::new(&env, 1_000_000);
    sim.run(async move {
        let mut readers: Vec<_> = (0..10).map(|client| read(&memory, client, 110_000)).collect();
        assert!(memory.is_short() && readers.iter().all(|(side, ..)| !side.is_ended()));
        readers.pop();
        assert!(!memory.is_short());
        readers.clear();
        assert_eq!((memory.bytes(), memory.readers.lock().all.len()), (0, 0));
    });
}

#[test]
fn who_is_ended_is_ended_once_and_nobody_else_while_it_lets_go() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let memory = BodyMemory::new(&env, 1_000_000);
    sim.run(async move {
        let slow = read(&memory, 1, 600_000);
        let good = read(&memory, 2, 450_000);
        for _ in 0..100 {
            assert!(!memory.is_short());
            env.sleep(AGAIN).await;
        }
        assert_eq!((slow.0.ended.load(Relaxed), good.0.ended.load(Relaxed)), (1, 0));
        let (_, bytes, reading) = slow;
        drop(reading.until_written(bytes));
        assert!(memory.bytes() < 500_000);
    });
}

#[test]
fn what_is_written_has_a_reader_until_it_is() {
    let memory = BodyMemory::new(&Sim::new(1).env(), 1_000_000);
    let (_, bytes, reading) = read(&memory, 1, 100);
    let mut written = reading.until_written(bytes);
    let rest = written.split_off(50);
    drop(written);
    assert_eq!(memory.readers.lock().all.len(), 1);
    drop(rest);
    assert_eq!((memory.bytes(), memory.readers.lock().all.len()), (0, 0));
}

#[test]
fn a_seat_is_freed_only_from_who_was_too_slow_for_five_seconds_while_it_was_waited_for() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let memory = BodyMemory::new(&env, 1_000_000);
    sim.run(async move {
        let body = Footprint::new(&memory);
        let side = Arc::new(Side::default());
        let _reading = body.read_by(who(1), Arc::clone(&side) as Arc<dyn Connected>);
        side.blocked.store(true, Relaxed);
        env.sleep(Duration::from_secs(4)).await;
        body.set_waits(true);
        memory.free_a_seat(90, 100);
        assert!(!side.is_ended(), "it has only begun");
        env.sleep(Duration::from_secs(1)).await;
        body.set_waits(false);
        memory.free_a_seat(90, 100);
        assert!(!side.is_ended(), "it is not waited for");
        body.set_waits(true);
        memory.free_a_seat(90, 100);
        assert!(side.is_ended());
    });
}
