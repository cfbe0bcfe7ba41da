//! Work that takes a while: how far it is, and an end to it by ctrl-c that keeps what is done.

use std::{io, panic::resume_unwind, sync::Arc, thread, time::Duration};

use herdproof::{Env, env::Task};
use herdproof_lab::{ArmsDone, Watch};
use tokio::{signal::ctrl_c, sync::oneshot};

use crate::output::{Failure, Progress};

const EVERY: Duration = Duration::from_millis(200);

/// Does the work of one run beside a line that says how many of its arms are done, on a terminal. A ctrl-c ends it as any program.
pub(super) fn followed<T: Send>(work: impl FnOnce(&Arc<ArmsDone>) -> T + Send) -> Result<T, Failure> {
    let arms = Arc::new(ArmsDone::default());
    if !Progress::is_seen() {
        return Ok(work(&arms));
    }
    beside(|| work(&arms), |env| vec![env.spawn(tell_arms(env.clone(), Arc::clone(&arms)))])
}

/// Does the work, which consists of so many runs, beside a line that says how far it is. The first ctrl-c stops it after the runs
/// that are under way, the second at once.
pub(super) fn watched<T: Send>(runs: usize, work: impl FnOnce(&Watch) -> T + Send) -> Result<T, Failure> {
    let watch = Arc::new(Watch::default());
    beside(
        || work(&watch),
        |env| {
            let telling = env.spawn(tell(env.clone(), runs, Arc::clone(&watch)));
            vec![telling, env.spawn(stop(Arc::clone(&watch)))]
        },
    )
}

/// Does the work on a thread of its own, and these tasks as long as it takes.
fn beside<T: Send>(work: impl FnOnce() -> T + Send, tasks: impl FnOnce(&Env) -> Vec<Task<()>>) -> Result<T, Failure> {
    let failed = |error: io::Error| Failure::Io { what: "cannot start".into(), error };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    thread::scope(|scope| {
        let (done, is_done) = oneshot::channel::<()>();
        let working = scope.spawn(|| {
            let result = work();
            drop(done);
            result
        });
        runtime.block_on(async {
            let tasks = tasks(&Env::system());
            is_done.await.ok();
            tasks.iter().for_each(Task::abort);
        });
        Ok(working.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

async fn tell(env: Env, runs: usize, watch: Arc<Watch>) {
    let progress = Progress::start(&env);
    let began = env.now();
    loop {
        let now = env.sleep(EVERY).await;
        progress.now(format!("{} of {runs} runs", watch.done()), left(now - began, watch.done(), runs));
    }
}

async fn tell_arms(env: Env, arms: Arc<ArmsDone>) {
    let progress = Progress::start(&env);
    let began = env.now();
    loop {
        let took = env.sleep(EVERY).await - began;
        let (what, left) = how_far(arms.so_far(), took);
        progress.now(what, left);
    }
}

/// What is known of a run after this time, and how long the rest takes.
fn how_far((done, all): (usize, usize), took: Duration) -> (String, Option<Duration>) {
    match (done, all) {
        (_, 0) => (format!("one run, for {:.1} s now", took.as_secs_f64()), None),
        (0, _) => (format!("0 of {all} arms"), None),
        (done, all) if done >= all => (format!("{done} of {all} arms, then the checks"), None),
        (done, all) => (format!("{done} of {all} arms"), Some(left(took, done, all))),
    }
}

/// If the rest takes as long as what is done.
fn left(took: Duration, done: usize, all: usize) -> Duration {
    took.mul_f64(all.saturating_sub(done) as f64 / done.max(1) as f64)
}

async fn stop(watch: Arc<Watch>) {
    while ctrl_c().await.is_ok() {
        if watch.is_stopped() {
            leave();
        }
        watch.stop();
    }
}

/// Without waiting for the runs that are under way: nobody can end those.
#[expect(clippy::exit, reason = "nothing was written that could be half done")]
fn leave() -> ! {
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_promised_that_is_not_known() {
        let after = |done, all| how_far((done, all), Duration::from_secs(2));
        assert_eq!(after(0, 0), ("one run, for 2.0 s now".into(), None));
        assert_eq!(after(0, 4), ("0 of 4 arms".into(), None));
        assert_eq!(after(1, 4), ("1 of 4 arms".into(), Some(Duration::from_secs(6))));
        assert_eq!(after(4, 4), ("4 of 4 arms, then the checks".into(), None));
    }
}
