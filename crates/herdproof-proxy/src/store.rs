//! What is kept: the library's cache, by URL and, where a response varies, by variant.
//!
//! A URL whose responses vary has a *signpost* under its key, which says on what; its variants lie under keys of their own,
//! which hold the number of the signpost. So a URL and all its variants change by putting up another signpost: nothing leads to the
//! old variants any more, and what was asked for behind the old signpost has no place.
//!
//! Behind a signpost there is room for so many variants, so that one URL does not push out all others. Whoever invents values of
//! a field must not take that room from those who do not: a new variant always gets in, and the one that goes for it is the one
//! that nobody has asked for in the longest time, about.

mod changes;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use changes::Changes;
pub(crate) use changes::Snapshot;
use herdproof::{
    Env, Tick,
    cache::{Cache, Keep, Policy, Stats},
};
use http::HeaderMap;
use parking_lot::Mutex;

use crate::{
    key::{AsKey, Key, KeyRef},
    object::{Changed, Object},
    policy::vary::{Spec, Variant},
};

/// How many variants a URL may have.
const MOST_VARIANTS: usize = 64;
/// What the keys of a URL's variants may weigh together: they hold what clients say.
const MOST_NAMES: usize = 64 << 10;
/// How long a signpost stands that nothing has been kept behind.
const SIGNPOST: Duration = Duration::from_secs(60);
/// For how long after it can be served an object with a validator is kept: it may spare the origin a body.
const VALIDATOR: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct Store {
    env: Env,
    slots: Cache<Key, Slot>,
    signposts: AtomicU64,
    /// Held while a signpost is looked at and then put up, moved or taken away.
    signs: Mutex<()>,
    /// By the keys of URLs.
    changes: Changes,
    /// Until when anything may be kept for one client only, in nanoseconds.
    for_one_until: AtomicU64,
}

#[derive(Clone, Debug)]
enum Slot {
    Object(Arc<Object>),
    Varies(Arc<Signpost>),
}

/// What the responses of a URL vary on.
#[derive(Debug)]
struct Signpost {
    spec: Spec,
    number: u64,
    /// What was kept behind it, the oldest first. Some of it may be gone by now.
    kept: VecDeque<Arc<Key>>,
    /// Until when the last of it may be of use.
    until: Tick,
}

/// What was found for a request.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) object: Option<Arc<Object>>,
    /// Under which key its like is loaded and kept, if that is not the URL's.
    pub(crate) variant: Option<Key>,
}

/// Which of several answers something is, and what tells them apart; none if there is one for all.
pub(crate) type Which = Option<(Spec, Variant)>;

impl Store {
    /// For so many bytes.
    pub(crate) fn new(env: &Env, memory: u64) -> Store {
        let entries = usize::try_from(memory / (8 << 10)).unwrap_or(usize::MAX).clamp(64, 10_000_000);
        let slots = Cache::builder(env)
            .weighed(memory, entries, |key: &Key, slot: Option<&Slot>| {
                key.weight() as u64 + slot.map_or(0, Slot::weight)
            })
            .policy(Policy::strict(SIGNPOST))
            .build();
        Store {
            env: env.clone(),
            slots,
            signposts: AtomicU64::new(0),
            signs: Mutex::new(()),
            changes: Changes::new(),
            for_one_until: AtomicU64::new(0),
        }
    }

    /// What there is for a request.
    #[inline]
    pub(crate) fn find(&self, key: &KeyRef<'_>, headers: &HeaderMap) -> Found {
        match self.slots.find(key as &dyn AsKey).map(|got| got.value) {
            // One that is still arriving, and too large to be kept or broken off, is of no use to who comes late.
            Some(Slot::Object(object)) if object.has_beginning() => Found { object: Some(object), variant: None },
            Some(Slot::Object(_)) | None => Found { object: None, variant: None },
            Some(Slot::Varies(signpost)) => self.find_variant(key, &signpost, headers),
        }
    }

    /// What there is for every request for this URL, if that is one thing and will do.
    #[inline]
    pub(crate) fn find_if(&self, key: &KeyRef<'_>, will_do: impl FnOnce(&Object) -> bool) -> Option<Arc<Object>> {
        let will_do = |slot: &Slot| matches!(slot, Slot::Object(object) if will_do(object));
        match self.slots.find_if(key as &dyn AsKey, will_do)?.value {
            Slot::Object(object) => Some(object),
            Slot::Varies(_) => None,
        }
    }

    #[inline(never)]
    fn find_variant(&self, key: &KeyRef<'_>, signpost: &Signpost, headers: &HeaderMap) -> Found {
        let place = key.to_variant(signpost.number, &signpost.spec.variant(headers));
        let object = match self.slots.find(&place as &dyn AsKey).map(|got| got.value) {
            Some(Slot::Object(object)) if object.has_beginning() => Some(object),
            Some(Slot::Object(_) | Slot::Varies(_)) | None => None,
        };
        if let Some(object) = &object {
            object.want();
        }
        Found { object, variant: Some(place) }
    }

    /// What the responses of a URL vary on, if they do.
    pub(crate) fn varies_on(&self, key: &Key) -> Option<Spec> {
        match self.slots.peek(key as &dyn AsKey)?.value {
            Slot::Varies(signpost) => Some(signpost.spec.clone()),
            Slot::Object(_) => None,
        }
    }

    /// What there is by now for who has found nothing at this place.
    pub(crate) fn at(&self, place: &Place, headers: &HeaderMap) -> Option<(Arc<Object>, Which)> {
        let peek = |key: &Key| self.slots.peek(key as &dyn AsKey).map(|got| got.value);
        let (slot, variant) = match peek(place.key())? {
            Slot::Varies(signpost) => {
                let variant = signpost.spec.variant(headers);
                let slot = peek(&place.url().as_key().to_variant(signpost.number, &variant))?;
                (slot, Some((signpost.spec.clone(), variant)))
            }
            slot @ Slot::Object(_) => (slot, None),
        };
        match slot {
            Slot::Object(object) if object.has_beginning() => Some((object, variant)),
            Slot::Object(_) | Slot::Varies(_) => None,
        }
    }

    /// Where the response to this request is kept, now that it is known to vary on this: behind the signpost that is there, or
    /// behind a new one. Nowhere, if it was asked for behind a signpost that is gone: what it led to has changed since.
    pub(crate) fn place(&self, asked: &Place, spec: &Spec, headers: &HeaderMap) -> Option<Place> {
        let key = asked.url();
        let _signs = self.signs.lock();
        let standing = match self.slots.peek(key as &dyn AsKey).map(|got| got.value) {
            Some(Slot::Varies(signpost)) => Some(signpost),
            Some(Slot::Object(_)) | None => None,
        };
        let behind =
            |signpost: &Signpost, spec: &Spec| key.as_key().to_variant(signpost.number, &spec.variant(headers));
        if let Place::Variant { place, .. } = asked
            && standing.as_ref().is_none_or(|signpost| behind(signpost, &signpost.spec) != *place)
        {
            return None;
        }
        let signpost = standing.filter(|signpost| signpost.spec == *spec).unwrap_or_else(|| {
            let number = self.signposts.fetch_add(1, Relaxed);
            let signpost = Arc::new(Signpost { spec: spec.clone(), number, kept: VecDeque::new(), until: Tick::ZERO });
            self.slots.set_with(key.clone(), Slot::Varies(Arc::clone(&signpost)), &Keep::ttl(SIGNPOST));
            signpost
        });
        Some(Place::Variant { key: key.clone(), place: behind(&signpost, spec) })
    }

    /// Keeps an object for as long as it can be of use.
    pub(crate) fn put(&self, place: &Place, object: Arc<Object>, has_validator: bool) {
        let now = self.env.now();
        let ttl = ttl(&object, has_validator, now);
        let _signs = matches!(place, Place::Variant { .. }).then(|| self.signs.lock());
        if let Place::Variant { key, place } = place
            && let Some(Slot::Varies(signpost)) = self.slots.peek(key as &dyn AsKey).map(|got| got.value)
        {
            if !place.is_behind(signpost.number) {
                // It has changed since: nothing leads there any more.
                return;
            }
            // It stands for as long as there is something behind it, which need not be what was put there last.
            let until = signpost.until.max(now + ttl.max(SIGNPOST));
            let (spec, number) = (signpost.spec.clone(), signpost.number);
            // Another one, as what lies in the cache must not change its weight there.
            let signpost = Signpost { spec, number, kept: self.make_room(signpost.kept.clone(), place), until };
            self.slots.set_with(key.clone(), Slot::Varies(Arc::new(signpost)), &Keep::ttl(until - now));
        }
        self.slots.set_with(place.key().clone(), Slot::Object(object), &Keep::ttl(ttl));
    }

    /// Keeps what is for one client only, under a key that no other asks for, for as long as it is fresh and this long at most.
    pub(crate) fn keep_for_one(&self, key: &Key, object: Arc<Object>, most: Duration) {
        let now = self.env.now();
        let ttl = object.life.fresh_for(now).min(most);
        self.for_one_until.fetch_max((now + ttl).as_nanos(), Relaxed);
        self.slots.set_with(key.clone(), Slot::Object(object), &Keep::ttl(ttl));
    }

    /// Whether anything may be kept for one client only.
    pub(crate) fn keeps_for_one(&self) -> bool {
        self.env.now().as_nanos() < self.for_one_until.load(Relaxed)
    }

    /// What lies behind a signpost when this is there too. Who was asked for since it was last looked at stays for another round.
    fn make_room(&self, mut kept: VecDeque<Arc<Key>>, place: &Key) -> VecDeque<Arc<Key>> {
        if kept.iter().any(|key| **key == *place) {
            return kept;
        }
        let object = |key: &Key| match self.slots.peek(key as &dyn AsKey)?.value {
            Slot::Object(object) => Some(object),
            Slot::Varies(_) => None,
        };
        // What is over, or had to go for others, has given its place back.
        kept.retain(|key| object(key).is_some());
        let mut names = place.weight() + kept.iter().map(|key| key.weight()).sum::<usize>();
        let mut chances = kept.len();
        while kept.len() >= MOST_VARIANTS || names > MOST_NAMES {
            let Some(oldest) = kept.pop_front() else { break };
            if chances > 0 && object(&oldest).is_some_and(|object| object.was_wanted()) {
                chances -= 1;
                kept.push_back(oldest);
            } else {
                names -= oldest.weight();
                self.slots.invalidate(&*oldest as &dyn AsKey);
            }
        }
        kept.push_back(Arc::new(place.clone()));
        kept
    }

    /// Takes this very object away, if it is there.
    pub(crate) fn remove(&self, key: &Key, object: &Arc<Object>) {
        let is_it = |slot: &Slot| matches!(slot, Slot::Object(other) if Arc::ptr_eq(other, object));
        if self.slots.peek(key as &dyn AsKey).is_some_and(|got| is_it(&got.value)) {
            self.slots.invalidate(key as &dyn AsKey);
        }
    }

    /// What a URL stands for has changed. What is kept of it is no longer served before the origin was asked, whichever variant it is.
    pub(crate) fn changed(&self, key: &Key) {
        let _signs = self.signs.lock();
        self.changes.add(key.hash());
        match self.slots.peek(key as &dyn AsKey).map(|got| got.value) {
            Some(Slot::Object(object)) => drop(self.put_changed(key, key.clone(), &object)),
            Some(Slot::Varies(signpost)) => self.put_up_again(key, &signpost),
            None => {}
        }
    }

    /// Puts what is left of an object under a key, and whether there is something. There is no other object under the old key then.
    fn put_changed(&self, old: &Key, key: Key, object: &Object) -> bool {
        let now = self.env.now();
        match object.changed(now) {
            Changed::Kept { object, has_validator } => {
                let keep = Keep::ttl(ttl(&object, has_validator, now));
                if *old != key {
                    self.slots.invalidate(old as &dyn AsKey);
                }
                self.slots.set_with(key, Slot::Object(object), &keep);
                true
            }
            Changed::Gone => {
                self.slots.invalidate(old as &dyn AsKey);
                false
            }
        }
    }

    /// Another signpost in the place of this one, with what is left of the variants behind it.
    fn put_up_again(&self, url: &Key, signpost: &Signpost) {
        let number = self.signposts.fetch_add(1, Relaxed);
        let mut kept = VecDeque::new();
        for old in &signpost.kept {
            let Some(Slot::Object(object)) = self.slots.peek(&**old as &dyn AsKey).map(|got| got.value) else {
                continue;
            };
            let place = url.as_key().moved(old, number);
            if self.put_changed(old, place.clone(), &object) {
                kept.push_back(Arc::new(place));
            }
        }
        if kept.is_empty() {
            return self.slots.invalidate(url as &dyn AsKey);
        }
        let keep = Keep::ttl(signpost.until.max(self.env.now() + SIGNPOST) - self.env.now());
        let signpost = Signpost { spec: signpost.spec.clone(), number, kept, until: signpost.until };
        self.slots.set_with(url.clone(), Slot::Varies(Arc::new(signpost)), &keep);
    }

    /// How often this URL was said to have changed.
    pub(crate) fn snapshot(&self, url: &Key) -> Snapshot {
        self.changes.of(url.hash())
    }

    pub(crate) fn stats(&self) -> Stats {
        self.slots.stats()
    }
}

/// How long an object can be of use.
fn ttl(object: &Object, has_validator: bool, now: Tick) -> Duration {
    object.life.servable_for(now) + if has_validator { VALIDATOR } else { Duration::ZERO }
}

/// Where an object is kept.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Under its URL.
    Plain(Key),
    /// Behind the signpost of its URL.
    Variant {
        /// Of the URL.
        key: Key,
        /// Its own.
        place: Key,
    },
}

impl Place {
    /// The key of the URL.
    pub(crate) fn url(&self) -> &Key {
        match self {
            Place::Plain(key) | Place::Variant { key, .. } => key,
        }
    }

    /// Under which key.
    pub(crate) fn key(&self) -> &Key {
        match self {
            Place::Plain(key) => key,
            Place::Variant { place, .. } => place,
        }
    }
}

impl Slot {
    fn weight(&self) -> u64 {
        match self {
            Slot::Object(object) => object.weight(),
            Slot::Varies(signpost) => 256 + signpost.kept.iter().map(|key| key.weight() as u64).sum::<u64>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use herdproof::Sim;
    use http::{HeaderValue, Method, StatusCode};

    use super::*;
    use crate::{
        head::{Head, block},
        key::{Keyer, Scheme},
        memory::Footprint,
        policy::{Draws, RequestDirectives, Route, Times, Use, Vary, classify, judge},
    };

    fn request(language: &str) -> HeaderMap {
        [(http::header::ACCEPT_LANGUAGE, HeaderValue::from_str(language).unwrap())].into_iter().collect()
    }

    /// Puts an answer that varies where it belongs.
    fn put(store: &Store, asked: &Place, language: &str, control: &'static str) -> Option<Place> {
        let headers = [("vary", "accept-language"), ("cache-control", control)];
        let headers: HeaderMap =
            headers.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).into_iter().collect();
        let now = store.env.now();
        let times = Times { asked: now, answered: now, wall: UNIX_EPOCH };
        let (class, route) = (classify(&Method::GET, &HeaderMap::new(), &Route::default()), Route::default());
        let judged = judge(&class, StatusCode::OK, &headers, &route, &times, Draws::default());
        let Vary::On(spec) = judged.terms.vary else { panic!("it varies") };
        let place = store.place(asked, &spec, &request(language))?;
        let object =
            Object::kept(Head::new(&block(StatusCode::OK, &headers)), judged.life, Vec::new(), &Footprint::uncounted());
        store.put(&place, Arc::new(object), false);
        Some(place)
    }

    #[test]
    fn a_short_lived_variant_does_not_hide_a_long_lived_one() {
        let mut sim = Sim::new(1);
        let store = Store::new(&sim.env(), 1 << 20);
        let keyer = Keyer::new(1);
        let url = keyer.key(Scheme::Http, "a", "/").unwrap();
        let plain = Place::Plain(url.to_key());
        put(&store, &plain, "de", "max-age=3600, must-revalidate").unwrap();
        put(&store, &plain, "en", "max-age=1, must-revalidate").unwrap();
        sim.run(sim.env().sleep(2 * SIGNPOST));
        assert!(store.find(&url, &request("de")).object.is_some());
        assert!(store.find(&url, &request("en")).object.is_none());
    }

    #[test]
    fn what_was_asked_for_behind_a_signpost_that_is_gone_has_no_place() {
        let store = Store::new(&Sim::new(1).env(), 1 << 20);
        let keyer = Keyer::new(1);
        let url = keyer.key(Scheme::Http, "a", "/").unwrap();
        let plain = Place::Plain(url.to_key());
        let place = put(&store, &plain, "de", "max-age=60").unwrap();
        assert!(put(&store, &place, "de", "max-age=60").is_some(), "nothing has changed");
        store.changed(&url.to_key());
        assert!(put(&store, &place, "de", "max-age=60").is_none());
        put(&store, &plain, "de", "max-age=60").unwrap();
        assert!(put(&store, &place, "de", "max-age=60").is_none(), "that is another signpost");
    }

    #[test]
    fn every_variant_of_what_has_changed_is_asked_about_and_none_is_lost() {
        let store = Store::new(&Sim::new(1).env(), 1 << 20);
        let url = Keyer::new(1).key(Scheme::Http, "a", "/").unwrap();
        let plain = Place::Plain(url.to_key());
        for language in ["de", "en\u{e9}"] {
            put(&store, &plain, language, "max-age=60").unwrap();
        }
        let use_of = |language: &str| {
            let life = store.find(&url, &request(language)).object.map(|object| object.life);
            life.map(|life| life.at(store.env.now(), &RequestDirectives::default()))
        };
        assert_eq!((use_of("de"), use_of("en\u{e9}")), (Some(Use::Fresh), Some(Use::Fresh)));
        for _ in 0..3 {
            store.changed(&url.to_key());
            assert_eq!(
                (use_of("de"), use_of("en\u{e9}"), use_of("fr")),
                (Some(Use::IfError), Some(Use::IfError), None)
            );
            assert_eq!(store.stats().entries, 3, "nothing is left behind the old signpost");
        }
        put(&store, &plain, "de", "max-age=60").unwrap();
        assert_eq!((use_of("de"), use_of("en\u{e9}")), (Some(Use::Fresh), Some(Use::IfError)));
    }

    #[test]
    fn what_comes_for_a_place_behind_an_old_signpost_is_not_kept() {
        let store = Store::new(&Sim::new(1).env(), 1 << 20);
        let url = Keyer::new(1).key(Scheme::Http, "a", "/").unwrap();
        let place = put(&store, &Place::Plain(url.to_key()), "de", "max-age=60").unwrap();
        let object = store.find(&url, &request("de")).object.unwrap();
        store.changed(&url.to_key());
        store.put(&place, object, false);
        assert_eq!(store.stats().entries, 2);
        // Else it would be moved behind the next signpost as if it belonged there.
        store.changed(&url.to_key());
        assert!(store.find(&url, &request("de")).object.unwrap().life.is_changed());
    }

    #[test]
    fn what_can_stand_in_for_nothing_is_gone_when_it_changes() {
        let store = Store::new(&Sim::new(1).env(), 1 << 20);
        let url = Keyer::new(1).key(Scheme::Http, "a", "/").unwrap();
        put(&store, &Place::Plain(url.to_key()), "de", "max-age=60, must-revalidate").unwrap();
        store.changed(&url.to_key());
        assert_eq!(store.stats().entries, 0);
    }

    #[test]
    fn what_is_over_gives_its_place_back_before_anybody_has_to_go() {
        let mut sim = Sim::new(1);
        let store = Store::new(&sim.env(), 1 << 20);
        let url = Keyer::new(1).key(Scheme::Http, "a", "/").unwrap();
        let plain = Place::Plain(url.to_key());
        put(&store, &plain, "de", "max-age=3600").unwrap();
        for number in 1..MOST_VARIANTS {
            put(&store, &plain, &format!("x-{number}"), "max-age=1, must-revalidate").unwrap();
        }
        sim.run(sim.env().sleep(Duration::from_secs(2)));
        for number in 1..MOST_VARIANTS {
            put(&store, &plain, &format!("y-{number}"), "max-age=60").unwrap();
        }
        assert!(store.find(&url, &request("de")).object.is_some(), "the oldest, and nobody had asked for it");
        assert!(store.find(&url, &request("y-1")).object.is_some());
    }

    #[test]
    fn long_names_do_not_make_a_signpost_heavy() {
        let store = Store::new(&Sim::new(1).env(), 8 << 20);
        let url = Keyer::new(1).key(Scheme::Http, "a", "/").unwrap();
        let plain = Place::Plain(url.to_key());
        for number in 0..MOST_VARIANTS {
            put(&store, &plain, &format!("x-{number}-{}", "x".repeat(MOST_NAMES / 8)), "max-age=60").unwrap();
        }
        assert!(store.stats().entries < 10 && store.stats().weight < 4 * MOST_NAMES as u64, "{:?}", store.stats());
        put(&store, &plain, &"x".repeat(2 * MOST_NAMES), "max-age=60").unwrap();
        put(&store, &plain, "de", "max-age=60").unwrap();
        assert!(store.find(&url, &request("de")).object.is_some());
    }
}
