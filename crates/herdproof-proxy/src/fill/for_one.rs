//! Errors that say they may be kept, to a request that does not speak for others: kept for the client that got them.
//!
//! One header can turn any page into an error, so what the origin says of such an answer counts for others only once a request of
//! our own has got it too. For the client itself it counts at once: what one client causes, one client has. Which client that is
//! the address tells, and behind a load balancer that is not trusted everybody has one. So what would have to be the same for
//! somebody else to get the answer is also the names of all fields of the request, and the values of those that every browser sends;
//! it is kept for seconds, and not beyond a change of the URL.

use std::{
    convert::Infallible,
    hash::{BuildHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;
use herdproof::flight::Landing;
use http::HeaderMap;

use super::{Arrival, Landed};
use crate::{
    compress::Coming,
    key::{AsKey, Key, KeyRef},
    learn,
    log::Writer,
    object::Object,
    origin::OriginBody,
    policy::RequestDirectives,
    serve::Core,
    store::Snapshot,
    who::Who,
};

/// So long at most.
const MOST: Duration = Duration::from_secs(10);

/// Under which key an answer is kept for who asks in this way, as long as the URL has not changed.
fn place(url: &KeyRef<'_>, who: Who, headers: &HeaderMap, since: Snapshot) -> Key {
    let mut way = FixedState::with_seed(url.hash()).build_hasher();
    way.write_u64(who.key());
    way.write_u32(since.number());
    for (name, value) in headers {
        way.write(name.as_str().as_bytes());
        if learn::is_usual(name) {
            way.write(value.as_bytes());
        }
        way.write_u8(0xff);
    }
    url.alone(way.finish())
}

impl Core {
    /// What is kept of a URL for who asks in this way, while it is fresh.
    pub(crate) fn kept_for(
        &self,
        url: &KeyRef<'_>,
        who: Who,
        headers: &HeaderMap,
        asked: &RequestDirectives,
    ) -> Option<Arc<Object>> {
        if !self.store.keeps_for_one() {
            return None;
        }
        let since = self.store.snapshot(&url.to_key());
        let place = place(url, who, headers, since);
        let object = self.store.find(&place.as_key(), headers).object?;
        object.life.at(self.env.now(), asked).serves().then_some(object)
    }
}

impl Arrival<'_> {
    /// Lands what is for the one who asked, and keeps it for that one.
    pub(super) async fn land_for_one(
        self,
        landed: Landed,
        landing: Landing<Landed, Infallible>,
        writer: Writer,
        body: OriginBody,
    ) {
        let (core, job) = (self.core, self.job);
        let place = place(&job.key.as_key(), job.who, &job.headers, self.since);
        // The next request may come as soon as this one has its last byte.
        core.store.keep_for_one(&place, Arc::clone(&self.object), MOST);
        landing.land_and_end(landed);
        match self.receive(writer, Coming::new(body, None)).await {
            (_, Some((chunks, footprint))) => {
                let object = Object::kept(self.object.head(), self.object.life, chunks, &footprint);
                core.store.keep_for_one(&place, Arc::new(object), MOST);
            }
            (_, None) => core.store.remove(&place, &self.object),
        }
    }
}
