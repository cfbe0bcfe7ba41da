//! A test that passes with the remedy removed proves nothing. Here each remedy is removed in turn, in a copy of the
//! repository, and the test that claims to guard it must fail.
//!
//! What is removed and who must notice is listed in `xtask/mutants.txt`.

pub(crate) mod list;
mod tree;
mod trial;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use crate::failure::Failure;
use crate::mutants::list::{Mutant, Target};
use crate::mutants::tree::Tree;
use crate::mutants::trial::{Ran, Trial};
use crate::run::Stopwatch;
use crate::say;
use crate::workspace::Workspace;

pub(crate) const LIST: &str = "xtask/mutants.txt";

/// What became of a mutant. Only the first ending is good.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The named test failed.
    Killed,
    /// The named test passed: it does not guard what it claims.
    Survived,
    /// It did not compile, so no test had a chance to notice.
    Broken,
    /// The text to replace is not in the file exactly once, but this often.
    Stale(usize),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Killed => "killed",
            Self::Survived => "SURVIVED",
            Self::Broken => "broken",
            Self::Stale(_) => "stale",
        })
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<(), Failure> {
    let path = workspace.root.join(LIST);
    let text = fs::read_to_string(&path).map_err(|error| Failure::io("read", &path, &error))?;
    let mutants = list::parse(&text).map_err(|problem| Failure::Io(format!("{LIST}:{problem}")))?;
    let mutants = chosen(mutants, arguments)?;
    if mutants.is_empty() {
        say::line(format!("{LIST} lists no mutants yet"));
        return Ok(());
    }
    let tree = Tree::copy(workspace, &workspace.root.join("target/mutants/tree"))?;
    let trial = Trial::prepare(workspace, &tree)?;
    check_unmutated(&trial, &mutants)?;
    judge_all(&tree, &trial, &mutants)
}

/// All of them; or, for each word, the one of this name, else those that have the word in their name or file.
fn chosen(mut mutants: Vec<Mutant>, words: &[String]) -> Result<Vec<Mutant>, Failure> {
    if words.is_empty() {
        return Ok(mutants);
    }
    let mut wanted = BTreeSet::new();
    for word in words {
        let alone = mutants.iter().any(|mutant| mutant.name == *word);
        let has_it = |mutant: &&Mutant| {
            if alone { mutant.name == *word } else { mutant.name.contains(word) || mutant.file.contains(word) }
        };
        let names: Vec<_> = mutants.iter().filter(has_it).map(|mutant| mutant.name.clone()).collect();
        if names.is_empty() {
            let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
            return Err(Failure::Usage(format!(
                "no mutant has `{word}` in its name or file; {LIST} has: {}",
                names.join(", ")
            )));
        }
        wanted.extend(names);
    }
    mutants.retain(|mutant| wanted.contains(&mutant.name));
    Ok(mutants)
}

/// A test that is red or absent to begin with would make every mutant look killed.
fn check_unmutated(trial: &Trial, mutants: &[Mutant]) -> Result<(), Failure> {
    let targets: BTreeSet<&Target> = mutants.iter().map(|mutant| &mutant.test).collect();
    say::line(format!("without any mutant first; named tests: {}", targets.len()));
    let mut problems = Vec::new();
    for target in targets {
        let name = target.filter.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let (ran, log) = trial.run(&format!("unmutated-{name}"), target)?;
        let problem = match ran {
            Ran::Passed => continue,
            Ran::Failed => "fails without any mutant",
            Ran::NoTests => "does not exist",
            Ran::Broken => "does not compile",
        };
        problems.push(format!("\n  {target} {problem}, see {}", log.display()));
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::Found(format!("these tests prove nothing:{}", problems.concat())))
    }
}

fn judge_all(tree: &Tree, trial: &Trial, mutants: &[Mutant]) -> Result<(), Failure> {
    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or_default().max("mutant".len());
    say::line(format!("{:<width$}  verdict   seconds  test", "mutant"));
    let mut unproven = 0;
    for mutant in mutants {
        let time = Stopwatch::start();
        let verdict = judge(tree, trial, mutant)?;
        let Mutant { name, test, .. } = mutant;
        say::line(format!("{name:<width$}  {verdict:<8}  {:>7.1}  {test}", time.seconds()));
        if let Some(advice) = advice(mutant, &verdict, &trial.log(name).display().to_string()) {
            unproven += 1;
            say::line(format!("{:<width$}  {advice}", ""));
        }
    }
    match unproven {
        0 => {
            say::line(format!("all {} killed", mutants.len()));
            Ok(())
        }
        _ => Err(Failure::Found(format!("{unproven} of {} mutants were not killed", mutants.len()))),
    }
}

fn judge(tree: &Tree, trial: &Trial, mutant: &Mutant) -> Result<Verdict, Failure> {
    tree.with_replaced(&mutant.file, &mutant.from, &mutant.to, || {
        let (ran, _) = trial.run(&mutant.name, &mutant.test)?;
        Ok(match ran {
            Ran::Failed => Verdict::Killed,
            Ran::Passed => Verdict::Survived,
            // The test was there a moment ago, so the mutant took it out of the build.
            Ran::NoTests | Ran::Broken => Verdict::Broken,
        })
    })?
    .unwrap_or_else(|times| Ok(Verdict::Stale(times)))
}

fn advice(mutant: &Mutant, verdict: &Verdict, log: &str) -> Option<String> {
    Some(match verdict {
        Verdict::Killed => return None,
        Verdict::Survived => format!("nothing guards this: {}", mutant.why),
        Verdict::Broken => format!("write it so that it compiles, see {log}"),
        Verdict::Stale(times) => format!("`{}` occurs {times} times in {}, not once", mutant.from, mutant.file),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(name: &str) -> Mutant {
        Mutant {
            name: name.into(),
            why: "the cap limits the range".into(),
            file: "src/backoff.rs".into(),
            from: "a".into(),
            to: "b".into(),
            test: Target { package: "herdproof".into(), filter: "backoff".into() },
        }
    }

    #[test]
    fn only_a_killed_mutant_needs_no_advice() {
        let advice = |verdict| advice(&mutant("cap"), &verdict, "cap.log");
        assert_eq!(advice(Verdict::Killed), None);
        assert!(advice(Verdict::Survived).unwrap().contains("the cap limits the range"));
        assert!(advice(Verdict::Broken).unwrap().contains("cap.log"));
        assert!(advice(Verdict::Stale(2)).unwrap().contains("occurs 2 times in src/backoff.rs"));
    }

    #[test]
    fn a_mistyped_mutant_is_refused_with_the_names_that_exist() {
        let failure = chosen(vec![mutant("cap"), mutant("jitter")], &["jiter".into()]).err().unwrap();
        assert_eq!(failure.exit_code(), 2);
        assert!(failure.to_string().contains("cap, jitter"), "{failure}");
    }

    #[test]
    fn a_named_mutant_runs_alone_even_if_its_name_is_a_part_of_others() {
        let names = |word: &str| {
            let mutants = ["cap", "a-capped-jitter", "jitter"].map(mutant).into();
            let chosen = chosen(mutants, &[word.into()]).unwrap();
            chosen.into_iter().map(|mutant| mutant.name).collect::<Vec<_>>()
        };
        assert_eq!(names("cap"), ["cap"]);
        assert_eq!(names("itter"), ["a-capped-jitter", "jitter"]);
        assert_eq!(names("src/back"), ["cap", "a-capped-jitter", "jitter"]);
    }
}
