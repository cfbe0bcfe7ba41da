//! What one layer tells the next: how long it still waits, which attempt this is, and not to try again.
//!
//! A layer that does not know that its caller is retrying retries too, and three layers of three attempts are 27. One that
//! does not know its caller's deadline works for nobody. Three headers say it, each a plain number or word:
//!
//! | header | value | says |
//! |---|---|---|
//! | `x-deadline-ms` | whole milliseconds | downwards: the answer is of no use after this long. Relative, since clocks differ |
//! | `x-retry-attempt` | whole number | downwards: zero or absent for the first attempt, one for the first retry |
//! | `x-no-retry` | `overloaded` | upwards: a layer here has tried again, or would not; do not try again above |
//!
//! Nothing here knows of an HTTP library. Names are lower-case, numbers are numbers, values are bytes.
//!
//! ```
//! use std::{collections::BTreeMap, time::Duration};
//! use herdproof::{Env, gate::Ask, retry::wire};
//!
//! let env = Env::system();
//! let ask = Ask::new(&env).attempt(1);
//! let ask = ask.clone().deadline(ask.at + Duration::from_millis(250));
//!
//! let mut headers = BTreeMap::new(); // a client writes
//! wire::write(&ask, ask.at + Duration::from_millis(50), |name, value| {
//!     headers.insert(name, value.to_string());
//! });
//! assert_eq!(headers["x-deadline-ms"], "200");
//!
//! let here = Ask::new(&env); // a server reads
//! let read = wire::read(here.clone(), |name| headers.get(name).map(String::as_bytes)).unwrap();
//! assert_eq!(read.attempt, 1);
//! assert_eq!(read.deadline, Some(here.at + Duration::from_millis(200)));
//! ```

use std::{error::Error, fmt, time::Duration};

use crate::{env::Tick, gate::Ask};

/// The name of the header that carries a deadline.
pub const DEADLINE: &str = "x-deadline-ms";
/// The name of the header that carries the number of an attempt.
pub const ATTEMPT: &str = "x-retry-attempt";
/// The name of the header that says not to try again.
pub const NO_RETRY: &str = "x-no-retry";
/// The value of [`NO_RETRY`].
pub const OVERLOADED: &str = "overloaded";

/// The longest deadline that is believed: a day.
pub const LONGEST: Duration = Duration::from_secs(86_400);
/// The highest attempt that is believed.
pub const MOST_ATTEMPTS: u16 = 1000;

/// A header whose value makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHeader {
    /// Which header.
    pub name: &'static str,
    /// The beginning of what it said.
    pub value: String,
    right: Right,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    UpTo(u64),
    Word(&'static str),
}

/// Says the deadline, if there is one, and the attempt, if it is not the first.
pub fn write(ask: &Ask, now: Tick, mut header: impl FnMut(&'static str, u64)) {
    if let Some(deadline) = ask.deadline {
        header(DEADLINE, deadline_ms(deadline - now));
    }
    if ask.attempt > 0 {
        header(ATTEMPT, u64::from(ask.attempt.min(MOST_ATTEMPTS)));
    }
}

/// Takes over what the caller said. A deadline that is already there stays if it is the earlier one.
pub fn read<'a>(mut ask: Ask, header: impl Fn(&'static str) -> Option<&'a [u8]>) -> Result<Ask, BadHeader> {
    if let Some(value) = header(DEADLINE) {
        let told = ask.at + parse_deadline(value)?;
        ask.deadline = Some(ask.deadline.map_or(told, |own| own.min(told)));
    }
    if let Some(value) = header(ATTEMPT) {
        ask.attempt = parse_attempt(value)?;
    }
    Ok(ask)
}

/// What [`DEADLINE`] says for this much time: rounded down, since later than told is too late.
pub fn deadline_ms(left: Duration) -> u64 {
    u64::try_from(left.min(LONGEST).as_millis()).unwrap_or(u64::MAX)
}

/// How much time a caller gives.
pub fn parse_deadline(value: &[u8]) -> Result<Duration, BadHeader> {
    let most = deadline_ms(LONGEST);
    number(DEADLINE, value, most).map(Duration::from_millis)
}

/// Which attempt of the caller this is.
pub fn parse_attempt(value: &[u8]) -> Result<u16, BadHeader> {
    let attempt = number(ATTEMPT, value, u64::from(MOST_ATTEMPTS))?;
    Ok(u16::try_from(attempt).unwrap_or(MOST_ATTEMPTS))
}

/// A layer below has given up. Any other word than [`OVERLOADED`] is an error.
pub fn parse_no_retry(value: &[u8]) -> Result<(), BadHeader> {
    if value.trim_ascii().eq_ignore_ascii_case(OVERLOADED.as_bytes()) {
        Ok(())
    } else {
        Err(BadHeader::new(NO_RETRY, value, Right::Word(OVERLOADED)))
    }
}

fn number(name: &'static str, value: &[u8], most: u64) -> Result<u64, BadHeader> {
    let bad = || BadHeader::new(name, value, Right::UpTo(most));
    let digits = value.trim_ascii();
    // `parse` alone would take a plus sign.
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.filter(|number| *number <= most).ok_or_else(bad)
}

impl BadHeader {
    fn new(name: &'static str, value: &[u8], right: Right) -> BadHeader {
        let start = &value[..value.len().min(64)];
        BadHeader { name, value: String::from_utf8_lossy(start).into_owned(), right }
    }
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} is not ", self.name, self.value)?;
        match self.right {
            Right::UpTo(most) => write!(f, "a whole number from 0 to {most}"),
            Right::Word(word) => write!(f, "{word:?}"),
        }
    }
}

impl Error for BadHeader {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::sim::Sim;

    const MS: Duration = Duration::from_millis(1);

    fn ask() -> Ask {
        Ask::new(&Sim::new(1).env())
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        let nonsense: [&[u8]; 10] =
            [b"", b" ", b"-1", b"+1", b"1.5", b"1e3", b"soon", b"86400001", b"99999999999999999999999", b"\xff\xfe"];
        for value in nonsense {
            assert!(parse_deadline(value).is_err(), "{value:?} was taken");
            assert!(parse_attempt(value).is_err(), "{value:?} was taken");
            assert!(parse_no_retry(value).is_err(), "{value:?} was taken");
        }
        let message = |bad: BadHeader| bad.to_string();
        assert_eq!(
            parse_deadline(b"-5").map_err(message),
            Err("x-deadline-ms \"-5\" is not a whole number from 0 to 86400000".into())
        );
        assert_eq!(
            parse_attempt(b"1001").map_err(message),
            Err("x-retry-attempt \"1001\" is not a whole number from 0 to 1000".into())
        );
        assert_eq!(parse_no_retry(b"no").map_err(message), Err("x-no-retry \"no\" is not \"overloaded\"".into()));
        assert!(parse_deadline(&[b'9'; 5000]).unwrap_err().value.len() <= 64);
    }

    #[test]
    fn what_makes_sense_is_taken() {
        assert_eq!(parse_deadline(b" 250 "), Ok(MS * 250));
        assert_eq!(parse_deadline(b"86400000"), Ok(LONGEST));
        assert_eq!(parse_deadline(b"0"), Ok(Duration::ZERO));
        assert_eq!(parse_attempt(b"1000"), Ok(1000));
        assert_eq!(parse_no_retry(b" Overloaded "), Ok(()));
    }

    #[test]
    fn no_layer_thinks_it_has_more_time_than_its_caller_gives() {
        assert_eq!(deadline_ms(Duration::from_micros(1999)), 1);
        assert_eq!(deadline_ms(Duration::MAX), 86_400_000);
        let told = |own: Option<Duration>, told: &'static [u8]| {
            let mut ask = ask();
            ask.deadline = own.map(|own| ask.at + own);
            let read = read(ask, |name| (name == DEADLINE).then_some(told)).unwrap();
            read.deadline.map(|deadline| deadline - read.at)
        };
        assert_eq!(told(Some(MS * 100), b"250"), Some(MS * 100));
        assert_eq!(told(Some(MS * 400), b"250"), Some(MS * 250));
        assert_eq!(told(None, b"250"), Some(MS * 250));
    }

    #[test]
    fn a_deadline_that_has_passed_is_told_as_such() {
        let late = ask().deadline(Tick::ZERO);
        let mut told = Vec::new();
        write(&late, Tick::ZERO + MS, |name, value| told.push((name, value)));
        assert_eq!(told, [(DEADLINE, 0)]);
        assert!(read(ask(), |name| (name == DEADLINE).then_some(b"0".as_slice())).unwrap().is_late());
    }

    #[test]
    fn a_first_attempt_without_a_deadline_says_nothing() {
        write(&ask(), Tick::ZERO, |name, _| panic!("said {name}"));
        assert_eq!(read(ask(), |_| None), Ok(ask()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
        #[test]
        fn what_is_written_is_read(attempt in 0..=MOST_ATTEMPTS, left in 0u64..=86_400_000) {
            let mut ask = ask().attempt(attempt);
            ask.deadline = Some(ask.at + Duration::from_millis(left));
            let mut told = std::collections::BTreeMap::new();
            write(&ask, ask.at, |name, value| { told.insert(name, value.to_string()); });
            prop_assert_eq!(read(self::ask(), |name| told.get(name).map(String::as_bytes)), Ok(ask));
        }

        #[test]
        fn no_bytes_are_read_with_a_panic(value in any::<Vec<u8>>()) {
            for parsed in [parse_deadline(&value).err(), parse_attempt(&value).err(), parse_no_retry(&value).err()] {
                drop(parsed.map(|bad| bad.to_string()));
            }
        }
    }
}
