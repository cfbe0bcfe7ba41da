//! What is measured: one function per kind of herd.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;

use super::{
    client::{Answer, Answers, Ask, Ending, Herd, Rhythm, Seen, Visitors, get, quantile},
    options::Options,
    origin::{Fault, Log, Origin, Plan, Scene, Size, Whose},
    peers::Running,
    wrk,
};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + 'a>>;

pub struct Case {
    pub name: &'static str,
    /// The row of the published comparison it repeats: a to i, `0` for the table of herds, and what is neither.
    pub group: &'static str,
    pub what: &'static str,
    pub way: Way,
    /// Whether a server is no longer as it was afterwards: full, or convinced that its origin is dead.
    pub leaves_traces: bool,
    /// Once for each server, before the first round.
    pub prepare: Option<for<'a> fn(&'a Stage<'a>) -> Boxed<'a, Prepared>>,
    pub run: for<'a> fn(&'a Stage<'a>) -> Boxed<'a, Vec<Row>>,
}

impl Case {
    /// Whether requests are those of browsers, and written down by those who can.
    pub fn is_real(&self) -> bool {
        self.group == REAL
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// One server after the other, again and again, in alternating order.
    Rounds,
    /// One server after the other, once.
    Alone,
    /// Ours alone, then the peers all at once: what they do there takes seconds.
    OursFirst,
    /// All at once: time passes here by waiting, not by working.
    Together,
    /// Only ours, unless others are asked for by name.
    Ours,
}

/// Whom a case is about.
pub struct Stage<'a> {
    pub running: &'a Running,
    pub origin: &'a Origin,
    pub options: &'a Options,
    pub prepared: Option<&'a Prepared>,
    /// Whether requests are those of browsers, and written down.
    pub is_real: bool,
}

/// What rounds begin with.
pub struct Prepared {
    scene: Arc<Scene>,
    figures: Vec<Figure>,
    is_told: Cell<bool>,
}

pub type Figure = (&'static str, f64);

/// What was measured of one server.
pub struct Row {
    /// Tells rows of one case apart.
    pub label: &'static str,
    pub figures: Vec<Figure>,
}

/// The group of what browsers ask for, with a log.
const REAL: &str = "r";

pub const CASES: &[Case] = &[
    Case {
        name: "hits-1k",
        group: "a",
        what: "1 KiB from the cache, one key, 64 connections",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm(stage, 1024))),
        run: |stage| Box::pin(hits(stage)),
    },
    Case {
        name: "hits-100k",
        group: "a",
        what: "100 KiB from the cache, one key, 64 connections",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm(stage, 100 << 10))),
        run: |stage| Box::pin(hits(stage)),
    },
    Case {
        name: "hits-browser",
        group: REAL,
        what: "1 KiB from the cache, ten header fields of a browser, each request written to a log where there is one",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm(stage, 1024))),
        run: |stage| Box::pin(hits(stage)),
    },
    Case {
        name: "hits-browser-vary",
        group: REAL,
        what: "the same, for a page that varies on Accept-Encoding",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm_varying(stage))),
        run: |stage| Box::pin(hits(stage)),
    },
    Case {
        name: "pace-1k",
        group: "a",
        what: "the same 1 KiB at the same pace for all: 16,000 requests per second, 64 connections",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm(stage, 1024))),
        run: |stage| Box::pin(paced(stage, Duration::from_millis(4))),
    },
    Case {
        name: "pace-100k",
        group: "a",
        what: "the same 100 KiB at the same pace for all: 4,000 requests per second, 64 connections",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: Some(|stage| Box::pin(warm(stage, 100 << 10))),
        run: |stage| Box::pin(paced(stage, Duration::from_millis(16))),
    },
    Case {
        name: "herd-800",
        group: "b",
        what: "800 clients at once, one key nobody has asked for, origin 80 ms",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(cold(stage, 800)),
    },
    Case {
        name: "herd-5000",
        group: "b",
        what: "5,000 clients at once, one key nobody has asked for, origin 80 ms",
        way: Way::Rounds,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(cold(stage, 5000)),
    },
    Case {
        name: "expiry",
        group: "c",
        what: "max-age=1, origin 80 ms, 200 connections that think for 10 ms; slow is over 40 ms",
        way: Way::Alone,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(expiry(stage, "max-age=1", if stage.options.is_quick() { 3 } else { 10 })),
    },
    Case {
        name: "expiry-swr",
        group: "c",
        what: "the same, with stale-while-revalidate=30",
        way: Way::Alone,
        leaves_traces: false,
        prepare: None,
        run: |stage| {
            Box::pin({
                expiry(stage, "max-age=1, stale-while-revalidate=30", if stage.options.is_quick() { 5 } else { 10 })
            })
        },
    },
    Case {
        name: "uncacheable",
        group: "d",
        what: "200 clients at once, private and no-store, origin 80 ms",
        way: Way::Alone,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(twice(stage, Plan::saying("private, no-store").after(MS80), 200)),
    },
    Case {
        name: "failing",
        group: "i",
        what: "200 clients at once, origin answers 500 after 80 ms, nothing stale",
        way: Way::Alone,
        leaves_traces: true,
        prepare: None,
        run: |stage| Box::pin(twice(stage, Plan::saying("").status(500).after(MS80), 200)),
    },
    Case {
        name: "hung",
        group: "e",
        what: "200 clients at once, the origin's first answer takes 10 s, later ones 80 ms",
        way: Way::OursFirst,
        leaves_traces: true,
        prepare: None,
        run: |stage| {
            let plan = Plan::saying("max-age=60").after(MS80).fault(Fault::HangFirst(Duration::from_secs(10)));
            Box::pin(herd(stage, plan, 200))
        },
    },
    Case {
        name: "down-500",
        group: "f",
        what: "origin answers 500 after a max-age=1 object has expired; 50 connections that think for 20 ms; slow is over 100 ms",
        way: Way::OursFirst,
        leaves_traces: true,
        prepare: None,
        run: |stage| {
            let failing = Plan::saying("").status(500).after(Duration::from_millis(20));
            Box::pin(down(stage, "max-age=1", failing))
        },
    },
    Case {
        name: "down-sie",
        group: "f",
        what: "the same, with stale-if-error=60 in the object",
        way: Way::OursFirst,
        leaves_traces: true,
        prepare: None,
        run: |stage| {
            let failing = Plan::saying("").status(500).after(Duration::from_millis(20));
            Box::pin(down(stage, "max-age=1, stale-if-error=60", failing))
        },
    },
    Case {
        name: "down-reset",
        group: "f",
        what: "the same, the origin resets connections",
        way: Way::OursFirst,
        leaves_traces: true,
        prepare: None,
        run: |stage| Box::pin(down(stage, "max-age=1, stale-if-error=60", Plan::saying("").fault(Fault::Reset))),
    },
    Case {
        name: "down-hang",
        group: "f",
        what: "the same, the origin hangs for 10 s",
        way: Way::OursFirst,
        leaves_traces: true,
        prepare: None,
        run: |stage| {
            // It is slow and not another: what it says in the end may be kept as before.
            let said = "max-age=1, stale-if-error=60";
            Box::pin(down(stage, said, Plan::saying(said).after(Duration::from_secs(10))))
        },
    },
    Case {
        name: "keys",
        group: "g",
        what: "100,000 objects of 1 KiB from the cache, uniformly at random, 64 connections",
        way: Way::Rounds,
        leaves_traces: true,
        prepare: Some(|stage| Box::pin(fill(stage))),
        run: |stage| Box::pin(keys(stage)),
    },
    Case {
        name: "unseen",
        group: "h",
        what: "a 100 KiB object nobody has asked for, origin 5 ms, under 64 busy connections; slow is over 40 ms",
        way: Way::Alone,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(unseen(stage)),
    },
    Case {
        name: "cacheable",
        group: "0",
        what: "200 clients at once, max-age=60, origin 1 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("max-age=60").after(S1), 200)),
    },
    Case {
        name: "private",
        group: "0",
        what: "100 clients at once, private and no-store, origin 1 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(twice(stage, Plan::saying("private, no-store").after(S1), 100)),
    },
    Case {
        name: "set-cookie",
        group: "0",
        what: "100 clients at once, max-age=60 and a new Set-Cookie in each answer, origin 1 s; none is to be shared",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("max-age=60").after(S1).setting_cookies(), 100)),
    },
    Case {
        name: "503",
        group: "0",
        what: "100 clients at once, origin answers 503 after 1 s, and says nothing of caches",
        way: Way::Together,
        leaves_traces: true,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("").after(S1).status(503), 100)),
    },
    Case {
        name: "reset",
        group: "0",
        what: "100 clients at once, origin resets the connection after 0.5 s",
        way: Way::Together,
        leaves_traces: true,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("").after(S1 / 2).fault(Fault::Reset), 100)),
    },
    Case {
        name: "trickle",
        group: "0",
        what: "100 clients at once, max-age=60, origin 0.1 s, then 30 pieces over 3 s; lag is the last first byte by the leader's",
        way: Way::Alone,
        leaves_traces: false,
        prepare: None,
        run: |stage| {
            let plan = Plan::saying("max-age=60").of(30 << 10).after(S1 / 10);
            Box::pin(herd(stage, plan.fault(Fault::Trickle(S1 * 3, 30)), 100))
        },
    },
    Case {
        name: "truncated",
        group: "0",
        what: "100 clients at once, max-age=60, origin 0.2 s, then half of a body; nobody is to take it for whole",
        way: Way::Together,
        leaves_traces: true,
        prepare: None,
        run: |stage| {
            let plan = Plan::saying("max-age=60").of(30 << 10).after(S1 / 5);
            Box::pin(herd(stage, plan.fault(Fault::Truncate), 100))
        },
    },
    Case {
        name: "vary",
        group: "0",
        what: "100 clients at once, four languages, Vary: Accept-Language, max-age=60, origin 1 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(languages(stage)),
    },
    Case {
        name: "max-age-0",
        group: "0",
        what: "100 clients at once, max-age=0, origin 1 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("max-age=0").after(S1), 100)),
    },
    Case {
        name: "leader-leaves",
        group: "0",
        what: "100 clients, max-age=60, origin 1.5 s; the first is 0.1 s ahead and leaves after 0.3 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(leader_leaves(stage)),
    },
    Case {
        name: "slow",
        group: "0",
        what: "100 clients at once, max-age=60, origin 8 s",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(herd(stage, Plan::saying("max-age=60").after(S1 * 8), 100)),
    },
    Case {
        name: "browsers",
        group: "cookies",
        what: "800 browsers at once with a cookie of their own, max-age=60, the same for all, origin 80 ms",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(browsers(stage)),
    },
    Case {
        name: "cookies",
        group: "cookies",
        what: "1,000 users at once with a cookie of their own, twice, origin 80 ms; each body and Set-Cookie names its user",
        way: Way::Together,
        leaves_traces: false,
        prepare: None,
        run: |stage| Box::pin(cookies(stage)),
    },
    Case {
        name: "churn",
        group: "churn",
        what: "64 busy connections, 4,000 keys of which 2,000 are new every second, 1 to 31 KiB; every body is checked",
        way: Way::Ours,
        leaves_traces: true,
        prepare: None,
        run: |stage| Box::pin(churn(stage)),
    },
];

const MS80: Duration = Duration::from_millis(80);
const S1: Duration = Duration::from_secs(1);
const KEYS: usize = 100_000;
const SLOW: Duration = Duration::from_millis(40);

impl Stage<'_> {
    async fn get(&self, path: &str) -> Answer {
        get(self.running.address, path, Duration::from_secs(10)).await
    }

    fn prepared(&self) -> Result<&Prepared, String> {
        self.prepared.ok_or_else(|| "nothing was prepared".into())
    }

    fn visitors(&self, connections: usize, think: Duration, last: Duration, slow: Duration) -> Visitors {
        Visitors { target: self.running.address, connections, rhythm: Rhythm::Think(think), last, slow }
    }

    /// Seconds for 100,000 requests.
    fn cpu_since(&self, before: Duration, requests: u64) -> f64 {
        (self.running.process.cpu().saturating_sub(before)).as_secs_f64() / requests.max(1) as f64 * 1e5
    }
}

fn row(label: &'static str, figures: Vec<Figure>) -> Row {
    Row { label, figures }
}

async fn warm(stage: &Stage<'_>, size: usize) -> Result<Prepared, String> {
    warm_with(stage, Plan::saying("max-age=3600").of(size)).await
}

async fn warm_with(stage: &Stage<'_>, plan: Plan) -> Result<Prepared, String> {
    let scene = stage.origin.scene(plan);
    let mut last = Ending::Cut;
    // More than once: there are caches that keep only what is asked for again.
    for _ in 0..5 {
        last = stage.get(&scene.path("hit")).await.ending;
    }
    if last != Ending::Right {
        return Err(format!("cannot be warmed: {last:?}"));
    }
    scene.forget();
    Ok(Prepared { scene, figures: Vec::new(), is_told: Cell::new(false) })
}

/// A page that a browser gets in an encoding of its own.
async fn warm_varying(stage: &Stage<'_>) -> Result<Prepared, String> {
    warm_with(stage, Plan::saying("max-age=3600").varying_on("Accept-Encoding")).await
}

async fn hits(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let scene = &stage.prepared()?.scene;
    let load = wrk::Load {
        on: stage.options.aside.as_ref(),
        target: stage.running.address,
        path: scene.path("hit"),
        keys: None,
        browser: stage.is_real,
    };
    Ok(vec![row("", under(stage, &load, scene)?)])
}

/// Wrk asks as fast as it is answered, so that it is a crowd of its own making that waits, and of two servers the faster one has
/// the larger. Here everybody has the same load.
async fn paced(stage: &Stage<'_>, every: Duration) -> Result<Vec<Row>, String> {
    let scene = &stage.prepared()?.scene;
    let path = scene.path("hit");
    let last = Duration::from_secs(if stage.options.is_quick() { 2 } else { 4 });
    let before = stage.running.process.cpu();
    let rhythm = Rhythm::Every(every);
    let visitors = Visitors { target: stage.running.address, connections: 64, rhythm, last, slow: SLOW };
    let mut seen = visitors.run(move || Some(path.clone())).await;
    Ok(vec![row(
        "",
        vec![
            ("cpu s/100k", stage.cpu_since(before, seen.all())),
            ("rps", seen.all() as f64 / last.as_secs_f64()),
            ("p50 ms", quantile(&mut seen.times, 0.5)),
            ("p99 ms", quantile(&mut seen.times, 0.99)),
            ("max ms", quantile(&mut seen.times, 1.0)),
            ("failed", (seen.failed + seen.wrong) as f64),
            ("origin", scene.log().requests as f64),
        ],
    )])
}

fn under(stage: &Stage<'_>, load: &wrk::Load<'_>, scene: &Scene) -> Result<Vec<Figure>, String> {
    let before = stage.running.process.cpu();
    let seen = load.run(if stage.options.is_quick() { 2 } else { 4 })?;
    let cpu = stage.cpu_since(before, seen.requests);
    Ok(vec![
        ("cpu s/100k", cpu),
        ("rps", seen.requests as f64 / seen.seconds),
        ("p50 ms", seen.p50),
        ("p99 ms", seen.p99),
        ("failed", seen.failed as f64),
        ("origin", scene.log().requests as f64),
        ("PSS MB", stage.running.process.memory() as f64 / 1e6),
    ])
}

/// Everything that there is to say of a herd.
fn figures(answers: &Answers, log: &Log) -> Vec<Figure> {
    let first = |answer: &Answer| answer.first;
    let total = |answer: &Answer| answer.total;
    vec![
        ("origin", log.requests as f64),
        ("peak", log.peak as f64),
        ("right", answers.count(|ending| ending == Ending::Right) as f64),
        ("other", answers.count(|ending| matches!(ending, Ending::Status(_))) as f64),
        ("cut", answers.count(|ending| matches!(ending, Ending::Cut | Ending::GaveUp)) as f64),
        ("wrong", answers.count(|ending| matches!(ending, Ending::Wrong | Ending::Foreign)) as f64),
        ("p50 ms", answers.quantile(0.5, total)),
        ("max ms", answers.quantile(1.0, total)),
        ("ttfb p50", answers.quantile(0.5, first)),
        ("ttfb max", answers.quantile(1.0, first)),
        ("wall ms", answers.wall.as_secs_f64() * 1e3),
    ]
}

async fn cold(stage: &Stage<'_>, clients: usize) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=60").after(MS80));
    let gathered = Herd::same(stage.running.address, &scene.path("cold"), clients).gather().await;
    let before = stage.running.process.cpu();
    let answers = gathered.let_loose().await;
    let cpu = stage.cpu_since(before, clients as u64);
    let mut figures = figures(&answers, &scene.log());
    figures.push(("cpu s/100k", cpu));
    Ok(vec![row("", figures)])
}

async fn herd(stage: &Stage<'_>, plan: Plan, clients: usize) -> Result<Vec<Row>, String> {
    let (sets_cookie, trickles) = (plan.sets_cookie, matches!(plan.fault, Fault::Trickle(..)));
    let scene = stage.origin.scene(plan);
    let answers = Herd::same(stage.running.address, &scene.path("herd"), clients).run().await;
    let mut figures = figures(&answers, &scene.log());
    if sets_cookie {
        figures.push(("shared", answers.shared() as f64));
        figures.push(("foreign cookies", doubled(&answers) as f64));
    }
    if trickles {
        let leader = answers.all[0].first.as_secs_f64() * 1e3;
        figures.push(("lag", answers.quantile(1.0, |answer| answer.first) / leader));
    }
    Ok(vec![row("", figures)])
}

/// How many were set a cookie that another was set too.
fn doubled(answers: &Answers) -> usize {
    let mut cookies: Vec<&String> = answers.all.iter().filter_map(|answer| answer.set_cookie.as_ref()).collect();
    let all = cookies.len();
    cookies.sort_unstable();
    cookies.dedup();
    all - cookies.len()
}

/// The same herd again, after it is over: is anything remembered?
async fn twice(stage: &Stage<'_>, plan: Plan, clients: usize) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(plan);
    let mut rows = Vec::new();
    for label in ["1st", "2nd"] {
        scene.forget();
        let answers = Herd::same(stage.running.address, &scene.path("herd"), clients).run().await;
        let log = scene.log();
        let mut figures = figures(&answers, &log);
        figures.push(("rounds", log.rounds as f64));
        figures.push(("shared", answers.shared() as f64));
        rows.push(row(label, figures));
    }
    Ok(rows)
}

async fn languages(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=60").after(S1).whose(Whose::Language));
    let (target, path) = (stage.running.address, scene.path("herd"));
    let asks =
        ["de", "en", "fr", "it"].iter().cycle().take(100).map(|language| Ask::in_language(target, &path, language));
    let answers = Herd::new(target, asks.collect()).run().await;
    Ok(vec![row("", figures(&answers, &scene.log()))])
}

async fn leader_leaves(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=60").after(S1 * 3 / 2));
    let mut herd = Herd::same(stage.running.address, &scene.path("herd"), 100);
    herd.lead = S1 / 10;
    herd.leader_leaves = Some(S1 * 3 / 10);
    let answers = herd.run().await;
    Ok(vec![row("", figures(&answers, &scene.log()))])
}

async fn browsers(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=60").after(MS80));
    let (target, path) = (stage.running.address, scene.path("page"));
    let asks = (0..800).map(|user| Ask::with_cookie(target, &path, &format!("u{user}"))).collect();
    let answers = Herd::new(target, asks).run().await;
    Ok(vec![row("", figures(&answers, &scene.log()))])
}

async fn cookies(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let plans = [
        ("private", Plan::saying("private, no-store")),
        ("set-cookie", Plan::saying("max-age=60").setting_cookies()),
        ("max-age", Plan::saying("max-age=60")),
    ];
    let target = stage.running.address;
    let mut rows = Vec::new();
    for (label, plan) in plans {
        // Ours is told to take cookies for private there.
        let folder = if label == "max-age" { "/careful" } else { "" };
        let scene = stage.origin.scene_below(folder, plan.after(MS80).whose(Whose::Cookie));
        let path = scene.path("account");
        let (mut foreign, mut foreign_cookies, mut both) = (0, 0, None);
        for _ in 0..2 {
            let asks: Vec<Ask> = (0..1000).map(|user| Ask::as_user(target, &path, &format!("u{user}"))).collect();
            let answers = Herd::new(target, asks).run().await;
            foreign += answers.count(|ending| matches!(ending, Ending::Foreign | Ending::Wrong));
            let users = answers.all.iter().enumerate();
            foreign_cookies += users
                .filter(|(user, answer)| answer.set_cookie.as_ref().is_some_and(|set| *set != format!("u{user}")))
                .count();
            both.get_or_insert(answers);
        }
        let Some(answers) = both else { continue };
        let mut figures = figures(&answers, &scene.log());
        figures.retain(|(name, _)| !matches!(*name, "wrong" | "ttfb p50" | "ttfb max"));
        figures.push(("foreign bodies", foreign as f64));
        figures.push(("foreign cookies", foreign_cookies as f64));
        rows.push(row(label, figures));
    }
    Ok(rows)
}

fn visited(mut seen: Seen, log: &Log) -> Vec<Figure> {
    vec![
        ("origin", log.requests as f64),
        ("peak", log.peak as f64),
        ("answers", seen.all() as f64),
        ("failed", seen.failed as f64),
        ("wrong", seen.wrong as f64),
        ("slow", seen.slow as f64),
        ("p50 ms", quantile(&mut seen.times, 0.5)),
        ("p99 ms", quantile(&mut seen.times, 0.99)),
        ("max ms", quantile(&mut seen.times, 1.0)),
    ]
}

async fn expiry(stage: &Stage<'_>, cache_control: &str, secs: u64) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying(cache_control).after(MS80));
    let path = scene.path("news");
    stage.get(&path).await;
    scene.forget();
    let before = stage.running.process.cpu();
    let visitors = stage.visitors(200, Duration::from_millis(10), Duration::from_secs(secs), SLOW);
    let seen = visitors.run(move || Some(path.clone())).await;
    let cpu = stage.cpu_since(before, seen.all());
    let log = scene.log();
    let mut figures = visited(seen, &log);
    figures.insert(0, ("origin/s", log.requests as f64 / secs as f64));
    figures.push(("cpu s/100k", cpu));
    Ok(vec![row("", figures)])
}

async fn down(stage: &Stage<'_>, cache_control: &str, failing: Plan) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying(cache_control));
    let path = scene.path("news");
    stage.get(&path).await;
    scene.becomes(failing);
    sleep(Duration::from_millis(2100)).await;
    scene.forget();
    let secs = if stage.options.is_quick() { 4 } else { 12 };
    let beginning = Duration::from_secs(2);
    let think = Duration::from_millis(20);
    let visitors = stage.visitors(50, think, Duration::from_secs(secs), Duration::from_millis(100));
    let early = async {
        sleep(beginning).await;
        scene.log().requests
    };
    let (seen, early) = tokio::join!(visitors.run(move || Some(path.clone())), early);
    let log = scene.log();
    let per_second = (log.requests - early) as f64 / (secs as f64 - beginning.as_secs_f64());
    let right = seen.right as f64 / seen.all().max(1) as f64 * 100.0;
    let mut figures = visited(seen, &log);
    figures.splice(0..0, [("right %", right), ("origin/s", per_second)]);
    Ok(vec![row("", figures)])
}

async fn fill(stage: &Stage<'_>) -> Result<Prepared, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=3600"));
    stage.get(&scene.path("first")).await;
    let empty = stage.running.process.memory();
    let mut next = 0;
    let within = Arc::clone(&scene);
    let seen = stage.visitors(64, Duration::ZERO, Duration::from_secs(120), S1).run(move || {
        next += 1;
        (next <= KEYS).then(|| within.path(&(next - 1).to_string()))
    });
    let seen = seen.await;
    let full = stage.running.process.memory();
    if seen.right < KEYS as u64 {
        let (right, all) = (seen.right, seen.all());
        return Err(format!(
            "of {all} first requests for {KEYS} keys {right} were answered rightly within two minutes"
        ));
    }
    scene.forget();
    let figures = vec![("B/object", full.saturating_sub(empty) as f64 / KEYS as f64), ("empty MB", empty as f64 / 1e6)];
    Ok(Prepared { scene, figures, is_told: Cell::new(false) })
}

async fn keys(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let prepared = stage.prepared()?;
    let load = wrk::Load {
        on: stage.options.aside.as_ref(),
        target: stage.running.address,
        path: prepared.scene.path(""),
        keys: Some(KEYS),
        browser: false,
    };
    let mut figures = under(stage, &load, &prepared.scene)?;
    if !prepared.is_told.replace(true) {
        figures.extend(&prepared.figures);
    }
    Ok(vec![row("", figures)])
}

async fn unseen(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    let scene = stage.origin.scene(Plan::saying("max-age=3600").of(100 << 10).after(Duration::from_millis(5)));
    let path = scene.path("big");
    let secs = if stage.options.is_quick() { 2 } else { 5 };
    let visitors = stage.visitors(64, Duration::ZERO, Duration::from_secs(secs), SLOW);
    let seen = visitors.run(move || Some(path.clone())).await;
    Ok(vec![row("", visited(seen, &scene.log()))])
}

async fn churn(stage: &Stage<'_>) -> Result<Vec<Row>, String> {
    const WINDOW: u64 = 4000;
    const NEW_PER_SECOND: f64 = 2000.0;
    let plan = Plan { size: Size::Between(1 << 10, 31 << 10), ..Plan::saying("max-age=60") };
    let scene = stage.origin.scene(plan);
    let last = stage.options.churn.map_or(Duration::from_secs(30), |minutes| Duration::from_secs_f64(minutes * 60.0));
    let begun = Instant::now();
    let within = Arc::clone(&scene);
    let mut draw = 88_172_645_463_325_252_u64;
    let next = move || {
        // Xorshift: which key is of no account, only that it is another.
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        let newest = (begun.elapsed().as_secs_f64() * NEW_PER_SECOND) as u64 + WINDOW;
        Some(within.path(&(newest - draw % WINDOW).to_string()))
    };
    let process = &stage.running.process;
    let watched: RefCell<Vec<(f64, usize)>> = RefCell::default();
    let watch = async {
        let every = (last / 100).max(Duration::from_millis(250));
        loop {
            sleep(every).await;
            watched.borrow_mut().push((process.memory() as f64 / 1e6, process.descriptors()));
        }
    };
    let before = process.cpu();
    let visitors = stage.visitors(64, Duration::ZERO, last, S1).run(next);
    let seen = tokio::select! {
        seen = visitors => seen,
        () = watch => return Err("watched for ever".into()),
    };
    let cpu = stage.cpu_since(before, seen.all());
    let watched = watched.take();
    let (half, end) = (watched.get(watched.len() / 2), watched.last());
    let (Some((half, half_files)), Some((end, end_files))) = (half, end) else {
        return Err("too short to watch".into());
    };
    let most = watched.iter().map(|(memory, _)| *memory).fold(0.0, f64::max);
    let mut figures = visited(seen, &scene.log());
    figures.extend([("cpu s/100k", cpu), ("half MB", *half), ("end MB", *end), ("most MB", most)]);
    figures.extend([("half files", *half_files as f64), ("end files", *end_files as f64)]);
    Ok(vec![row("", figures)])
}
