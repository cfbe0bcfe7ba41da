//! `herdproof lab table`: what eight techniques do, measured.

use std::path::Path;

use super::watched::watched;
use crate::{
    Done, Verdict,
    output::{Output, write_whole},
};

pub(crate) fn table(output: &mut Output, seed: u64, html: Option<&Path>, json: bool) -> Done {
    let Some(table) = watched(herdproof_lab::table_runs(), |watch| herdproof_lab::table(seed, watch))? else {
        output.note("stopped before every cell was measured");
        return Ok(Verdict::Found);
    };
    if let Some(file) = html {
        write_whole(file, table.page().to_string().as_bytes())?;
    }
    if json {
        output.json(&table)?;
    } else {
        output.text(table)?;
    }
    Ok(Verdict::Fine)
}
