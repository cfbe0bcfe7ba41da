//! What is counted is what happened, from whichever thread, and the page can be read by machines.

use http::{Method, StatusCode};

use super::*;
use herdproof::Tick;

fn record(outcome: Outcome, reason: &'static str) -> Record {
    Record {
        arrived: Tick::ZERO,
        client: ([10, 0, 0, 1], 1).into(),
        method: Method::GET,
        target: None,
        status: StatusCode::OK,
        bytes: 100,
        outcome,
        reason,
        waited: Duration::ZERO,
        first: Duration::from_micros(300),
        took: Duration::from_millis(2),
        key: 1,
        referer: None,
        agent: None,
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
                    (0..times).for_each(|_| metrics.count(&record(*outcome, "")));
                }
            });
        }
    });
    for (times, outcome) in Outcome::ALL.iter().enumerate() {
        let (name, count) = (outcome.name(), times * 20);
        for line in [
            format!("herdproof_requests_total{{outcome=\"{name}\"}} {count}"),
            format!("herdproof_body_bytes_total{{outcome=\"{name}\"}} {}", count * 100),
            format!("herdproof_first_byte_seconds_count{{outcome=\"{name}\"}} {count}"),
        ] {
            assert!(says(&metrics, &line), "{line}");
        }
    }
    let all: usize = (0..Outcome::ALL.len()).sum::<usize>() * 20;
    assert!(says(&metrics, &format!("herdproof_edge_requests_total {all}")));
    assert!(says(&metrics, &format!("herdproof_responses_total{{status=\"2xx\"}} {all}")));
}

#[test]
fn a_histogram_is_cumulative_and_its_bounds_are_inclusive() {
    let metrics = Metrics::default();
    for micros in [0, 100, 101, 250, 60_000_000, 60_000_001, u64::MAX / 1000] {
        metrics.count(&Record { first: Duration::from_micros(micros), ..record(Outcome::Hit, "") });
    }
    for (bound, count) in [("0.0001", 2), ("0.00025", 4), ("30", 4), ("60", 5), ("+Inf", 7)] {
        let line = format!("herdproof_first_byte_seconds_bucket{{outcome=\"hit\",le=\"{bound}\"}} {count}");
        assert!(says(&metrics, &line), "{line}");
    }
}

#[test]
fn reasons_are_counted_by_word_and_are_bounded() {
    let metrics = Metrics::default();
    for reason in ["cookie", "method", "cookie"] {
        metrics.count(&record(Outcome::Pass, reason));
    }
    metrics.count(&record(Outcome::Failed, "method"));
    assert!(says(&metrics, "herdproof_reasons_total{outcome=\"pass\",reason=\"cookie\"} 2"));
    assert!(says(&metrics, "herdproof_reasons_total{outcome=\"failed\",reason=\"method\"} 1"));
    for n in 0..1000 {
        metrics.count(&record(Outcome::Shed, format!("reason-{n}").leak()));
    }
    let lines = metrics.page().text().lines().filter(|line| line.starts_with("herdproof_reasons_total{")).count();
    assert_eq!(lines, REASONS);
    assert!(says(&metrics, "herdproof_reasons_total{outcome=\"shed\",reason=\"other\"} 940"));
}

#[test]
fn what_the_library_does_is_on_the_page_under_its_own_names() {
    let metrics = Metrics::default();
    metrics.observe(&Event::OriginRequest);
    std::thread::scope(|scope| {
        scope.spawn(|| metrics.observe(&Event::OriginRequest));
        scope.spawn(|| metrics.observe(&Event::QueueDepth(7)));
    });
    metrics.observe(&Event::QueueDepth(3));
    (0..10).for_each(|_| metrics.count(&record(Outcome::Hit, "")));
    assert!(says(&metrics, "herdproof_origin_requests_total 2"));
    assert!(says(&metrics, "herdproof_queue_depth 3"));
    assert!(says(&metrics, "herdproof_collapse_ratio 5"));
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
    metrics.count(&Record { waited: Duration::from_secs(2), ..record(Outcome::Joined, "") });
    assert!(says(&metrics, "herdproof_wait_seconds_sum 2"));
    assert!(says(&metrics, "herdproof_wait_seconds_count 1"));
}

/// As Prometheus reads it: every sample follows the head of its family, no family comes twice, no sample comes twice.
#[test]
fn the_page_is_what_prometheus_reads() {
    let metrics = Metrics::default();
    metrics.count(&record(Outcome::Pass, "a \"quoted\\\nword"));
    let page = metrics.page();
    let (mut family, mut families, mut samples) = (String::new(), Vec::new(), Vec::new());
    for line in page.text().lines() {
        if let Some(head) = line.strip_prefix("# HELP ") {
            family = head.split(' ').next().unwrap().to_owned();
            assert!(!families.contains(&family), "{family} comes twice");
            families.push(family.clone());
        } else if let Some(head) = line.strip_prefix("# TYPE ") {
            assert!(head.starts_with(&family), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(sample.starts_with(&family) && value.parse::<f64>().is_ok(), "{line}");
            assert!(!samples.contains(&sample), "{sample} comes twice");
            samples.push(sample);
        }
    }
    assert!(page.text().contains(r#"reason="a \"quoted\\\nword""#));
}
