//! `herdproof lab table`: what eight techniques do, measured.

use std::path::Path;

use super::{stdout::Stdout, watched::watched, write_page};
use crate::{Done, Verdict, output::Output};

pub(crate) fn table(output: &mut Output, seed: u64, html: Option<&Path>, json: bool) -> Done {
    let stdout = Stdout::of(json, None, html)?;
    let Some(table) = watched(herdproof_lab::table_runs(), |watch| herdproof_lab::table(seed, watch))? else {
        output.note("stopped before every cell was measured");
        return Ok(Verdict::Found);
    };
    write_page(output, html, table.page())?;
    match stdout {
        Stdout::Json => output.json(&table)?,
        Stdout::Text => output.text(table)?,
        Stdout::Log | Stdout::Page => {}
    }
    Ok(Verdict::Fine)
}
