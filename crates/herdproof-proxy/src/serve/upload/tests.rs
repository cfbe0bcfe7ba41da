//! Uploads in virtual time: who gets a seat when, and who loses it.

use herdproof::Sim;
use http::HeaderValue;

use super::*;
use crate::settings::OriginSettings;

const SEC: Duration = Duration::from_secs(1);
const LARGE: u64 = 10 << 20;

/// A body that sends so much every so often, and has so much in all.
struct Dripping {
    env: Env,
    every: Duration,
    drop: u64,
    left: u64,
    next: Option<Sleep>,
}

impl Body for Dripping {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let every = this.every;
        ready!(Pin::new(this.next.get_or_insert_with(|| this.env.sleep(every))).poll(cx));
        this.next = None;
        let drop = this.drop.min(this.left);
        this.left -= drop;
        let data = Bytes::from(vec![b'x'; usize::try_from(drop).unwrap()]);
        Poll::Ready((drop > 0).then_some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Uploads before an origin with so many seats.
fn uploads(env: &Env, limit: u32) -> Uploads {
    let settings = OriginSettings { url: "http://127.0.0.1:1".into(), limit, ..OriginSettings::default() };
    Uploads::new(env, &Origin::new(env, &settings).unwrap(), 16 << 20)
}

fn dripping(env: &Env, every: Duration, drop: u64, left: u64) -> Dripping {
    Dripping { env: env.clone(), every, drop, left, next: None }
}

fn never(env: &Env) -> Dripping {
    dripping(env, Duration::from_secs(1 << 30), 0, LARGE)
}

/// Reads to the end, and says whether it was the body's.
async fn read(body: &mut Carried) -> Result<u64, Refused> {
    let progress = body.progress().unwrap();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.map_err(|_| progress.why())?.data_ref().unwrap().len() as u64;
    }
    assert!(progress.is_over());
    Ok(bytes)
}

#[test]
fn an_upload_that_stops_is_ended_when_a_window_is_over_and_one_that_sends_enough_is_not() {
    for (every, drop, outcome) in [
        (SEC, 600, Err(Refused::Slow)),
        (SEC, 2 << 10, Ok(100 << 10)),
        (SEC / 10, 1, Err(Refused::Slow)),
        (4 * SEC, 20 << 10, Ok(100 << 10)),
    ] {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let uploads = uploads(&env, 256);
        let (took, read, held) = sim.run(async {
            let body = dripping(&env, every, drop, 100 << 10);
            let mut body = uploads.receive(1, &HeaderMap::new(), body, Tick::MAX).await.unwrap();
            assert_eq!(uploads.stats().held, 1);
            let began = env.now();
            let read = read(&mut body).await;
            (env.now() - began, read, uploads.stats().held)
        });
        assert_eq!((read, held), (outcome, 0), "{drop} every {every:?}; the seat is free before the body is dropped");
        let is_slow = outcome.is_err();
        assert_eq!(uploads.stats().slow, u64::from(is_slow));
        assert!(!is_slow || (5 * SEC..=6 * SEC).contains(&took), "{took:?}");
    }
}

#[test]
fn a_call_may_pause_for_less_than_a_minute() {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
    for (every, outcome) in [(50 * SEC, Ok(10)), (70 * SEC, Err(Refused::Slow))] {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let uploads = uploads(&env, 256);
        let read = sim.run(async {
            let mut body = uploads.receive(1, &headers, dripping(&env, every, 1, 10), Tick::MAX).await.unwrap();
            assert_eq!(uploads.stats().held, 1, "however small it is: nobody knows when it comes");
            read(&mut body).await
        });
        assert_eq!(read, outcome, "{every:?}");
    }
}

#[test]
fn who_waits_gets_the_seat_of_who_leaves_or_is_refused_in_time() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    // Two upload seats, one for each client.
    let uploads = uploads(&env, 4);
    let none = HeaderMap::new();
    sim.run(async {
        let first = uploads.receive(1, &none, never(&env), Tick::MAX).await.unwrap();
        let refused = uploads.receive(1, &none, never(&env), env.now() + SEC).await;
        assert!(matches!(refused, Err(Refused::Busy)) && env.now() == Tick::ZERO + SEC);
        assert_eq!((uploads.stats().held, uploads.stats().waiting), (1, 0));
        let other = uploads.receive(2, &none, never(&env), env.now()).await;
        assert!(other.is_ok(), "another client need not wait");
        let next = env.spawn({
            let (uploads, env) = (uploads.clone(), env.clone());
            async move { uploads.receive(1, &HeaderMap::new(), never(&env), Tick::MAX).await.is_ok() }
        });
        env.sleep(SEC).await;
        assert_eq!(uploads.stats().waiting, 1);
        drop(first);
        assert!(next.await.unwrap());
        drop(other);
        assert_eq!((uploads.stats().held, uploads.stats().waiting), (0, 0));
    });
}

#[test]
fn a_small_body_that_finds_no_memory_is_streamed_and_all_of_it_arrives() {
    let mut sim = Sim::new(1);
    let env = sim.env();
    let uploads = uploads(&env, 256);
    let none = HeaderMap::new();
    sim.run(async {
        // Others have it all, each no more than its share; and then there is a little less than a body needs.
        let mut others: Vec<_> = (100..107).map(|who| uploads.charge(who)).collect();
        assert_eq!(others[0].take(8 << 20), Room::Given);
        assert!(others[1..4].iter_mut().all(|other| other.take(2 << 20) == Room::Given));
        assert_eq!(others[4].take((2 << 20) - (8 << 10)), Room::Given);
        let body = dripping(&env, SEC / 100, 4 << 10, 60 << 10);
        let mut body = uploads.receive(1, &none, body, Tick::MAX).await.unwrap();
        assert_eq!((body.size_hint().exact(), uploads.stats().held), (Some(60 << 10), 1));
        assert_eq!(read(&mut body).await, Ok(60 << 10));
        drop((others, body));
        assert_eq!((uploads.stats().buffered, uploads.stats().held), (0, 0));
        let body = dripping(&env, SEC / 100, 4 << 10, 60 << 10);
        let body = uploads.receive(1, &none, body, Tick::MAX).await.unwrap();
        assert!(matches!(&body, Carried::Whole(bytes, None) if bytes.len() == 60 << 10));
        assert_eq!((uploads.stats().buffered, uploads.stats().held), (60 << 10, 0));
        drop(body);
        assert_eq!(uploads.stats().buffered, 0);
    });
}
