//! Everything can be said, every mistake is shown where it is, and what is not said has a safe value.

use super::*;
use crate::policy::Cookies;

const ALL: &str = r#"
listen = "0.0.0.0:80"
admin = "off"
admin_anywhere = true
admin_hosts = ["Proxy.internal"]
identity_headers = ["X-Tenant-User"]
trusted_proxies = ["10.0.0.0/8", "::1", "unix"]
drain = "5s"
warm_up = "1m"

[origin]
url = "http://origin:3000"
host = "app.internal:81"
limit = 64
limit_floor = 4
probe = "/healthz"
line = 100
queue_wait = "1s"
connect_timeout = "500ms"
head_timeout = "10s"
body_timeout = "20s"
attempts = 1
hedge_after = "never"
max_idle = 8
max_age = "1h"
resolve_every = "1m"

[cache]
memory = "1GiB"
max_object = "1MiB"
in_flight = "64MiB"
max_followers = 10
wait = "3s"
failed = ["1s", "3s"]

[clients]
max_connections = 100
per_address = 10
head_timeout = "5s"
idle = "6s"
stall = "7s"
least_rate = 100
max_head = "16KiB"
half_close = true
proxy_protocol = true
socket_mode = "600"

[uploads]
buffer = "8MiB"

[upgrades]
protocols = ["WebSocket", "x-live"]
most = 10
idle = "5m"

[log]
access = "/var/log/herdproof.log"
format = "combined"
hide_query = true

[default]
jitter = 0.2
early = false

[[route]]
prefix = "/api"
grace = "1h"
cookies = "ignore"
ttl = "10s"
share = false
fallback = { status = 503, body = "[]", content_type = "application/json" }
compress = ["gzip"]

[[route]]
prefix = "/static/"
share_set_cookie = true
if_error = "1d"
obey_clients = true
"#;

#[test]
fn everything_that_can_be_said_is_heard() {
    let settings = Settings::parse(ALL).unwrap_or_else(|wrong| panic!("{wrong}"));
    let rules = Rules { jitter: 0.2, early: false, ..Rules::default() };
    let expected = Settings {
        listen: Listen::Address(([0; 4], 80).into()),
        admin: None,
        admin_anywhere: true,
        admin_hosts: vec!["proxy.internal".into()],
        identity_headers: vec!["x-tenant-user".parse().unwrap()],
        trusted_proxies: ["10.0.0.0/8", "::1", "unix"].map(|network| network.parse().unwrap()).to_vec(),
        origin: OriginSettings {
            url: "http://origin:3000".into(),
            host: Some("app.internal:81".into()),
            limit: 64,
            limit_floor: Some(4),
            probe: Some("/healthz".into()),
            line: 100,
            queue_wait: secs(1),
            connect_timeout: Duration::from_millis(500),
            head_timeout: secs(10),
            body_timeout: secs(20),
            attempts: 1,
            hedge_after: None,
            max_idle: 8,
            max_age: secs(3600),
            resolve_every: secs(60),
        },
        memory: 1 << 30,
        max_object: 1 << 20,
        in_flight: 64 << 20,
        max_followers: 10,
        wait: secs(3),
        failed: secs(1)..secs(3),
        rules: rules.clone(),
        routes: vec![
            Route {
                prefix: "/api".into(),
                share: false,
                rules: Rules { grace: secs(3600), ttl: Some(secs(10)), cookies: Cookies::Ignore, ..rules.clone() },
                fallback: Some(Arc::new(Fallback {
                    status: http::StatusCode::SERVICE_UNAVAILABLE,
                    content_type: "application/json".parse().unwrap(),
                    body: "[]".into(),
                })),
                compress: vec![Coding::Gzip],
            },
            Route {
                prefix: "/static/".into(),
                share: true,
                rules: Rules { share_set_cookie: true, if_error: secs(86_400), obey_clients: true, ..rules },
                fallback: None,
                compress: Vec::new(),
            },
        ],
        clients: ClientSettings {
            max_connections: 100,
            per_address: Some(10),
            head_timeout: secs(5),
            idle: secs(6),
            stall: secs(7),
            least_rate: 100,
            max_head: 16 << 10,
            half_close: true,
            proxy_protocol: true,
            socket_mode: 0o600,
        },
        uploads: UploadSettings { buffer: 8 << 20 },
        upgrades: UpgradeSettings { protocols: vec!["websocket".into(), "x-live".into()], most: 10, idle: secs(300) },
        log: LogSettings {
            access: Some(LogTo::File("/var/log/herdproof.log".into())),
            format: LogFormat::Combined,
            hide_query: true,
        },
        drain: secs(5),
        warm_up: secs(60),
    };
    assert_eq!(settings, expected);
}

#[test]
fn an_empty_file_changes_nothing() {
    assert_eq!(Settings::parse("").unwrap(), Settings::default());
    let headings = "[origin]\n[cache]\n[clients]\n[uploads]\n[upgrades]\n[log]\n[default]\n";
    assert_eq!(Settings::parse(headings).unwrap(), Settings::default());
}

/// `docs/reference/herdproof.toml` is what people begin with.
#[test]
fn the_reference_names_every_setting_and_says_what_holds_by_default() {
    let reference = include_str!("../../../../docs/reference/herdproof.toml");
    let mut expected = Settings::default();
    expected.origin.url = "http://127.0.0.1:3000".into();
    assert_eq!(Settings::parse(reference).unwrap_or_else(|wrong| panic!("{wrong}")), expected);
    for name in ALL.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name) {
        let named = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{name} = "));
        assert!(reference.lines().any(named), "the reference does not say {name}");
    }
    // What is only mentioned there can be said too.
    let mentioned = reference.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if setting.contains(" = ") || setting.starts_with("[[") => setting,
        _ => line,
    });
    let mentioned: String = mentioned.flat_map(|line| [line, "\n"]).collect();
    let settings = Settings::parse(&mentioned).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!((settings.routes.len(), settings.clients.per_address), (1, Some(100)));
}

#[test]
fn a_mistake_is_shown_in_its_line_with_what_would_be_right() {
    let said = [
        "lisen = \"127.0.0.1:80\"",
        "listen = \"localhost\"",
        "listen = 8080",
        "listen = \"unix:run.sock\"",
        "[clients]\nsocket_mode = \"rw\"",
        "[clients]\nsocket_mode = \"7777\"",
        "[origin]\nhost = \"http://app\"",
        "trusted_proxies = \"10.0.0.0/8\"",
        "trusted_proxies = [\n\"10.0.0.0/8\",\n\"10.0.0.0/33\",\n]",
        "trusted_proxies = [\"10.0.0.1/8\"]",
        "admin_hosts = [\"http://proxy.internal\"]",
        "admin_hosts = \"proxy.internal\"",
        "identity_headers = [\"X-User\", \"Host\"]",
        "identity_headers = [\"X User\"]",
        "[clients]\nproxy_protocol = true",
        "trusted_proxies = [\"10.0.0.0/8\"]\n[clients]\nproxy_protocol = \"v2\"",
        "[origin]\nurl = \"http://a\"\nretries = 3",
        "[origin]\n# a comment\nlimits = 64",
        "[origin]\nlimit = 0",
        "[origin]\nlimit = \"many\"",
        "[origin]\nhead_timeout = 30",
        "[origin]\nhead_timeout = \"30 parsecs\"",
        "[origin]\nattempts = 11",
        "[origin]\nhedge_after = \"2d\"",
        "[origin]\nprobe = \"healthz\"",
        "[origin]\nlimit_floor = 0",
        "[cache]\nmemory = \"256M\"",
        "[cache]\nfailed = [\"2s\", \"1s\"]",
        "[clients]\nmax_head = \"2MiB\"",
        "[uploads]\nbuffer = \"64KiB\"",
        "[upgrades]\nprotocols = [\"websocket\", \"h2c\"]",
        "[upgrades]\nprotocols = [\"web socket\"]",
        "[log]\nformat = \"jsno\"",
        "[log]\nformat = \"xml\"",
        "[default]\njitter = 0.9",
        "[[route]]\nprefix = \"api\"",
        "[[route]]\ngrace = \"1h\"",
        "[[route]]\nprefix = \"/a\"\n[[route]]\nprefix = \"/a\"",
        "[[route]]\nprefix = \"/a\"\ncookies = \"ignored\"",
        "[default]\ncookies = \"respect\"",
        "[[route]]\nprefix = \"/a\"\nfallback = { status = 200 }",
        "[[route]]\nprefix = \"/a\"\nfallback = { status = 304, body = \"\" }",
        "[[route]]\nprefix = \"/a\"\nfallback = { body = \"\", file = \"a.html\" }",
        "[[route]]\nprefix = \"/a\"\nfallback = { file = \"nowhere/a.html\" }",
        "[[route]]\nprefix = \"/a\"\nfallback = { boddy = \"\" }",
        "[[route]]\nprefix = \"/a\"\ncompress = [\"br\"]",
        "[[rout]]\nprefix = \"/a\"",
        "[origin\nurl = 1",
        "listen = \"127.0.0.1:80\"\nlisten = \"127.0.0.1:81\"",
    ]
    .map(|text| Settings::parse(text).expect_err(text).to_string());
    insta::assert_snapshot!(said.join("\n\n"));
}

#[test]
fn the_longest_prefix_counts_and_ends_where_a_segment_does() {
    let text =
        ["/", "/api", "/api/users", "/img/"].map(|prefix| format!("[[route]]\nprefix = \"{prefix}\"\n")).concat();
    let settings = Settings::parse(&text).unwrap();
    for (path, prefix) in [
        ("/", "/"),
        ("/apis", "/"),
        ("/api", "/api"),
        ("/api?x=1", "/api"),
        ("/api/", "/api"),
        ("/api/user", "/api"),
        ("/api/users/7", "/api/users"),
        ("/img", "/"),
        ("/img/a.png", "/img/"),
    ] {
        assert_eq!(settings.route(path).map(|route| &*route.prefix), Some(prefix), "{path}");
    }
    assert_eq!(Settings::default().route("/"), None);
}

proptest::proptest! {
    #[test]
    fn no_text_is_a_panic(text in "(listen|admin|\\[origin\\]|\\[\\[route\\]\\]|limit|prefix|=|\"|\n| |/|[0-9]|ü|\\[|\\]){0,12}") {
        if let Err(wrong) = Settings::parse(&text) {
            drop(wrong.to_string());
        }
    }
}
