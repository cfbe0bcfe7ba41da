//! Work that takes a while: how far it is, and an end to it by ctrl-c that keeps what is done.

use std::{io, panic::resume_unwind, sync::Arc, thread, time::Duration};

use herdproof::Env;
use herdproof_lab::Watch;
use tokio::{signal::ctrl_c, sync::oneshot};

use crate::output::{Failure, Progress};

const EVERY: Duration = Duration::from_millis(200);

/// Does the work, which consists of so many runs, beside a line that says how far it is. The first ctrl-c stops it after the runs
/// that are under way, the second at once.
pub(super) fn watched<T: Send>(runs: usize, work: impl FnOnce(&Watch) -> T + Send) -> Result<T, Failure> {
    let failed = |error: io::Error| Failure::Io { what: "cannot start".into(), error };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let watch = Arc::new(Watch::default());
    thread::scope(|scope| {
        let (done, is_done) = oneshot::channel::<()>();
        let working = scope.spawn(|| {
            let result = work(&watch);
            drop(done);
            result
        });
        runtime.block_on(async {
            let env = Env::system();
            let (telling, stopping) =
                (env.spawn(tell(env.clone(), runs, Arc::clone(&watch))), env.spawn(stop(Arc::clone(&watch))));
            is_done.await.ok();
            telling.abort();
            stopping.abort();
        });
        Ok(working.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

async fn tell(env: Env, runs: usize, watch: Arc<Watch>) {
    let progress = Progress::start(&env);
    let began = env.now();
    loop {
        let now = env.sleep(EVERY).await;
        let done = watch.done();
        let left = (now - began).mul_f64(runs.saturating_sub(done) as f64 / done.max(1) as f64);
        progress.now(format!("{done} of {runs} runs"), left);
    }
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
