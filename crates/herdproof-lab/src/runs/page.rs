//! Many runs as one page: medians and their intervals, how often each claim held, and the pictures of the first run.

use std::fmt;

use super::{Runs, Spread};
use crate::{
    page::{Plain, close, open},
    report::Report,
};

/// Runs that print themselves as a page.
#[derive(Clone, Copy, Debug)]
pub struct RunsPage<'a>(&'a Runs);

impl Runs {
    /// Them as a page of its own: one file that needs nothing else.
    pub fn page(&self) -> RunsPage<'_> {
        RunsPage(self)
    }
}

impl fmt::Display for RunsPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.reports().first() else { return Ok(()) };
        let (name, runs) = (Plain(first.scenario), self.0.reports().len());
        open(f, &format!("{name}, {runs} runs: herdproof lab"))?;
        write!(
            f,
            "<h1>{name}, {runs} runs</h1>\n<p class=\"soft\">herdproof lab, in virtual time with the real library</p>\n\
             <p class=\"summary\">Of the run on seed {}: {}</p>\n",
            first.seed,
            Plain(&first.summary)
        )?;
        self.arms(f, first)?;
        let shown = first.page();
        writeln!(f, "<p class=\"soft\">What follows up to the checks is the run on seed {}.</p>", first.seed)?;
        shown.pictures(f)?;
        shown.plots(f)?;
        self.checks(f)?;
        shown.parameters(f)?;
        close(f, &self.0.replay())
    }
}

impl RunsPage<'_> {
    fn arms(self, f: &mut fmt::Formatter<'_>, first: &Report) -> fmt::Result {
        write!(
            f,
            "<h2>Arms</h2>\n<p class=\"soft\">{}.</p>\n<div class=\"wide\"><table><thead><tr><th>arm</th>",
            Plain(&self.0.about())
        )?;
        for figure in first.arms.first().iter().flat_map(|arm| &arm.figures) {
            write!(f, "<th>{}</th>", Plain(figure.title))?;
        }
        f.write_str("</tr></thead><tbody>\n")?;
        for (at, arm) in first.arms.iter().enumerate() {
            write!(f, "<tr><td>{}</td>", Plain(&arm.title()))?;
            for figure in &arm.figures {
                match self.0.spread(at, figure.key) {
                    Some(Spread { median, low, high, .. }) => {
                        let [median, low, high] = [median, low, high].map(|value| figure.value.show(value));
                        write!(f, "<td>{median}<br><span class=\"soft\">{low} to {high}</span></td>")?;
                    }
                    None => f.write_str("<td></td>")?,
                }
            }
            f.write_str("</tr>\n")?;
        }
        f.write_str("</tbody></table></div>\n")
    }

    fn checks(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_changed = self.0.reports().iter().any(Report::is_changed);
        f.write_str("<h2>Checks</h2>\n")?;
        if is_changed {
            f.write_str("<p>They are about other parameters than these: what does not hold has not failed.</p>\n")?;
        }
        f.write_str(
            "<div class=\"wide\"><table><thead><tr><th>claim</th><th>by</th><th>held in</th></tr></thead>\
             <tbody>\n",
        )?;
        for held in self.0.held() {
            writeln!(
                f,
                "<tr><td class=\"words\">{}</td><td>{}</td><td class=\"{}\">{} of {}</td></tr>",
                Plain(&held.what),
                Plain(held.source.as_str()),
                match (held.held == held.runs, is_changed) {
                    (true, _) => "good",
                    (false, true) => "soft",
                    (false, false) => "bad",
                },
                held.held,
                held.runs,
            )?;
        }
        f.write_str("</tbody></table></div>\n")
    }
}
