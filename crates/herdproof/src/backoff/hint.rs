//! When the server said to come back.

use std::{
    error::Error,
    fmt,
    time::{Duration, SystemTime},
};

/// A server's request to wait, with the precision at which it was made.
///
/// `Retry-After` counts whole seconds, so a thousand clients that were refused within one second are told the same
/// instant. The grain says how far apart they may be without anybody coming back early or a step late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    pub(super) after: Duration,
    pub(super) grain: Duration,
}

/// A `Retry-After` that is neither a number of seconds nor a date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRetryAfter(String);

impl RetryAfter {
    /// As whole seconds, the way `Retry-After` says it.
    pub fn secs(after: u64) -> RetryAfter {
        RetryAfter { after: Duration::from_secs(after), grain: Duration::from_secs(1) }
    }

    /// As milliseconds, the way `retry-after-ms` says it.
    pub fn millis(after: u64) -> RetryAfter {
        RetryAfter { after: Duration::from_millis(after), grain: Duration::from_millis(1) }
    }

    /// How long, as it was said.
    pub fn duration(self) -> Duration {
        self.after
    }

    /// Reads the value of a `Retry-After` header: whole seconds, or a date, which is compared with the wall clock.
    ///
    /// ```
    /// use herdproof::{Env, backoff::RetryAfter};
    ///
    /// let wall = Env::system().wall();
    /// assert_eq!(RetryAfter::parse("5", wall), Ok(RetryAfter::secs(5)));
    /// assert_eq!(RetryAfter::parse("Thu, 01 Jan 1970 00:00:00 GMT", wall), Ok(RetryAfter::secs(0)));
    /// let bad = RetryAfter::parse("soon", wall).unwrap_err();
    /// assert_eq!(bad.to_string(), r#"Retry-After "soon" is neither whole seconds ("120") nor an HTTP date"#);
    /// ```
    pub fn parse(value: &str, wall: SystemTime) -> Result<RetryAfter, BadRetryAfter> {
        let value = value.trim();
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // More digits than fit is still a number: as long as can be said.
            return Ok(RetryAfter::secs(value.parse().unwrap_or(u64::MAX)));
        }
        let date = httpdate::parse_http_date(value).map_err(|_| BadRetryAfter(value.chars().take(64).collect()))?;
        let after = date.duration_since(wall).unwrap_or_default();
        Ok(RetryAfter { after, grain: Duration::from_secs(1) })
    }
}

impl fmt::Display for BadRetryAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retry-After {:?} is neither whole seconds (\"120\") nor an HTTP date", self.0)
    }
}

impl Error for BadRetryAfter {}
