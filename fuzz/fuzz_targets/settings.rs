//! A settings file: taken, or refused in words, with a line that is there and what stands in it. And times and sizes, which are
//! read as they are written.
#![no_main]

use herdproof_proxy::{
    Settings,
    settings::{BadSettings, parse_size, parse_time, show_size, show_time},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Settings::parse(text) {
        Ok(settings) => {
            assert!(settings.routes.iter().all(|route| route.prefix.starts_with('/')));
            assert!(settings.failed.start <= settings.failed.end && settings.origin.limit > 0);
            assert_eq!(Settings::parse(&format!("{text}\n# The end.")), Ok(settings));
        }
        Err(wrong) => names_its_place(text, &wrong),
    }
    for line in text.lines().take(8) {
        if let Ok(time) = parse_time(line) {
            assert_eq!(parse_time(&show_time(time)), Ok(time));
        }
        if let Ok(size) = parse_size(line) {
            assert_eq!(parse_size(&show_size(size)), Ok(size));
        }
    }
});

fn names_its_place(text: &str, wrong: &BadSettings) {
    let said = wrong.to_string();
    let place = said.strip_prefix("herdproof.toml:").expect("the file");
    let mut parts = place.splitn(3, ':');
    let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok()).expect("a line and a column");
    let (line, column) = (number(), number());
    assert!(parts.next().is_some_and(|problem| problem.len() > 2), "{said}");
    let written = text.lines().nth(line - 1).unwrap_or_default();
    assert!(line == 1 || line <= text.lines().count(), "{said}");
    assert!((1..=written.chars().count() + 1).contains(&column), "{said}");
    assert!(said.contains(&format!("\n{line} | {written}\n")), "{said}");
}
