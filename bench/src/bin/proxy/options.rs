//! What the command line asks for.

use std::path::PathBuf;

use crate::wrk::Processors;

pub struct Options {
    /// Groups or beginnings of names; all cases, if there is none.
    pub cases: Vec<String>,
    /// Names; everybody, if there is none.
    pub peers: Vec<String>,
    /// How often cases are measured in which every microsecond counts.
    pub rounds: usize,
    /// How long keys churn.
    pub churn: Option<f64>,
    pub json: bool,
    /// Ours, already built.
    pub binary: Option<PathBuf>,
    pub list: bool,
    /// Whether wrk is to have processors of its own.
    pub apart: bool,
    /// And those are they, once they are set aside.
    pub aside: Option<Processors>,
}

const KNOWN: &str = "--case NAME.., --peer NAME.., --rounds N, --minutes N, --binary PATH, --apart, --json and --list";

impl Options {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            peers: Vec::new(),
            rounds: 5,
            churn: None,
            json: false,
            binary: None,
            list: false,
            apart: false,
            aside: None,
        };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut names = || {
                let mut names = Vec::new();
                while let Some(name) = args.next_if(|next| !next.starts_with("--")) {
                    names.extend(name.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
                }
                if names.is_empty() { Err(format!("{arg} takes names; --list shows them")) } else { Ok(names) }
            };
            match arg.as_str() {
                "--case" => options.cases.extend(names()?),
                "--peer" => options.peers.extend(names()?),
                "--rounds" => {
                    let rounds = args.next().and_then(|n| n.parse().ok()).filter(|n| (1..=100).contains(n));
                    options.rounds = rounds.ok_or("--rounds takes a whole number from 1 to 100")?;
                }
                "--minutes" => {
                    let minutes = args.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0.0 && *n <= 600.0);
                    options.churn = Some(minutes.ok_or("--minutes takes a number up to 600")?);
                }
                "--binary" => options.binary = Some(args.next().ok_or("--binary takes a path")?.into()),
                "--json" => options.json = true,
                "--list" => options.list = true,
                "--apart" => options.apart = true,
                _ => return Err(format!("unknown option {arg}; there are {KNOWN}")),
            }
        }
        Ok(options)
    }

    /// One round is for a first look: what can be shorter is.
    pub fn is_quick(&self) -> bool {
        self.rounds == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_the_next_option() {
        let words = "--case a,b herd-800 --peer nginx --rounds 2 --json".split(' ').map(str::to_owned);
        let options = Options::parse(words).unwrap();
        assert_eq!(options.cases, ["a", "b", "herd-800"]);
        assert_eq!((options.peers, options.rounds, options.json), (vec!["nginx".into()], 2, true));
        assert!(Options::parse(["--case".to_owned()].into_iter()).is_err());
    }
}
