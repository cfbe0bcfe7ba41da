//! `herdproof lab table`: what eight techniques do, measured.

use super::watched::watched;
use crate::{Done, Verdict, output::Output};

pub(crate) fn table(output: &mut Output, seed: u64, json: bool) -> Done {
    let Some(table) = watched(herdproof_lab::table_runs(), |watch| herdproof_lab::table(seed, watch))? else {
        output.note("stopped before every cell was measured");
        return Ok(Verdict::Found);
    };
    if json {
        output.json(&table)?;
    } else {
        output.text(table)?;
    }
    Ok(Verdict::Fine)
}
