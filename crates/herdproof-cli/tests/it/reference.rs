//! `docs/reference` is generated, and what the documents tell users to type works.
//!
//! To write the reference anew: `HERDPROOF_WRITE_REFERENCE=1 cargo test -p herdproof-cli reference`.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

#[cfg(target_os = "linux")]
use herdproof::event::{Kind, Metric};
#[cfg(target_os = "linux")]
use herdproof_proxy::{Detail, access::Outcome};

use crate::run::printed;

#[cfg(target_os = "linux")]
const FITS: &str = "strings take everything";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check(name: &str, text: &str) {
    let path = root().join("docs/reference").join(name);
    if std::env::var_os("HERDPROOF_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("the folder can be made");
        std::fs::write(&path, text).expect("the reference can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/reference/{name} is not what the program says; the head of this file tells how to renew it"
    );
}

#[test]
fn the_command_line_reference_is_what_help_says() {
    let mut text = String::from("# The command line\n\nWhat `--help` says, generated.\n");
    let commands: &[&[&str]] = &[
        &[],
        &["demo"],
        &["proxy"],
        &["lab"],
        &["lab", "list"],
        &["lab", "run"],
        &["lab", "sweep"],
        &["lab", "table"],
        &["lab", "ask"],
        &["lab", "verify"],
        &["completions"],
        &["man"],
    ];
    for command in commands {
        let help = printed(&[command, &["--help"][..]].concat());
        let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let title = [&["herdproof"][..], command].concat().join(" ");
        write!(text, "\n## `{title}`\n\n```text\n{}\n```\n", help.join("\n")).expect("strings take everything");
    }
    check("cli.md", &text);
}

/// As the proxy itself has them on its page; then the values of their labels, which are those of its log; then the library's.
#[cfg(target_os = "linux")]
#[test]
fn the_metrics_reference_is_what_the_proxy_has_on_its_page() {
    let page = crate::proxy::metrics();
    let described = page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    let mut text = String::from("# Metrics\n\n");
    text.push_str(
        "What can be watched, generated from the page `/metrics` of a running proxy. Times are in seconds, sizes in bytes. No label has \
         a value that a client can choose.\n\n\
         How many requests one request to the origin answers, a herd's best sign: \
         `sum(rate(herdproof_requests_total[5m])) / rate(herdproof_origin_requests_total[5m])`. The share of hits: \
         `rate(herdproof_cache_hits_total[5m]) / sum(rate(herdproof_requests_total[5m]))`.\n",
    );
    text.push_str("\n## The proxy\n\n| name | kind | what it counts |\n|---|---|---|\n");
    for (name, what) in described {
        let kind = page.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).expect(name);
        writeln!(text, "| `{name}` | {kind} | {what} |").expect(FITS);
    }
    text.push_str("\n## Outcomes\n\n`outcome` in metrics and in the access log.\n\n| outcome | what became of the request |\n|---|---|\n");
    for outcome in Outcome::ALL {
        writeln!(text, "| `{}` | {} |", outcome.name(), outcome.help()).expect(FITS);
    }
    text.push_str(
        "\n## Reasons\n\n`reason` in metrics and in the access log, `detail` in `Cache-Status`.\n\n| reason | what it means |\n|---|---|\n",
    );
    for detail in Detail::ALL {
        writeln!(text, "| `{}` | {} |", detail.name(), detail.help()).expect(FITS);
    }
    text.push_str(
        "\n## The library, in services that use it\n\nWhat its events are called by `Facade` (feature `metrics`). The proxy does not \
         show them: they are about look-ups and loads, of which a request has several or none.\n\n| name | kind | what it counts |\n|---|---|---|\n",
    );
    for metric in Metric::ALL {
        let kind = match metric.kind() {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Time => "histogram",
        };
        writeln!(text, "| `{}` | {kind} | {} |", metric.name(), metric.help()).expect(FITS);
    }
    check("metrics.md", &text);
}

#[test]
fn every_command_that_the_documents_show_works() {
    let mut documents = vec![root().join("README.md")];
    let guide = std::fs::read_dir(root().join("docs/guide")).expect("there is a guide");
    documents.extend(guide.map(|entry| entry.expect("it can be read").path()));
    let mut shown = 0;
    for document in documents {
        let text = std::fs::read_to_string(&document).expect("it can be read");
        for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
            let args = line.strip_prefix("cargo run --release -- ").or_else(|| line.strip_prefix("herdproof "));
            let Some(args) = args else { continue };
            let ends = ["|", ">", "#", "&"];
            let mut args: Vec<&str> = args.split_whitespace().take_while(|word| !ends.contains(word)).collect();
            // It serves until it is stopped, as the tests of it do: here only whether it understands its arguments.
            if args.first() == Some(&"proxy") {
                args.push("--help");
            }
            printed(&args);
            shown += 1;
        }
    }
    assert!(shown > 0, "the README shows at least one command");
}
