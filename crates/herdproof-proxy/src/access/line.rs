//! One line.
//!
//! What clients send is written down, so clients must not be able to write lines: JSON is escaped by its serializer, and
//! the combined format escapes whatever is not plain ASCII.

use std::{
    io::Write,
    time::{Duration, SystemTime},
};

use http::{HeaderValue, Version};
use serde::Serialize;

use super::{Record, Text};
use crate::{key::Scheme, settings::LogFormat};

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    status: u16,
    bytes: u64,
    complete: bool,
    outcome: &'static str,
    reason: &'static str,
    waited_us: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_us: Option<u64>,
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
    let unsaid = Text::default();
    let text = record.text.as_deref().unwrap_or(&unsaid);
    match format {
        LogFormat::Json => json(into, record, text, &date, hide_query),
        LogFormat::Combined => combined(into, record, text, &date, hide_query),
    }
    into.push(b'\n');
}

fn json(into: &mut Vec<u8>, record: &Record, text: &Text, date: &Date, hide_query: bool) {
    let lossy = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let line = Line {
        time: date.iso(),
        client: if record.client.port() == 0 { record.client.ip().to_string() } else { record.client.to_string() },
        request_id: text.id.as_ref().map(ToString::to_string),
        trace_id: text.trace.as_ref().map(ToString::to_string),
        method: method(record),
        scheme: text.scheme.map(Scheme::as_str),
        host: text.host.as_ref().map(lossy),
        path: path(text, hide_query),
        version: text.version.map(version),
        status: record.status.as_u16(),
        bytes: record.bytes,
        complete: record.complete,
        outcome: record.outcome.name(),
        reason: record.reason.name(),
        waited_us: micros(record.waited),
        origin_us: record.origin.map(micros),
        first_us: micros(record.first),
        took_us: micros(record.took),
        key: format!("{:016x}", record.key),
        referer: text.referer.as_ref().map(lossy),
        agent: text.agent.as_ref().map(lossy),
    };
    // Memory takes everything, and nothing in a line cannot be said in JSON.
    serde_json::to_writer(into, &line).ok();
}

/// The format that web servers share, and behind it what it cannot say: when it came and how long it took, in seconds, what became
/// of it and why, how long the origin took, whether it was complete, over which scheme and for which host, and by which ids it is found
/// elsewhere.
fn combined(into: &mut Vec<u8>, record: &Record, text: &Text, date: &Date, hide_query: bool) {
    // Memory takes everything.
    write!(into, "{} - - [{}] \"", record.client.ip().to_canonical(), date.common()).ok();
    escape(into, method(record).as_bytes());
    into.push(b' ');
    escape(into, path(text, hide_query).as_bytes());
    write!(into, " HTTP/{}\" {} {}", text.version.map_or("-", version), record.status.as_u16(), record.bytes).ok();
    quoted(into, text.referer.as_ref());
    quoted(into, text.agent.as_ref());
    let took = record.took.as_secs_f64();
    let reason = if record.reason.name().is_empty() { "-" } else { record.reason.name() };
    write!(into, " {}.{:06} {took:.6} {} {reason}", date.unix, date.micros, record.outcome.name()).ok();
    match record.origin {
        Some(origin) => write!(into, " {:.6}", origin.as_secs_f64()).ok(),
        None => write!(into, " -").ok(),
    };
    into.extend(if record.complete { &b" complete"[..] } else { b" cut" });
    write!(into, " {}", text.scheme.map_or("-", Scheme::as_str)).ok();
    quoted(into, text.host.as_ref());
    match &text.id {
        Some(id) => write!(into, " {id}").ok(),
        None => write!(into, " -").ok(),
    };
    match &text.trace {
        Some(trace) => write!(into, " {trace}").ok(),
        None => write!(into, " -").ok(),
    };
}

fn quoted(into: &mut Vec<u8>, value: Option<&HeaderValue>) {
    into.extend(b" \"");
    escape(into, value.map_or(b"-", HeaderValue::as_bytes));
    into.push(b'"');
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

fn method(record: &Record) -> &str {
    record.method.as_ref().map_or("-", |method| method.as_str())
}

fn path(text: &Text, hide_query: bool) -> &str {
    match &text.target {
        Some(target) if hide_query => target.path(),
        Some(target) => target.as_str(),
        None => "-",
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "0.9",
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        Version::HTTP_3 => "3",
        _ => "1.1",
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
