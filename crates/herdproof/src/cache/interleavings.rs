//! Interleavings of a load and its fill with whatever makes them out of date. `cargo xtask test` runs these with the model
//! checker's locks and atomics.

use std::sync::atomic::Ordering::SeqCst;

use shuttle::{sync::atomic::AtomicU32 as Cell, thread};

use super::*;

const TRIES: usize = 20_000;
const KEY: u32 = 1;

/// A cache and its origin, which holds a one at first, and a two from some moment on.
#[derive(Clone)]
struct Scene {
    cache: Cache<u32, u32, String>,
    origin: Arc<Cell>,
    loads: Arc<Cell>,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(Policy::strict(Duration::from_secs(3600)))
    }

    fn with(policy: Policy) -> Scene {
        let cache = Cache::builder(&Env::system()).capacity(16).policy(policy).build();
        Scene { cache, origin: Arc::new(Cell::new(1)), loads: Arc::new(Cell::new(0)) }
    }

    /// Read when the load begins, kept when it ends.
    fn load(&self, tag: Option<&'static str>) -> impl Future<Output = Result<Load<u32>, String>> + Send + use<> {
        self.loads.fetch_add(1, SeqCst);
        let value = self.origin.load(SeqCst);
        async move {
            thread::yield_now();
            Ok(tag.map_or(Load::Value(value), |tag| Load::With(value, Keep::tagged(tag))))
        }
    }

    fn get(&self, tag: Option<&'static str>) -> u32 {
        self.cache.get_with(&KEY, |_| self.load(tag)).wait().unwrap().value
    }

    fn changed(&self) {
        self.origin.store(2, SeqCst);
    }

    fn kept(&self) -> Option<u32> {
        self.cache.peek(&KEY).map(|got| got.value)
    }
}

/// Runs all of these at once, in many orders, and then looks at what is left.
fn check(actors: &'static [fn(&Scene)], after: impl Fn(&Scene) + Send + Sync + 'static) {
    check_from(Scene::new, actors, after);
}

fn check_from(begin: fn() -> Scene, actors: &'static [fn(&Scene)], after: impl Fn(&Scene) + Send + Sync + 'static) {
    shuttle::check_random(
        move || {
            let scene = begin();
            let threads: Vec<_> = actors
                .iter()
                .map(|act| {
                    let scene = scene.clone();
                    thread::spawn(move || act(&scene))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            after(&scene);
        },
        TRIES,
    );
}

fn ask(scene: &Scene) {
    scene.get(None);
}

#[test]
fn whoever_asks_after_an_invalidation_gets_what_is_true_after_it() {
    fn invalidate(scene: &Scene) {
        scene.changed();
        scene.cache.invalidate(&KEY);
        assert_eq!(scene.get(None), 2);
    }
    check(&[ask, ask, invalidate], |scene| assert_eq!(scene.kept(), Some(2)));
}

#[test]
fn what_was_loaded_before_an_invalidation_is_not_kept() {
    fn invalidate(scene: &Scene) {
        scene.changed();
        scene.cache.invalidate(&KEY);
    }
    check(&[ask, ask, invalidate], |scene| assert!(matches!(scene.kept(), None | Some(2))));
}

#[test]
fn a_load_that_fails_does_not_bring_back_what_was_invalidated_as_it_began() {
    /// What was there is past its time, so that it is put off.
    fn ask_in_vain(scene: &Scene) {
        let load = |_| async { Err("down".to_owned()) };
        drop(scene.cache.get_with(&KEY, load).wait());
    }
    fn invalidate(scene: &Scene) {
        scene.cache.invalidate(&KEY);
    }
    fn begin() -> Scene {
        let scene = Scene::with(Policy::strict(Duration::from_nanos(1)).grace(Duration::from_secs(3600)));
        scene.cache.set(KEY, 1);
        scene
    }
    check_from(begin, &[ask_in_vain, ask_in_vain, invalidate], |scene| assert_eq!(scene.kept(), None));
}

#[test]
fn what_was_loaded_before_all_was_cleared_is_not_kept() {
    /// With a load of about as many steps as it takes to go through all flights; a shorter one is always over before.
    fn ask_slowly(scene: &Scene) {
        let slowly = |_| {
            let load = scene.load(None);
            async move {
                (0..40).for_each(|_| thread::yield_now());
                load.await
            }
        };
        scene.cache.get_with(&KEY, slowly).wait().unwrap();
    }
    fn clear(scene: &Scene) {
        scene.changed();
        scene.cache.clear();
    }
    check(&[ask_slowly, clear], |scene| assert!(matches!(scene.kept(), None | Some(2))));
}

#[test]
fn what_was_set_stays_whatever_was_being_loaded() {
    fn set(scene: &Scene) {
        scene.changed();
        scene.cache.set(KEY, 2);
        assert_eq!(scene.get(None), 2);
    }
    check(&[ask, ask, set], |scene| assert_eq!(scene.kept(), Some(2)));
}

#[test]
fn what_was_loaded_before_its_tag_expired_is_not_fresh_after_it() {
    fn ask_tagged(scene: &Scene) {
        scene.get(Some("tag"));
    }
    fn expire(scene: &Scene) {
        scene.changed();
        scene.cache.expire_tag("tag", Duration::ZERO);
    }
    check(&[ask_tagged, ask_tagged, expire], |scene| assert!(matches!(scene.kept(), None | Some(2))));
}

#[test]
fn a_batch_is_fenced_key_by_key() {
    fn ask_many(scene: &Scene) {
        let origin = Arc::clone(&scene.origin);
        let load = move |keys: Vec<u32>| {
            let value = origin.load(SeqCst);
            async move {
                thread::yield_now();
                Ok(keys.into_iter().map(move |key| (key, value)))
            }
        };
        assert_eq!(scene.cache.get_many(&[KEY, 7], load).wait().found.len(), 2);
    }
    fn invalidate(scene: &Scene) {
        scene.changed();
        scene.cache.invalidate(&KEY);
    }
    check(&[ask_many, ask, invalidate], |scene| {
        assert!(matches!(scene.kept(), None | Some(2)));
        assert!(scene.cache.peek(&7).is_some());
    });
}

#[test]
fn those_who_ask_together_make_one_load() {
    check(&[ask, ask, ask], |scene| assert_eq!(scene.loads.load(SeqCst), 1));
}
