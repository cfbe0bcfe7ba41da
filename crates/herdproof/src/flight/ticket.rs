//! A flight that is landed from outside: its load is part of a larger one.
//!
//! One request to the origin can answer for many keys. Each of them is a flight of its own, so that callers of single keys
//! can join it, but it has no load of its own to run.

use std::{
    fmt,
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::{
    Group, Inner,
    follower::Flight,
    landing::Landing,
    load::{Lander, Lead},
    nest::{self, Chain, FlightId},
    outcome::Ending,
    shared::Joined,
    table::{Begun, Place},
};

/// The duty to land a flight. Dropped, it ends the flight as abandoned.
pub(crate) struct Ticket<V: Clone, E> {
    lander: Lander<V, E>,
    id: FlightId,
}

/// A flight of a key, begun now or before.
pub(crate) enum Ticketed<V, E>
where
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    Led(Ticket<V, E>, Flight<V, E>),
    Joined(Flight<V, E>),
}

impl<K, V, E, X> Group<K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    /// Joins the load of this key, or begins a flight that the ticket lands.
    pub(crate) fn ticket(&self, key: K) -> Ticketed<V, E> {
        match self.0.board(self.hash(&key), key, |_, _, _| ()) {
            Ok((begun, ())) => {
                let (ticket, flight) = self.0.issue(begun);
                Ticketed::Led(ticket, flight)
            }
            Err(flight) => Ticketed::Joined(flight),
        }
    }

    /// A flight that the ticket lands, unless somebody loads the key. Nobody waits for it yet.
    pub(crate) fn ticket_if_idle(&self, key: K) -> Option<Ticket<V, E>> {
        let (ticket, flight) = self.0.issue(self.begin_if_idle(key, |_, _, _| ())?.0);
        flight.detach();
        Some(ticket)
    }
}

impl<K, V, E, X> Inner<K, V, E, X>
where
    K: Hash + Eq + Send + 'static,
    V: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
    X: Send + Sync + 'static,
{
    fn issue(self: &Arc<Self>, begun: Begun) -> (Ticket<V, E>, Flight<V, E>) {
        let id = self.id(begun.place);
        let lander = Lead::new(self, begun).into_lander();
        let flight = Flight::aboard(Arc::clone(&lander.shared), Joined { led: true, at: self.env.coarse() });
        (Ticket { lander, id }, flight)
    }
}

impl<V: Clone, E> Ticket<V, E> {
    pub(crate) fn place(&self) -> Place {
        self.lander.shared.place
    }

    /// The right to land it before its load is over. Whatever becomes of that, the duty stays here.
    pub(crate) fn landing(&self) -> Landing<V, E> {
        let Lander { shared, home } = &self.lander;
        Landing::new(Lander { shared: Arc::clone(shared), home: Arc::clone(home) })
    }

    /// Gives everybody aboard this value, unless they have one; newcomers begin anew.
    pub(crate) fn land(self, value: V) {
        self.lander.end(Ending::Value(value));
    }

    /// The inside of all of these flights, for the load that will land them.
    pub(crate) fn inside_of<'a>(tickets: impl Iterator<Item = &'a Ticket<V, E>>) -> Inside<()>
    where
        V: 'a,
        E: 'a,
    {
        Inside { chain: Chain::of(tickets.map(|ticket| ticket.id)), load: () }
    }
}

impl<V: Clone, E> Drop for Ticket<V, E> {
    fn drop(&mut self) {
        self.lander.end(Ending::Abandoned);
    }
}

pin_project! {
    /// A load of many keys, which is refused when it asks for one of them rather than left waiting for itself.
    pub(crate) struct Inside<F> {
        chain: Chain,
        #[pin]
        load: F,
    }
}

impl Inside<()> {
    pub(crate) fn run<F>(self, load: F) -> Inside<F> {
        Inside { chain: self.chain, load }
    }
}

impl<F: Future> Future for Inside<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let inside = self.project();
        nest::exactly(inside.chain, || inside.load.poll(cx))
    }
}

impl<V: Clone, E> fmt::Debug for Ticket<V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.id).finish()
    }
}
