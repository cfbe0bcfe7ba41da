//! What is counted is what happened, from whichever thread, and the page can be read by machines.

use http::{Method, StatusCode};

use super::*;
use herdproof::Tick;

pub(crate) fn record(outcome: Outcome, reason: Detail) -> Record {
    Record {
        arrived: Tick::ZERO,
        client: ([10, 0, 0, 1], 1).into(),
        method: Some(Method::GET),
        status: StatusCode::OK,
        bytes: 100,
        complete: true,
        outcome,
        reason,
        waited: Duration::ZERO,
        origin: None,
        first: Duration::from_micros(300),
        took: Duration::from_millis(2),
        key: 1,
        text: None,
    }
}

fn says(metrics: &Metrics, line: &str) -> bool {
    metrics.page().text().lines().any(|known| known == line)
}

#[test]
fn every_outcome_is_counted_as_itself_from_every_thread() {
    let metrics = Metrics::default();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for (times, outcome) in Outcome::ALL.iter().enumerate() {
                    (0..times).for_each(|_| metrics.count(&record(*outcome, Detail::None)));
                }
            });
        }
    });
    for (times, outcome) in Outcome::ALL.iter().enumerate() {
        let (name, count) = (outcome.name(), times * 20);
        for line in [
            format!("herdproof_requests_total{{outcome=\"{name}\"}} {count}"),
            format!("herdproof_response_body_bytes_total{{outcome=\"{name}\"}} {}", count * 100),
            format!("herdproof_first_byte_seconds_count{{outcome=\"{name}\"}} {count}"),
        ] {
            assert!(says(&metrics, &line), "{line}");
        }
    }
    let all: usize = (0..Outcome::ALL.len()).sum::<usize>() * 20;
    let counted: u64 = samples(metrics.page().text(), "http_server_request_duration_seconds_count").iter().sum();
    assert_eq!(counted, all as u64);
}

#[test]
fn a_histogram_is_cumulative_and_its_bounds_are_inclusive() {
    let metrics = Metrics::default();
    for micros in [0, 100, 101, 250, 60_000_000, 60_000_001, u64::MAX / 1000] {
        metrics.count(&Record { first: Duration::from_micros(micros), ..record(Outcome::Hit, Detail::None) });
    }
    for (bound, count) in [("0.0001", 2), ("0.00025", 4), ("30", 4), ("60", 5), ("+Inf", 7)] {
        let line = format!("herdproof_first_byte_seconds_bucket{{outcome=\"hit\",le=\"{bound}\"}} {count}");
        assert!(says(&metrics, &line), "{line}");
    }
}

#[test]
fn reasons_are_counted_with_their_outcome_and_their_number_is_known() {
    let metrics = Metrics::default();
    for reason in [Detail::Cookie, Detail::Method, Detail::Cookie, Detail::None] {
        metrics.count(&record(Outcome::Pass, reason));
    }
    metrics.count(&record(Outcome::Failed, Detail::Method));
    assert!(says(&metrics, "herdproof_reasons_total{outcome=\"pass\",reason=\"cookie\"} 2"));
    assert!(says(&metrics, "herdproof_reasons_total{outcome=\"failed\",reason=\"method\"} 1"));
    assert_eq!(samples(metrics.page().text(), "herdproof_reasons_total").len(), 3);
}

/// A page grows with what clients send, and no further than this.
#[test]
fn no_client_can_add_a_label() {
    let metrics = Metrics::default();
    for n in 0..1_000 {
        let method = Method::from_bytes(format!("X{n}").as_bytes()).ok();
        let status = StatusCode::from_u16(100 + n % 900).unwrap();
        metrics.count(&Record { method, status, ..record(Outcome::Pass, Detail::Method) });
    }
    let page = metrics.page();
    let series = samples(page.text(), "http_server_request_duration_seconds_count");
    assert_eq!((series.len(), series.iter().sum::<u64>()), (CODES.len(), 1_000));
    let odd = "http_server_request_duration_seconds_count{method=\"_OTHER\",code=\"other\",outcome=\"pass\"} 400";
    assert!(says(&metrics, odd), "{}", page.text());
}

#[test]
fn an_answer_that_is_over_at_once_is_in_both_histograms_and_counted_once() {
    let metrics = Metrics::default();
    let at_once = Duration::from_millis(4);
    metrics.count(&Record { first: at_once, took: at_once, ..record(Outcome::Hit, Detail::None) });
    metrics.count(&Record { took: Duration::from_secs(3), ..record(Outcome::Hit, Detail::None) });
    metrics.count_at_once(StatusCode::OK, 7, Duration::from_micros(30));
    for line in [
        "herdproof_cache_hits_total 3",
        "herdproof_requests_total{outcome=\"hit\"} 3",
        "herdproof_first_byte_seconds_count{outcome=\"hit\"} 3",
        "herdproof_first_byte_seconds_sum{outcome=\"hit\"} 0.00433",
        "http_server_request_duration_seconds_count{method=\"GET\",code=\"2xx\",outcome=\"hit\"} 3",
        "http_server_request_duration_seconds_sum{method=\"GET\",code=\"2xx\",outcome=\"hit\"} 3.00403",
        "herdproof_response_body_bytes_total{outcome=\"hit\"} 207",
    ] {
        assert!(says(&metrics, line), "{line}: {}", metrics.page().text());
    }
}

#[test]
fn what_the_library_says_of_look_ups_inside_is_not_taken_for_requests() {
    let metrics = Metrics::default();
    for event in [Event::CacheHit, Event::CacheMiss, Event::EdgeRequest, Event::Load, Event::Trip, Event::QueueDepth(3)]
    {
        metrics.observe(&event);
    }
    assert!(says(&metrics, "herdproof_cache_hits_total 0"));
    assert!(says(&metrics, "herdproof_origin_breaker_trips_total 1"));
    for gone in
        ["tier_", "edge_requests", "collapse_ratio", "nanoseconds", "handshakes", "lock_attempts", "cache_misses"]
    {
        assert!(!metrics.page().text().contains(gone), "{gone}");
    }
}

#[test]
fn who_waits_is_seen_while_it_waits_wherever_it_ends() {
    let metrics = Metrics::default();
    let waiting = metrics.wait();
    assert!(says(&metrics, "herdproof_waiting 1"));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(waiting));
    });
    assert!(says(&metrics, "herdproof_waiting 0"));
    metrics.count(&Record { waited: Duration::from_secs(2), ..record(Outcome::Joined, Detail::None) });
    assert!(says(&metrics, "herdproof_wait_seconds_sum 2"));
    assert!(says(&metrics, "herdproof_wait_seconds_count 1"));
}

/// The values of all samples with this name.
fn samples(page: &str, name: &str) -> Vec<u64> {
    let rest = page.lines().filter_map(|line| line.strip_prefix(name));
    let values = rest.filter(|rest| rest.starts_with(['{', ' '])).filter_map(|rest| rest.rsplit_once(' '));
    values.map(|(_, value)| value.parse().unwrap()).collect()
}

#[test]
fn the_page_is_what_prometheus_reads() {
    let metrics = Metrics::default();
    for outcome in Outcome::ALL {
        metrics.count(&record(*outcome, Detail::Cookie));
    }
    let mut page = metrics.page();
    page.counters("a_total", "With \\ and\na line.", "why", &[("a \"quoted\\\nword", 1)]);
    check(page.text());
    assert!(page.text().contains(r#"a_total{why="a \"quoted\\\nword"} 1"#));
    assert!(page.text().contains("# HELP a_total With \\\\ and\\na line.\n"));
}

/// As strict as `promtool check metrics`, and stricter: every sample follows HELP and TYPE of its family, no family and no sample
/// comes twice, counters end in `_total` and nothing else does, units are base units, buckets grow and end with the count.
pub(crate) fn check(page: &str) {
    let (mut family, mut kind, mut families, mut samples) = (String::new(), "", Vec::new(), Vec::new());
    let mut buckets: Vec<(String, f64, f64)> = Vec::new();
    let mut lines = page.lines().peekable();
    assert!(page.ends_with('\n'));
    while let Some(line) = lines.next() {
        if let Some(head) = line.strip_prefix("# HELP ") {
            let (name, help) = head.split_once(' ').expect(line);
            let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.bytes().all(is_name) && help.ends_with('.') && help.len() > 10, "{line}");
            assert!(!families.contains(&name.to_owned()), "{name} comes twice");
            families.push(name.to_owned());
            family = name.to_owned();
            let next = lines.next().unwrap_or_default();
            kind = next.strip_prefix(&format!("# TYPE {name} ")).expect("HELP is followed by TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{next}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
            for unit in ["_nanoseconds", "_milliseconds", "_microseconds", "_ms", "_kilobytes", "_mib", "_ratio"] {
                assert!(!name.contains(unit), "{name} is not in base units");
            }
            if kind == "histogram" {
                assert!(name.ends_with("_seconds") || name.ends_with("_bytes"), "{name} has no unit");
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect(line);
        let value: f64 = value.parse().expect(line);
        let (name, labels) =
            sample.split_once('{').map_or((sample, ""), |(name, labels)| (name, labels.strip_suffix('}').expect(line)));
        let suffix = name.strip_prefix(&*family).expect(line);
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(kind == "gauge" || value >= 0.0, "{line}");
        assert!(!samples.contains(&sample.to_owned()), "{sample} comes twice");
        samples.push(sample.to_owned());
        match suffix {
            "_bucket" => {
                let (labels, bound) = labels.rsplit_once("le=\"").expect(line);
                let bound = bound.strip_suffix('"').expect(line);
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect(line) };
                let labels = labels.trim_end_matches(',').to_owned();
                if let Some((of, below, count)) = buckets.last()
                    && *of == labels
                {
                    assert!(*below < bound && *count <= value, "{line}");
                }
                buckets.push((labels, bound, value));
            }
            "_count" => {
                let (of, bound, count) = buckets.last().expect(line);
                assert!((of.as_str(), *bound, *count) == (labels, f64::INFINITY, value), "{line}");
                buckets.clear();
            }
            _ => {}
        }
    }
}
