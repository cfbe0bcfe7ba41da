//! `herdproof completions` and `herdproof man`: both follow from the arguments themselves.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{
    Done, Verdict,
    args::Args,
    output::{Failure, Output},
};

pub(crate) fn completions(output: &mut Output, shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "herdproof", &mut script);
    output.bytes(&script)?;
    Ok(Verdict::Fine)
}

pub(crate) fn man(output: &mut Output, dir: Option<&Path>) -> Done {
    if let Some(dir) = dir {
        let failed = |error| Failure::Io { what: format!("cannot write manual pages to {}", dir.display()), error };
        std::fs::create_dir_all(dir).map_err(failed)?;
        clap_mangen::generate_to(Args::command(), dir).map_err(failed)?;
        return Ok(Verdict::Fine);
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(Args::command()).render(&mut page);
    rendered.map_err(|error| Failure::Io { what: "cannot render the manual page".into(), error })?;
    output.bytes(&page)?;
    Ok(Verdict::Fine)
}
