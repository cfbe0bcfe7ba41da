//! A hyper client behind a shield, against an origin that fails every twelfth request.
//!
//! Each attempt says which it is and how much time it has, and the origin reads it. Everything runs on loopback and ends by
//! itself: `cargo run -p herdproof --features http,tower --example hyper_client`.

#![expect(clippy::print_stdout, reason = "an example says what it has seen")]

use std::{
    convert::Infallible,
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use herdproof::{Env, gate::Ask, http, layer::ShieldLayer, shield::Shield};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{Request, Response, StatusCode, Uri, body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, Error as ClientError},
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt};

type Failed = Box<dyn Error + Send + Sync>;

/// What the origin was told of each request that came to it.
type Came = Arc<Mutex<Vec<Ask>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let (env, came) = (Env::system(), Came::default());
    let shield = Shield::for_http(&env).build();
    let answers = ask_30_times(&env, &shield, &came).await?;
    let came = came.lock().map_err(|poisoned| poisoned.to_string())?;
    let retries = came.iter().filter(|ask| ask.attempt > 0).count();
    println!("30 requests, {answers} answers, {} at the origin, of which {retries} said they are retries", came.len());
    println!("{:?}", shield.budget().stats());
    Ok(())
}

/// How many of thirty requests are answered.
async fn ask_30_times(env: &Env, shield: &Shield, came: &Came) -> Result<u32, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri: Uri = format!("http://{}/orders", listener.local_addr()?).parse()?;
    env.spawn(origin(env.clone(), listener, Arc::clone(came))).detach();

    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let client = ServiceBuilder::new()
        .layer(
            // What could not connect was certainly not sent.
            ShieldLayer::new(env, shield.clone(), http::judge(env, ClientError::is_connect))
                .asking(|env, _: &Request<_>| Ask::new(env).deadline(env.now() + Duration::from_secs(2)))
                .stamping(http::stamp)
                .at_most_once(http::at_most_once),
        )
        .service(client);
    let mut answers = 0;
    for _ in 0..30 {
        let request = Request::get(uri.clone()).body(Empty::new())?;
        let response = client.clone().oneshot(request).await.map_err(|gave_up| gave_up.to_string())?;
        answers += u32::from(response.status() == StatusCode::OK);
        response.into_body().collect().await?;
    }
    Ok(answers)
}

/// Fails every twelfth request, and writes down what each says of itself.
async fn origin(env: Env, listener: TcpListener, came: Came) {
    while let Ok((stream, _)) = listener.accept().await {
        let (clock, came) = (env.clone(), Arc::clone(&came));
        let answer = service_fn(move |request| {
            let number = came.lock().map_or(0, |mut came| {
                came.push(http::ask(&clock, &request));
                came.len()
            });
            let mut response = Response::new(Full::new(Bytes::from(number.to_string())));
            if number.is_multiple_of(12) {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            async { Ok::<_, Infallible>(response) }
        });
        let serve = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        env.spawn(async { drop(serve.await) }).detach();
    }
}

#[cfg(test)]
#[tokio::test]
async fn every_attempt_tells_the_origin_which_it_is_and_how_much_time_it_has() {
    let (env, came) = (Env::system(), Came::default());
    let shield = Shield::for_http(&env).build();
    assert_eq!(ask_30_times(&env, &shield, &came).await.unwrap(), 30);
    let came = came.lock().unwrap();
    let retries: Vec<usize> = (1..=came.len()).filter(|number| came[number - 1].attempt > 0).collect();
    assert_eq!((came.len(), retries), (32, vec![13, 25]), "what comes after each twelfth is its retry");
    assert!(came.iter().all(|ask| ask.deadline.is_some_and(|deadline| deadline - ask.at <= Duration::from_secs(2))));
}
