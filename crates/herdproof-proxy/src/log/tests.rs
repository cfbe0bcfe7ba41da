//! Writers and readers, each hazard once.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::Wake;

use super::*;

/// An account with this budget.
fn account(most: u64) -> Arc<BodyMemory> {
    BodyMemory::new(&herdproof::Sim::new(1).env(), most)
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn log() -> (Arc<Log>, Writer) {
    Log::new(&account(u64::MAX))
}

fn chunk(byte: u8, len: usize) -> Bytes {
    Bytes::from(vec![byte; len])
}

fn next(reader: &mut Reader) -> Poll<Option<Result<Bytes, Broken>>> {
    reader.poll_next(&mut Context::from_waker(Waker::noop()))
}

/// All that can be read now, and what comes then.
fn drain(reader: &mut Reader) -> (Vec<u8>, Poll<Option<Broken>>) {
    let mut read = Vec::new();
    loop {
        match next(reader) {
            Poll::Ready(Some(Ok(chunk))) => read.extend_from_slice(&chunk),
            Poll::Ready(Some(Err(broken))) => return (read, Poll::Ready(Some(broken))),
            Poll::Ready(None) => return (read, Poll::Ready(None)),
            Poll::Pending => return (read, Poll::Pending),
        }
    }
}

#[test]
fn readers_get_what_has_come_before_the_body_is_whole_and_latecomers_get_all_of_it() {
    let (log, writer) = log();
    let mut early = log.reader();
    writer.push(chunk(1, 3));
    assert_eq!(drain(&mut early), (vec![1; 3], Poll::Pending));
    writer.push(chunk(2, 2));
    let mut late = log.reader();
    assert_eq!(drain(&mut late), (vec![1, 1, 1, 2, 2], Poll::Pending));
    let whole = writer.complete().unwrap();
    assert_eq!(whole.concat(), [1, 1, 1, 2, 2]);
    assert_eq!(drain(&mut early), (vec![2, 2], Poll::Ready(None)));
    assert_eq!(drain(&mut late), (vec![], Poll::Ready(None)));
}

#[test]
fn a_body_that_breaks_off_is_never_a_clean_end_for_anybody() {
    let (log, writer) = log();
    let mut behind = log.reader();
    let mut ahead = log.reader();
    writer.push(chunk(1, 3));
    assert_eq!(drain(&mut ahead), (vec![1; 3], Poll::Pending));
    drop(writer);
    let broken = Poll::Ready(Some(Broken::Truncated));
    assert_eq!(drain(&mut ahead), (vec![], broken));
    assert_eq!(drain(&mut behind), (vec![1; 3], broken));
    assert_eq!(drain(&mut log.reader()), (vec![1; 3], broken));
}

#[test]
fn a_crowd_is_woken_once_per_batch_and_not_per_chunk() {
    let (log, writer) = log();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut readers: Vec<Reader> = (0..100).map(|_| log.reader()).collect();
    for reader in &mut readers {
        // Polled twice, as tasks are that were woken by something else.
        assert!(reader.poll_next(&mut Context::from_waker(&waker)).is_pending());
        assert!(reader.poll_next(&mut Context::from_waker(&waker)).is_pending());
    }
    (0..10).for_each(|_| writer.push(chunk(1, 10)));
    assert_eq!(woken.0.load(Relaxed), 0);
    writer.publish();
    assert_eq!(woken.0.load(Relaxed), 100);
    writer.publish();
    assert_eq!(woken.0.load(Relaxed), 100);
    for reader in &mut readers {
        assert_eq!(drain(reader).0.len(), 100);
        assert!(reader.poll_next(&mut Context::from_waker(&waker)).is_pending());
    }
    readers.truncate(40);
    drop(writer);
    assert_eq!(woken.0.load(Relaxed), 140, "who has left is not woken, who waits learns of the end");
}

#[test]
fn readers_who_come_and_go_while_nothing_arrives_leave_nothing_behind() {
    let (log, _writer) = log();
    for _ in 0..1_000 {
        let mut reader = log.reader();
        assert!(next(&mut reader).is_pending());
    }
    let state = log.state.lock();
    assert_eq!((state.readers, state.wakers.len()), (0, 0));
}

#[test]
fn a_slow_reader_slows_nobody_and_loses_nothing_while_all_is_kept() {
    let (log, writer) = log();
    let mut slow = log.reader();
    for byte in 0..200 {
        assert!(writer.poll_room(&mut Context::from_waker(Waker::noop())).is_ready());
        writer.push(chunk(byte, 10_000));
    }
    drop(writer.complete());
    assert_eq!(drain(&mut slow).0.len(), 2_000_000);
}

#[test]
fn a_window_follows_the_fastest_reader_and_cuts_off_who_lags() {
    let (log, writer) = log();
    let (mut fast, mut slow) = (log.reader(), log.reader());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    writer.slide(10_000);
    writer.push(chunk(1, 6_000));
    assert!(writer.poll_room(&mut cx).is_ready());
    writer.push(chunk(2, 6_000));
    assert!(writer.poll_room(&mut cx).is_pending(), "nobody has read a byte of 12,000");
    assert!(next(&mut fast).is_ready());
    assert_eq!(woken.0.load(Relaxed), 1);
    assert!(writer.poll_room(&mut cx).is_ready());
    writer.push(chunk(3, 6_000));
    assert!(log.state.lock().kept < 20_000);
    assert_eq!(drain(&mut fast).0.len(), 12_000);
    assert_eq!(drain(&mut slow), (vec![], Poll::Ready(Some(Broken::TooSlow))));
    assert_eq!(writer.complete(), None, "what is not whole is not stored");
}

#[test]
fn a_window_never_cuts_off_the_one_reader_it_waits_for() {
    for sizes in [&[9_900, 12_000][..], &[12_000, 100, 9_900], &[10]] {
        let (log, writer) = log();
        let mut reader = log.reader();
        writer.slide(10_000);
        let mut sizes = sizes.iter().cycle();
        for _ in 0..1_000 {
            if writer.poll_room(&mut Context::from_waker(Waker::noop())).is_ready() {
                writer.push(chunk(1, *sizes.next().unwrap()));
            } else {
                assert!(matches!(next(&mut reader), Poll::Ready(Some(Ok(_)))));
            }
            assert!(log.state.lock().kept < 40_000);
        }
    }
}

#[test]
fn a_window_that_becomes_narrow_gives_memory_back_whoever_lags() {
    let (log, writer) = log();
    let mut reader = log.reader();
    (0..100).for_each(|_| writer.push(chunk(1, 10_000)));
    writer.slide(10_000);
    assert!(log.state.lock().kept < 10_000 + 10_064 + CHUNK);
    assert_eq!(drain(&mut reader), (vec![], Poll::Ready(Some(Broken::TooSlow))));
}

#[test]
fn a_window_that_spares_the_fastest_stops_the_writer_and_loses_it_nothing() {
    let (log, writer) = log();
    let (mut fast, mut lags) = (log.reader(), log.reader());
    (0..100).for_each(|_| writer.push(chunk(1, 10_000)));
    assert!(next(&mut fast).is_ready());
    writer.narrow(10_000);
    assert!(writer.poll_room(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(drain(&mut fast).0.len(), 990_000);
    writer.push(chunk(1, 10_000));
    assert!(log.state.lock().kept < 30_000);
    assert_eq!(drain(&mut lags), (vec![], Poll::Ready(Some(Broken::TooSlow))));
}

#[test]
fn a_writer_that_waits_for_readers_goes_on_when_the_last_has_left() {
    let (log, writer) = log();
    let reader = log.reader();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    writer.slide(1);
    writer.push(chunk(1, 10));
    assert!(writer.poll_room(&mut Context::from_waker(&waker)).is_pending());
    drop(reader);
    assert_eq!((woken.0.load(Relaxed), writer.readers()), (1, 0));
    assert!(writer.poll_room(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn who_reads_slowly_what_is_whole_still_counts() {
    let memory = account(u64::MAX);
    let (log, writer) = Log::new(&memory);
    let mut reader = log.reader();
    writer.push(chunk(1, 900));
    writer.push(chunk(2, 100));
    let counted = memory.bytes();
    assert!(counted >= 1_000);
    drop(writer.complete());
    drop(log);
    assert_eq!(memory.bytes(), counted);
    let Poll::Ready(Some(Ok(held))) = next(&mut reader) else { panic!("it is there") };
    drop(reader);
    assert!((900..counted).contains(&memory.bytes()), "what is being written counts, and nothing else");
    drop(held);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn what_the_store_has_does_not_count_until_it_is_evicted_while_somebody_reads_it() {
    let memory = account(u64::MAX);
    let (log, writer) = Log::new(&memory);
    let reader = log.reader();
    writer.push(chunk(1, 9_000));
    let (counted, stored) = (memory.bytes(), log.footprint().store());
    assert_eq!(memory.bytes(), 0);
    let again = log.footprint().store();
    drop(stored);
    assert_eq!(memory.bytes(), 0, "another object has it");
    drop(again);
    assert_eq!(memory.bytes(), counted);
    drop((writer, log));
    assert_eq!(memory.bytes(), counted);
    drop(reader);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn a_window_gives_back_what_it_drops() {
    let memory = account(1_000);
    let (_log, writer) = Log::new(&memory);
    (0..10).for_each(|_| writer.push(chunk(1, 10_000)));
    writer.slide(20_000);
    assert!(memory.bytes() <= 31_000, "{}", memory.bytes());
    writer.push(chunk(1, 10_000));
    assert!(memory.bytes() <= 31_000, "{}", memory.bytes());
}

#[test]
fn a_few_bytes_do_not_keep_a_read_buffer_alive() {
    let (log, writer) = log();
    let buffer = Bytes::from(vec![0; 100_000]);
    writer.push(buffer.slice(10..20));
    assert!(buffer.is_unique());
    assert_eq!(drain(&mut log.reader()).0, [0; 10]);
}
