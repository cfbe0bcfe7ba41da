//! An axum server that sheds what it cannot serve in time, and one in the middle of a chain that is not the third to try again.
//!
//! First: four handlers at once that take 20 ms each are 200 requests a second; 400 come at once, and nobody waits for long. Each
//! who is refused gets an appointment. Then: a client with three tries asks a server with three tries that asks an origin
//! which is down. It runs on loopback and ends by itself: `cargo run -p herdproof --features http,tower --example axum_server`.

#![expect(clippy::print_stdout, reason = "an example says what it has seen")]

use std::{
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use herdproof::{
    Env,
    gate::{Ask, Halt, Verdict},
    http,
    layer::{GateLayer, ShieldLayer},
    retry::{GaveUp, wire},
    shed::{Appointed, Queue, headers},
    shield::Shield,
};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper_util::{
    client::legacy::{Client, Error as ClientError},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt};

type Failed = Box<dyn Error + Send + Sync>;
type Get = hyper::Request<Empty<Bytes>>;
type Answer = hyper::Response<Incoming>;

/// What a server was told of each request that came to it.
type Came = Arc<Mutex<Vec<Ask>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let env = Env::system();
    let (served, mut appointments) = crowd(&env).await?;
    appointments.sort_unstable();
    let (first, last) = (appointments.first().unwrap_or(&0), appointments.last().unwrap_or(&0));
    println!("{served} served, {} sent away and told to come back {first} to {last} ms later", appointments.len());

    let chain = Chain::start(&env).await?;
    chain.ask(&env, 0).await?;
    println!(
        "three tries at the client, three at the server, and the origin is down: {} calls, not 9",
        chain.came().len()
    );
    chain.ask(&env, 1).await?;
    println!("the same for a client that says it is itself retrying: {} call more", chain.came().len());
    Ok(())
}

/// Listens on loopback.
async fn serve(env: &Env, app: Router) -> Result<SocketAddr, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    env.spawn(async { axum::serve(listener, app).await }).detach();
    Ok(address)
}

/// How many of a crowd are served, and when the others are to come back.
async fn crowd(env: &Env) -> Result<(u32, Vec<u64>), Failed> {
    let queue = Appointed::new(env, Queue::new(env, 4)).capacity(200.0);
    // The deadline is what the caller says.
    let shed = GateLayer::new(env, queue, |_: &Result<Response, Infallible>| Verdict::Ok).asking(http::ask::<Body>);
    let clock = env.clone();
    let handler = get(move || async move {
        clock.sleep(Duration::from_millis(20)).await;
        "served"
    });
    let layers = ServiceBuilder::new().layer(HandleErrorLayer::new(refuse)).layer(shed);
    let address = serve(env, Router::new().route("/", handler).layer(layers)).await?;

    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let crowd: Vec<_> = (0..400)
        .map(|_| {
            let request =
                hyper::Request::get(format!("http://{address}/")).header(wire::DEADLINE, "500").body(Empty::new());
            let client = client.clone();
            env.spawn(async move { client.request(request?).await.map_err(Failed::from) })
        })
        .collect();
    let (mut served, mut appointments) = (0, Vec::new());
    for caller in crowd {
        let response = caller.await??;
        match response.headers().get("retry-after-ms") {
            Some(after) => appointments.push(after.to_str()?.parse::<u64>()?),
            None => served += u32::from(response.status() == StatusCode::OK),
        }
    }
    Ok((served, appointments))
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

/// A server in the middle, and behind it an origin that is down.
struct Chain {
    server: SocketAddr,
    /// What has come to the origin.
    came: Came,
}

impl Chain {
    async fn start(env: &Env) -> Result<Chain, Failed> {
        let came = Came::default();
        let (clock, seen) = (env.clone(), Arc::clone(&came));
        let down = get(move |request: Request| async move {
            if let Ok(mut seen) = seen.lock() {
                seen.push(http::ask(&clock, &request));
            }
            StatusCode::INTERNAL_SERVER_ERROR
        });
        let origin = serve(env, Router::new().route("/", down)).await?;
        let (clock, client) = (env.clone(), client(env));
        let passing_on = get(move |request| pass_on(clock, client, origin, request));
        Ok(Chain { server: serve(env, Router::new().route("/", passing_on)).await?, came })
    }

    /// Asks the server, as somebody who has asked so often before.
    async fn ask(&self, env: &Env, attempt: u16) -> Result<StatusCode, Failed> {
        let mut request = hyper::Request::get(format!("http://{}/", self.server)).body(Empty::new())?;
        let deadline = env.now() + Duration::from_secs(2);
        http::stamp(env, &mut request, &Ask::new(env).attempt(attempt).deadline(deadline));
        Ok(client(env).oneshot(request).await.map_err(|gave_up| gave_up.to_string())?.status())
    }

    /// What has come to the origin since this was last asked.
    fn came(&self) -> Vec<Ask> {
        self.came.lock().map(|mut came| std::mem::take(&mut *came)).unwrap_or_default()
    }
}

/// Three tries, each of which says which it is and how much time it has.
fn client(
    env: &Env,
) -> impl Service<Get, Response = Answer, Error = GaveUp<ClientError>, Future: Send> + Clone + Sync + use<> {
    let shield = ShieldLayer::new(env, Shield::for_http(env).build(), http::judge(env, ClientError::is_connect))
        .asking(http::ask)
        .stamping(http::stamp)
        .at_most_once(http::at_most_once);
    ServiceBuilder::new().layer(shield).service(Client::builder(TokioExecutor::new()).build_http())
}

/// Asks the origin by the deadline of whoever asks here, and says so if that was tried often enough.
async fn pass_on<C>(env: Env, client: C, origin: SocketAddr, request: Request) -> Result<Response, StatusCode>
where
    C: Service<Get, Response = Answer, Error = GaveUp<ClientError>>,
{
    let ask = http::ask(&env, &request);
    let next = hyper::Request::get(format!("http://{origin}/")).body(Empty::new());
    let mut next = next.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    http::stamp(&env, &mut next, &ask);
    let (mut response, given_up) = match client.oneshot(next).await {
        Ok(response) => {
            let failed = response.status().is_server_error();
            (response.map(Body::new), failed)
        }
        Err(gave_up) => ((StatusCode::BAD_GATEWAY, gave_up.to_string()).into_response(), gave_up.no_retry()),
    };
    if given_up {
        http::no_retry(&mut response);
    }
    Ok(response)
}

#[cfg(test)]
#[tokio::test]
async fn a_client_does_not_try_again_what_the_server_has_tried_and_the_server_not_what_the_client_tries_again() {
    let env = Env::system();
    let chain = Chain::start(&env).await.unwrap();
    assert_eq!(chain.ask(&env, 0).await.unwrap(), StatusCode::INTERNAL_SERVER_ERROR);
    let came = chain.came();
    assert_eq!(came.iter().map(|ask| ask.attempt).collect::<Vec<_>>(), [0, 1, 2], "three tries, and not nine");
    // What is left is told in whole milliseconds, rounded down: nobody thinks that there is more than the client gave.
    let left: Vec<Duration> = came.iter().map(|ask| ask.deadline.unwrap() - ask.at).collect();
    assert!(left.is_sorted_by(|sooner, later| sooner >= later) && left[0] <= Duration::from_secs(2), "{left:?}");
    assert_eq!(chain.ask(&env, 1).await.unwrap(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(chain.came().iter().map(|ask| ask.attempt).collect::<Vec<_>>(), [1], "a retry of a retry");
}
