//! One line.
//!
//! What clients send is written down, so clients must not be able to write lines: JSON is escaped by its serializer, and
//! the combined format escapes whatever is not plain ASCII.

use std::{
    io::Write,
    time::{Duration, SystemTime},
};

use http::HeaderValue;
use serde::Serialize;

use super::Record;
use crate::settings::LogFormat;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: String,
    method: &'a str,
    path: &'a str,
    status: u16,
    bytes: u64,
    outcome: &'static str,
    reason: &'static str,
    waited_us: u64,
    first_us: u64,
    took_us: u64,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
}

/// Writes a record's line into memory, given the time of day at which it arrived.
pub(super) fn write(into: &mut Vec<u8>, record: &Record, arrived: SystemTime, format: LogFormat, hide_query: bool) {
    let date = Date::of(arrived);
    match format {
        LogFormat::Json => json(into, record, &date, hide_query),
        LogFormat::Combined => combined(into, record, &date, hide_query),
    }
    into.push(b'\n');
}

fn json(into: &mut Vec<u8>, record: &Record, date: &Date, hide_query: bool) {
    let lossy = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let line = Line {
        time: date.iso(),
        client: if record.client.port() == 0 { record.client.ip().to_string() } else { record.client.to_string() },
        method: record.method.as_str(),
        path: path(record, hide_query),
        status: record.status.as_u16(),
        bytes: record.bytes,
        outcome: record.outcome.name(),
        reason: record.reason,
        waited_us: micros(record.waited),
        first_us: micros(record.first),
        took_us: micros(record.took),
        key: format!("{:016x}", record.key),
        referer: record.referer.as_ref().map(lossy),
        agent: record.agent.as_ref().map(lossy),
    };
    // Memory takes everything, and nothing in a line cannot be said in JSON.
    serde_json::to_writer(into, &line).ok();
}

/// The format that web servers share, and behind it what it cannot say: when it came and how long it took, in seconds, and
/// what became of it.
fn combined(into: &mut Vec<u8>, record: &Record, date: &Date, hide_query: bool) {
    // Memory takes everything.
    write!(into, "{} - - [{}] \"", record.client.ip().to_canonical(), date.common()).ok();
    escape(into, record.method.as_str().as_bytes());
    into.push(b' ');
    escape(into, path(record, hide_query).as_bytes());
    write!(into, " HTTP/1.1\" {} {}", record.status.as_u16(), record.bytes).ok();
    for value in [&record.referer, &record.agent] {
        into.extend(b" \"");
        escape(into, value.as_ref().map_or(b"-", HeaderValue::as_bytes));
        into.push(b'"');
    }
    let took = record.took.as_secs_f64();
    let reason = if record.reason.is_empty() { "-" } else { record.reason };
    write!(into, " {}.{:06} {took:.6} {} {reason}", date.unix, date.micros, record.outcome.name()).ok();
}

fn escape(into: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => into.extend([b'\\', byte]),
            b' '..=b'~' => into.push(byte),
            _ => {
                write!(into, "\\x{byte:02x}").ok();
            }
        }
    }
}

fn path(record: &Record, hide_query: bool) -> &str {
    match &record.target {
        Some(target) if hide_query => target.path(),
        Some(target) => target.as_str(),
        None => "-",
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A moment as it stands in a line of JSON: `2026-01-01T00:00:00.000000Z`.
pub fn iso(time: SystemTime) -> String {
    Date::of(time).iso()
}

/// A moment as calendars have it, in UTC.
#[derive(Debug)]
struct Date {
    unix: u64,
    micros: u32,
    year: u64,
    month: usize,
    day: u64,
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Date {
    /// What is before 1970 counts as 1970.
    fn of(time: SystemTime) -> Date {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (unix, micros) = (since.as_secs(), since.subsec_micros());
        // Days since 1 March of the year 0, so that leap days are the last of their years.
        let days = unix / 86_400 + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Date { unix, micros, year, month: usize::try_from(month - 1).unwrap_or(0), day }
    }

    fn clock(&self) -> (u64, u64, u64) {
        (self.unix / 3600 % 24, self.unix / 60 % 60, self.unix % 60)
    }

    fn iso(&self) -> String {
        let ((hour, minute, second), Date { year, day, micros, .. }) = (self.clock(), self);
        format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z", self.month + 1)
    }

    fn common(&self) -> String {
        let ((hour, minute, second), Date { year, day, .. }) = (self.clock(), self);
        format!("{day:02}/{}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000", MONTHS[self.month % 12])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_date_is_the_one_that_http_writes(unix in 0_u64..253_402_300_800) {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(unix);
            // Such as "Sun, 06 Nov 1994 08:49:37 GMT".
            let http = httpdate::fmt_http_date(time);
            let date = Date::of(time);
            let (hour, minute, second) = date.clock();
            let ours = format!("{:02} {} {:04} {hour:02}:{minute:02}:{second:02} GMT", date.day, MONTHS[date.month], date.year);
            prop_assert_eq!(&http[5..], ours);
        }
    }
}
