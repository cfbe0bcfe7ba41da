//! The admin port: for those who run the proxy, and for no page that one of them has open in a browser.

use crate::{
    client::{Request, ask, raw},
    report::Findings,
    world::{Context, Place},
};

pub(crate) async fn admin_dns_rebinding(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses()[0], world.proxy.admin);
    let port = to.port();
    let get =
        |host: &str, more: &str| format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
    for host in
        ["evil.example".to_owned(), format!("evil.example:{port}"), "127.0.0.1.evil.example".into(), String::new()]
    {
        let answer = raw(from, to, get(&host, "").as_bytes()).await;
        let host = host.replace(&port.to_string(), "PORT");
        findings.check(&format!("Host: {host}"), "answer", answer.shown(), "a refusal", !answer.is_ok());
    }
    let local = format!("127.0.0.1:{port}");
    for field in ["sec-fetch-site: cross-site\r\n", "sec-fetch-site: same-site\r\n", "origin: http://evil.example\r\n"]
    {
        let answer = raw(from, to, get(&local, field).as_bytes()).await;
        findings.check(field.trim_end(), "answer", answer.shown(), "a refusal", !answer.is_ok());
    }
    for host in [local, format!("localhost:{port}")] {
        let answer = raw(from, to, get(&host, "").as_bytes()).await;
        findings.check(
            &format!("Host: {}", host.replace(&port.to_string(), "PORT")),
            "answer",
            answer.shown(),
            "200",
            answer.is_ok(),
        );
    }
}

pub(crate) async fn admin_via_data_port(context: &Context, place: Place, findings: &mut Findings) {
    let world = context.world(&[]);
    let (from, to) = (place.addresses()[0], world.proxy.at);
    for path in ["/metrics", "/healthz", "/readyz"] {
        let answer = ask(from, to, &Request::get(path)).await;
        // It is the origin's path as any other.
        findings.check(path, "answered by", who(&answer.text()), "the origin", answer.text() == "something\n");
    }
    let page = ask(from, to, &Request::get("/shop/page-home")).await;
    ask(from, to, &Request::new("PURGE", "/metrics")).await;
    ask(from, to, &Request::new("PURGE", "/*")).await;
    let again = ask(from, to, &Request::get("/shop/page-home")).await;
    let asked = world.origin.asked_for("/shop/page-home");
    findings.check("PURGE /*", "another page", asked, "1 origin request", page.is_ok() && again.is_ok() && asked == 1);
}

fn who(text: &str) -> &'static str {
    if text == "something\n" { "the origin" } else { "the proxy" }
}
