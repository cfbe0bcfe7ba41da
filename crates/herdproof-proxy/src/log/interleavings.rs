//! Interleavings of a writer and its readers. `cargo xtask test` runs these with the model checker's lock.

use std::future::poll_fn;

use shuttle::{future::block_on, thread};

use super::*;
use crate::{
    memory::{Cause, Connected},
    who::Who,
};

/// An account with this budget.
fn account(most: u64) -> Arc<BodyMemory> {
    BodyMemory::new(&herdproof::Sim::new(1).env(), most)
}

const TRIES: usize = 20_000;

fn chunk(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 10])
}

/// Reads to the end, waiting as a task would.
fn read(mut reader: Reader) -> (Vec<u8>, Option<Broken>) {
    block_on(async move {
        let mut read = Vec::new();
        loop {
            match poll_fn(|cx| reader.poll_next(cx)).await {
                Some(Ok(chunk)) => read.push(chunk[0]),
                Some(Err(broken)) => return (read, Some(broken)),
                None => return (read, None),
            }
        }
    })
}

/// Whoever waits is woken for all that comes and for the end: nobody hangs, whenever it began to wait.
#[test]
fn every_reader_gets_all_of_it_and_its_end() {
    shuttle::check_random(
        || {
            let (log, writer) = Log::new(&account(u64::MAX));
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    let log = Arc::clone(&log);
                    thread::spawn(move || read(log.reader()))
                })
                .collect();
            drop(log);
            for byte in 0..3 {
                writer.push(chunk(byte));
                writer.publish();
            }
            assert!(writer.complete().is_some());
            for reader in readers {
                assert_eq!(reader.join().unwrap(), (vec![0, 1, 2], None));
            }
        },
        TRIES,
    );
}

#[test]
fn nobody_takes_a_body_that_broke_off_for_a_whole_one() {
    shuttle::check_random(
        || {
            let (log, writer) = Log::new(&account(u64::MAX));
            let reader = thread::spawn(move || read(log.reader()));
            writer.push(chunk(0));
            writer.publish();
            writer.push(chunk(1));
            drop(writer);
            assert_eq!(reader.join().unwrap(), (vec![0, 1], Some(Broken::Truncated)));
        },
        TRIES,
    );
}

/// A writer that waits for the fastest reader goes on when that has read, and when it has left.
#[test]
fn a_writer_never_waits_for_ever() {
    shuttle::check_random(
        || {
            let memory = account(u64::MAX);
            let (log, writer) = Log::new(&memory);
            let reader = log.reader();
            let leaver = log.reader();
            drop(log);
            writer.slide(1);
            let leaving = thread::spawn(move || drop(leaver));
            let reading = thread::spawn(move || read(reader));
            block_on(async {
                for byte in 0..3 {
                    poll_fn(|cx| writer.poll_room(cx)).await;
                    writer.push(chunk(byte));
                    writer.publish();
                }
            });
            assert!(writer.complete().is_none());
            leaving.join().unwrap();
            let (read, broken) = reading.join().unwrap();
            assert_eq!((read, broken), (vec![0, 1, 2], None));
            assert_eq!(memory.bytes(), 0);
        },
        TRIES,
    );
}

/// A client that has had enough for now.
#[derive(Debug)]
struct Blocked;

impl Connected for Blocked {
    fn progress(&self) -> (u64, bool) {
        (0, true)
    }

    fn end(&self, _: Cause) {}
}

/// The writer, the store, a reader and what is being written let go of a body in any order, while somebody looks for whom to end.
#[test]
fn nothing_is_counted_when_all_are_gone_whoever_goes_last() {
    shuttle::check_random(
        || {
            let memory = account(1);
            let (log, writer) = Log::new(&memory);
            let (reader, footprint) = (log.reader(), Arc::clone(log.footprint()));
            drop(log);
            let reading = {
                let footprint = Arc::clone(&footprint);
                thread::spawn(move || {
                    let registered = footprint.read_by(Who::of([10, 0, 0, 1].into()), Arc::new(Blocked));
                    let (read, _) = read(reader);
                    drop(registered.until_written(Bytes::from(read)));
                })
            };
            let storing = thread::spawn(move || {
                let stored = footprint.store();
                thread::yield_now();
                drop(stored);
            });
            writer.push(chunk(0));
            writer.publish();
            memory.is_short();
            writer.push(chunk(1));
            let chunks = writer.complete();
            reading.join().unwrap();
            drop(chunks);
            storing.join().unwrap();
            assert_eq!(memory.bytes(), 0);
        },
        TRIES,
    );
}
