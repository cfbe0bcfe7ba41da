//! Autopsies: stale while revalidating, as it is mostly written.
//!
//! Serve what is there for a while after its time, load it again behind the reader's back: ten lines, and four ways to get them
//! wrong, each from a published sample or a bug report. They all look the same on a good day. So here the origin is down for ten
//! seconds, in the middle.
//!
//! - *Each reader refreshes*: nothing says that somebody already does. As many loads as readers come while one is under way, and
//!   while the origin is down, one for every reader.
//! - *The flag is left set*: the refresh fails, and the line that clears its flag is not reached. From then on nothing is refreshed
//!   any more; every value lives to its hard end, and then everybody loads.
//! - *Tied to the request*: the refresh runs in the request that began it and is cancelled with it, a moment after the answer. So no
//!   refresh is ever finished, and each reader begins another.
//! - *Stale for ever*: no hard end. It is the one that nobody notices.
//!
//! The cache has one flight for misses and refreshes, which belongs to no request, ends whatever happens, waits between failures,
//! and serves nothing beyond its end: the grace, or longer where a load has failed, if that was asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use herdproof::{Cache, Env, Sim, Tick, cache::Policy, timeout::by};
use parking_lot::Mutex;

use super::{
    Scenario,
    readers::{Crowd, Reads},
};
use crate::{
    arrivals::poisson,
    knob::{Settings, knobs},
    log::{Caller, Tap},
    report::{Arm, Check, Figure, Mark, Report, Source, say},
    service::{Plan, Service, Unserved},
    timeline::Timeline,
};

const SEC: Duration = Duration::from_secs(1);
const ON_ERROR: Duration = Duration::from_secs(60);
/// When the origin is down, and when the run ends.
const DOWN: Duration = Duration::from_secs(10);
const OUTAGE: Duration = Duration::from_secs(10);
const UP: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(30);
/// How long after its answer a request is over.
const CLOSED: Duration = Duration::from_millis(5);
const BIN: Duration = Duration::from_millis(100);
/// A thousand readers a second over ten times to live, without any trouble.
const HERD: f64 = 1_000.0;
const CALM: Duration = Duration::from_secs(10);
/// Readers a second of a page at the edge, and for how long it may be served while it is loaded again.
const EDGE: f64 = 30_000.0;
const EDGE_GRACE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sample {
    EachReader,
    FlagLeftSet,
    TiedToRequest,
    StaleForEver,
}

/// With what they are called in the articles, as far as they are from there.
const SAMPLES: [(Sample, &str, &[&str]); 4] = [
    (Sample::EachReader, "each reader refreshes", &["C10", "C13"]),
    (Sample::FlagLeftSet, "the flag is left set", &["C13"]),
    (Sample::TiedToRequest, "tied to the request", &[]),
    (Sample::StaleForEver, "stale for ever", &[]),
];

knobs! {
    /// Readers a second.
    readers: f64 = 100.0, 1.0..=1_000.0;
    /// How long a load takes.
    load: Duration = Duration::from_millis(80), Duration::from_millis(1)..=SEC * 2;
    /// How long a value is fresh.
    soft: Duration = SEC, SEC / 20..=SEC * 10;
    /// How long after that it may be served while it is loaded again: to its hard end.
    grace: Duration = SEC * 4, Duration::ZERO..=SEC * 60;
}

pub(super) const SCENARIO: Scenario = Scenario {
    name: "swr",
    title: "autopsies: four ways to get stale-while-revalidate wrong, and an outage that shows them",
    knobs: Knobs::all,
    run,
};

fn run(settings: &Settings) -> Report {
    let (seed, knobs) = (settings.seed, Knobs::of(settings));
    let trial = |arm| Trial { rate: knobs.readers, end: END, outage: true, tap: settings.tap(arm) };
    let samples: [Run; 4] =
        std::array::from_fn(|arm| Run::new(seed, knobs, trial(arm), |world| world.sample(SAMPLES[arm].0)));
    // A failure is remembered where there is nothing to serve, or each reader after it would ask again.
    let rule = Policy::new(knobs.soft).early(false).jitter(0.0).grace(knobs.grace).failed(SEC / 2);
    let cached = |arm, policy: &Policy| Run::new(seed, knobs, trial(arm), |world| world.cache(policy.clone()));
    let cache = cached(SAMPLES.len(), &rule);
    let longer = cached(SAMPLES.len() + 1, &rule.clone().on_error(ON_ERROR).patience(Duration::ZERO));
    let calm = |policy: Policy| Run::new(seed, knobs, Trial::calm(HERD, CALM), |world| world.cache(policy.clone()));
    let grace = calm(Policy::strict(knobs.soft).grace(knobs.grace));
    let strict = calm(Policy::strict(knobs.soft));
    let mut checks = autopsies(knobs, &samples);
    checks.extend(ours(knobs, &cache, &longer));
    checks.extend(boundaries(knobs, &grace, &strict));
    checks.extend(at_the_edge(seed, knobs));
    let while_down = samples.each_ref().map(Run::in_outage);
    let never_well = samples.iter().filter(|run| run.after().oldest() > knobs.grace).count();
    let summary = format!(
        "while the origin was down for ten seconds, the samples called it {} to {} times, and after it {never_well} of the 4 still \
         refreshed nothing. The cache called it {} times and served nothing older than {}; told to keep values for errors, it \
         answered {} of {} readers.",
        while_down.iter().min().unwrap_or(&0),
        while_down.iter().max().unwrap_or(&0),
        cache.in_outage(),
        say(knobs.hard()),
        longer.reads.all().served(),
        longer.reads.all().len(),
    );
    let mut arms: Vec<Arm> = SAMPLES
        .into_iter()
        .zip(&samples)
        .map(|((_, name, cited), run)| Arm { samples: cited.to_vec(), ..run.arm(name) })
        .collect();
    arms.push(cache.arm("cache"));
    arms.push(longer.arm("cache, on_error 60 s"));
    Report {
        scenario: "swr",
        seed,
        marks: vec![Mark { at: DOWN, what: "the origin is down" }, Mark { at: UP, what: "it is back" }],
        arms,
        span: END,
        checks,
        summary,
        ..Report::default()
    }
}

impl Knobs {
    /// When a value is served no more.
    fn hard(self) -> Duration {
        self.soft + self.grace
    }

    /// When the cold start is over: the first reader has come and its load has landed.
    fn cold(self) -> Duration {
        self.load + Duration::from_millis(120)
    }

    /// How long after the beginning of the outage the value is not past its hard end, however old it was then.
    fn still_there(self) -> Duration {
        self.grace.saturating_sub(Duration::from_millis(100))
    }
}

fn autopsies(knobs: Knobs, [each, flag, tied, for_ever]: &[Run; 4]) -> Vec<Check> {
    let hard = knobs.hard().as_secs_f64() - 0.1;
    // One, and as many as come while it loads.
    let herd = 1.0 + knobs.readers * knobs.load.as_secs_f64();
    let expiries = DOWN.as_secs_f64() / (knobs.soft + knobs.load).as_secs_f64();
    vec![
        Check::within(
            Source::Formula,
            format!("each reader: loads for each expiry, 1 + {}/s x {}", knobs.readers, say(knobs.load)),
            herd,
            0.35 * herd,
            each.calls_between(Duration::ZERO, DOWN) as f64 / expiries,
        )
        .cites("C13")
        .cites("H3"),
        Check::equal(
            Source::Article,
            "each reader: calls while the origin is down, one for each reader",
            &each.reads.between(DOWN + knobs.soft, UP).len(),
            &each.calls_between(DOWN + knobs.soft, UP),
        )
        .cites("C10")
        .cites("C13"),
        Check::equal(
            Source::Article,
            "each reader: at the cold start nobody asks whether somebody loads, so all load who come until the first has",
            &each.reads.between(Duration::ZERO, knobs.cold()).waited(),
            &each.calls_between(Duration::ZERO, knobs.cold()),
        )
        .cites("C10"),
        Check::at_least(
            Source::Article,
            "flag left set: from the failure on, values live to their hard end (s)",
            hard,
            flag.after().oldest().as_secs_f64(),
        )
        .cites("C13")
        .cites("N27"),
        Check::at_least(Source::Article, "flag left set: readers who wait, after the outage", 1.0, {
            flag.after().waited() as f64
        })
        .cites("C13"),
        Check::at_least(
            Source::Published,
            "tied to the request: nothing is ever refreshed, even on a good day (oldest, s)",
            hard,
            tied.before().oldest().as_secs_f64(),
        )
        .cites("otter#124"),
        Check::at_least(Source::Published, "tied to the request: loads for nobody before the outage", 100.0, {
            tied.wasted as f64
        })
        .cites("otter#124"),
        Check::at_least(
            Source::Article,
            "stale for ever: as old as the outage is long (s)",
            OUTAGE.as_secs_f64(),
            for_ever.reads.all().oldest().as_secs_f64(),
        )
        .cites("T10"),
    ]
}

fn ours(knobs: Knobs, cache: &Run, longer: &Run) -> Vec<Check> {
    // From half a second to a second apart.
    let attempts = 2.0 * OUTAGE.as_secs_f64() + 1.0;
    vec![
        Check::at_most(Source::Promise, "cache: calls while the origin is down", attempts, cache.in_outage() as f64)
            .cites("T10"),
        Check::at_most(
            Source::Promise,
            "cache: nothing is served after its hard end (s)",
            knobs.hard().as_secs_f64(),
            cache.reads.all().oldest().as_secs_f64(),
        )
        .cites("N27")
        .cites("T10"),
        Check::equal(Source::Promise, "cache: nobody fails before the hard end or after the outage", &0, &{
            cache.reads.between(Duration::ZERO, DOWN + knobs.still_there()).errors()
                + cache.reads.between(UP + SEC, END).errors()
        })
        .cites("T10"),
        Check::equal(Source::Promise, "with on_error: readers who fail", &0, &longer.reads.all().errors()).cites("T10"),
        Check::equal(Source::Promise, "with on_error: readers who wait, after the cold start", &0, &{
            longer.reads.between(knobs.cold(), END).waited()
        })
        .cites("T10"),
        Check::at_most(
            Source::Promise,
            "with on_error: as old as the outage, and one pause and load more (s)",
            (OUTAGE + knobs.soft + SEC + knobs.load).as_secs_f64(),
            longer.reads.all().oldest().as_secs_f64(),
        )
        .cites("T10"),
    ]
}

fn boundaries(knobs: Knobs, grace: &Run, strict: &Run) -> Vec<Check> {
    let loads = u64::try_from(CALM.as_nanos() / knobs.soft.as_nanos()).unwrap_or(u64::MAX);
    vec![
        Check::equal(
            Source::Promise,
            "1,000 readers a second, grace: one load for each TTL, in 10 s",
            &loads,
            &grace.calls.total(),
        )
        .cites("T10"),
        Check::equal(Source::Promise, "... and nobody waits after the cold start", &0, &{
            grace.reads.between(knobs.cold(), CALM).waited()
        })
        .cites("T10"),
        Check::equal(Source::Promise, "... strict: as many loads", &loads, &strict.calls.total()).cites("T5"),
        Check::equal(Source::Promise, "... strict: nobody gets anything past its time", &0, &{
            strict.reads.all().older_than(knobs.soft)
        })
        .cites("T10"),
    ]
}

/// One expiry, and enough readers that a load for each of them is thousands.
fn at_the_edge(seed: u64, knobs: Knobs) -> Vec<Check> {
    let end = knobs.soft * 2;
    let refreshes =
        |way: &dyn Fn(&World) -> Get| Run::new(seed, knobs, Trial::calm(EDGE, end), way).calls_between(knobs.soft, end);
    let each = refreshes(&|world| world.sample(Sample::EachReader));
    let one = refreshes(&|world| world.cache(Policy::strict(knobs.soft).grace(EDGE_GRACE)));
    let herd = 1.0 + EDGE * knobs.load.as_secs_f64();
    vec![
        Check::within(
            Source::Article,
            "30,000 readers a second, one expiry, each reader refreshes: thousands of loads, 1 + R x d",
            herd,
            4.0 * herd.sqrt(),
            each as f64,
        )
        .cites("N15")
        .cites("C13"),
        Check::equal(Source::Article, "... stale-while-revalidate of 60 s through the cache: one", &1, &one)
            .cites("N15")
            .cites("T13"),
    ]
}

struct Run {
    knobs: Knobs,
    calls: Timeline,
    /// Served to nobody before the outage.
    wasted: u64,
    reads: Reads,
}

/// How many read, for how long, whether the origin is down in the middle, and who listens.
struct Trial {
    rate: f64,
    end: Duration,
    outage: bool,
    tap: Tap,
}

impl Trial {
    fn calm(rate: f64, end: Duration) -> Trial {
        Trial { rate, end, outage: false, tap: Tap::default() }
    }
}

/// Where one run takes place.
struct World {
    knobs: Knobs,
    env: Env,
    service: Service,
}

/// One way to get the value.
type Get = Box<dyn Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = Result<Tick, ()>> + Send>>>;

impl Run {
    fn new(seed: u64, knobs: Knobs, trial: Trial, way: impl Fn(&World) -> Get) -> Run {
        let Trial { rate, end, outage, tap } = trial;
        let mut sim = Sim::new(seed);
        let env = sim.env();
        let service = Service::tapped(&env, "origin", BIN, Plan::new(usize::MAX, knobs.load), tap);
        let get = way(&World { knobs, env: env.clone(), service: service.clone() });
        let reads = Reads::default();
        let read = |id| {
            let (clock, reads, got) = (env.clone(), reads.clone(), get(id));
            env.spawn(async move { reads.read(&clock, got).await }).detach();
        };
        let wasted = Arc::new(Mutex::new(0));
        if outage {
            let (clock, service, wasted) = (env.clone(), service.clone(), Arc::clone(&wasted));
            env.spawn(async move {
                clock.sleep(DOWN).await;
                *wasted.lock() = service.seen().wasted;
                service.change(|plan| plan.down = true);
                clock.sleep(OUTAGE).await;
                service.change(|plan| plan.down = false);
            })
            .detach();
        }
        sim.run(poisson(&env, &env.rng("readers"), Tick::ZERO + end, |_| rate, read));
        // Those who are under way.
        sim.run_until(Tick::ZERO + end + SEC);
        let wasted = *wasted.lock();
        Run { knobs, calls: service.seen().calls, wasted, reads }
    }

    fn calls_between(&self, from: Duration, to: Duration) -> u64 {
        let bin = |time: Duration| usize::try_from(time.as_nanos() / BIN.as_nanos()).unwrap_or(usize::MAX);
        self.calls.counts().iter().take(bin(to)).skip(bin(from)).sum()
    }

    fn in_outage(&self) -> u64 {
        self.calls_between(DOWN, UP)
    }

    fn before(&self) -> Crowd {
        self.reads.between(Duration::ZERO, DOWN)
    }

    /// When the first reads after the outage are over, and with them what it has done to one value.
    fn after(&self) -> Crowd {
        self.reads.between(UP + SEC, END)
    }

    fn arm(&self, name: &'static str) -> Arm {
        let all = self.reads.all();
        let figures = vec![
            Figure::count("calls", "calls", self.calls.total()),
            Figure::count("calls_while_down", "while down", self.in_outage()),
            Figure::count("waited", "waited", self.reads.between(self.knobs.cold(), END).waited()),
            Figure::count("errors", "errors", all.errors()),
            Figure::time("oldest_before_ms", "old before", self.before().oldest()),
            Figure::time("oldest_while_down_ms", "while down", self.reads.between(DOWN, UP).oldest()),
            Figure::time("oldest_after_ms", "old after", self.after().oldest()),
        ];
        Arm::new(name, figures, self.calls.clone()).waits(self.reads.all().waits())
    }
}

impl World {
    /// A load by this reader, in a wave with those of the same time to live.
    fn load(&self, id: u64) -> impl Future<Output = Result<Tick, Unserved>> + Send + use<> {
        let World { env, service, knobs } = self;
        let (env, service, soft) = (env.clone(), service.clone(), knobs.soft);
        async move {
            let wave = u32::try_from((env.now() - Tick::ZERO).as_nanos() / soft.as_nanos()).unwrap_or(u32::MAX);
            service.call_from(Caller::of(id, "/key").in_wave("ttl", wave)).await?;
            Ok(env.now())
        }
    }

    fn cache(&self, policy: Policy) -> Get {
        let cache: Cache<&str, Tick, Unserved> = Cache::builder(&self.env).policy(policy).build();
        let world = World { knobs: self.knobs, env: self.env.clone(), service: self.service.clone() };
        Box::new(move |id| {
            let get = cache.get(&"key", || world.load(id));
            Box::pin(async move { get.await.map(|got| got.value).map_err(|_| ()) })
        })
    }

    fn sample(&self, sample: Sample) -> Get {
        let world = World { knobs: self.knobs, env: self.env.clone(), service: self.service.clone() };
        let autopsy = Arc::new(Autopsy { sample, world, kept: Mutex::new(None), refreshing: AtomicBool::new(false) });
        Box::new(move |id| Box::pin(Arc::clone(&autopsy).get(id)))
    }
}

/// A cache of one key as the samples have it.
struct Autopsy {
    sample: Sample,
    world: World,
    kept: Mutex<Option<Tick>>,
    refreshing: AtomicBool,
}

impl Autopsy {
    async fn get(self: Arc<Self>, id: u64) -> Result<Tick, ()> {
        let kept = *self.kept.lock();
        if let Some(loaded) = kept {
            let age = self.world.env.now() - loaded;
            let knobs = self.world.knobs;
            if age >= knobs.soft && (age < knobs.hard() || self.sample == Sample::StaleForEver) {
                self.refresh(id);
                return Ok(loaded);
            }
            if age < knobs.soft {
                return Ok(loaded);
            }
        }
        // Nobody asks whether somebody else is doing the same.
        self.load(id).await.map_err(|_| ())
    }

    async fn load(&self, id: u64) -> Result<Tick, Unserved> {
        let loaded = self.world.load(id).await?;
        *self.kept.lock() = Some(loaded);
        Ok(loaded)
    }

    fn refresh(self: &Arc<Self>, id: u64) {
        let autopsy = Arc::clone(self);
        let env = self.world.env.clone();
        if self.sample != Sample::EachReader && self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let refresh = async move {
            match autopsy.sample {
                // What becomes of it is nobody's business: that is the sample.
                Sample::EachReader => _ = autopsy.load(id).await,
                Sample::FlagLeftSet => {
                    autopsy.load(id).await?;
                    autopsy.refreshing.store(false, Ordering::Relaxed);
                }
                Sample::TiedToRequest => {
                    let closed = env.now() + CLOSED;
                    _ = by(&env, Some(closed), autopsy.load(id)).await;
                    autopsy.refreshing.store(false, Ordering::Relaxed);
                }
                Sample::StaleForEver => {
                    _ = autopsy.load(id).await;
                    autopsy.refreshing.store(false, Ordering::Relaxed);
                }
            }
            Ok::<(), Unserved>(())
        };
        self.world.env.spawn(refresh).detach();
    }
}
