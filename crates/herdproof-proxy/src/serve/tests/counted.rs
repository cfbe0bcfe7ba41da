//! Every number on the page of metrics is what happened: a run of which each step is known, and then all numbers.

use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf};

use bytes::Bytes;
use herdproof::breaker::Phase;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::world::{Asked, Gate, Reply, Step, World, answer, bytes, fresh, get, read_answer, request, run_with, with};
use crate::{
    metrics::tests::check,
    settings::{LogTo, Route},
};

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

    #[track_caller]
    fn is(&self, told: &BTreeMap<String, u64>) {
        let all = self.0.keys().chain(told.keys().filter(|sample| !self.0.contains_key(*sample)));
        let wrong = all.filter(|sample| told.get(*sample) != self.0.get(*sample));
        let wrong: Vec<_> = wrong.map(|sample| (sample, told.get(sample), self.0.get(sample))).collect();
        assert!(wrong.is_empty(), "sample, told, expected: {wrong:#?}");
    }
}

const HERD: usize = 6;

/// A run so far, and what is expected of it.
struct Run<'a> {
    world: &'a World,
    expected: Expected,
    connections: u64,
    herd: &'a Gate,
    left: &'a Gate,
}

impl Run<'_> {
    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Reply {
        self.connections += 1;
        let reply = self.world.ask(request).await;
        self.world.settled().await;
        reply
    }

    async fn connect(&mut self) -> TcpStream {
        self.connections += 1;
        self.world.connect().await
    }

    async fn raw(&mut self, bytes: &[u8]) -> String {
        self.connections += 1;
        self.world.raw(bytes).await
    }
}

/// Requests that are answered from memory, or by a fetch that others may have.
async fn shared(run: &mut Run<'_>) {
    run.ask(get("/page")).await.is(200, "hello");
    run.expected.requests(1, "miss", "", ("GET", "2xx"), 5);
    run.expected.origin(1, "2xx");
    run.expected.fills(1, "miss");

    // By the long way, with a field that is not known to make no difference; a HEAD; and by the lane.
    run.ask(with("/page", &[("unheard-of", "1")])).await.is(200, "hello");
    run.ask(request(Method::HEAD, "/page", &[], "")).await.is(200, "");
    let unchanged = run.ask(with("/page", &[("range", "bytes=0-1")])).await;
    assert_eq!(unchanged.status.as_u16(), 206);
    run.expected.requests(1, "hit", "", ("GET", "2xx"), 5);
    run.expected.requests(1, "hit", "", ("HEAD", "2xx"), 0);
    run.expected.requests(1, "hit", "", ("GET", "2xx"), 2);
    let mut stream = run.connect().await;
    for _ in 0..7 {
        stream.write_all(b"GET /page HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        assert!(read_answer(&mut stream).await.unwrap().contains("herdproof; hit"));
    }
    run.expected.requests(7, "hit", "", ("GET", "2xx"), 5);

    // A herd: one asks, the others join.
    let joining = run.world.proxy.0.flights.stats();
    let replies = run.world.herd(HERD, |_| get("/herd"));
    run.world.aboard(usize::try_from(joining.flights + joining.joins).unwrap() + HERD).await;
    run.herd.open();
    replies.replies().await.iter().for_each(|reply| reply.is(200, "herd"));
    run.world.settled().await;
    run.expected.requests(1, "miss", "", ("GET", "2xx"), 4);
    run.expected.requests(5, "joined", "", ("GET", "2xx"), 4);
    run.expected.origin(1, "2xx");
    run.expected.fills(1, "miss");

    // It comes stale, so that the second one is served so, and refreshes it.
    run.ask(get("/stale")).await.is(200, "stale");
    run.world.until(|| run.world.proxy.0.store.stats().entries == 3).await;
    let reply = run.ask(get("/stale")).await;
    assert!(reply.cache().ends_with("detail=stale-while-revalidate"), "{}", reply.cache());
    run.expected.requests(1, "miss", "", ("GET", "2xx"), 5);
    run.expected.requests(1, "stale", "stale-while-revalidate", ("GET", "2xx"), 5);
    run.expected.origin(2, "2xx");
    run.expected.fills(1, "miss");
    run.expected.fills(1, "refresh");

    // Asked about, and still right.
    run.ask(get("/same")).await.is(200, "same");
    run.world.until(|| run.world.proxy.0.store.stats().entries == 4).await;
    run.ask(get("/same")).await.is(200, "same");
    run.expected.requests(1, "miss", "", ("GET", "2xx"), 4);
    run.expected.requests(1, "revalidated", "", ("GET", "2xx"), 4);
    run.expected.origin(1, "2xx");
    run.expected.origin(1, "3xx");
    run.expected.fills(2, "miss");
}

/// Requests whose answer is for one client.
async fn passed(run: &mut Run<'_>) {
    // What passes, and why: found out at first, known from then on.
    for (path, reason, body) in
        [("/private", "private", "mine"), ("/unsaid", "no-freshness", "unsaid"), ("/cookie", "set-cookie", "cookie")]
    {
        for kind in ["miss", "alone"] {
            let reply = run.ask(get(path)).await;
            reply.is(200, body);
            let said = format!("herdproof; fwd=bypass; fwd-status=200; detail={reason}");
            assert_eq!(reply.cache(), said, "{kind}");
            run.expected.requests(1, "pass", reason, ("GET", "2xx"), body.len() as u64);
            run.expected.origin(1, "2xx");
            run.expected.fills(1, kind);
        }
    }
    run.ask(request(Method::POST, "/else", &[], "x")).await.is(200, "hello");
    run.expected.requests(1, "pass", "method", ("POST", "2xx"), 5);
    run.ask(request("BREW".parse().unwrap(), "/else", &[], "")).await.is(200, "hello");
    run.expected.requests(1, "pass", "method", ("_OTHER", "2xx"), 5);
    run.ask(get("/alone/1")).await.is(200, "hello");
    run.expected.requests(1, "pass", "route", ("GET", "2xx"), 5);
    run.expected.origin(3, "2xx");
    run.ask(get("/missing")).await.is(404, "");
    run.expected.requests(1, "pass", "no-store", ("GET", "4xx"), 0);
    run.expected.origin(1, "4xx");
    run.expected.fills(1, "miss");

    // A failure of the origin, to the one who asked.
    run.ask(get("/broken")).await.is(500, "broken");
    run.expected.requests(1, "failed", "origin-failed", ("GET", "5xx"), 6);
    run.expected.origin(1, "5xx");
    run.expected.add("herdproof_origin_faults_total{kind=\"status\"}", 1);
    run.expected.fills(1, "miss");
}

/// Requests that have no answer of the origin.
async fn turned_away(run: &mut Run<'_>) {
    // What is not a request that can go on: for us, and for the parser.
    let bad = b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n";
    assert!(run.raw(bad).await.starts_with("HTTP/1.1 400"));
    let told = "400 Bad Request: the request names more than one host\n";
    run.expected.requests(1, "bad", "two-hosts", ("GET", "4xx"), told.len() as u64);
    assert!(run.raw(b"rubbish\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    run.expected.requests(1, "bad", "unreadable", ("_OTHER", "4xx"), 0);
    let mut sending = run.connect().await;
    let long = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(256 << 10));
    // It may be closed before all of it is written.
    sending.write_all(long.as_bytes()).await.ok();
    let refused = "reason=\"head-too-large\"} 1\n";
    run.world.until(|| run.world.proxy.metrics().page().text().contains(refused)).await;
    run.expected.requests(1, "bad", "head-too-large", ("_OTHER", "4xx"), 0);
    run.expected.add("herdproof_connections_ended_total{reason=\"unreadable\"}", 2);

    // A client that leaves before its answer; what it asked for comes all the same.
    let asked = run.world.origin.requests();
    let mut leaving = run.connect().await;
    leaving.write_all(b"GET /left HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    run.world.origin.asked(asked + 1).await;
    drop(leaving);
    let gone = "herdproof_requests_total{outcome=\"left\"} 1\n";
    run.world.until(|| run.world.proxy.metrics().page().text().contains(gone)).await;
    run.left.open();
    run.world.settled().await;
    run.expected.requests(1, "left", "", ("GET", "4xx"), 0);
    run.expected.origin(1, "2xx");
    run.expected.fills(1, "miss");
}

fn script(asked: &Asked, herd: &Gate, left: &Gate) -> Vec<Step> {
    match &*asked.target {
        "/herd" => vec![Step::Hold(herd.clone()), fresh("herd")],
        "/left" => vec![Step::Work(left.clone()), fresh("left")],
        "/stale" => vec![answer(200, "cache-control: max-age=60, stale-while-revalidate=60\nage: 65", "stale")],
        "/same" if asked.header("if-none-match").is_empty() => {
            vec![answer(200, "cache-control: max-age=0, must-revalidate\netag: \"1\"", "same")]
        }
        "/same" => vec![bytes("HTTP/1.1 304 X\r\netag: \"1\"\r\n\r\n")],
        "/private" => vec![answer(200, "cache-control: private", "mine")],
        "/unsaid" => vec![answer(200, "", "unsaid")],
        "/cookie" => vec![answer(200, "cache-control: max-age=60\nset-cookie: a=b", "cookie")],
        "/missing" => vec![answer(404, "cache-control: no-store", "")],
        "/broken" => vec![answer(500, "", "broken")],
        _ => vec![fresh("hello")],
    }
}

#[test]
fn every_number_is_what_happened() {
    let (herd, left) = (Gate::new(), Gate::new());
    let (hold, forever) = (herd.clone(), left.clone());
    run_with(
        |settings| {
            let rules = settings.rules.clone();
            settings.routes =
                vec![Route { prefix: "/alone".into(), share: false, rules, fallback: None, compress: Vec::new() }];
        },
        move |asked| script(asked, &hold, &forever),
        async |world| {
            let mut run = Run { world, expected: Expected::default(), connections: 0, herd: &herd, left: &left };
            shared(&mut run).await;
            passed(&mut run).await;
            turned_away(&mut run).await;
            run.expected.add("herdproof_connections_total", run.connections + HERD as u64);
            run.expected.add("herdproof_origin_connects_total", world.origin.connections() as u64);
            run.expected.is(&counts(world));
            // And the origin agrees about its own part.
            assert_eq!(counts(world)["herdproof_origin_requests_total"], world.origin.requests() as u64);
        },
    );
}

#[test]
fn an_origin_that_is_down_is_refused_by_the_breaker_which_is_said_everywhere() {
    run_with(
        // Nothing listens there.
        |settings| {
            settings.origin.url = "http://127.0.0.1:1".into();
            settings.origin.attempts = 1;
        },
        |_| vec![fresh("")],
        async |world| {
            assert!(page(world).contains("\nherdproof_origin_up 1\n"), "nothing was heard of it");
            let told = "502 Bad Gateway: connection_refused\n";
            world.ask(get("/1")).await.is(502, told);
            let mut expected = Expected::default();
            expected.requests(1, "failed", "connection_refused", ("GET", "5xx"), told.len() as u64);
            expected.fills(2, "miss");
            expected.add("herdproof_origin_queue_seconds_count", 1);
            expected.add("herdproof_origin_request_seconds_count{code=\"none\"}", 1);
            expected.add("herdproof_origin_faults_total{kind=\"connect\"}", 1);
            let is_open = || matches!(world.proxy.0.origin.stats().breaker, Phase::Open { .. });
            world.until(is_open).await;
            let reply = world.ask(get("/2")).await;
            assert_eq!((reply.status.as_u16(), reply.cache()), (503, "herdproof; fwd=miss; detail=breaker"));
            expected.requests(1, "shed", "breaker", ("GET", "5xx"), reply.body.len() as u64);
            expected.add("herdproof_origin_refusals_total{reason=\"breaker\"}", 1);
            expected.add("herdproof_origin_breaker_trips_total", 1);
            expected.add("herdproof_connections_total", 2);
            let mut told = counts(world);
            // How often it was probed by now depends on the time.
            told.retain(|sample, _| !sample.contains("_probe") && !sample.contains("_connects_"));
            told.entry("herdproof_origin_breaker_trips_total".into()).and_modify(|trips| *trips = (*trips).min(1));
            expected.is(&told);
            let page = page(world);
            for line in [
                "herdproof_origin_up 0",
                "herdproof_origin_breaker_state{state=\"open\"} 1",
                "herdproof_origin_breaker_state{state=\"closed\"} 0",
            ] {
                assert!(page.lines().any(|told| told == line), "{line}: {page}");
            }
        },
    );
}

/// A file for a log, gone with the test.
struct LogFile(PathBuf);

impl LogFile {
    fn new(name: &str) -> LogFile {
        LogFile(std::env::temp_dir().join(format!("herdproof-{name}-{}.log", std::process::id())))
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        // The last may be on its way.
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    async fn wait(&self, world: &World, lines: usize) -> Vec<Value> {
        world.until(|| self.lines().len() >= lines).await;
        self.lines()
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_request_has_one_id_in_our_log_and_at_the_origin_and_only_a_trusted_proxy_may_choose_it() {
    let file = LogFile::new("ids");
    let path = file.0.clone();
    run_with(
        move |settings| {
            settings.log.access = Some(LogTo::File(path));
            settings.trusted_proxies = vec!["127.0.0.2/32".parse().unwrap()];
        },
        |_| vec![answer(200, "cache-control: private", "mine")],
        async |world| {
            let said = [("x-request-id", "front-1"), ("traceparent", TRACE), ("x-forwarded-proto", "https")];
            let ask = async |address: [u8; 4], path: &str, said: &[(&str, &str)]| {
                world.ask_from(address, with(path, said)).await.is(200, "mine");
                world.settled().await;
            };
            ask([127, 0, 0, 2], "/1", &said).await;
            ask([127, 0, 0, 3], "/2", &said).await;
            ask([127, 0, 0, 2], "/3", &[("x-request-id", "not \"an\" id"), ("x_request_id", "other")]).await;
            let lines = file.wait(world, 3).await;
            let at_origin = world.origin.log();
            let ids: Vec<&str> = lines.iter().map(|line| line["request_id"].as_str().unwrap()).collect();
            let made = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(ids[0] == "front-1" && made(ids[1]) && made(ids[2]) && ids[1] != ids[2], "{ids:?}");
            for (line, asked) in lines.iter().zip(&at_origin) {
                assert_eq!(line["request_id"], asked.header("x-request-id"));
                assert_eq!(asked.headers.get_all("x-request-id").iter().count(), 1);
                assert!(!asked.headers.contains_key("x_request_id"));
                assert!(line["origin_us"].as_u64().unwrap() <= line["took_us"].as_u64().unwrap());
                assert_eq!(
                    (&line["host"], &line["version"], &line["complete"]),
                    (&"a".into(), &"1.1".into(), &true.into())
                );
            }
            assert_eq!((&lines[0]["scheme"], &lines[1]["scheme"]), (&"https".into(), &"http".into()));
            let traces: Vec<_> = lines.iter().map(|line| line["trace_id"].as_str()).collect();
            let trace = Some("4bf92f3577b34da6a3ce929d0e0e4736");
            assert_eq!(traces, [trace, trace, None]);
            assert_eq!((at_origin[0].header("traceparent"), at_origin[2].header("traceparent")), (TRACE, ""));
        },
    );
}

#[test]
fn what_ended_early_or_never_became_a_request_has_a_line_too() {
    let file = LogFile::new("ends");
    let path = file.0.clone();
    let forever = Gate::new();
    let hold = forever.clone();
    run_with(
        move |settings| {
            settings.log.access = Some(LogTo::File(path));
            settings.clients.head_timeout = std::time::Duration::from_millis(100);
            settings.clients.max_head = 1 << 20;
        },
        move |asked| match &*asked.target {
            "/cut" => {
                vec![bytes("HTTP/1.1 200 X\r\ncache-control: private\r\ncontent-length: 10\r\n\r\nabc"), Step::Close]
            }
            "/left" => vec![Step::Work(hold.clone()), fresh("")],
            _ => vec![fresh("hello")],
        },
        async |world| {
            let mut lines = Vec::new();
            let mut next = async || {
                let all = file.wait(world, lines.len() + 1).await;
                let line = all[lines.len()].clone();
                lines = all;
                line
            };
            let is = |line: &Value, status: u16, outcome: &str, reason: &str, complete: bool| {
                let told = (&line["status"], &line["outcome"], &line["reason"], &line["complete"]);
                assert_eq!(told, (&status.into(), &outcome.into(), &reason.into(), &complete.into()), "{line}");
                let client: IpAddr = line["client"].as_str().unwrap().split(':').next().unwrap().parse().unwrap();
                assert!(client.is_loopback());
            };
            assert!(!world.ask(get("/cut")).await.whole);
            let line = next().await;
            is(&line, 200, "pass", "private", false);
            assert_eq!(line["bytes"], 3);

            let mut leaving = world.connect().await;
            leaving.write_all(b"GET /left HTTP/1.0\r\nhost: b\r\nuser-agent: impatient\r\n\r\n").await.unwrap();
            world.origin.asked(2).await;
            drop(leaving);
            let line = next().await;
            is(&line, 499, "left", "", false);
            assert_eq!(
                (&line["path"], &line["agent"], &line["version"]),
                (&"/left".into(), &"impatient".into(), &"1.0".into())
            );
            forever.open();

            world.raw(b"\x16\x03\x01 \"rubbish\"\n").await;
            let line = next().await;
            is(&line, 400, "bad", "unreadable", true);
            assert_eq!((&line["method"], &line["path"]), (&"-".into(), &"-".into()));

            let long = "x".repeat(70 << 10);
            assert!(world.raw(format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.contains(" 414 "));
            is(&next().await, 414, "bad", "uri-too-long", true);
            let long = "x".repeat(2 << 20);
            let mut sending = world.connect().await;
            sending.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n").as_bytes()).await.ok();
            is(&next().await, 431, "bad", "head-too-large", true);

            let mut slow = world.connect().await;
            slow.write_all(b"GET / HT").await.unwrap();
            let line = next().await;
            is(&line, 408, "bad", "slow-head", false);
            assert!(line["took_us"].as_u64().unwrap() >= 100_000);
            drop((sending, slow));
        },
    );
}

#[test]
fn a_conditional_pass_keeps_the_reason_of_its_key() {
    run_with(
        |_| {},
        |asked| match &*asked.target {
            "/unsaid" => vec![answer(200, "", "x")],
            _ => vec![answer(200, "cache-control: private", "x")],
        },
        async |world| {
            for (path, reason) in [("/unsaid", "no-freshness"), ("/private", "private")] {
                // So many requests that others would have made show that it is often so.
                world.ask(get(path)).await.is(200, "x");
                world.settled().await;
                let reply = world.ask(with(path, &[("if-none-match", "\"1\"")])).await;
                assert_eq!(reply.cache(), format!("herdproof; fwd=bypass; fwd-status=200; detail={reason}"));
                world.settled().await;
                assert_eq!(world.origin.log().last().unwrap().header("if-none-match"), "\"1\"", "it went by itself");
            }
        },
    );
}
