//! The map as a page of its own.

use std::fmt::{self, Write};

use super::{Axis, Map, draw::plain};
use crate::page::{Plain, close, open};

/// The picture's size, in the units of the drawing.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 480.0;
/// What is left of the cells and below them, for the axes.
const LEFT: f64 = 84.0;
const BELOW: f64 = 44.0;
const ABOVE: f64 = 22.0;
const RIGHT: f64 = 952.0;
/// How far words on an axis are apart, at least.
const APART: f64 = 64.0;

/// A map that prints itself as a page.
#[derive(Clone, Copy, Debug)]
pub struct MapPage<'a>(&'a Map);

impl Map {
    /// It as a page of its own: one file that needs nothing else.
    pub fn page(&self) -> MapPage<'_> {
        MapPage(self)
    }
}

impl fmt::Display for MapPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.0;
        let name = Plain(map.scenario);
        open(f, &format!("{name}, swept: herdproof lab"))?;
        let runs = if map.runs > 1 { format!(" Medians of {} runs.", map.runs) } else { String::new() };
        let [least, most] = map.range().map_or([None; 2], |(least, most)| [Some(least), Some(most)]);
        write!(
            f,
            "<h1>{name}, swept</h1>\n<p class=\"soft\">herdproof lab, in virtual time with the real library</p>\n\
             <p class=\"summary\">{} of \u{201c}{}\u{201d}: from {} (pale) to {} (full).{runs}</p>\n",
            Plain(map.figure.key),
            Plain(map.arm),
            map.show(least),
            map.show(most),
        )?;
        writeln!(f, "{}", self.picture())?;
        self.edges(f)?;
        f.write_str("<h2>Parameters</h2>\n<div class=\"wide\"><table><tbody>\n")?;
        for axis in [Some(&map.x), map.y.as_ref()].into_iter().flatten() {
            writeln!(
                f,
                "<tr><td>{}</td><td class=\"words\">{}</td><td class=\"words\">{}</td></tr>",
                Plain(axis.knob.name),
                Plain(&axis.said),
                Plain(axis.knob.what)
            )?;
        }
        for set in &map.set {
            writeln!(f, "<tr><td>set</td><td class=\"words\">{}</td><td></td></tr>", Plain(set))?;
        }
        writeln!(f, "<tr><td>seed</td><td class=\"words\">{}</td><td></td></tr>\n</tbody></table></div>", map.seed)?;
        close(f, &map.replay())
    }
}

impl MapPage<'_> {
    fn picture(self) -> String {
        let map = self.0;
        let floor = ABOVE + HEIGHT;
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{} over {}{}\">",
            floor + BELOW,
            Plain(map.figure.key),
            Plain(map.x.knob.name),
            map.y.as_ref().map(|y| format!(" and {}", Plain(y.knob.name))).unwrap_or_default(),
        );
        let across = (RIGHT - LEFT) / map.x.values.len().max(1) as f64;
        let up = HEIGHT / map.cells.len().max(1) as f64;
        let top = map.range().map_or(0.0, |(_, most)| most);
        for (row, cells) in map.cells.iter().enumerate() {
            for (column, cell) in cells.iter().enumerate() {
                let Some(value) = *cell else { continue };
                // One row is bars, more are shades.
                let (height, shade) = match map.y {
                    None => (if top > 0.0 { (HEIGHT * value / top).max(1.0) } else { 1.0 }, 1.0),
                    Some(_) => (up, 0.06 + 0.94 * map.level(value)),
                };
                let _ = write!(
                    svg,
                    "<rect class=\"bar\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill-opacity=\"{shade:.3}\">\
                     <title>{}: {}</title></rect>",
                    LEFT + across * column as f64,
                    floor - up * row as f64 - height,
                    (across - 0.5).max(0.5),
                    (height - 0.5).max(0.5),
                    Plain(&self.place(row, column)),
                    map.show(Some(value)),
                );
            }
        }
        if map.y.is_some() {
            self.frontier(&mut svg, across, up);
        }
        self.axes(&mut svg, across, up);
        svg.push_str("</svg>");
        svg
    }

    /// Lines between neighbours that are more than half of the range apart.
    fn frontier(self, svg: &mut String, across: f64, up: f64) {
        let map = self.0;
        let cell = |row: usize, column: usize| map.cells.get(row).and_then(|row| row.get(column).copied()).flatten();
        let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| {
            let _ = write!(svg, "<line class=\"edge\" x1=\"{x1:.2}\" y1=\"{y1:.2}\" x2=\"{x2:.2}\" y2=\"{y2:.2}\"/>");
        };
        for row in 0..map.cells.len() {
            for column in 0..map.x.values.len() {
                let (x, y) = (LEFT + across * column as f64, ABOVE + HEIGHT - up * row as f64);
                if map.is_edge(cell(row, column), cell(row, column + 1)) {
                    line(x + across, y, x + across, y - up);
                }
                if map.is_edge(cell(row, column), cell(row + 1, column)) {
                    line(x, y - up, x + across, y - up);
                }
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few dozen")]
    fn axes(self, svg: &mut String, across: f64, up: f64) {
        let map = self.0;
        let floor = ABOVE + HEIGHT;
        let _ = write!(svg, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{RIGHT}\" y2=\"{floor}\"/>");
        let every = |step: f64, apart: f64| (apart / step).ceil().max(1.0) as usize;
        for (column, value) in map.x.values.iter().enumerate().step_by(every(across, APART)) {
            let at = LEFT + across * (column as f64 + 0.5);
            let _ = write!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{value}</text>", floor + 16.0);
        }
        let title = |axis: &Axis| format!("{} ({})", Plain(axis.knob.name), Plain(plain(axis.knob.what)));
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, RIGHT),
            floor + 36.0,
            title(&map.x)
        );
        let Some(y) = &map.y else {
            let top = map.range().map(|(_, most)| most);
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                ABOVE + 10.0,
                map.show(top)
            );
            return;
        };
        for (row, value) in y.values.iter().enumerate().step_by(every(up, 14.0)) {
            let at = floor - up * (row as f64 + 0.5) + 4.0;
            let _ = write!(svg, "<text x=\"{}\" y=\"{at:.1}\" text-anchor=\"end\">{value}</text>", LEFT - 6.0);
        }
        let _ = write!(svg, "<text x=\"4\" y=\"12\">{}</text>", title(y));
    }

    /// Where each row has its edge, in words.
    fn edges(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.0;
        let found: Vec<(usize, usize)> =
            (0..map.cells.len()).filter_map(|row| map.edge(row).map(|at| (row, at))).collect();
        if found.is_empty() {
            return Ok(());
        }
        f.write_str("<h2>The edge</h2>\n<p class=\"soft\">Where two neighbours are more than half of the range apart.</p>\n<ul>\n")?;
        for (row, at) in found.into_iter().rev() {
            writeln!(
                f,
                "<li>{}: {}; {}: {}</li>",
                Plain(&self.place(row, at)),
                map.show(map.cells[row][at]),
                Plain(&self.place(row, at + 1)),
                map.show(map.cells[row][at + 1]),
            )?;
        }
        f.write_str("</ul>\n")
    }

    /// A cell by its parameters.
    fn place(self, row: usize, column: usize) -> String {
        let of = |axis: &Axis, at: usize| {
            axis.values.get(at).map(|value| format!("{} {value}", axis.knob.name)).unwrap_or_default()
        };
        let y = self.0.y.as_ref().map(|y| format!("{}, ", of(y, row))).unwrap_or_default();
        format!("{y}{}", of(&self.0.x, column))
    }
}
