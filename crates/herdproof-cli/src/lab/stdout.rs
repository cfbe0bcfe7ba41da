//! What stands on standard output, and that nothing else is written over or into it.

use std::path::{Path, PathBuf};

use crate::output::Failure;

/// The one thing on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stdout {
    Text,
    Json,
    Log,
    Page,
}

/// Whether this is not a file but standard output.
pub(super) fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

impl Stdout {
    /// What is to be there; two things cannot be, nor can two be in one file.
    pub(super) fn of(json: bool, log: Option<&Path>, html: Option<&Path>) -> Result<Stdout, Failure> {
        if let Some((log, html)) = log.zip(html).filter(|(log, html)| !is_stdout(log) && is_same(log, html)) {
            return Err(Failure::Usage {
                problem: format!("the log {} and the page {} are one file", log.display(), html.display()),
                hint: "Write them to two: --log FILE --html OTHER".into(),
            });
        }
        let all = [
            (json, Stdout::Json, "the report"),
            (log.is_some_and(is_stdout), Stdout::Log, "the log"),
            (html.is_some_and(is_stdout), Stdout::Page, "the page"),
        ];
        let wanted: Vec<_> = all.into_iter().filter(|(is_wanted, ..)| *is_wanted).collect();
        match wanted[..] {
            [] => Ok(Stdout::Text),
            [(_, one, _)] => Ok(one),
            [(.., one), (.., other), ..] => Err(Failure::Usage {
                problem: format!("{one} and {other} cannot both be on standard output"),
                hint: format!("Write {other} to a file, or leave out one of them"),
            }),
        }
    }
}

/// Whether two paths are one file, also one that is not there yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| -> Option<PathBuf> {
        path.canonicalize().ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(folder.canonicalize().ok()?.join(path.file_name()?))
        })
    };
    one == other || whole(one).is_some_and(|one| Some(one) == whole(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: bool, log: &str, html: &str) -> Result<Stdout, String> {
        let [log, html] = [log, html].map(|name| (!name.is_empty()).then(|| Path::new(name)));
        Stdout::of(json, log, html).map_err(|failure| failure.to_string())
    }

    #[test]
    fn one_thing_is_on_standard_output_and_nothing_is_mixed() {
        assert_eq!(of(false, "a", "b"), Ok(Stdout::Text));
        assert_eq!(of(true, "a", "b"), Ok(Stdout::Json));
        assert_eq!(of(false, "-", "b"), Ok(Stdout::Log));
        assert_eq!(of(false, "a", "-"), Ok(Stdout::Page));
        for (json, log, html, said) in [
            (true, "-", "", "the report and the log cannot both"),
            (true, "", "-", "the report and the page cannot both"),
            (false, "-", "-", "the log and the page cannot both"),
        ] {
            assert!(of(json, log, html).unwrap_err().starts_with(said));
        }
    }

    #[test]
    fn a_page_does_not_replace_the_log_however_the_file_is_called() {
        for (log, html) in [("a", "a"), ("a", "./a"), ("src/../a", "a")] {
            assert!(of(false, log, html).unwrap_err().contains("are one file"), "{log} {html}");
        }
    }
}
