//! The crowd: many clients on connections of their own, each asking for the same thing at once.

use std::{
    error::Error,
    fmt,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use herdproof::{Env, Sim, Tick, timeout::by};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Longer answers are refused: nothing here sends any.
const LONGEST: usize = 64 * 1024;

/// A crowd in the making.
///
/// Everybody connects first, and nothing is measured before all are connected: what is compared is requests, not how fast
/// one machine can open sockets.
#[derive(Clone, Debug)]
pub struct Herd {
    /// How many clients, each with one request.
    pub clients: u32,
    /// What they all ask for.
    pub path: String,
    /// Each begins at a random moment within this time.
    pub spread: Duration,
    /// What those moments follow from.
    pub seed: u64,
    /// How long a client waits before it gives up.
    pub patience: Duration,
}

/// What became of every client.
#[derive(Debug)]
pub struct Answers(Vec<Answer>);

/// What became of one client.
#[derive(Debug)]
pub struct Answer {
    /// When it ended, counted from the moment the herd was let loose.
    pub ended: Duration,
    /// How long it took, from the moment it meant to ask to the answer or to giving up.
    pub took: Duration,
    /// What it got.
    pub outcome: Result<Bytes, Failed>,
}

/// Why a client got no answer.
#[derive(Debug)]
pub enum Failed {
    /// It could not connect.
    Connect(io::Error),
    /// The connection broke, or what came was not an answer.
    Exchange(Box<dyn Error + Send + Sync>),
    /// The server said that it could not, and why.
    Status(StatusCode, String),
    /// Its patience was over.
    GaveUp,
}

impl Herd {
    /// Lets the herd loose on a server.
    pub async fn run(&self, env: &Env, address: SocketAddr) -> Answers {
        let gathering = env.now() + self.patience;
        let mut connections = Vec::new();
        for _ in 0..self.clients {
            let connection = by(env, Some(gathering), connect(address)).await;
            connections.push(connection.unwrap_or(Err(Failed::GaveUp)));
        }
        // The real world's chance cannot be seeded, and a simulated one's can.
        let offsets = Sim::new(self.seed).env().rng("herd/start");
        let path: Arc<str> = self.path.as_str().into();
        let loose = env.now();
        let clients: Vec<_> = connections
            .into_iter()
            .map(|connection| {
                let starts = loose + offsets.between(Duration::ZERO, self.spread);
                let (env, path, patience) = (env.clone(), Arc::clone(&path), self.patience);
                env.clone().spawn(async move {
                    env.sleep_until(starts).await;
                    let outcome = match connection {
                        Ok(stream) => ask(&env, starts + patience, stream, &path).await,
                        Err(failed) => Err(failed),
                    };
                    let ended = env.now();
                    // From when it should have begun: a machine too busy to let it begin makes it wait too.
                    Answer { ended: ended - loose, took: ended - starts, outcome }
                })
            })
            .collect();
        let mut answers = Vec::new();
        for client in clients {
            answers.push(client.await.unwrap_or_else(|died| {
                let ended = env.now() - loose;
                Answer { ended, took: ended, outcome: Err(Failed::Exchange(died.into())) }
            }));
        }
        Answers(answers)
    }
}

async fn ask(env: &Env, deadline: Tick, stream: TcpStream, path: &str) -> Result<Bytes, Failed> {
    by(env, Some(deadline), get(stream, path)).await.unwrap_or(Err(Failed::GaveUp))
}

/// A new connection.
pub(super) async fn connect(address: SocketAddr) -> Result<TcpStream, Failed> {
    let stream = TcpStream::connect(address).await.map_err(Failed::Connect)?;
    stream.set_nodelay(true).map_err(Failed::Connect)?;
    Ok(stream)
}

/// One GET. The connection is closed by the time this is over or dropped.
pub(super) async fn get(stream: TcpStream, path: &str) -> Result<Bytes, Failed> {
    let host = stream.peer_addr().map_err(Failed::Connect)?.to_string();
    let request = Request::get(path).header(header::HOST, host).body(Empty::<Bytes>::new());
    let request = request.map_err(|error| Failed::Exchange(error.into()))?;
    let broken = |error: hyper::Error| Failed::Exchange(error.into());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    while_driving(connection, async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await.map_err(Failed::Exchange)?.to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(Failed::Status(status, String::from_utf8_lossy(&body).trim_end().to_owned()))
        }
    })
    .await
}

/// What `work` gives, while the connection it works on is driven in the same task, so that both end together.
async fn while_driving<D: Future, W: Future>(driver: D, work: W) -> W::Output {
    let mut driver = pin!(driver);
    let mut work = pin!(work);
    let mut driven = false;
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(output);
        }
        if !driven && driver.as_mut().poll(cx).is_ready() {
            // Its last act may have been to bring what the work waits for.
            driven = true;
            return work.as_mut().poll(cx);
        }
        Poll::Pending
    })
    .await
}

impl Answers {
    /// Every client's, in no order.
    pub fn all(&self) -> &[Answer] {
        &self.0
    }

    /// The time that this share of the clients needed at most, from 0 to 1; those who gave up count with their patience,
    /// those who failed otherwise do not count. None if nobody counts.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let counts = |answer: &&Answer| matches!(answer.outcome, Ok(_) | Err(Failed::GaveUp));
        let mut took: Vec<Duration> = self.0.iter().filter(counts).map(|answer| answer.took).collect();
        took.sort_unstable();
        let mut ranks = (1..=took.len()).zip(&took);
        let reached = ranks.find(|(rank, _)| *rank as f64 >= share * took.len() as f64);
        reached.map(|(_, took)| *took).or(took.last().copied())
    }

    /// Why clients failed, those who did.
    pub fn failures(&self) -> impl Iterator<Item = &Failed> {
        self.0.iter().filter_map(|answer| answer.outcome.as_ref().err())
    }

    /// When the last client was done.
    pub fn end(&self) -> Duration {
        self.0.iter().map(|answer| answer.ended).max().unwrap_or_default()
    }

    /// How many clients were not yet done, at the beginning of each of so many equal parts of the time up to `end`.
    pub fn waiting(&self, end: Duration, columns: usize) -> Vec<u64> {
        let begins = |column: usize| end.mul_f64(column as f64 / columns.max(1) as f64);
        let waiting = |at: Duration| self.0.iter().filter(|answer| answer.ended > at).count() as u64;
        (0..columns).map(|column| waiting(begins(column))).collect()
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Connect(error) => write!(f, "cannot connect: {error}"),
            Failed::Exchange(error) => write!(f, "no answer: {error}"),
            Failed::Status(status, text) => write!(f, "answered {status}: {text}"),
            Failed::GaveUp => f.write_str("gave up waiting"),
        }
    }
}

impl Error for Failed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Failed::Connect(error) => Some(error),
            Failed::Exchange(error) => Some(&**error),
            Failed::Status(..) | Failed::GaveUp => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn answer(ms: u32, outcome: Result<Bytes, Failed>) -> Answer {
        Answer { ended: ms * MS, took: ms * MS, outcome }
    }

    #[test]
    fn those_who_gave_up_are_not_left_out_of_the_tail() {
        let mut answers: Vec<Answer> = (1..=98).map(|ms| answer(ms, Ok(Bytes::new()))).collect();
        answers.extend([answer(30_000, Err(Failed::GaveUp)), answer(30_000, Err(Failed::GaveUp))]);
        answers.push(answer(0, Err(Failed::Status(StatusCode::BAD_GATEWAY, String::new()))));
        let answers = Answers(answers);
        assert_eq!((answers.quantile(0.5), answers.quantile(0.99)), (Some(50 * MS), Some(30_000 * MS)));
        assert_eq!((answers.quantile(0.0), answers.quantile(1.0)), (Some(MS), Some(30_000 * MS)));
        assert_eq!(answers.failures().count(), 3);
    }

    #[test]
    fn a_herd_of_which_nobody_counts_has_no_quantile() {
        assert_eq!(Answers(vec![]).quantile(0.5), None);
        assert_eq!((Answers(vec![]).end(), Answers(vec![]).waiting(MS, 2)), (Duration::ZERO, vec![0, 0]));
    }

    #[test]
    fn the_crowd_that_waits_melts_as_answers_come() {
        let answers = Answers([10, 20, 40].map(|ms| answer(ms, Ok(Bytes::new()))).into());
        assert_eq!(answers.waiting(40 * MS, 4), [3, 2, 1, 1]);
    }
}
