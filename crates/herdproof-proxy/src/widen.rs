//! Requests for one key that go to the origin by themselves, a few at first and then more.
//!
//! What was private the last time is probably private again, and whoever waits for it waits in vain. But "probably" was taught
//! by clients. If such requests simply went through, thirty private neighbours would turn a herd of 800 at a page that could be
//! shared into 800 requests. So they go through a gate that widens: eight in parallel, and twice as many with each
//! response that turns out to be private. The first that can be shared is stored, and everybody who still waits looks again and
//! finds it. A herd at a private page gets through within a few load times; a herd at a page that was wrongly taken for
//! private costs eight requests.
//!
//! - One client has at most half of the width while others wait: it cannot hold the gate shut with requests of its own.
//! - Nobody waits for a response that does not come: while there is none, one more request goes each second.
//! - A gate is there only while somebody is at it, so there are never more gates than requests.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use herdproof::{Env, Tick, env::MapHasher};
use parking_lot::Mutex;

/// While no response comes, one more request goes in each such time.
const STEP: Duration = Duration::from_secs(1);
/// Gates lie in so many maps, each with a lock of its own.
const SHARDS: usize = 16;

/// All gates, by a hash of their key; see the [module](self). Cheap to clone, and clones share.
///
/// ```
/// use herdproof::Env;
/// use herdproof_proxy::{learn, widen::{Came, Turn, Widening}};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
/// # runtime.block_on(async {
/// let gates = Widening::new(&Env::system(), 256); // and never more than 256 of one key
/// let (key, client) = (7, 1);
/// // Of a key that was never seen and may be private, eight requests go at first.
/// match gates.enter(key, client, learn::width(0)).await {
///     Turn::Ask(going) => going.came(Came::Private), // the origin was asked: twice as many may go now
///     Turn::Look => {}                               // another's response can be shared, and is in the cache
/// }
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Widening(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    env: Env,
    /// No more than so many of one key ever go in parallel.
    most: u32,
    shards: [Mutex<HashMap<u64, Gate, MapHasher>>; SHARDS],
}

/// The requests for one key.
#[derive(Debug)]
struct Gate {
    /// How many may go in parallel.
    width: u32,
    /// How many have gone and have no verdict yet.
    out: u32,
    /// Who has gone or waits, by client.
    clients: BTreeMap<u64, Client>,
    /// Those who wait, and those who have not heard yet that they do not any more; by number, so the oldest first.
    waiting: BTreeMap<u64, Waiting>,
    /// The oldest of each client that waits, and whose it is. So nobody has to look through all that one client has waiting.
    oldest: BTreeMap<u64, u64>,
    /// The number of the next to wait.
    next: u64,
    /// Since when there was no verdict and nobody was let go.
    since: Tick,
    /// Whether a task lets one go each [`STEP`].
    is_stepped: bool,
}

/// The requests of one client for one key.
#[derive(Debug, Default)]
struct Client {
    /// How many have gone and have no verdict yet.
    out: u32,
    /// The numbers of those that wait.
    waiting: BTreeSet<u64>,
}

#[derive(Debug)]
struct Waiting {
    client: u64,
    state: Turned,
    waker: Option<Waker>,
}

/// What became of one who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turned {
    Waits,
    Goes,
    Looks,
}

/// What to do now.
#[derive(Debug)]
pub enum Turn {
    /// Ask the origin.
    Ask(Going),
    /// Something that can be shared has come: look for it.
    Look,
}

/// What the response was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Others may have it.
    Shareable,
    /// It was for one.
    Private,
    /// There was none, or an error: those who wait find out together.
    Failed,
}

/// The right to ask the origin by oneself. Dropped without a verdict it says nothing about the key.
#[derive(Debug)]
pub struct Going {
    all: Widening,
    key: u64,
    client: u64,
    came: Option<Came>,
}

/// A place at a gate, given up when it is dropped.
struct Place<'a> {
    all: &'a Widening,
    key: u64,
    number: u64,
    is_done: bool,
}

impl Widening {
    /// Gates that nobody is at.
    pub fn new(env: &Env, most: u32) -> Widening {
        let shard = || Mutex::new(HashMap::with_hasher(env.hasher("proxy/widening")));
        Widening(Arc::new(Inner { env: env.clone(), most: most.max(1), shards: std::array::from_fn(|_| shard()) }))
    }

    /// Waits for a turn. The width is for a gate that nobody is at; one that others are at keeps its own if that is wider.
    pub async fn enter(&self, key: u64, client: u64, width: u32) -> Turn {
        let mut place = {
            let mut shard = self.shard(key).lock();
            let now = self.0.env.now();
            let gate = shard.entry(key).or_insert_with(|| Gate::new(now));
            gate.width = gate.width.max(width.clamp(1, self.0.most));
            let number = gate.join(client);
            let woken = gate.let_go(now);
            let steps = gate.needs_steps();
            drop(shard);
            wake(woken);
            if steps {
                self.0.env.spawn(self.clone().step(key)).detach();
            }
            Place { all: self, key, number, is_done: false }
        };
        let turned = poll_fn(|cx| {
            let mut shard = self.shard(key).lock();
            let Some(gate) = shard.get_mut(&key) else { return Poll::Ready(Turned::Looks) };
            match gate.turned(place.number, cx.waker()) {
                Turned::Waits => Poll::Pending,
                turned => Poll::Ready(turned),
            }
        })
        .await;
        place.is_done = true;
        match turned {
            Turned::Goes => Turn::Ask(Going { all: self.clone(), key, client, came: None }),
            Turned::Waits | Turned::Looks => Turn::Look,
        }
    }

    /// How many requests wait for a turn or have one, of all keys.
    pub(crate) fn len(&self) -> usize {
        let all = self.0.shards.iter();
        all.map(|shard| shard.lock().values().map(|gate| gate.out as usize + gate.waiting.len()).sum::<usize>()).sum()
    }

    /// Lets one go in each step without a verdict, for as long as somebody waits.
    async fn step(self, key: u64) {
        let mut at = self.0.env.now() + STEP;
        loop {
            let now = self.0.env.sleep_until(at).await;
            let woken = {
                let mut shard = self.shard(key).lock();
                let Some(gate) = shard.get_mut(&key) else { return };
                let woken = gate.step(now);
                if !gate.is_stepped {
                    return;
                }
                at = gate.since + STEP;
                woken
            };
            wake(woken);
        }
    }

    fn over(&self, key: u64, client: u64, came: Option<Came>) {
        let mut shard = self.shard(key).lock();
        let Some(gate) = shard.get_mut(&key) else { return };
        let woken = gate.over(client, came, self.0.most, self.0.env.now());
        if gate.is_idle() {
            shard.remove(&key);
        }
        drop(shard);
        wake(woken);
    }

    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Gate, MapHasher>> {
        &self.0.shards[(key >> 60) as usize % SHARDS]
    }
}

fn wake(woken: Vec<Waker>) {
    woken.into_iter().for_each(Waker::wake);
}

impl Gate {
    fn new(now: Tick) -> Gate {
        Gate {
            width: 1,
            out: 0,
            clients: BTreeMap::new(),
            waiting: BTreeMap::new(),
            oldest: BTreeMap::new(),
            next: 0,
            since: now,
            is_stepped: false,
        }
    }

    fn join(&mut self, client: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Waiting { client, state: Turned::Waits, waker: None });
        let line = &mut self.clients.entry(client).or_default().waiting;
        if line.is_empty() {
            self.oldest.insert(number, client);
        }
        line.insert(number);
        number
    }

    /// It does not wait any more, whatever became of it.
    fn leave(&mut self, number: u64, client: u64) {
        let Some(of) = self.clients.get_mut(&client) else { return };
        of.waiting.remove(&number);
        if self.oldest.remove(&number).is_some()
            && let Some(next) = of.waiting.first()
        {
            self.oldest.insert(*next, client);
        }
        if of.out == 0 && of.waiting.is_empty() {
            self.clients.remove(&client);
        }
    }

    /// Who is to be woken because it may go.
    fn let_go(&mut self, now: Tick) -> Vec<Waker> {
        let mut woken = Vec::new();
        while self.out < self.width
            && let Some(next) = self.next_to_go()
        {
            self.go(next, now, &mut woken);
        }
        woken
    }

    /// The oldest of those whose client has less than half of the width; the oldest at all if they are of one client. No more than
    /// two or three clients can have half of it, so this looks at no more than that.
    fn next_to_go(&self) -> Option<u64> {
        let half = (self.width / 2).max(1);
        let is_modest = |client: &u64| self.clients.get(client).is_none_or(|client| client.out < half);
        let modest = self.oldest.iter().find(|(_, client)| is_modest(client));
        modest.or_else(|| self.oldest.first_key_value()).map(|(number, _)| *number)
    }

    fn go(&mut self, number: u64, now: Tick, woken: &mut Vec<Waker>) {
        let Some(waiting) = self.waiting.get_mut(&number) else { return };
        waiting.state = Turned::Goes;
        woken.extend(waiting.waker.take());
        let client = waiting.client;
        self.out += 1;
        self.clients.entry(client).or_default().out += 1;
        self.leave(number, client);
        self.since = now;
    }

    /// What became of one who waits. It is gone from here once it is told.
    fn turned(&mut self, number: u64, waker: &Waker) -> Turned {
        match self.waiting.get_mut(&number) {
            Some(waiting) if waiting.state == Turned::Waits => {
                waiting.waker = Some(waker.clone());
                Turned::Waits
            }
            _ => self.waiting.remove(&number).map_or(Turned::Looks, |waiting| waiting.state),
        }
    }

    /// Whether a task has to see to it that somebody goes on. Says so once.
    fn needs_steps(&mut self) -> bool {
        let needs = !self.is_stepped && self.next_to_go().is_some();
        self.is_stepped |= needs;
        needs
    }

    fn step(&mut self, now: Tick) -> Vec<Waker> {
        let mut woken = Vec::new();
        match self.next_to_go() {
            Some(next) if now >= self.since + STEP => self.go(next, now, &mut woken),
            Some(_) => {}
            None => self.is_stepped = false,
        }
        woken
    }

    /// A request is over.
    fn over(&mut self, client: u64, came: Option<Came>, most: u32, now: Tick) -> Vec<Waker> {
        self.out = self.out.saturating_sub(1);
        if let Some(of) = self.clients.get_mut(&client) {
            of.out = of.out.saturating_sub(1);
            if of.out == 0 && of.waiting.is_empty() {
                self.clients.remove(&client);
            }
        }
        match came {
            Some(Came::Shareable | Came::Failed) => self.look(),
            Some(Came::Private) => {
                self.width = self.width.saturating_mul(2).min(most.max(1));
                self.let_go(now)
            }
            None => self.let_go(now),
        }
    }

    /// Everybody who waits looks again.
    fn look(&mut self) -> Vec<Waker> {
        self.oldest.clear();
        self.clients.retain(|_, client| {
            client.waiting.clear();
            client.out > 0
        });
        let waits = self.waiting.values_mut().filter(|waiting| waiting.state == Turned::Waits);
        waits
            .filter_map(|waiting| {
                waiting.state = Turned::Looks;
                waiting.waker.take()
            })
            .collect()
    }

    fn is_idle(&self) -> bool {
        self.out == 0 && self.waiting.is_empty()
    }
}

impl Going {
    /// Whether others have gone with it, or wait.
    pub fn has_others(&self) -> bool {
        let shard = self.all.shard(self.key).lock();
        shard.get(&self.key).is_some_and(|gate| gate.out > 1 || !gate.waiting.is_empty())
    }

    /// What the response was.
    pub fn came(mut self, came: Came) {
        self.came = Some(came);
        self.all.over(self.key, self.client, Some(came));
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if self.came.is_none() {
            self.all.over(self.key, self.client, None);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut shard = self.all.shard(self.key).lock();
        let Some(gate) = shard.get_mut(&self.key) else { return };
        let woken = match gate.waiting.remove(&self.number) {
            // It was its turn, and it left before it heard of that: somebody else's turn.
            Some(Waiting { client, state: Turned::Goes, .. }) => {
                gate.over(client, None, self.all.0.most, self.all.0.env.now())
            }
            Some(Waiting { client, state: Turned::Waits, .. }) => {
                gate.leave(self.number, client);
                Vec::new()
            }
            Some(Waiting { state: Turned::Looks, .. }) | None => Vec::new(),
        };
        if gate.is_idle() {
            shard.remove(&self.key);
        }
        drop(shard);
        wake(woken);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use herdproof::Sim;

    use super::*;

    const MOST: u32 = 256;
    const LOAD: Duration = Duration::from_millis(200);

    /// Lets so many users at a gate of eight, each of whom needs one load; gives how many asked, and when the last was done.
    fn herd(users: u64, client: impl Fn(u64) -> u64, came: Came) -> (u64, Duration) {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gates = Widening::new(&env, MOST);
        let (asked, last) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Tick::ZERO)));
        let begun = env.now();
        let tasks: Vec<_> = (0..users)
            .map(|user| {
                let (env, gates, client) = (env.clone(), gates.clone(), client(user));
                let (asked, last) = (Arc::clone(&asked), Arc::clone(&last));
                env.clone().spawn(async move {
                    if let Turn::Ask(going) = gates.enter(7, client, 8).await {
                        *asked.lock() += 1;
                        env.sleep(LOAD).await;
                        going.came(came);
                    }
                    *last.lock() = env.now();
                })
            })
            .collect();
        sim.run(async move {
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(gates.len(), 0, "nothing is left of a gate that nobody is at");
        let (asked, last) = (*asked.lock(), *last.lock());
        (asked, last - begun)
    }

    #[test]
    fn a_herd_at_a_page_that_was_wrongly_taken_for_private_costs_eight_requests() {
        assert_eq!(herd(800, |user| user, Came::Shareable), (8, LOAD));
    }

    #[test]
    fn a_herd_at_a_private_page_gets_through_in_a_few_load_times() {
        let (asked, took) = herd(800, |user| user, Came::Private);
        assert_eq!(asked, 800);
        assert!(took <= LOAD * 6, "{took:?}");
    }

    #[test]
    fn one_client_cannot_hold_the_gate_shut_for_others() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gates = Widening::new(&env, MOST);
        sim.run(async move {
            let mut held = Vec::new();
            // Fifty requests of one client that never end, and one of another.
            for _ in 0..4 {
                let Turn::Ask(going) = gates.enter(7, 1, 8).await else { panic!("there is room") };
                held.push(going);
            }
            let greedy: Vec<_> = (0..46)
                .map(|_| {
                    let (gates, env) = (gates.clone(), env.clone());
                    env.clone().spawn(async move {
                        let turn = gates.enter(7, 1, 8).await;
                        env.sleep(Duration::from_secs(3600)).await;
                        drop(turn);
                    })
                })
                .collect();
            env.sleep(Duration::from_millis(1)).await;
            for other in 2..4 {
                let before = env.now();
                let Turn::Ask(going) = gates.enter(7, other, 8).await else { panic!("its turn") };
                assert!(env.now() - before <= STEP, "one of each step is another's");
                drop(going);
            }
            drop(greedy);
        });
    }

    #[test]
    fn nobody_waits_for_a_response_that_does_not_come() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gates = Widening::new(&env, MOST);
        sim.run(async move {
            let begun = env.now();
            let mut held = Vec::new();
            for number in 0..12_u64 {
                let Turn::Ask(going) = gates.enter(7, number, 8).await else { panic!("its turn") };
                held.push(going);
                let late = u32::try_from(number.saturating_sub(7)).unwrap();
                assert!(env.now() - begun <= STEP * late, "{number}");
            }
        });
    }

    #[test]
    fn who_leaves_before_its_turn_gives_it_to_the_next() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let gates = Widening::new(&env, MOST);
        sim.run(async move {
            let Turn::Ask(first) = gates.enter(7, 1, 1).await else { panic!("there is room") };
            let polled = Cell::new(false);
            let mut second = Box::pin(gates.enter(7, 2, 1));
            poll_fn(|cx| {
                polled.set(second.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
            assert!(polled.get());
            first.came(Came::Private);
            // It is the second's turn, which has not heard of it and leaves.
            drop(second);
            assert!(matches!(gates.enter(7, 3, 1).await, Turn::Ask(_)));
            assert_eq!(gates.len(), 0);
        });
    }
}
