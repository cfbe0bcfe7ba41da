//! An axum server that sheds what it cannot serve in time, with an appointment for each who is refused.
//!
//! Four handlers at once that take 20 ms each are 200 requests a second; 400 come at once, and nobody waits for long. It
//! runs on loopback and ends by itself: `cargo run -p herdproof --features tower --example axum_server`.

#![expect(clippy::print_stdout, reason = "an example says what it has seen")]

use std::{convert::Infallible, error::Error, time::Duration};

use axum::{
    Router,
    error_handling::HandleErrorLayer,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use herdproof::{
    Env,
    gate::{Ask, Halt, Verdict},
    layer::GateLayer,
    retry::wire,
    shed::{Appointed, Queue, headers},
};
use http_body_util::Empty;
use hyper::{Request, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let env = Env::system();
    let queue = Appointed::new(&env, Queue::new(&env, 4)).capacity(200.0);
    let shed = GateLayer::new(&env, queue, |_: &Result<Response, Infallible>| Verdict::Ok).asking(
        |env, request: &axum::extract::Request| {
            // What the caller says about its deadline; what makes no sense is as if it had said nothing.
            let ask = Ask::new(env);
            wire::read(ask.clone(), |name| request.headers().get(name).map(HeaderValue::as_bytes)).unwrap_or(ask)
        },
    );
    let clock = env.clone();
    let app = Router::new()
        .route(
            "/",
            get(move || async move {
                clock.sleep(Duration::from_millis(20)).await;
                "served"
            }),
        )
        .layer(ServiceBuilder::new().layer(HandleErrorLayer::new(refuse)).layer(shed));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    env.spawn(async { axum::serve(listener, app).await }).detach();

    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let crowd: Vec<_> = (0..400)
        .map(|_| {
            let request = Request::get(format!("http://{address}/")).header(wire::DEADLINE, "500").body(Empty::new());
            let client = client.clone();
            env.spawn(async move { client.request(request?).await.map_err(Box::<dyn Error + Send + Sync>::from) })
        })
        .collect();
    let (mut served, mut appointments) = (0, Vec::new());
    for caller in crowd {
        let response = caller.await?.map_err(|error| error.to_string())?;
        match response.headers().get("retry-after-ms") {
            Some(after) => appointments.push(after.to_str()?.parse::<u64>()?),
            None => served += u32::from(response.status() == StatusCode::OK),
        }
    }
    appointments.sort_unstable();
    let (first, last) = (appointments.first().unwrap_or(&0), appointments.last().unwrap_or(&0));
    println!("{served} served, {} sent away and told to come back {first} to {last} ms later", appointments.len());
    Ok(())
}

/// A refusal as a response: when to come back, to the second and to the millisecond.
async fn refuse(halt: Halt<Infallible>) -> Response {
    let mut fields = HeaderMap::new();
    if let Halt::Refused(refusal) = &halt {
        for (name, value) in headers(refusal.after.unwrap_or(Duration::from_secs(1))) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                fields.insert(name, value);
            }
        }
    }
    (StatusCode::SERVICE_UNAVAILABLE, fields, halt.to_string()).into_response()
}
