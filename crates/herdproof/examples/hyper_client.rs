//! A hyper client behind a shield, against an origin that fails every twelfth request.
//!
//! Everything runs on loopback and ends by itself: `cargo run -p herdproof --features tower --example hyper_client`.

#![expect(clippy::print_stdout, reason = "an example says what it has seen")]

use std::{
    convert::Infallible,
    error::Error,
    sync::atomic::{AtomicU32, Ordering},
};

use herdproof::{
    Env,
    gate::{Ask, Verdict},
    retry::wire,
    shield::Shield,
};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{Request, Response, StatusCode, Uri, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpListener;

type Failed = Box<dyn Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri: Uri = format!("http://{}/orders", listener.local_addr()?).parse()?;
    let env = Env::system();
    env.spawn(origin(env.clone(), listener)).detach();

    let shield = Shield::for_http(&env).build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let mut calls = 0;
    for _ in 0..30 {
        let answer = shield.run(classify, Ask::new(&env), |ask, _which| {
            // The attempt and the time that is left go along, so that the other side can tell a retry from a first try.
            let mut request = Request::get(uri.clone());
            if let Some(headers) = request.headers_mut() {
                wire::write(&ask, env.now(), |name, value| drop(headers.insert(name, value.into())));
            }
            let sent = request.body(Empty::new()).map(|request| client.request(request));
            async move { Ok::<_, Failed>(sent?.await?) }
        });
        let answer = answer.await.map_err(|gave_up| gave_up.to_string())?;
        let body = answer.into_body().collect().await?.to_bytes();
        calls = calls.max(String::from_utf8_lossy(&body).parse()?);
    }
    println!("30 requests, 30 answers, {calls} calls at the origin: {:?}", shield.budget().stats());
    Ok(())
}

/// A status of 500 and above is a fault; 429 and 503 say that there is too much to do.
fn classify<B>(outcome: &Result<Response<B>, Failed>) -> Verdict {
    match outcome {
        Err(_) => Verdict::Fault,
        Ok(response) => match response.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Verdict::Overload { after: None },
            status if status.is_server_error() => Verdict::Fault,
            _ => Verdict::Ok,
        },
    }
}

/// Answers with the number of the call, but for every twelfth, which fails.
async fn origin(env: Env, listener: TcpListener) {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    while let Ok((stream, _)) = listener.accept().await {
        let answer = service_fn(|_| async {
            let number = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
            let mut response = Response::new(Full::new(Bytes::from(number.to_string())));
            if number.is_multiple_of(12) {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            Ok::<_, Infallible>(response)
        });
        let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        env.spawn(async { drop(serve.await) }).detach();
    }
}
