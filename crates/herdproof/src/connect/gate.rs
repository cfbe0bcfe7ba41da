//! So many connections in the making.

use crate::{
    env::Env,
    event::Event,
    gate::{And, Ask, Gate, Permit, PermitOf, Place, Refusal, Span, Verdict},
    limit::{Bulkhead, Rate, RateLimit},
};

/// A gate before making connections, on either side: so many handshakes under way, so many begun a second.
///
/// **Dialling**, one for each target, whatever the number of pools: a pool that finds itself empty under load asks for all
/// of its connections at once, and the server, busy with handshakes, answers even later. The default is two under way and
/// three a second.
///
/// **Accepting**: enter before `accept`. Those not let in stay in the kernel's queue, where waiting costs a few hundred bytes
/// instead of a TLS handshake that nobody waits for any more. Handshakes are work for the CPU, so about four under way for
/// each core is enough. The queue is the kernel's: when listening, set its length to
/// less than is served within the clients' timeout, and watch `ListenOverflows`.
///
/// A permit that is settled with [`Verdict::Ok`] is a connection made: [`Event::Handshake`].
///
/// ```
/// use herdproof::{Env, connect::ConnectGate, gate::{Ask, Gate, guard, result}};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let env = Env::system();
/// let gate = ConnectGate::dialling(&env).build();
/// let connection = guard(&env, &gate, result, Ask::new(&env), || async { Ok::<_, std::io::Error>("connected") }).await;
/// # assert_eq!(connection.unwrap(), "connected");
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct ConnectGate {
    env: Env,
    /// Room first, then the rate. The other way round everybody who has had a slot of the rate would stand in the line for
    /// room, and when a slow server is quick again they would all go as fast as handshakes end.
    gate: Limits,
}

type Limits = And<Bulkhead, RateLimit>;

/// A [`ConnectGate`] in the making.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectGateBuilder {
    env: Env,
    at_once: u32,
    per_second: u32,
    waiting: usize,
}

/// A connection that is not begun yet, from [`ConnectGate`]. Dropping it gives its place to another, because a connection became
/// idle meanwhile, say.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct ConnectPlace {
    env: Env,
    place: <Limits as Gate>::Place,
}

/// A connection in the making.
///
/// Dropping it makes room for another, but not in the rate: the server has had the work of it.
#[derive(Debug)]
#[must_use = "dropping it says that the connection was not made"]
pub struct Connecting {
    env: Env,
    permit: PermitOf<Limits>,
}

impl ConnectGate {
    /// For a client of one target: two under way, three a second.
    pub fn dialling(env: &Env) -> ConnectGateBuilder {
        ConnectGateBuilder { env: env.clone(), at_once: 2, per_second: 3, waiting: 1000 }
    }

    /// For a server that can make so many handshakes a second on so many cores: four under way for each.
    pub fn accepting(env: &Env, per_second: u32, cores: u32) -> ConnectGateBuilder {
        let at_once = cores.saturating_mul(4);
        ConnectGateBuilder { env: env.clone(), at_once, per_second, waiting: 1000 }
    }
}

impl ConnectGateBuilder {
    /// How many may be under way.
    pub fn at_once(mut self, most: u32) -> ConnectGateBuilder {
        self.at_once = most;
        self
    }

    /// How many may begin in a second, evenly; as many as may be under way can also begin at once.
    pub fn per_second(mut self, rate: u32) -> ConnectGateBuilder {
        self.per_second = rate;
        self
    }

    /// How many may wait in the line; a thousand unless told otherwise. Those beyond are refused.
    pub fn max_waiting(mut self, most: usize) -> ConnectGateBuilder {
        self.waiting = most;
        self
    }

    /// The gate.
    pub fn build(self) -> ConnectGate {
        let room = Bulkhead::new(&self.env, self.at_once).max_waiting(self.waiting);
        let rate = RateLimit::new(&self.env, Rate::per_second(self.per_second).burst(self.at_once));
        ConnectGate { gate: room.and(rate), env: self.env }
    }
}

impl Gate for ConnectGate {
    type Place = ConnectPlace;

    fn try_reserve(&self, ask: &Ask) -> Result<ConnectPlace, Refusal> {
        Ok(ConnectPlace { place: self.gate.try_reserve(ask)?, env: self.env.clone() })
    }

    async fn reserve(&self, ask: &mut Ask) -> Result<ConnectPlace, Refusal> {
        Ok(ConnectPlace { place: self.gate.reserve(ask).await?, env: self.env.clone() })
    }
}

impl Place for ConnectPlace {
    type Permit = Connecting;

    fn commit(self) -> Connecting {
        Connecting { env: self.env, permit: self.place.commit() }
    }
}

impl Permit for Connecting {
    fn settle(self, verdict: &Verdict, span: Span) {
        if *verdict == Verdict::Ok {
            self.env.tell(&Event::Handshake);
        }
        self.permit.settle(verdict, span);
    }
}
