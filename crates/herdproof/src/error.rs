//! How this library says that something went wrong.
//!
//! A caller must be able to tell the endings apart, so errors are enums that name every one of them, and small enough
//! to be returned by value. They implement [`std::error::Error`], print one lower-case sentence without a full stop,
//! and carry what a handler needs (why, when to come back) as data, never only as text.

use std::{
    any::Any,
    error::Error,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use pin_project_lite::pin_project;

/// A panic that was caught, so that whoever waits for the work learns of it instead of hanging.
///
/// Everybody may read the message; the payload itself can be taken once, to let the panic go on.
pub struct Panic {
    message: Box<str>,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Panic {
    /// Wraps what [`std::panic::catch_unwind`] or a joined task gave.
    pub fn new(payload: Box<dyn Any + Send>) -> Panic {
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a value that is not text");
        Panic { message: message.into(), payload: Mutex::new(Some(payload)) }
    }

    /// What the panic said.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Lets the panic go on in this thread, with its first payload if nobody took that, else with its message.
    pub fn resume(&self) -> ! {
        let payload = self.payload.lock().take();
        std::panic::resume_unwind(payload.unwrap_or_else(|| Box::new(self.message.to_string())))
    }
}

/// Runs what drops a load: one that panics then has still loaded what it loaded, and must not take its caller along.
#[inline]
pub(crate) fn quietly<T>(drops: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(drops)) {
        Ok(done) => Some(done),
        Err(payload) => {
            // Said once, by the panic hook; the payload's own drop might panic again.
            std::mem::forget(Panic::new(payload));
            None
        }
    }
}

pin_project! {
    /// Work whose panic is its end and nobody else's, from [`caught`].
    pub(crate) struct Caught<F> {
        #[pin]
        work: F,
    }
}

/// Work that somebody goes on after: a panic of it is an error.
pub(crate) fn caught<F: Future>(work: F) -> Caught<F> {
    Caught { work }
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Panic>;

    /// Not to be polled again after a panic.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.project().work;
        match catch_unwind(AssertUnwindSafe(|| work.poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(payload) => Poll::Ready(Err(Panic::new(payload))),
        }
    }
}

impl fmt::Debug for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Panic").field(&self.message).finish()
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panicked: {}", self.message)
    }
}

impl Error for Panic {}

#[cfg(test)]
mod tests {
    use super::*;

    fn resumed(panic: &Panic) -> Box<dyn Any + Send> {
        catch_unwind(AssertUnwindSafe(|| panic.resume())).expect_err("resume panics")
    }

    #[test]
    fn the_message_survives_whatever_kind_of_text_was_thrown() {
        assert_eq!(Panic::new(Box::new("literal")).message(), "literal");
        assert_eq!(Panic::new(Box::new(String::from("owned"))).to_string(), "panicked: owned");
        assert_eq!(Panic::new(Box::new(7)).message(), "a value that is not text");
    }

    #[test]
    fn the_payload_goes_to_the_first_and_the_message_to_the_others() {
        let panic = Panic::new(Box::new(7_u8));
        assert_eq!(resumed(&panic).downcast_ref::<u8>(), Some(&7));
        assert!(resumed(&panic).downcast_ref::<String>().is_some());
    }
}
