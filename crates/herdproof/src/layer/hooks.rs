//! What a layer asks of a request, and what it writes onto it.

use std::sync::Arc;

use crate::{env::Env, gate::Ask};

/// What a request asks for, as gates see it: its deadline, its priority, its cost.
type Asking<R> = Arc<dyn Fn(&Env, &R) -> Ask + Send + Sync>;
type Stamping<R> = Arc<dyn Fn(&Env, &mut R, &Ask) + Send + Sync>;
type Once<R> = Arc<dyn Fn(&R) -> bool + Send + Sync>;

pub(super) struct Hooks<R> {
    pub(super) asking: Asking<R>,
    pub(super) stamping: Option<Stamping<R>>,
    pub(super) at_most_once: Option<Once<R>>,
}

impl<R> Hooks<R> {
    pub(super) fn ask(&self, env: &Env, request: &R) -> Ask {
        (self.asking)(env, request)
    }

    /// To be called as late as can be: what is written says how much time is left.
    pub(super) fn stamp(&self, env: &Env, request: &mut R, ask: &Ask) {
        if let Some(stamp) = &self.stamping {
            stamp(env, request, ask);
        }
    }

    pub(super) fn is_at_most_once(&self, request: &R) -> bool {
        self.at_most_once.as_ref().is_some_and(|once| once(request))
    }
}

impl<R> Default for Hooks<R> {
    fn default() -> Hooks<R> {
        Hooks { asking: Arc::new(|env, _| Ask::new(env)), stamping: None, at_most_once: None }
    }
}

impl<R> Clone for Hooks<R> {
    fn clone(&self) -> Hooks<R> {
        let Hooks { asking, stamping, at_most_once } = self;
        Hooks { asking: Arc::clone(asking), stamping: stamping.clone(), at_most_once: at_most_once.clone() }
    }
}
