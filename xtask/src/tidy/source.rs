//! Rust source with everything but the product's own code made blank: comments, literals, tests. A search in what is
//! left finds code and nothing else, on the line where it stands in the file.

use std::ops::Range;

/// The code of a file, as long as the file itself and with the same lines.
pub(super) fn code(source: &str) -> String {
    let bare = blank(source, &comments_and_literals(source));
    let tests = test_items(&bare);
    blank(&bare, &tests)
}

/// A file that is all test, included by a `#[cfg(test)] mod tests;` elsewhere.
pub(super) fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// The offsets at which `needle` stands as a word of its own and not as the tail of a longer one.
pub(super) fn words<'a>(code: &'a str, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
    let starts_a_word = |offset: usize| !code[..offset].ends_with(is_identifier);
    code.match_indices(needle).map(|(offset, _)| offset).filter(move |offset| starts_a_word(*offset))
}

pub(super) fn is_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn blank(text: &str, spans: &[Range<usize>]) -> String {
    let mut blanked = String::with_capacity(text.len());
    let mut end = 0;
    for span in spans {
        blanked += &text[end..span.start];
        // One space for each byte, so that offsets stay what they were.
        blanked.extend(text[span.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        end = span.end;
    }
    blanked + &text[end..]
}

fn comments_and_literals(source: &str) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        let hidden = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if c == '"' {
            string(rest)
        } else if c == '\'' {
            character(rest)
        } else if is_identifier(c) {
            // A word is taken whole, so that the `r` of `r"..."` is a prefix and the one of `for` is not.
            let word = rest.find(|c| !is_identifier(c)).unwrap_or(rest.len());
            match raw_string(&rest[word..]) {
                Some(length) if matches!(&rest[..word], "r" | "br" | "cr") => word + length,
                _ => {
                    at += word;
                    continue;
                }
            }
        } else {
            0
        };
        if hidden > 0 {
            spans.push(at..at + hidden);
        }
        at += hidden.max(c.len_utf8());
    }
    spans
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while let Some(next) = rest[at..].find(['/', '*']) {
        at += next;
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (offset, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return offset + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of `"..."` or `#"..."#` with any number of hashes, without its prefix.
fn raw_string(rest: &str) -> Option<usize> {
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &rest[..hashes]);
    let body = hashes + 1;
    Some(rest[body..].find(&close).map_or(rest.len(), |end| body + end + close.len()))
}

/// The length of a character literal, or nothing for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((escaped, c))) => {
            let after = escaped + c.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((offset, '\''))) => offset + 1,
        _ => 0,
    }
}

/// Items under `#[cfg(test)]`, from the attribute to the closing brace or semicolon.
fn test_items(bare: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test,"] {
        for (start, _) in bare.match_indices(mark) {
            if spans.iter().all(|span| !span.contains(&start)) {
                spans.push(start..start + item_length(&bare[start..]));
            }
        }
    }
    spans.sort_by_key(|span| span.start);
    // An item found under the second mark may hold one found under the first.
    spans.dedup_by(|later, earlier| earlier.contains(&later.start));
    spans
}

fn item_length(item: &str) -> usize {
    let mut depth = 0;
    for (offset, c) in item.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth -= 1;
                if depth == 0 && c == '}' {
                    return offset + 1;
                }
            }
            ';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    item.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_hidden(source: &str) {
        let code = code(source);
        assert!(!code.contains("secret"), "still visible in {code:?}");
        assert!(code.contains("after"), "too much hidden in {code:?}");
        assert_eq!(code.len(), source.len());
        assert_eq!(code.lines().count(), source.lines().count());
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        check_hidden("//! secret\n/// secret\n// it's secret\nafter");
        check_hidden("/* secret /* nested */ secret\n */ after");
        check_hidden(r#" "secret \" secret" after"#);
        check_hidden("\"sécret secret\nsecret\" after");
    }

    #[test]
    fn a_quote_inside_a_raw_string_does_not_end_it() {
        check_hidden("r#\" \"secret\" \"# after");
        check_hidden("br\"secret\\\" after");
    }

    #[test]
    fn a_quote_character_does_not_open_a_string() {
        check_hidden("let q = '\"'; let b = '\\''; \"secret\" ; after");
    }

    #[test]
    fn a_lifetime_does_not_swallow_the_code_behind_it() {
        check_hidden("fn f<'a>(x: &'a str) { after('s', \"secret\") }");
    }

    #[test]
    fn a_word_that_ends_in_r_does_not_make_a_string_raw() {
        check_hidden("for\"secret\\\" secret\" after");
    }

    #[test]
    fn code_of_tests_is_not_product_code() {
        check_hidden("#[cfg(test)]\n#[path = \"x\"]\nmod tests { fn f() { secret() } }\nafter");
        check_hidden("#[cfg(test)]\nuse crate::{secret, other};\nafter");
        check_hidden("#[cfg(all(test, unix))]\nmod tests { #[cfg(test)] fn f() { secret() } }\nafter");
    }

    #[test]
    fn code_that_is_only_left_out_of_tests_stays() {
        assert!(code("#[cfg(not(test))]\nfn kept() {}").contains("kept"));
    }
}
