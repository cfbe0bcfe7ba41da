//! Times such as `30s`, sizes such as `256MiB`, addresses such as `127.0.0.1:8080`.

use std::{
    error::Error,
    fmt::{self, Write},
    net::SocketAddr,
    time::Duration,
};

const TIMES: [(&str, u128); 7] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

const SIZES: [(&str, u128); 7] =
    [("B", 1), ("kB", 1_000), ("KB", 1_000), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
const DECIMAL_SIZES: [(&str, u128); 3] = [("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];

/// What was said is no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotATime(String);

/// What was said is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotASize(String);

/// A time: numbers with units, the larger first, such as `30s`, `1.5h` or `1m30s`.
///
/// ```
/// use std::time::Duration;
/// use herdproof_proxy::settings::parse_time;
///
/// assert_eq!(parse_time("1m30s"), Ok(Duration::from_secs(90)));
/// assert!(parse_time("30").unwrap_err().to_string().contains("\"30s\""));
/// ```
pub fn parse_time(text: &str) -> Result<Duration, NotATime> {
    let time = || {
        let (mut rest, mut nanos, mut last) = (text.trim(), 0, u128::MAX);
        while !rest.is_empty() {
            let (amount, unit, after) = part(rest, &TIMES)?;
            // `1s1m` is more likely a slip than a time.
            let larger_first = unit < last;
            (last, rest) = (unit, after);
            nanos = larger_first.then(|| u128::checked_add(nanos, amount))??;
        }
        let nanos = u64::try_from(nanos).ok()?;
        (!text.trim().is_empty()).then_some(Duration::from_nanos(nanos))
    };
    time().ok_or_else(|| NotATime(text.to_owned()))
}

/// A size in bytes: a number, with a unit such as `KiB`, `MiB` or `MB` unless it is bytes.
///
/// ```
/// use herdproof_proxy::settings::parse_size;
///
/// assert_eq!(parse_size("1.5KiB"), Ok(1536));
/// assert!(parse_size("many").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, NotASize> {
    let size = || {
        let text = text.trim();
        if let Ok(bytes) = text.parse() {
            return text.starts_with(|first: char| first.is_ascii_digit()).then_some(bytes);
        }
        let (bytes, _, rest) = part(text, &SIZES).or_else(|| part(text, &DECIMAL_SIZES))?;
        if rest.is_empty() { u64::try_from(bytes).ok() } else { None }
    };
    size().ok_or_else(|| NotASize(text.to_owned()))
}

/// What was said is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnAddress(String);

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`, or `:8080` for all there are.
pub fn parse_address(text: &str) -> Result<SocketAddr, NotAnAddress> {
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let here = |text: &str, before: &str, ip: [u8; 4]| Some((ip, port(text.strip_prefix(before)?)?).into());
    let address = text.parse().ok();
    let address = address.or_else(|| here(text, "localhost:", [127, 0, 0, 1])).or_else(|| here(text, ":", [0; 4]));
    address.ok_or_else(|| NotAnAddress(text.to_owned()))
}

/// A number with a unit: what it comes to, the unit, and the text behind it.
fn part<'a>(text: &'a str, units: &[(&str, u128)]) -> Option<(u128, u128, &'a str)> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, text) = text.split_at(digits);
    let text = text.trim_start();
    let letters = text.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(text.len());
    let (name, rest) = text.split_at(letters);
    let (_, unit) = *units.iter().find(|(known, _)| *known == name)?;
    let (whole, decimals) = number.split_once('.').map_or((number, None), |(whole, decimals)| (whole, Some(decimals)));
    let mut amount = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    if let Some(decimals) = decimals {
        // More than nine say nothing that could be kept.
        let kept = decimals.get(..decimals.len().min(9))?;
        let parts = 10_u128.pow(u32::try_from(kept.len()).ok()?);
        amount = amount.checked_add(kept.parse::<u128>().ok()?.checked_mul(unit)? / parts)?;
    }
    Some((amount, unit, rest.trim_start()))
}

/// A time as it would be written in a file: `90s` becomes `1m30s`, and `0.0015s` becomes `1.5ms`.
pub fn show_time(time: Duration) -> String {
    let mut nanos = time.as_nanos();
    let mut text = String::new();
    // Strings take everything.
    for (name, unit) in [("d", 86_400_000_000_000), ("h", 3_600_000_000_000), ("m", 60_000_000_000)] {
        if nanos >= unit {
            write!(text, "{}{name}", nanos / unit).ok();
            nanos %= unit;
        }
    }
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    match (seconds, rest) {
        (0, 0) if !text.is_empty() => {}
        (_, 0) => write!(text, "{seconds}s").unwrap_or_default(),
        (0, 1_000_000..) if text.is_empty() && rest % 1_000 == 0 => {
            let (ms, us) = (rest / 1_000_000, rest / 1_000 % 1_000);
            text.extend([format!("{ms}.{us:03}").trim_end_matches('0').trim_end_matches('.'), "ms"]);
        }
        (0, _) if rest % 1_000_000 == 0 => write!(text, "{}ms", rest / 1_000_000).unwrap_or_default(),
        (0, _) if rest % 1_000 == 0 => write!(text, "{}us", rest / 1_000).unwrap_or_default(),
        _ => text.extend([format!("{seconds}.{rest:09}").trim_end_matches('0'), "s"]),
    }
    text
}

/// A size as it would be written in a file: `1024` becomes `1KiB`.
pub fn show_size(bytes: u64) -> String {
    let units = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1_u64 << 10)];
    let unit = units.iter().find(|(_, unit)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes}B"), |(name, unit)| format!("{}{name}", bytes / unit))
}

impl fmt::Display for NotATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotATime(text) = self;
        let number = text.trim();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            return write!(f, "{text:?} is a time without a unit; {:?} would be seconds", format!("{number}s"));
        }
        write!(f, "{text:?} is not a time; write it as \"500ms\", \"30s\", \"5m\" or \"1h30m\"")
    }
}

impl fmt::Display for NotASize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a size; write it as \"64KiB\", \"256MiB\", \"2GiB\" or a number of bytes", self.0)
    }
}

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an address to listen on; write it as \"127.0.0.1:8080\" or \"[::1]:8080\"", self.0)
    }
}

impl Error for NotAnAddress {}
impl Error for NotATime {}
impl Error for NotASize {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_mean_what_people_mean() {
        for (text, millis) in [
            ("0s", 0),
            ("500ms", 500),
            ("30s", 30_000),
            (" 30 s ", 30_000),
            ("1.5s", 1_500),
            ("5m", 300_000),
            ("5min", 300_000),
            ("1h30m", 5_400_000),
            ("1d 2h", 93_600_000),
            ("0.25h", 900_000),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_whole() {
        for text in
            ["", " ", "s", "30", "-1s", "1s1m", "1s1s", "1.2.3s", ".s", "1e3s", "30 sec", "1s,", "١s", "9999999999999d"]
        {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_mean_what_people_mean() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("256 MiB", 268_435_456),
            ("1.5GiB", 1_610_612_736),
            ("1MB", 1_000_000),
            ("1kB", 1_000),
            ("2TiB", 2_199_023_255_552),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "MiB", "-1", "+1", "1 MiB 2", "256M", "256Mib", "99999999TiB", "1.MiB", "0x10", "18446744073709551616"]
        {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn addresses_mean_what_people_mean() {
        for (text, address) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:80", "127.0.0.1:80"),
            (":80", "0.0.0.0:80"),
        ] {
            assert_eq!(parse_address(text), Ok(address.parse().unwrap()));
        }
        for text in ["", "80", "127.0.0.1", ":", ":+80", ":65536", "example.org:80", "http://127.0.0.1:80", "::1:80"] {
            assert!(parse_address(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_time_is_shown_in_the_unit_one_would_choose() {
        let micros = [0, 250, 1_500, 80_000, 1_500_000, 60_000_000, 60_000_250, 90_000_000, 300_000_000, 3_600_000_000];
        let shown = micros.map(|us| show_time(Duration::from_micros(us)));
        assert_eq!(shown, ["0s", "250us", "1.5ms", "80ms", "1.5s", "1m", "1m250us", "1m30s", "5m", "1h"]);
        assert_eq!(show_time(Duration::from_nanos(1_234_567)), "0.001234567s");
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in ".{0,30}", number in "[0-9.]{0,40}(ms|s|h|d|MiB|kB|)") {
            drop((parse_time(&text), parse_size(&text), parse_time(&number), parse_size(&number)));
        }

        #[test]
        fn what_is_shown_can_be_read_again(nanos: u64, rounded in 0_u64..10_000_000_000, bytes: u64) {
            let time = Duration::from_millis(rounded);
            prop_assert_eq!(parse_time(&show_time(time)), Ok(time));
            let time = Duration::from_micros(rounded);
            prop_assert_eq!(parse_time(&show_time(time)), Ok(time));
            let time = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_time(&show_time(time)), Ok(time));
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }
    }
}
