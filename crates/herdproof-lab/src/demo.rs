//! The shortest proof: one cold key, a crowd that wants it, an origin that cannot bear crowds.
//!
//! The herd is let loose twice, each time on an origin of its own: straight at it, then through the proxy. Real sockets,
//! the wall clock, one process.

mod text;

use std::{io, time::Duration};

use herdproof::Env;
use serde::{Serialize, Serializer};

use crate::{
    real::{Answers, Edge, FragileOrigin, Herd},
    slowdown::Slowdown,
    timeline::Timeline,
};

/// What the origin of the demo does to a crowd.
const LAW: Slowdown = FragileOrigin::LAW;
const PATH: &str = "/odds/42";
const SPREAD: Duration = Duration::from_millis(2);
/// What the origin says of its answers: for how long they may be kept.
const KEPT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);

/// A herd, to be let loose without and with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demo {
    /// How many clients there are.
    pub clients: u32,
    /// How many were asked for.
    pub clients_asked: u32,
    /// What the moments follow from at which clients begin.
    pub seed: u64,
}

/// Which way the herd takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Straight at the origin.
    Without,
    /// Through an [`Edge`].
    With,
}

/// What the herd did on each way.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// What was run.
    #[serde(flatten, serialize_with = "settings")]
    pub demo: Demo,
    /// Straight at the origin.
    pub without: Outcome,
    /// Through an [`Edge`].
    pub with: Outcome,
    /// The result in a sentence.
    pub summary: String,
}

/// What the herd did on one way.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Requests that reached the origin.
    pub origin_requests: u64,
    /// The most requests at the origin at one time.
    pub peak_in_flight: u64,
    /// What half of the clients waited at most.
    #[serde(rename = "p50_ms", serialize_with = "as_millis")]
    pub p50: Option<Duration>,
    /// What 99 of 100 clients waited at most.
    #[serde(rename = "p99_ms", serialize_with = "as_millis")]
    pub p99: Option<Duration>,
    /// Clients that got no answer.
    pub errors: u64,
    /// What the first of them met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    #[serde(skip)]
    arrivals: Timeline,
    #[serde(skip)]
    answers: Answers,
}

impl Demo {
    /// Lets the herd loose, first without, then with; tells which way it is about to take.
    pub async fn run(self, env: &Env, on_way: impl FnMut(Way)) -> io::Result<Comparison> {
        self.run_at(env, LAW, on_way).await
    }

    async fn run_at(self, env: &Env, law: Slowdown, mut on_way: impl FnMut(Way)) -> io::Result<Comparison> {
        on_way(Way::Without);
        let without = self.herd(env, law, Way::Without).await?;
        on_way(Way::With);
        let with = self.herd(env, law, Way::With).await?;
        let summary = text::summary(&without, &with);
        Ok(Comparison { demo: self, without, with, summary })
    }

    /// How long a way takes, by the origin's law.
    pub fn expected(self, way: Way) -> Duration {
        LAW.time(match way {
            Way::Without => self.clients.into(),
            Way::With => 1,
        })
        .min(PATIENCE)
    }

    async fn herd(self, env: &Env, law: Slowdown, way: Way) -> io::Result<Outcome> {
        let Demo { clients, seed, .. } = self;
        let herd = Herd { clients, path: PATH.into(), spread: SPREAD, seed, patience: PATIENCE };
        let origin = FragileOrigin::start_cacheable(env, law, KEPT)?;
        let answers = match way {
            Way::Without => herd.run(env, origin.address()).await,
            Way::With => {
                let edge = Edge::start(env, origin.address())?;
                let answers = herd.run(env, edge.address()).await;
                edge.close().await;
                answers
            }
        };
        let first_error = answers.failures().next().map(ToString::to_string);
        let outcome = Outcome {
            origin_requests: origin.requests(),
            peak_in_flight: origin.peak_in_flight(),
            p50: answers.quantile(0.5),
            p99: answers.quantile(0.99),
            errors: answers.failures().count() as u64,
            first_error,
            arrivals: origin.arrivals(),
            answers,
        };
        // The next herd needs the descriptors.
        origin.close().await;
        Ok(outcome)
    }
}

impl Comparison {
    /// Whether the origin was spared and every client of the second herd got its answer. A herd of one cannot be spared
    /// anything.
    pub fn passed(&self) -> bool {
        let fewer = self.with.origin_requests < self.without.origin_requests;
        self.with.errors == 0 && (fewer || self.demo.clients == 1)
    }
}

fn settings<S: Serializer>(demo: &Demo, serializer: S) -> Result<S::Ok, S::Error> {
    let Demo { clients, clients_asked, seed } = *demo;
    serializer.collect_map([
        ("clients", u64::from(clients)),
        ("clients_asked", u64::from(clients_asked)),
        ("seed", seed),
    ])
}

/// To a hundredth of a millisecond: the wall clock of a shared machine tells no more.
#[expect(clippy::ref_option, reason = "serde's shape")]
fn as_millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(|time| (time.as_secs_f64() * 1e5).round() / 1e2).serialize(serializer)
}

#[cfg(test)]
mod tests;
