//! Two hundred threads want one row of a report that SQLite has to add up, without a cache and then with one: when it is
//! cold, when it is fresh, when it has expired, and when a row was written. No runtime: the thread that needs it first runs
//! the query, and the others wait for it, or take what is stale.
//!
//! `cargo run -p herdproof --example sqlite_loader`

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::{
    error::Error,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use herdproof::{
    Cache, Env,
    cache::{GetError, Policy},
};
use rusqlite::Connection;

const THREADS: usize = 200;
const SHOP: u32 = 7;

/// The sum of a shop's sales; there is no index, so each question is a walk through all of them.
struct Report {
    sales: Mutex<Connection>,
    queries: AtomicU32,
}

impl Report {
    fn new() -> rusqlite::Result<Report> {
        let sales = Connection::open_in_memory()?;
        sales.execute_batch(
            "CREATE TABLE sale (shop INTEGER, cents INTEGER);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
             INSERT INTO sale SELECT i % 50, i FROM n;",
        )?;
        Ok(Report { sales: Mutex::new(sales), queries: AtomicU32::new(0) })
    }

    fn total(&self, shop: u32) -> rusqlite::Result<i64> {
        self.queries.fetch_add(1, Relaxed);
        let sales = self.sales.lock().unwrap_or_else(PoisonError::into_inner);
        sales.query_row("SELECT sum(cents) FROM sale WHERE shop = ?1", [shop], |row| row.get(0))
    }

    fn sell(&self, shop: u32, cents: i64) -> rusqlite::Result<usize> {
        let sales = self.sales.lock().unwrap_or_else(PoisonError::into_inner);
        sales.execute("INSERT INTO sale VALUES (?1, ?2)", (shop, cents))
    }
}

/// All threads ask at once; prints what that came to, and gives what the last one saw.
fn herd<E: Error + Send>(
    what: &str,
    env: &Env,
    report: &Report,
    ask: impl Fn() -> Result<(i64, bool), E> + Sync,
) -> Result<i64, E> {
    let (together, before) = (Barrier::new(THREADS), report.queries.load(Relaxed));
    let answers: Vec<_> = thread::scope(|scope| {
        let caller = || {
            together.wait();
            let asked = env.now();
            ask().map(|(total, stale)| (total, stale, env.now() - asked))
        };
        let callers: Vec<_> = (0..THREADS).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().filter_map(|caller| caller.join().ok()).collect()
    });
    let answers = answers.into_iter().collect::<Result<Vec<_>, E>>()?;
    let queries = report.queries.load(Relaxed) - before;
    let stale = answers.iter().filter(|(_, stale, _)| *stale).count();
    let longest = answers.iter().map(|(_, _, waited)| *waited).max().unwrap_or_default();
    let total = answers.last().map_or(0, |(total, ..)| *total);
    println!("{what:<24} {queries:>7} {stale:>7} {:>9} ms   {total}", longest.as_millis());
    Ok(total)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (env, report) = (Env::system(), Arc::new(Report::new()?));
    println!(
        "{:<24} {:>7} {:>7} {:>12}   total",
        format!("{THREADS} threads, one shop"),
        "queries",
        "stale",
        "longest wait"
    );
    herd("no cache", &env, &report, || report.total(SHOP).map(|total| (total, false)))?;

    let (ttl, minute) = (Duration::from_millis(300), Duration::from_secs(60));
    for (grace, expired) in [(Duration::ZERO, "expired"), (minute, "expired, with grace")] {
        let totals: Cache<u32, i64, rusqlite::Error> =
            Cache::builder(&env).policy(Policy::strict(ttl).grace(grace)).build();
        let ask = || -> Result<(i64, bool), GetError<rusqlite::Error>> {
            let report = Arc::clone(&report);
            let got = totals.get_blocking(&SHOP, move || report.total(SHOP))?;
            Ok((got.value, got.is_stale()))
        };
        if grace.is_zero() {
            herd("cold", &env, &report, ask)?;
            herd("fresh", &env, &report, ask)?;
        } else {
            ask()?;
        }
        while totals.peek(&SHOP).is_some_and(|got| !got.is_stale()) {
            thread::yield_now();
        }
        herd(expired, &env, &report, ask)?;
        let before = ask()?.0;
        report.sell(SHOP, 1_000_000)?;
        totals.invalidate(&SHOP);
        let after = herd("a sale, and invalidated", &env, &report, ask)?;
        assert_eq!(after, before + 1_000_000, "nobody is told what was true before");
    }
    Ok(())
}
