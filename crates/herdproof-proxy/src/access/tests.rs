//! A line holds what happened, whoever sent it, and no request waits for its line.

use std::{
    io::{self, Write},
    sync::{Arc, mpsc},
    time::{Duration, SystemTime},
};

use herdproof::{Env, Tick};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version, uri::PathAndQuery};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::Value;

use super::{line, *};
use crate::{
    metrics::Page,
    settings::{LogFormat, LogSettings, LogTo},
};

fn record() -> Record {
    Record {
        arrived: Tick::from_nanos(5_000),
        client: "192.0.2.7:50000".parse().unwrap(),
        method: Some(Method::GET),
        status: StatusCode::OK,
        bytes: 17,
        complete: true,
        outcome: Outcome::Joined,
        reason: Detail::Learned,
        waited: Duration::from_micros(80_000),
        origin: Some(Duration::from_micros(79_000)),
        first: Duration::from_micros(80_001),
        took: Duration::from_micros(80_002),
        key: 0xabc,
        text: Some(Box::new(text())),
    }
}

fn text() -> Text {
    let traceparent = HeaderValue::from_static("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    Text {
        target: Some("/odds/42?token=secret".parse().unwrap()),
        host: Some(HeaderValue::from_static("example.com")),
        scheme: Some(Scheme::Https),
        version: Some(Version::HTTP_11),
        id: Some(RequestId::Made(0xfeed)),
        trace: TraceId::of(&[("traceparent".parse().unwrap(), traceparent)].into_iter().collect()),
        referer: Some(HeaderValue::from_static("http://a/")),
        agent: Some(HeaderValue::from_static("curl/8")),
    }
}

fn written(record: &Record, format: LogFormat, hide_query: bool) -> String {
    let mut bytes = Vec::new();
    let arrived = SystemTime::UNIX_EPOCH + Duration::from_micros(1_794_806_427_123_456);
    line::write(&mut bytes, record, arrived, format, hide_query);
    String::from_utf8(bytes).expect("every line is text")
}

#[test]
fn every_field_comes_back_from_json() {
    let line: Value = serde_json::from_str(&written(&record(), LogFormat::Json, false)).unwrap();
    let expected = serde_json::json!({
        "time": "2026-11-16T05:20:27.123456Z",
        "client": "192.0.2.7:50000",
        "request_id": "0000000000000000000000000000feed",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "method": "GET",
        "scheme": "https",
        "host": "example.com",
        "version": "1.1",
        "complete": true,
        "origin_us": 79_000,
        "path": "/odds/42?token=secret",
        "status": 200,
        "bytes": 17,
        "outcome": "joined",
        "reason": "learned",
        "waited_us": 80_000,
        "first_us": 80_001,
        "took_us": 80_002,
        "key": "0000000000000abc",
        "referer": "http://a/",
        "agent": "curl/8",
    });
    assert_eq!(line, expected);
}

#[test]
fn the_combined_format_is_the_one_that_tools_read_with_more_behind_it() {
    let expected = "192.0.2.7 - - [16/Nov/2026:05:20:27 +0000] \"GET /odds/42 HTTP/1.1\" 200 17 \"http://a/\" \"curl/8\" \
                    1794806427.123456 0.080002 joined learned 0.079000 complete https \"example.com\" \
                    0000000000000000000000000000feed 4bf92f3577b34da6a3ce929d0e0e4736\n";
    assert_eq!(written(&record(), LogFormat::Combined, true), expected);
    let bare = Record { text: None, method: None, origin: None, complete: false, reason: Detail::None, ..record() };
    let bare = written(&bare, LogFormat::Combined, false);
    assert!(
        bare.contains("\"- - HTTP/-\" 200 17 \"-\" \"-\" ") && bare.ends_with("joined - - cut - \"-\" - -\n"),
        "{bare}"
    );
}

#[test]
fn a_query_that_is_to_be_hidden_is_nowhere() {
    for format in [LogFormat::Json, LogFormat::Combined] {
        assert!(!written(&record(), format, true).contains("secret"));
    }
}

proptest! {
    /// Whatever clients send is inside its own field of its own line.
    #[test]
    fn no_client_can_write_a_line_or_a_field(
        agent in prop::collection::vec(any::<u8>(), 0..60),
        path in "/[ -~]{0,40}",
        id in prop::collection::vec(any::<u8>(), 0..60),
        method in "[A-Z!#-'*+.^_`|~-]{1,12}",
    ) {
        let agent = HeaderValue::from_bytes(&agent).ok();
        let target = PathAndQuery::try_from(path).ok();
        // What somebody sends as an id is one, or is not taken.
        let mut headers = HeaderMap::new();
        if let Ok(id) = HeaderValue::from_bytes(&id) {
            headers.append("x-request-id", id.clone());
            headers.append("traceparent", id);
        }
        let text = Text {
            agent: agent.clone(),
            referer: agent.clone(),
            host: agent.clone(),
            target: target.clone(),
            id: RequestId::given(&headers),
            trace: TraceId::of(&headers),
            ..text()
        };
        let method = Method::from_bytes(method.as_bytes()).ok();
        let record = Record { method, text: Some(Box::new(text)), ..record() };
        let json = written(&record, LogFormat::Json, false);
        prop_assert_eq!(json.lines().count(), 1);
        let json: Value = serde_json::from_str(&json).unwrap();
        let told = agent.as_ref().map(|agent| String::from_utf8_lossy(agent.as_bytes()).into_owned());
        prop_assert_eq!(json["agent"].as_str(), told.as_deref());
        prop_assert_eq!(json["host"].as_str(), told.as_deref());
        prop_assert_eq!(json["path"].as_str(), Some(target.as_ref().map_or("-", |target| target.as_str())));

        let combined = written(&record, LogFormat::Combined, false);
        prop_assert!(combined.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{combined:?}");
        let quotes = combined.replace("\\\\", "").replace("\\\"", "").matches('"').count();
        prop_assert_eq!(quotes, 8, "{}", combined);
        let behind = combined.trim_end().rsplit('"').next().unwrap();
        prop_assert_eq!(behind.split(' ').count(), 3, "an id is one word: {}", combined);
    }
}

/// A file that can be looked into, and that is written only while it may be.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn lines(&self) -> usize {
        self.0.lock().split(|byte| *byte == b'\n').count() - 1
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn page(log: &AccessLog) -> String {
    let mut page = Page::default();
    log.report()(&mut page);
    page.into_text()
}

fn run(test: impl AsyncFnOnce(Env)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async { test(Env::system()).await });
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_stop_loses_no_line() {
    run(async |env| {
        let memory = Memory::default();
        let log = AccessLog::start(&env, None, LogFormat::Json, false, Box::new(memory.clone()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| log.write(record())));
            }
        });
        log.close(&env, LONG).await;
        assert_eq!(memory.lines(), 4_000);
        assert!(page(&log).contains("herdproof_access_log_lines_total 4000\n"));
    });
}

/// The writer sleeps when there is nothing to do; whoever comes next wakes it.
#[test]
fn a_line_after_a_long_silence_is_written_without_a_stop() {
    struct Told(mpsc::Sender<usize>);
    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.len()).ok();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    run(async |env| {
        let (tell, told) = mpsc::channel();
        let log = AccessLog::start(&env, None, LogFormat::Combined, false, Box::new(Told(tell)));
        for _ in 0..5 {
            while !log.is_asleep() {
                std::thread::yield_now();
            }
            log.write(record());
            assert!(told.recv_timeout(LONG).is_ok(), "nobody woke the writer");
        }
    });
}

#[test]
fn a_writer_that_cannot_keep_up_costs_lines_and_never_time() {
    struct Stuck(mpsc::Receiver<()>, Memory);
    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().ok();
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    run(async |env| {
        let (go, stuck) = mpsc::channel();
        let memory = Memory::default();
        let log = AccessLog::start(&env, None, LogFormat::Json, false, Box::new(Stuck(stuck, memory.clone())));
        let many = 100_000;
        (0..many).for_each(|_| log.write(record()));
        drop(go);
        log.close(&env, LONG).await;
        let lines = memory.lines();
        assert!(lines < many && lines >= 8 * 1024, "{lines}");
        let dropped = format!("herdproof_access_log_dropped_total{{reason=\"queue_full\"}} {}\n", many - lines);
        assert!(page(&log).contains(&dropped), "{lines} written; {}", page(&log));
    });
}

#[test]
fn a_full_disk_is_counted_and_nothing_else_happens() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    run(async |env| {
        let log = AccessLog::start(&env, None, LogFormat::Json, false, Box::new(Full));
        (0..10).for_each(|_| log.write(record()));
        log.close(&env, LONG).await;
        assert!(page(&log).contains("herdproof_access_log_dropped_total{reason=\"write_failed\"} 10\n"));
        assert!(page(&log).contains("herdproof_access_log_lines_total 0\n"));
    });
}

#[test]
fn after_a_rotation_lines_go_to_the_new_file() {
    run(async |env| {
        let dir = std::env::temp_dir().join(format!("herdproof-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, moved) = (dir.join("access.log"), dir.join("access.log.1"));
        let settings = LogSettings { access: Some(LogTo::File(path.clone())), ..LogSettings::default() };
        let log = AccessLog::open(&env, &settings).unwrap().unwrap();
        log.write(record());
        std::fs::rename(&path, &moved).unwrap();
        log.reopen();
        // Lines from before the order are in the old file, and the new one is there when the order was carried out.
        while !path.exists() {
            tokio::task::yield_now().await;
        }
        log.write(record());
        log.write(record());
        log.close(&env, LONG).await;
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&moved), lines(&path)), (1, 2));
        std::fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn a_rotation_that_does_not_work_is_told_until_one_does() {
    run(async |env| {
        let dir = std::env::temp_dir().join(format!("herdproof-log-moved-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, moved) = (dir.join("access.log"), dir.join("access.log.1"));
        let settings = LogSettings { access: Some(LogTo::File(path.clone())), ..LogSettings::default() };
        let log = AccessLog::open(&env, &settings).unwrap().unwrap();
        assert_eq!(log.trouble(), None);
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        log.reopen();
        while log.trouble().is_none() {
            tokio::task::yield_now().await;
        }
        log.write(record());
        std::fs::remove_dir(&path).unwrap();
        log.reopen();
        while log.trouble().is_some() {
            tokio::task::yield_now().await;
        }
        log.close(&env, LONG).await;
        assert_eq!(std::fs::read_to_string(&moved).unwrap().lines().count(), 1, "no line is lost");
        std::fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error_at_once() {
    run(async |env| {
        let settings =
            LogSettings { access: Some(LogTo::File("/nowhere/access.log".into())), ..LogSettings::default() };
        let error = AccessLog::open(&env, &settings).unwrap_err();
        assert!(error.to_string().starts_with("cannot open the access log /nowhere/access.log: "), "{error}");
        assert!(AccessLog::open(&env, &LogSettings::default()).unwrap().is_none());
    });
}
