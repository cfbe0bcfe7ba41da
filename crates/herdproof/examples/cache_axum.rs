//! A handler of axum that asks a cache, and a cache that asks the database once.
//!
//! Five hundred requests for one product come at once, to a query that takes 50 ms. It runs on loopback and ends by itself:
//! `cargo run -p herdproof --example cache_axum`.

#![expect(clippy::print_stdout, reason = "an example says what it has seen")]

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use herdproof::{
    Cache, Env,
    cache::{GetError, Load, Policy},
};
use http_body_util::Empty;
use hyper::{Request, body::Bytes};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Shop {
    env: Env,
    products: Cache<u32, Arc<str>, std::io::Error>,
    queries: Arc<AtomicU32>,
}

impl Shop {
    /// What the database says; there are a hundred products.
    async fn query(self, id: u32) -> Result<Load<Arc<str>>, std::io::Error> {
        self.queries.fetch_add(1, Relaxed);
        self.env.sleep(Duration::from_millis(50)).await;
        Ok(if id < 100 { Load::Value(format!("product {id}").into()) } else { Load::Absent(None) })
    }
}

async fn product(State(shop): State<Shop>, Path(id): Path<u32>) -> Response {
    let products = shop.products.clone();
    match products.get_with(&id, |_| shop.query(id)).await {
        Ok(product) => product.value.to_string().into_response(),
        Err(GetError::Absent) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let env = Env::system();
    let minute = Duration::from_secs(60);
    let products = Cache::builder(&env).policy(Policy::new(minute).grace(5 * minute).on_error(60 * minute)).build();
    let shop = Shop { env: env.clone(), products, queries: Arc::default() };
    let app = Router::new().route("/product/{id}", get(product)).with_state(shop.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    env.spawn(async { axum::serve(listener, app).await }).detach();

    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    for id in [42, 4711] {
        shop.queries.store(0, Relaxed);
        let crowd: Vec<_> = (0..500)
            .map(|_| {
                let request = Request::get(format!("http://{address}/product/{id}")).body(Empty::new());
                let client = client.clone();
                env.spawn(async move { client.request(request?).await.map_err(Box::<dyn Error + Send + Sync>::from) })
            })
            .collect();
        let (mut found, mut absent) = (0, 0);
        for caller in crowd {
            match caller.await?.map_err(|error| error.to_string())?.status() {
                StatusCode::OK => found += 1,
                StatusCode::NOT_FOUND => absent += 1,
                status => println!("{status}"),
            }
        }
        let queries = shop.queries.load(Relaxed);
        println!("/product/{id:<4}: {found} found, {absent} not found, queries made: {queries}");
    }
    Ok(())
}
