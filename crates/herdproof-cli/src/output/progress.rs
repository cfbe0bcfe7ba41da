//! One line that says what is going on, on a terminal only, and gone when it is over.

use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use herdproof::{Env, Tick, env::Task};
use parking_lot::Mutex;

const EVERY: Duration = Duration::from_millis(100);
const ERASE: &str = "\r\x1b[K";

/// What is going on, on standard error if that is a terminal. Dropping it erases the line.
pub(crate) struct Progress {
    env: Env,
    line: Arc<Mutex<Line>>,
    drawing: Option<Task<()>>,
}

#[derive(Default)]
struct Line {
    what: String,
    until: Option<Tick>,
}

impl Progress {
    /// Begins drawing, inside a runtime.
    pub(crate) fn start(env: &Env) -> Progress {
        let line = Arc::new(Mutex::new(Line::default()));
        let drawing = Progress::is_seen().then(|| env.spawn(draw(env.clone(), Arc::clone(&line))));
        Progress { env: env.clone(), line, drawing }
    }

    /// Whether there is anybody to see it.
    pub(crate) fn is_seen() -> bool {
        io::stderr().is_terminal()
    }

    /// This is going on now, and will be for about as long, if that is known.
    pub(crate) fn now(&self, what: String, expected: impl Into<Option<Duration>>) {
        *self.line.lock() = Line { what, until: expected.into().map(|expected| self.env.now() + expected) };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(drawing) = &self.drawing {
            drawing.abort();
            // Whoever draws holds the line, and draws nothing when it is empty.
            let mut line = self.line.lock();
            line.what.clear();
            write!(io::stderr(), "{ERASE}").ok();
        }
    }
}

async fn draw(env: Env, line: Arc<Mutex<Line>>) {
    loop {
        {
            let line = line.lock();
            if !line.what.is_empty() {
                let left = line.until.map(|until| format!(", about {:.1} s left", (until - env.now()).as_secs_f64()));
                write!(io::stderr(), "{ERASE}{}{}", line.what, left.unwrap_or_default()).ok();
            }
        }
        env.sleep(EVERY).await;
    }
}
