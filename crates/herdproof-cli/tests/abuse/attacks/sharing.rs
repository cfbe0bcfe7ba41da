//! Getting what is somebody else's, or giving others what one has chosen.

use crate::{
    client::{Answer, Request, ask, herd},
    origin::Seen,
    report::{Findings, Tally},
    world::{ATTACKER, Context, Place},
};

/// The guide's own example.
const CATALOGUE: &str = "[[route]]\nprefix = \"/catalogue\"\nttl = \"10s\"\ngrace = \"1h\"\ncookies = \"ignore\"\n\n\
                         [[route]]\nprefix = \"/account\"\nshare = false\n";

pub(crate) async fn cache_deception(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.configured(CATALOGUE, &[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    for path in [
        "/catalogue/..%2faccount",
        "/catalogue/..%2Faccount",
        "/catalogue/%2e%2e/account",
        "/catalogue/../account",
        "/catalogue/x/..%2f..%2faccount",
        "/catalogue/..%5caccount",
        "/catalogue/;/../../account",
        "/catalogue//..%2faccount?x=1.css",
        "/account/x.css/..%2f..%2faccount",
        "/account;x.css",
    ] {
        ask(from[0], to, &Request::get(path).with("cookie", "user=victim")).await;
        let stolen = ask(ATTACKER, to, &Request::get(path)).await.text().contains("victim");
        findings.check(
            path,
            "the attacker gets",
            if stolen { "the victim's page" } else { "his own" },
            "his own",
            !stolen,
        );
    }
}

pub(crate) async fn identity_headers(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    let mut leaks = Vec::new();
    let names = [
        "x-forwarded-user",
        "x-forwarded-email",
        "x-forwarded-groups",
        "x-forwarded-preferred-username",
        "x-forwarded-access-token",
        "x-auth-request-user",
        "x-auth-request-email",
        "x-auth-request-access-token",
        "x-remote-user",
        "x-real-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "x-envoy-external-address",
        "x-envoy-peer-metadata",
        "proxy-authorization",
        "authorization",
        "cookie",
    ];
    for name in names {
        // A cookie is not an identity that a stranger may not send; what it gets has to be labelled as such.
        let path = if name == "cookie" { "/team/account-1".into() } else { format!("/team/whoami-{name}") };
        ask(from[0], to, &Request::get(&path).with(name, "secret-of-ann")).await;
        for request in [Request::get(&path).with(name, "secret-of-bob"), Request::get(&path)] {
            if ask(from[1], to, &request).await.text().contains("secret-of-ann") {
                leaks.push(name);
            }
        }
    }
    leaks.dedup();
    let got = if leaks.is_empty() { "none".into() } else { leaks.join(", ") };
    findings.check("", "fields by which Bob gets Ann's page", got, "none", leaks.is_empty());
}

pub(crate) async fn private_bodies(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    for word in ["private", "login", "hold", "account"] {
        let mut foreign = 0;
        for round in 0..context.pick(5, 2) {
            let path = format!("/me/{word}-{round}");
            let request = |number: usize| Request::get(&path).with("cookie", &format!("user={number};"));
            let answers = herd(&place.addresses(), world.proxy.at, context.pick(200, 50), request).await;
            // Each user's own body has to be there exactly once.
            let mut bodies: Vec<String> = answers.iter().map(Answer::text).collect();
            let mut own: Vec<String> = (0..bodies.len()).map(|number| format!("for user={number};\n")).collect();
            bodies.sort();
            own.sort();
            foreign += bodies.iter().zip(&own).filter(|(body, own)| body != own).count();
        }
        findings.at_most(word, "users without exactly their own body", foreign, 0);
    }
}

pub(crate) async fn conditions_of_the_first(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let conditions = [
        ("range", "bytes=0-0"),
        ("if-none-match", "*"),
        ("if-match", "\"nothing\""),
        ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("if-unmodified-since", "Thu, 01 Jan 1970 00:00:01 GMT"),
    ];
    for (name, value) in conditions {
        let path = format!("/shop/page-{name}1");
        let to = world.proxy.at;
        let first = Request::get(&path).with(name, value);
        let attack = tokio::spawn(async move { ask(ATTACKER, to, &first).await });
        let answers = herd(&place.addresses(), to, context.pick(200, 50), |_| Request::get(&path)).await;
        attack.await.expect("it does not panic");
        findings.nobody_failed(name, "the herd behind it", &Tally::of(&answers));
        findings.at_most(name, "origin requests", world.origin.asked_for(&path), 2);
    }
}

pub(crate) async fn forged_forwarded_for(context: &Context, place: Place, findings: &mut Findings) {
    let client = place.addresses()[0];
    let world = context.world(&[]);
    let forged = Request::get("/shop/page-1")
        .with("x-forwarded-for", "6.6.6.6")
        .with("x-real-ip", "6.6.6.6")
        .with("forwarded", "for=6.6.6.6;host=evil.example")
        .with("x-forwarded-host", "evil.example")
        .with("x-forwarded-proto", "gopher")
        .with("x-original-url", "/evil")
        .with("x-rewrite-url", "/evil")
        .with("x-http-method-override", "DELETE");
    ask(client, world.proxy.at, &forged).await;
    let told = world.origin.seen(|seen| seen.path == "/shop/page-1");
    let told = told.first().expect("it was a miss");
    let address = client.to_string();
    names_client(findings, "a stranger", told, &address);
    for name in ["x-forwarded-host", "forwarded", "x-original-url", "x-rewrite-url", "x-http-method-override"] {
        let value = told.field(name).unwrap_or("nothing").to_owned();
        let is_forged = ["evil", "6.6.6.6", "DELETE"].iter().any(|word| value.contains(word));
        findings.check("a stranger", &format!("{name} at the origin"), value, "not as forged", !is_forged);
    }

    let balancer = format!("trusted_proxies = [\"{ATTACKER}\"]\n");
    let world = context.configured(&balancer, &[]);
    for (number, chain) in ["127.0.1.99", "6.6.6.6, 127.0.1.99"].into_iter().enumerate() {
        let path = format!("/shop/page-{number}");
        ask(ATTACKER, world.proxy.at, &Request::get(&path).with("x-forwarded-for", chain)).await;
        let told = world.origin.seen(|seen| seen.path == path);
        names_client(findings, &format!("a balancer that says {chain}"), told.first().expect("a miss"), "127.0.1.99");
    }
}

/// The origin is told of this client, whatever the client says.
fn names_client(findings: &mut Findings, case: &str, told: &Seen, client: &str) {
    let said = told.field("x-real-ip").unwrap_or("nothing");
    findings.check(case, "x-real-ip at the origin", said, client, said == client);
}

pub(crate) async fn hop_by_hop(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses(), world.proxy.at);
    // Whoever nominates a credential must not become a stranger whose page is for all.
    let path = "/team/whoami-hop";
    let ann = Request::get(path).with("connection", "authorization").with("authorization", "secret-of-ann");
    ask(from[0], to, &ann).await;
    let leaked = ask(from[1], to, &Request::get(path)).await.text().contains("secret-of-ann");
    findings.check("Connection: authorization", "Bob gets Ann's page", leaked, false, !leaked);
    let request = Request::get("/shop/page-hop")
        .with("connection", "x-drop, keep-alive")
        .with("x-drop", "1")
        .with("keep-alive", "timeout=5")
        .with("te", "trailers, deflate")
        .with("proxy-connection", "keep-alive")
        .with("upgrade", "h2c");
    ask(from[0], to, &request).await;
    let told = world.origin.seen(|seen| seen.path == "/shop/page-hop");
    let told = told.first().expect("it was a miss");
    let passed: Vec<&str> = ["x-drop", "keep-alive", "proxy-connection", "upgrade"]
        .into_iter()
        .filter(|name| told.field(name).is_some())
        .collect();
    let got = if passed.is_empty() { "none".into() } else { passed.join(", ") };
    findings.check("", "fields for one hop that go on", got, "none", passed.is_empty());
}
