//! `herdproof lab sweep`: a map of a figure over one or two parameters.

use anstyle::{Ansi256Color, Color, Style};
use herdproof_lab::{Axis, BadSweep, Paint, Scenario, Suggestion, Sweep};

use super::{find, hint, settings, stdout::Stdout, watched::watched, write_page};
use crate::{
    Done, Verdict,
    args::SweepArgs,
    output::{Failure, Output},
};

/// From the least to the most: dark blue, over green, to yellow, which is told apart with any eyes.
const RAMP: [u8; 9] = [17, 18, 24, 30, 36, 71, 113, 185, 226];

pub(crate) fn sweep(output: &mut Output, args: &SweepArgs) -> Done {
    let stdout = Stdout::of(args.json, None, args.html.as_deref())?;
    let scenario = find(&args.name)?;
    let settings = settings(scenario, args.seed, &args.set)?;
    let knobs = scenario.knobs();
    let usage = |bad: BadSweep| Failure::Usage { problem: bad.to_string(), hint: hint(scenario, &knobs) };
    let suggested = Suggestion::of(scenario).filter(|_| args.x.is_none());
    let x = args.x.as_deref().or(suggested.map(|suggested| suggested.x)).ok_or_else(|| no_axis(scenario))?;
    let y = args.y.as_deref().or(suggested.and_then(|suggested| suggested.y));
    let of = args.of.as_deref().or(suggested.map(|suggested| suggested.of));
    let arm = args.arm.as_deref().or(suggested.and_then(|suggested| suggested.arm));
    let x = Axis::read(&knobs, x).map_err(usage)?;
    let y = y.map(|y| Axis::read(&knobs, y)).transpose().map_err(usage)?;
    let sweep = Sweep::new(scenario, &settings, x, y, arm, of).map_err(usage)?;
    let runs = args.runs as usize;
    let (map, stopped) = watched(sweep.cells() * runs, |watch| (sweep.run(runs, watch), watch.is_stopped()))?;
    write_page(output, args.html.as_deref(), map.page())?;
    match stdout {
        Stdout::Json => output.json(&map)?,
        Stdout::Text => output.text(map.text(output.is_coloured().then_some(painted as Paint)))?,
        Stdout::Log | Stdout::Page => {}
    }
    if stopped {
        let missing = map.cells.iter().flatten().filter(|cell| cell.is_none()).count();
        output.note(format!("stopped; {missing} of {} cells are missing", sweep.cells()));
    }
    Ok(if stopped && !map.is_whole() { Verdict::Found } else { Verdict::Fine })
}

fn no_axis(scenario: &Scenario) -> Failure {
    let knobs = scenario.knobs();
    let example = knobs.first().map(|knob| format!(", such as --x {}={}..{}", knob.name, knob.least, knob.most));
    Failure::Usage {
        problem: format!(
            "{} names no sweep of its own: say which parameter{}",
            scenario.name,
            example.unwrap_or_default()
        ),
        hint: hint(scenario, &knobs),
    }
}

/// Blanks on the colour of this level.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "one of nine")]
fn painted(level: f64, blanks: &str) -> String {
    let step = (level * (RAMP.len() - 1) as f64).round() as usize;
    let colour = RAMP.get(step).copied().unwrap_or(RAMP[0]);
    let style = Style::new().bg_color(Some(Color::Ansi256(Ansi256Color(colour))));
    format!("{}{blanks}{}", style.render(), style.render_reset())
}
