//! Every number on the page of metrics is what happened: a run of which each step is known, and then all numbers.

use std::collections::BTreeMap;

use http::Method;
use tokio::io::AsyncWriteExt;

use super::world::{Gate, Step, World, answer, bytes, fresh, get, read_answer, request, run_with, with};
use crate::{metrics::tests::check, settings::Route};

/// What a scraper reads.
fn page(world: &World) -> String {
    let mut page = world.proxy.metrics().page();
    world.proxy.report()(&mut page);
    world.server.report()(&mut page);
    check(page.text());
    page.into_text()
}

/// All counters, and the counts of all histograms, that are not zero. What a process is otherwise is no event.
fn counts(world: &World) -> BTreeMap<String, u64> {
    let page = page(world);
    let samples = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    let is_event = |sample: &str| {
        let name = sample.split('{').next().unwrap_or(sample);
        (name.ends_with("_total") || name.ends_with("_count")) && !name.starts_with("process_")
    };
    let events = samples.filter(|(sample, _)| is_event(sample));
    let events = events.map(|(sample, value)| (sample.to_owned(), value.parse().unwrap()));
    events.filter(|(_, value)| *value > 0).collect()
}

/// What is expected, written as the page has it.
#[derive(Default)]
struct Expected(BTreeMap<String, u64>);

impl Expected {
    fn add(&mut self, sample: impl Into<String>, times: u64) {
        *self.0.entry(sample.into()).or_default() += times;
    }

    /// So many requests that had this outcome, for this reason; their method, class of statuses and bytes each.
    fn requests(&mut self, times: u64, outcome: &str, reason: &str, (method, code): (&str, &str), bytes: u64) {
        self.add(format!("herdproof_requests_total{{outcome=\"{outcome}\"}}"), times);
        self.add(format!("herdproof_first_byte_seconds_count{{outcome=\"{outcome}\"}}"), times);
        let labels = format!("method=\"{method}\",code=\"{code}\",outcome=\"{outcome}\"");
        self.add(format!("http_server_request_duration_seconds_count{{{labels}}}"), times);
        if bytes > 0 {
            self.add(format!("herdproof_response_body_bytes_total{{outcome=\"{outcome}\"}}"), times * bytes);
        }
        if !reason.is_empty() {
            self.add(format!("herdproof_reasons_total{{outcome=\"{outcome}\",reason=\"{reason}\"}}"), times);
        }
        if outcome == "hit" {
            self.add("herdproof_cache_hits_total", times);
        }
        if outcome == "joined" {
            self.add("herdproof_wait_seconds_count", times);
        }
    }

    /// So many requests that reached the origin, and were answered so.
    fn origin(&mut self, times: u64, code: &str) {
        self.add("herdproof_origin_requests_total", times);
        self.add("herdproof_origin_queue_seconds_count", times);
        self.add(format!("herdproof_origin_request_seconds_count{{code=\"{code}\"}}"), times);
    }

    fn fills(&mut self, times: u64, kind: &str) {
        self.add(format!("herdproof_fills_total{{kind=\"{kind}\"}}"), times);
    }
}

#[test]
fn every_number_is_what_happened() {
    let (herd, left) = (Gate::new(), Gate::new());
    let (hold, forever) = (herd.clone(), left.clone());
    let script = move |asked: &super::world::Asked| match (&*asked.target, &asked.method) {
        ("/herd", _) => vec![Step::Hold(hold.clone()), fresh("herd")],
        ("/left", _) => vec![Step::Work(forever.clone()), fresh("left")],
        ("/stale", _) => vec![answer(200, "cache-control: max-age=60, stale-while-revalidate=60\nage: 65", "stale")],
        ("/same", _) if asked.header("if-none-match").is_empty() => {
            vec![answer(200, "cache-control: max-age=0, must-revalidate\netag: \"1\"", "same")]
        }
        ("/same", _) => vec![bytes("HTTP/1.1 304 X\r\netag: \"1\"\r\n\r\n")],
        ("/private", _) => vec![answer(200, "cache-control: private", "mine")],
        ("/unsaid", _) => vec![answer(200, "", "unsaid")],
        ("/cookie", _) => vec![answer(200, "cache-control: max-age=60\nset-cookie: a=b", "cookie")],
        ("/missing", _) => vec![answer(404, "cache-control: no-store", "")],
        ("/broken", _) => vec![answer(500, "", "broken")],
        _ => vec![fresh("hello")],
    };
    run_with(
        |settings| {
            let rules = settings.rules.clone();
            settings.routes = vec![Route { prefix: "/alone".into(), share: false, rules }];
        },
        script,
        async |world| {
            let mut expected = Expected::default();
            let mut connections = 0;
            let mut ask = async |request| {
                connections += 1;
                let reply = world.ask(request).await;
                world.settled().await;
                reply
            };

            ask(get("/page")).await.is(200, "hello");
            expected.requests(1, "miss", "", ("GET", "2xx"), 5);
            expected.origin(1, "2xx");
            expected.fills(1, "miss");

            // By the long way, with a field that is not known to make no difference; a HEAD; and by the lane.
            ask(with("/page", &[("unheard-of", "1")])).await.is(200, "hello");
            ask(request(Method::HEAD, "/page", &[], "")).await.is(200, "");
            let unchanged = ask(with("/page", &[("range", "bytes=0-1")])).await;
            assert_eq!(unchanged.status.as_u16(), 206);
            expected.requests(1, "hit", "", ("GET", "2xx"), 5);
            expected.requests(1, "hit", "", ("HEAD", "2xx"), 0);
            expected.requests(1, "hit", "", ("GET", "2xx"), 2);
            let mut stream = world.connect().await;
            for _ in 0..7 {
                stream.write_all(b"GET /page HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
                assert!(read_answer(&mut stream).await.unwrap().contains("herdproof; hit"));
            }
            expected.requests(7, "hit", "", ("GET", "2xx"), 5);

            // A herd: one asks, the others join.
            let joining = world.proxy.0.flights.stats();
            let herd_size = 6;
            let replies = world.herd(herd_size, |_| get("/herd"));
            world.aboard(usize::try_from(joining.flights + joining.joins).unwrap() + herd_size).await;
            herd.open();
            replies.replies().await.iter().for_each(|reply| reply.is(200, "herd"));
            world.settled().await;
            expected.requests(1, "miss", "", ("GET", "2xx"), 4);
            expected.requests(5, "joined", "", ("GET", "2xx"), 4);
            expected.origin(1, "2xx");
            expected.fills(1, "miss");

            // It comes stale, so that the second one is served so, and refreshes it.
            ask(get("/stale")).await.is(200, "stale");
            world.until(|| world.proxy.0.store.stats().entries == 3).await;
            let reply = ask(get("/stale")).await;
            assert!(reply.cache().ends_with("detail=stale-while-revalidate"), "{}", reply.cache());
            expected.requests(1, "miss", "", ("GET", "2xx"), 5);
            expected.requests(1, "stale", "stale-while-revalidate", ("GET", "2xx"), 5);
            expected.origin(2, "2xx");
            expected.fills(1, "miss");
            expected.fills(1, "refresh");

            // Asked about, and still right.
            ask(get("/same")).await.is(200, "same");
            world.until(|| world.proxy.0.store.stats().entries == 4).await;
            ask(get("/same")).await.is(200, "same");
            expected.requests(1, "miss", "", ("GET", "2xx"), 4);
            expected.requests(1, "revalidated", "", ("GET", "2xx"), 4);
            expected.origin(1, "2xx");
            expected.origin(1, "3xx");
            expected.fills(2, "miss");

            // What passes, and why: found out at first, known from then on.
            for (path, reason, body) in
                [("/private", "private", "mine"), ("/unsaid", "no-freshness", "unsaid"), ("/cookie", "set-cookie", "cookie")]
            {
                for kind in ["miss", "alone"] {
                    let reply = ask(get(path)).await;
                    reply.is(200, body);
                    let said = format!("herdproof; fwd=bypass; fwd-status=200; detail={reason}");
                    assert_eq!(reply.cache(), said, "{kind}");
                    expected.requests(1, "pass", reason, ("GET", "2xx"), body.len() as u64);
                    expected.origin(1, "2xx");
                    expected.fills(1, kind);
                }
            }
            ask(request(Method::POST, "/else", &[], "x")).await.is(200, "hello");
            expected.requests(1, "pass", "method", ("POST", "2xx"), 5);
            ask(request("BREW".parse().unwrap(), "/else", &[], "")).await.is(200, "hello");
            expected.requests(1, "pass", "method", ("_OTHER", "2xx"), 5);
            ask(get("/alone/1")).await.is(200, "hello");
            expected.requests(1, "pass", "route", ("GET", "2xx"), 5);
            expected.origin(3, "2xx");
            ask(get("/missing")).await.is(404, "");
            expected.requests(1, "pass", "no-store", ("GET", "4xx"), 0);
            expected.origin(1, "4xx");
            expected.fills(1, "miss");

            // A failure of the origin, to the one who asked.
            ask(get("/broken")).await.is(500, "broken");
            expected.requests(1, "failed", "origin-failed", ("GET", "5xx"), 6);
            expected.origin(1, "5xx");
            expected.add("herdproof_origin_faults_total{kind=\"status\"}", 1);
            expected.fills(1, "miss");

            // What is not a request that can go on: for us, and for the parser.
            let bad = b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n";
            assert!(world.raw(bad).await.starts_with("HTTP/1.1 400"));
            let told = "400 Bad Request: the request names more than one host\n";
            expected.requests(1, "bad", "two-hosts", ("GET", "4xx"), told.len() as u64);
            assert!(world.raw(b"rubbish\r\n\r\n").await.starts_with("HTTP/1.1 400"));
            expected.requests(1, "bad", "unreadable", ("_OTHER", "4xx"), 0);
            let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(256 << 10));
            assert!(world.raw(long.as_bytes()).await.contains("431"));
            expected.requests(1, "bad", "head-too-large", ("_OTHER", "4xx"), 0);
            expected.add("herdproof_connections_ended_total{reason=\"unreadable\"}", 2);

            // A client that leaves before its answer; what it asked for comes all the same.
            let asked = world.origin.requests();
            let mut leaving = world.connect().await;
            leaving.write_all(b"GET /left HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            world.origin.asked(asked + 1).await;
            drop(leaving);
            let gone = "herdproof_requests_total{outcome=\"left\"} 1\n";
            world.until(|| world.proxy.metrics().page().text().contains(gone)).await;
            left.open();
            world.settled().await;
            expected.requests(1, "left", "", ("GET", "4xx"), 0);
            expected.origin(1, "2xx");
            expected.fills(1, "miss");

            let accepted = connections + 1 + herd_size as u64 + 3 + 1;
            expected.add("herdproof_connections_total", accepted);
            let made = world.origin.connections() as u64;
            expected.add("herdproof_origin_connects_total", made);
            world.until(|| world.server.connections() == 1).await;
            let told = counts(world);
            let differs = |sample: &&String| told.get(*sample) != expected.0.get(*sample);
            let all: std::collections::BTreeSet<&String> = told.keys().chain(expected.0.keys()).collect();
            let wrong: Vec<_> = all.into_iter().filter(differs).collect();
            let wrong: Vec<_> = wrong.iter().map(|name| (name, told.get(*name), expected.0.get(*name))).collect();
            assert!(wrong.is_empty(), "sample, told, expected: {wrong:#?}");
            // And the origin agrees about its own part.
            let reached: u64 = told["herdproof_origin_requests_total"];
            assert_eq!(reached, world.origin.requests() as u64);
        },
    );
}
