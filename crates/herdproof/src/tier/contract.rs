//! What every tier must do, counted; and a tier that fails on demand.
//!
//! A store that gives two nodes a lease, wakes nobody, or lets an old value in does so without an error. So the suite counts:
//! loads, lookups, pushes. It takes a maker of tiers and sleeps through an [`Env`], so that a tier in memory passes it in
//! virtual time and a real store in real time. A case that does not hold panics and says which.
//!
//! ```
//! use herdproof::{Sim, tier::{SharedTier, contract::Suite}};
//!
//! let mut sim = Sim::new(1);
//! let env = sim.env();
//! let suite = Suite::new(&env, |nodes| {
//!     let tier = SharedTier::new(&env);
//!     (0..nodes).map(|_| tier.node()).collect()
//! });
//! sim.run(suite.all());
//! ```

mod faulty;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

pub use faulty::{Faults, Faulty};

use super::{Fault, Filled, Held, Lease, Lookup, News, Pushed, Stored, Tier, Wait, Want};
use crate::env::Env;

/// The cases; see the [module](self).
pub struct Suite<M> {
    env: Env,
    make: M,
    unit: Duration,
}

impl<T, M> Suite<M>
where
    T: Tier<String, u64>,
    M: Fn(usize) -> Vec<T>,
{
    /// Cases for the tiers that `make` makes: so many nodes of one store that holds nothing yet.
    pub fn new(env: &Env, make: M) -> Suite<M> {
        Suite { env: env.clone(), make, unit: Duration::from_millis(50) }
    }

    /// How long the shortest thing takes that a case waits for; 50 ms unless told otherwise. Several times what a call
    /// takes.
    #[must_use]
    pub fn unit(mut self, unit: Duration) -> Suite<M> {
        self.unit = unit;
        self
    }

    /// All cases, one after another.
    ///
    /// # Panics
    ///
    /// If one of them does not hold.
    pub async fn all(&self) {
        self.one_node_of_many_loads_and_each_other_is_told_once().await;
        self.many_keys_are_leased_each_to_one_node().await;
        self.a_fresh_value_takes_one_lookup_and_ages_on_the_stores_clock().await;
        self.what_is_known_to_be_absent_is_known_to_all().await;
        self.a_fill_after_invalidate_is_fenced().await;
        self.a_fill_after_put_is_fenced_and_what_was_put_stands().await;
        self.a_fill_after_its_tag_was_expired_is_fenced().await;
        self.a_failed_load_passes_its_lease_to_exactly_one_until_all_have_failed().await;
        self.who_has_left_is_given_no_lease().await;
        self.a_lease_that_came_to_who_leaves_goes_to_the_next().await;
        self.the_lease_of_a_dead_node_expires_and_its_fill_is_fenced().await;
        self.a_renewed_lease_does_not_expire().await;
        self.a_stale_value_is_read_while_one_node_refreshes_it().await;
        self.what_is_kept_for_errors_is_given_to_who_loads_and_nobody_else().await;
        self.a_value_close_to_its_end_is_refreshed_by_one().await;
        self.a_value_without_time_goes_to_those_who_wait_and_is_not_kept().await;
        self.a_tag_expires_its_keys_one_by_one().await;
        self.news_reach_the_others_and_not_who_made_them().await;
    }

    fn nodes<const N: usize>(&self) -> [T; N] {
        let nodes = (self.make)(N);
        nodes.try_into().unwrap_or_else(|_| panic!("the maker makes as many nodes as it is asked for"))
    }

    async fn sleep(&self, units: u32) {
        self.env.sleep(self.unit * units).await;
    }

    fn want(&self) -> Want {
        Want { lease: self.unit * 40, early: Duration::ZERO }
    }

    /// Fresh for so many units.
    fn value(&self, value: u64, ttl: u32) -> Stored<u64> {
        Stored {
            value: Some(value),
            ttl: self.unit * ttl,
            grace: Duration::ZERO,
            keep: Duration::ZERO,
            load: self.unit,
            tags: Vec::new(),
        }
    }

    fn fault(&self) -> Fault {
        Fault { why: "it broke".into(), remember: self.unit * 10, attempts: 3 }
    }

    async fn look(&self, tier: &T, want: Want) -> Lookup<u64> {
        tier.lookup(&key(), want).await.expect("the store answers")
    }

    async fn lease(&self, tier: &T) -> Lease {
        match self.look(tier, self.want()).await {
            Lookup::Fill(lease) => lease,
            other => panic!("nobody has it, so who asks is to load it: {other:?}"),
        }
    }

    async fn wait(&self, tier: &T) -> Wait<u64> {
        match self.look(tier, self.want()).await {
            Lookup::Wait(wait) => wait,
            other => panic!("another node loads it, so who asks is to wait: {other:?}"),
        }
    }

    async fn hit(&self, tier: &T) -> Held<u64> {
        match self.look(tier, self.want()).await {
            Lookup::Hit(held) => held,
            other => panic!("it is there and fresh: {other:?}"),
        }
    }

    async fn fill(&self, tier: &T, lease: Lease, stored: Stored<u64>) -> Filled {
        tier.fill(&key(), lease, stored).await.expect("the store answers")
    }

    /// What a future comes to within some units, if anything.
    async fn soon<F: Future + Unpin>(&self, future: &mut F) -> Option<F::Output> {
        let mut sleep = pin!(self.env.sleep(self.unit * 4));
        poll_fn(|cx| match pin!(&mut *future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|_| None),
        })
        .await
    }

    /// Twenty nodes miss together.
    async fn one_node_of_many_loads_and_each_other_is_told_once(&self) {
        let nodes: [T; 20] = self.nodes();
        let [loads, lookups, pushes] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let nodes = nodes.map(|tier| {
            let (env, unit, want, stored) = (self.env.clone(), self.unit, self.want(), self.value(7, 100));
            let (loads, lookups, pushes) = (Arc::clone(&loads), Arc::clone(&lookups), Arc::clone(&pushes));
            self.env.spawn(async move {
                lookups.fetch_add(1, Relaxed);
                match tier.lookup(&key(), want).await {
                    Ok(Lookup::Fill(lease)) => {
                        loads.fetch_add(1, Relaxed);
                        env.sleep(unit * 3).await;
                        assert_eq!(tier.fill(&key(), lease, stored).await, Ok(Filled::Kept));
                        Some(7)
                    }
                    Ok(Lookup::Wait(wait)) => match wait.await {
                        Pushed::Filled(held) => {
                            pushes.fetch_add(1, Relaxed);
                            held.value
                        }
                        other => panic!("the value is pushed to all who wait: {other:?}"),
                    },
                    // Came late, on a slow machine.
                    Ok(Lookup::Hit(held)) => held.value,
                    other => panic!("one loads, the others wait: {other:?}"),
                }
            })
        });
        for node in nodes {
            assert_eq!(node.await.expect("no node fails"), Some(7));
        }
        let [loads, lookups, pushes] = [loads, lookups, pushes].map(|count| count.load(Relaxed));
        assert_eq!((loads, lookups), (1, 20), "one load, and one lookup for each node");
        assert!(pushes <= 19, "one push for each who waited");
    }

    /// Two nodes ask for overlapping keys, all at once; and what is there is told apart from what is not.
    async fn many_keys_are_leased_each_to_one_node(&self) {
        let [one, other]: [T; 2] = self.nodes();
        one.put(&"there".to_owned(), self.value(7, 100)).await.expect("the store answers");
        let wanted = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), self.want())).collect::<Vec<_>>();
        let mine = one.lookup_many(&wanted(&["a", "there", "b"])).await;
        let (a, b) = match &mine[..] {
            [Ok(Lookup::Fill(a)), Ok(Lookup::Hit(held)), Ok(Lookup::Fill(b))] if held.value == Some(7) => (*a, *b),
            other => panic!("an answer for each, in order: {other:?}"),
        };
        let mut theirs = other.lookup_many(&wanted(&["b", "c", "a"])).await.into_iter();
        let (Some(Ok(Lookup::Wait(mut for_b))), Some(Ok(Lookup::Fill(c))), Some(Ok(Lookup::Wait(mut for_a)))) =
            (theirs.next(), theirs.next(), theirs.next())
        else {
            panic!("who comes second is given what nobody loads, and waits for the others");
        };
        for (tier, key, lease, value) in [(&one, "a", a, 1), (&one, "b", b, 2), (&other, "c", c, 3)] {
            assert_eq!(tier.fill(&key.to_owned(), lease, self.value(value, 100)).await, Ok(Filled::Kept));
        }
        for (wait, value) in [(&mut for_a, 1), (&mut for_b, 2)] {
            assert!(matches!(self.soon(wait).await, Some(Pushed::Filled(held)) if held.value == Some(value)));
        }
    }

    /// And how old it is, and how long it is fresh, does not depend on who asks.
    async fn a_fresh_value_takes_one_lookup_and_ages_on_the_stores_clock(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        let stored = Stored { grace: self.unit * 5, tags: vec!["news".into()], ..self.value(7, 100) };
        assert_eq!(self.fill(&one, lease, stored).await, Filled::Kept);
        self.sleep(10).await;
        for tier in [&one, &other] {
            let Held { value, age, left, past, grace, load, tags } = self.hit(tier).await;
            assert_eq!((value, past, grace, load), (Some(7), Duration::ZERO, self.unit * 5, self.unit));
            assert_eq!(tags, ["news"]);
            assert!(age >= self.unit * 9 && left <= self.unit * 91, "{age:?} old, {left:?} left");
            assert!(age + left <= self.unit * 101, "{age:?} old, {left:?} left");
        }
    }

    /// That there is no such thing is worth knowing.
    async fn what_is_known_to_be_absent_is_known_to_all(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        let absent = Stored { value: None, ..self.value(0, 100) };
        assert_eq!(self.fill(&one, lease, absent).await, Filled::Kept);
        assert_eq!(self.hit(&other).await.value, None);
    }

    /// What was loaded before the change is out of date.
    async fn a_fill_after_invalidate_is_fenced(&self) {
        let [one, other, third]: [T; 3] = self.nodes();
        let lease = self.lease(&one).await;
        let mut wait = self.wait(&third).await;
        other.invalidate(&key()).await.expect("the store answers");
        assert_eq!(self.soon(&mut wait).await, Some(Pushed::Again), "who waits for a load out of date asks again");
        assert_eq!(self.fill(&one, lease, self.value(1, 100)).await, Filled::Fenced);
        let newer = self.lease(&third).await;
        assert!(newer > lease, "tokens grow");
        assert_eq!(self.fill(&third, newer, self.value(2, 100)).await, Filled::Kept);
        assert_eq!(self.hit(&other).await.value, Some(2));
    }

    /// What was put is newer than what was being loaded.
    async fn a_fill_after_put_is_fenced_and_what_was_put_stands(&self) {
        let [one, other, third]: [T; 3] = self.nodes();
        let lease = self.lease(&one).await;
        let mut wait = self.wait(&third).await;
        other.put(&key(), self.value(2, 100)).await.expect("the store answers");
        match self.soon(&mut wait).await {
            Some(Pushed::Filled(held)) => assert_eq!(held.value, Some(2)),
            other => panic!("what was put is pushed: {other:?}"),
        }
        assert_eq!(self.fill(&one, lease, self.value(1, 100)).await, Filled::Fenced);
        assert_eq!(self.hit(&one).await.value, Some(2));
    }

    /// A lease knows nothing of tags, but what is filled under it does.
    async fn a_fill_after_its_tag_was_expired_is_fenced(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        other.expire_tag("news", Duration::ZERO).await.expect("the store answers");
        let tagged = Stored { tags: vec!["news".into()], ..self.value(1, 100) };
        assert_eq!(self.fill(&one, lease, tagged.clone()).await, Filled::Fenced);
        let lease = self.lease(&one).await;
        assert_eq!(self.fill(&one, lease, tagged).await, Filled::Kept, "a load begun after it is not out of date");
    }

    /// Not a convoy of all who wait, and not a herd of them.
    async fn a_failed_load_passes_its_lease_to_exactly_one_until_all_have_failed(&self) {
        let [one, two, three, four, fifth]: [T; 5] = self.nodes();
        let mut lease = self.lease(&one).await;
        let mut waits = vec![self.wait(&two).await, self.wait(&three).await, self.wait(&four).await];
        for filler in [&one, &two] {
            filler.fail(&key(), lease, self.fault()).await.expect("the store answers");
            let mut passed = Vec::new();
            let mut waiting = Vec::new();
            for mut wait in waits {
                match self.soon(&mut wait).await {
                    Some(Pushed::Lease(lease)) => passed.push(lease),
                    None => waiting.push(wait),
                    other => panic!("the next one tries, the others wait: {other:?}"),
                }
            }
            assert_eq!(passed.len(), 1, "exactly one is next");
            assert!(passed[0] > lease, "tokens grow");
            assert_eq!(self.fill(filler, lease, self.value(1, 100)).await, Filled::Fenced);
            (lease, waits) = (passed[0], waiting);
        }
        three.fail(&key(), lease, self.fault()).await.expect("the store answers");
        for mut wait in waits {
            match self.soon(&mut wait).await {
                Some(Pushed::Failed(failure)) => assert_eq!(&*failure.why, "it broke"),
                other => panic!("three have tried: {other:?}"),
            }
        }
        match self.look(&fifth, self.want()).await {
            Lookup::Failed(failure) => assert!(failure.left <= self.unit * 10 && &*failure.why == "it broke"),
            other => panic!("it failed just now: {other:?}"),
        }
        self.sleep(11).await;
        self.lease(&fifth).await;
    }

    /// Else the next ones wait for nobody.
    async fn who_has_left_is_given_no_lease(&self) {
        let [one, two, three]: [T; 3] = self.nodes();
        let lease = self.lease(&one).await;
        let (leaves, mut stays) = (self.wait(&two).await, self.wait(&three).await);
        drop(leaves);
        self.sleep(1).await;
        one.fail(&key(), lease, self.fault()).await.expect("the store answers");
        assert!(matches!(self.soon(&mut stays).await, Some(Pushed::Lease(_))), "the one who stayed is next");
    }

    /// It came, and was never looked at.
    async fn a_lease_that_came_to_who_leaves_goes_to_the_next(&self) {
        let [one, two, three]: [T; 3] = self.nodes();
        let lease = self.lease(&one).await;
        let (leaves, mut stays) = (self.wait(&two).await, self.wait(&three).await);
        one.fail(&key(), lease, self.fault()).await.expect("the store answers");
        self.sleep(1).await;
        drop(leaves);
        assert!(matches!(self.soon(&mut stays).await, Some(Pushed::Lease(_))), "the one who stays is next");
    }

    /// The next who asks is the next to load.
    async fn the_lease_of_a_dead_node_expires_and_its_fill_is_fenced(&self) {
        let [dead, other]: [T; 2] = self.nodes();
        let lease = self.lease(&dead).await;
        let wait = self.wait(&other).await;
        assert!(wait.left() <= self.unit * 40, "{:?}", wait.left());
        drop(wait);
        self.sleep(41).await;
        let newer = self.lease(&other).await;
        assert!(newer > lease, "tokens grow");
        assert_eq!(self.fill(&dead, lease, self.value(1, 100)).await, Filled::Fenced);
        assert_eq!(self.fill(&other, newer, self.value(2, 100)).await, Filled::Kept);
    }

    /// A slow load is not a dead one.
    async fn a_renewed_lease_does_not_expire(&self) {
        let [slow, other]: [T; 2] = self.nodes();
        let lease = self.lease(&slow).await;
        self.sleep(25).await;
        assert_eq!(slow.renew(&key(), lease, self.unit * 40).await, Ok(Filled::Kept));
        self.sleep(25).await;
        drop(self.wait(&other).await);
        assert_eq!(self.fill(&slow, lease, self.value(1, 100)).await, Filled::Kept);
        assert_eq!(slow.renew(&key(), lease, self.unit).await, Ok(Filled::Fenced), "it ended with the fill");
    }

    /// Nobody waits for a refresh who need not.
    async fn a_stale_value_is_read_while_one_node_refreshes_it(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        let stored = Stored { grace: self.unit * 100, ..self.value(1, 5) };
        assert_eq!(self.fill(&one, lease, stored.clone()).await, Filled::Kept);
        self.sleep(6).await;
        let lease = match self.look(&one, self.want()).await {
            Lookup::Refresh(held, lease) if held.value == Some(1) && held.is_servable() => lease,
            other => panic!("the first to ask refreshes, and has it meanwhile: {other:?}"),
        };
        let mut wait = match self.look(&other, self.want()).await {
            Lookup::Stale(held, wait) if held.value == Some(1) && held.past > Duration::ZERO => wait,
            other => panic!("the others have it meanwhile: {other:?}"),
        };
        assert_eq!(self.fill(&one, lease, Stored { value: Some(2), ..stored }).await, Filled::Kept);
        match self.soon(&mut wait).await {
            Some(Pushed::Filled(held)) => assert_eq!(held.value, Some(2)),
            other => panic!("who waits for the refresh is told: {other:?}"),
        }
        assert_eq!(self.hit(&other).await.value, Some(2));
    }

    /// It is not to be served unless the load fails.
    async fn what_is_kept_for_errors_is_given_to_who_loads_and_nobody_else(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        let stored = Stored { keep: self.unit * 100, ..self.value(1, 5) };
        assert_eq!(self.fill(&one, lease, stored).await, Filled::Kept);
        self.sleep(6).await;
        match self.look(&one, self.want()).await {
            Lookup::Refresh(held, _) => assert!(held.value == Some(1) && !held.is_servable()),
            other => panic!("who loads has it in case that fails: {other:?}"),
        }
        drop(self.wait(&other).await);
    }

    /// By whoever wants to, and by one of them.
    async fn a_value_close_to_its_end_is_refreshed_by_one(&self) {
        let [one, two, three]: [T; 3] = self.nodes();
        let lease = self.lease(&one).await;
        assert_eq!(self.fill(&one, lease, self.value(1, 50)).await, Filled::Kept);
        let early = Want { early: self.unit * 60, ..self.want() };
        assert!(matches!(self.look(&one, early).await, Lookup::Refresh(held, _) if held.left > Duration::ZERO));
        assert!(matches!(self.look(&two, early).await, Lookup::Stale(held, _) if held.left > Duration::ZERO));
        assert_eq!(self.hit(&three).await.value, Some(1), "who does not care has a hit");
    }

    /// It is theirs, and nobody else's.
    async fn a_value_without_time_goes_to_those_who_wait_and_is_not_kept(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let lease = self.lease(&one).await;
        let mut wait = self.wait(&other).await;
        assert_eq!(self.fill(&one, lease, self.value(1, 0)).await, Filled::Kept);
        assert!(matches!(self.soon(&mut wait).await, Some(Pushed::Filled(held)) if held.value == Some(1)));
        self.lease(&other).await;
    }

    /// Or a tag would be a herd.
    async fn a_tag_expires_its_keys_one_by_one(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let keys: Vec<String> = (0..40).map(|number| format!("tagged/{number}")).collect();
        for key in &keys {
            let stored = Stored { grace: self.unit * 500, tags: vec!["news".into()], ..self.value(1, 500) };
            one.put(key, stored).await.expect("the store answers");
        }
        other.expire_tag("news", self.unit * 40).await.expect("the store answers");
        let mut fresh = Vec::new();
        for wait in [1, 20, 21] {
            self.sleep(wait).await;
            let mut hits = 0;
            for key in &keys {
                let lookup = one.lookup(key, self.want()).await.expect("the store answers");
                hits += u32::from(matches!(lookup, Lookup::Hit(_)));
            }
            fresh.push(hits);
        }
        assert!(fresh[0] >= 30 && (5..=35).contains(&fresh[1]) && fresh[2] == 0, "{fresh:?} of 40");
    }

    /// They have done what they did to themselves already.
    async fn news_reach_the_others_and_not_who_made_them(&self) {
        let [one, other]: [T; 2] = self.nodes();
        let (mut own, mut heard) = (one.listen(), other.listen());
        self.sleep(1).await;
        one.put(&key(), self.value(1, 100)).await.expect("the store answers");
        one.invalidate(&key()).await.expect("the store answers");
        one.expire_tag("news", self.unit).await.expect("the store answers");
        let changed = || Some(News::Changed(key()));
        let expired = Some(News::TagExpired { tag: "news".into(), smear: self.unit });
        for news in [changed(), changed(), expired] {
            assert_eq!(self.soon(&mut pin!(heard.next())).await, Some(news));
        }
        assert_eq!(self.soon(&mut pin!(own.next())).await, None);
    }
}

fn key() -> String {
    "odds/42".to_owned()
}

impl<M> fmt::Debug for Suite<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suite").field("unit", &self.unit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{env::sim::Sim, tier::SharedTier};

    #[test]
    fn the_tier_in_memory_keeps_the_contract() {
        for seed in 0..5 {
            let mut sim = Sim::new(seed);
            let env = sim.env();
            let suite = Suite::new(&env, |nodes| {
                let tier = SharedTier::new(&env);
                (0..nodes).map(|_| tier.node()).collect()
            });
            sim.run(suite.all());
        }
    }

    #[test]
    fn so_it_does_across_a_network_that_takes_a_while() {
        let mut sim = Sim::new(1);
        let env = sim.env();
        let suite = Suite::new(&env, |nodes| {
            let (tier, faults) = (SharedTier::new(&env), Faults::default());
            faults.latency(Duration::from_millis(4));
            (0..nodes).map(|_| Faulty::new(&env, tier.node(), &faults)).collect()
        });
        sim.run(suite.all());
    }
}
