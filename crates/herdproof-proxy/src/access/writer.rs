//! From many threads to one file, without anybody waiting.

use std::{
    error::Error,
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime},
};

use herdproof::{Env, Tick, timeout::by};
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{Record, line};
use crate::{
    metrics::Page,
    settings::{LogFormat, LogSettings, LogTo},
    stripes::Stripes,
};

/// How many records may wait in each part.
const MOST: usize = 8 * 1024;
/// How long lines are gathered, so that many are written at once.
const GATHER: Duration = Duration::from_millis(50);
/// How much is written at once.
const PIECE: usize = 64 << 10;

/// The access log; see the [module](super). Cheap to clone. When the last clone is gone, what is left is written and the
/// file closed.
#[derive(Clone, Debug)]
pub struct AccessLog(Arc<Handle>);

/// Why there can be no log.
#[derive(Debug)]
pub struct CannotOpen {
    /// The file.
    pub path: PathBuf,
    /// What the operating system says.
    pub error: io::Error,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// Told when all is written and the file is closed.
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Stripes<Mutex<Vec<Record>>>,
    /// Whether the writer sleeps until it is called.
    asleep: AtomicBool,
    orders: Mutex<Orders>,
    called: Condvar,
    written: AtomicU64,
    dropped: AtomicU64,
    unwritten: AtomicU64,
    /// What is wrong, in words.
    trouble: Mutex<Option<Arc<str>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    /// There is something to write, and it is not to be put off if it is much.
    write: bool,
    reopen: bool,
    stop: bool,
}

impl AccessLog {
    /// Opens the file, and starts the thread that writes it; none if nothing is to be written.
    pub fn open(env: &Env, settings: &LogSettings) -> Result<Option<AccessLog>, CannotOpen> {
        let Some(to) = settings.access.clone() else { return Ok(None) };
        let (file, path) = match to {
            LogTo::Stdout => (stdout(), None),
            LogTo::File(path) => (append(&path), Some(path)),
        };
        let file = file.map_err(|error| CannotOpen { path: path.clone().unwrap_or_else(|| "-".into()), error })?;
        let LogSettings { format, hide_query, .. } = *settings;
        Ok(Some(AccessLog::start(env, path, format, hide_query, Box::new(file))))
    }

    pub(super) fn start(
        env: &Env,
        path: Option<PathBuf>,
        format: LogFormat,
        hide_query: bool,
        file: Box<dyn Write + Send>,
    ) -> AccessLog {
        let shared = Arc::new(Shared::default());
        let (end, ended) = oneshot::channel();
        let (env, told) = (env.clone(), Arc::clone(&shared));
        let writer = Writer { env, shared: told, path, format, hide_query, file, elsewhere: false };
        // A thread, as writing blocks, and may block for as long as a pipe is not read.
        thread::spawn(move || {
            writer.run();
            end.send(()).ok();
        });
        AccessLog(Arc::new(Handle { shared, ended: Mutex::new(Some(ended)) }))
    }

    /// Writes a line soon, or drops it if too many wait already.
    #[inline]
    pub fn write(&self, record: Record) {
        let shared = &self.0.shared;
        let mut waiting = shared.waiting.lock();
        if waiting.len() >= MOST {
            drop(waiting);
            shared.dropped.fetch_add(1, Relaxed);
            return;
        }
        waiting.push(record);
        let length = waiting.len();
        drop(waiting);
        // The writer sleeps only after it has said so and found every part empty, so whoever fills one again sees it.
        if length == MOST / 2 || (length == 1 && shared.asleep.load(Relaxed)) {
            shared.order(|orders| orders.write = true);
        }
    }

    /// Opens the file anew, by its name: after it was moved away by a rotation, say.
    pub fn reopen(&self) {
        self.0.shared.order(|orders| orders.reopen = true);
    }

    /// Writes what is left, and waits for that at most this long. What is logged after this may be lost.
    pub async fn close(&self, env: &Env, within: Duration) {
        self.0.shared.order(|orders| orders.stop = true);
        let ended = self.0.ended.lock().take();
        if let Some(ended) = ended {
            by(env, Some(env.now() + within), ended).await;
        }
    }

    /// What keeps lines from being written where they should be, if anything does.
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.0.shared.trouble.lock().clone()
    }

    #[cfg(test)]
    pub(super) fn is_asleep(&self) -> bool {
        self.0.shared.asleep.load(Relaxed)
    }

    /// How its lines fared, for a page of metrics.
    pub fn report(&self) -> impl Fn(&mut Page) + Send + Sync + 'static {
        let shared = Arc::clone(&self.0.shared);
        move |page| {
            let get = |count: &AtomicU64| count.load(Relaxed);
            let help = "Lines written to the access log.";
            page.counter("herdproof_access_log_lines_total", help, get(&shared.written));
            page.counters(
                "herdproof_access_log_dropped_total",
                "Lines missing in the access log: its queue was full (queue_full), or the file could not be written (write_failed).",
                "reason",
                &[("queue_full", get(&shared.dropped)), ("write_failed", get(&shared.unwritten))],
            );
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.order(|orders| orders.stop = true);
    }
}

impl Shared {
    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.orders.lock());
        self.called.notify_one();
    }
}

struct Writer {
    env: Env,
    shared: Arc<Shared>,
    path: Option<PathBuf>,
    format: LogFormat,
    hide_query: bool,
    file: Box<dyn Write + Send>,
    /// Whether the file could not be opened anew when it should have been.
    elsewhere: bool,
}

impl Writer {
    fn run(mut self) {
        let (mut records, mut idle) = (Vec::new(), false);
        loop {
            let Orders { reopen, stop, .. } = self.next_orders(idle);
            self.take(&mut records);
            idle = records.is_empty();
            self.write(&mut records);
            if reopen {
                self.reopen();
            }
            if stop {
                // Whoever logged while this was written.
                self.take(&mut records);
                self.write(&mut records);
                return;
            }
        }
    }

    /// Waits for some lines to gather or, if there were none, to be called.
    fn next_orders(&self, idle: bool) -> Orders {
        let shared = &self.shared;
        if idle {
            shared.asleep.store(true, Relaxed);
        }
        // After having said so: who fills a part from now on calls.
        let may_sleep = idle && shared.waiting.iter().all(|part| part.lock().is_empty());
        let mut orders = shared.orders.lock();
        let quiet = |orders: &mut Orders| !(orders.write || orders.reopen || orders.stop);
        if may_sleep {
            shared.called.wait_while(&mut orders, quiet);
            shared.asleep.store(false, Relaxed);
            orders.write = false;
        }
        shared.asleep.store(false, Relaxed);
        shared.called.wait_while_for(&mut orders, quiet, GATHER);
        mem::take(&mut *orders)
    }

    fn take(&self, records: &mut Vec<Record>) {
        for part in self.shared.waiting.iter() {
            records.append(&mut part.lock());
        }
        // Threads wrote them down side by side.
        records.sort_by_key(|record| record.arrived + record.took);
    }

    fn write(&mut self, records: &mut Vec<Record>) {
        // Where the two clocks stand; read anew each time, as the time of day may be set.
        let (now, wall) = (self.env.now(), self.env.wall());
        let (mut piece, mut lines) = (Vec::new(), 0);
        for record in records.drain(..) {
            line::write(&mut piece, &record, wall_at(record.arrived, now, wall), self.format, self.hide_query);
            lines += 1;
            if piece.len() >= PIECE {
                self.flush(&mut piece, &mut lines);
            }
        }
        self.flush(&mut piece, &mut lines);
    }

    fn flush(&mut self, piece: &mut Vec<u8>, lines: &mut u64) {
        if piece.is_empty() {
            return;
        }
        // A disk that is full now may not be later; until then lines are missing, and that is counted.
        let written = self.file.write_all(piece);
        let count = if written.is_ok() { &self.shared.written } else { &self.shared.unwritten };
        count.fetch_add(mem::take(lines), Relaxed);
        piece.clear();
        match written {
            Ok(()) if self.elsewhere => {}
            Ok(()) => *self.shared.trouble.lock() = None,
            Err(error) => self.trouble(format_args!("lines are missing, as they cannot be written: {error}")),
        }
    }

    fn trouble(&self, what: impl fmt::Display) {
        *self.shared.trouble.lock() = Some(what.to_string().into());
    }

    /// If that does not work, the lines go on to where they went so far.
    fn reopen(&mut self) {
        let Some(path) = self.path.clone() else { return };
        match append(&path) {
            Ok(file) => {
                self.file = Box::new(file);
                self.elsewhere = false;
                *self.shared.trouble.lock() = None;
            }
            Err(error) => {
                self.elsewhere = true;
                let path = path.display();
                self.trouble(format_args!("{path} cannot be opened, lines go on to where they went so far: {error}"));
            }
        }
    }
}

fn wall_at(tick: Tick, now: Tick, wall: SystemTime) -> SystemTime {
    wall.checked_sub(now - tick).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Standard output without its lock, which the rest of the program may hold.
#[cfg(unix)]
fn stdout() -> io::Result<File> {
    use std::os::fd::AsFd;
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

#[cfg(windows)]
fn stdout() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    io::stdout().as_handle().try_clone_to_owned().map(File::from)
}

impl fmt::Display for CannotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot open the access log {}: {}", self.path.display(), self.error)
    }
}

impl Error for CannotOpen {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}
