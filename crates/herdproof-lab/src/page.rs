//! What all pages share: one file that needs nothing else, no server, no network, no script.

use std::fmt::{self, Write};

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1e21;--soft:#667;--line:#dcdfe4;--bar:#2f6fdb;--mark:#c2410c;\
--good:#18794e;--bad:#c62a2f}\
@media(prefers-color-scheme:dark){:root{--paper:#15171b;--ink:#e6e8eb;--soft:#98a0ab;--line:#33373f;--bar:#6ba1ff;\
--mark:#ff9d5c;--good:#4cc38a;--bad:#ff8b8b}}\
body{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
h1{margin:0;font-size:1.6rem}h2{margin:2.2rem 0 .6rem;font-size:1.15rem}h3{margin:1.4rem 0 .2rem;font-size:1rem}\
p{margin:.4rem 0}.soft{color:var(--soft)}.summary{font-size:1.1rem;border-left:4px solid var(--bar);padding-left:.8rem}\
.wide{overflow-x:auto}.wide svg{min-width:42rem}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}th.words,td.words{text-align:left;white-space:normal}\
td.words:first-child{min-width:12rem}\
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}\
svg .bar{fill:var(--bar)}svg .edge{stroke:var(--mark);stroke-width:2.5;stroke-linecap:round}\
svg .axis{stroke:var(--line)}svg .mark{stroke:var(--mark);stroke-dasharray:3 3}\
svg text.mark{fill:var(--mark);stroke:none}.good{color:var(--good)}.bad{color:var(--bad)}\
svg text.name{fill:var(--ink);font-weight:600}code{font:.9em ui-monospace,monospace}";

/// Colours that are told apart in pictures: of tries from the first to later ones, of arms, of edges.
pub(crate) const COLORS: &str = ".c0{--c:#2f6fdb}.c1{--c:#d97706}.c2{--c:#18794e}.c3{--c:#b4308c}.c4{--c:#c62a2f}.c5{--c:#6b5bd0}\
.c6{--c:#7a6a3a}\
@media(prefers-color-scheme:dark){.c0{--c:#6ba1ff}.c1{--c:#ffb454}.c2{--c:#4cc38a}.c3{--c:#f08bd0}.c4{--c:#ff8b8b}.c5{--c:#a99bff}\
.c6{--c:#cdbb80}}\
.fill{fill:var(--c)}.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}";

/// The beginning of a page, up to its first heading. The title is text that is no markup any more.
pub(crate) fn open(f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
    writeln!(
        f,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{COLORS}</style></head><body>"
    )
}

/// The end of a page, with the command that gives it again.
pub(crate) fn close(f: &mut fmt::Formatter<'_>, again: &str) -> fmt::Result {
    write!(
        f,
        "<h2>Again</h2>\n<p><code>{}</code> gives the same bytes on every machine.</p>\n</body></html>\n",
        Plain(again)
    )
}

/// Text that cannot be taken for markup.
pub(crate) struct Plain<'a>(pub(crate) &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}
