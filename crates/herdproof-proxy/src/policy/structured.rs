//! A dictionary of structured fields (RFC 8941), as targeted cache fields are written.
//!
//! Strict, because the RFC wants it so: a field that is wrong anywhere counts as not there at all. Only what cache directives
//! need is handed out; inner lists, byte sequences and parameters are read to see that they are well formed.

/// The value of a member, parameters left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    Boolean(bool),
    Integer(i64),
    /// Of another type.
    Other,
}

/// The field is not well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Hands out each member of a dictionary, in order; what was handed out counts only if the end is `Ok`.
pub(super) fn dictionary<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    mut member: impl FnMut(&'a [u8], Bare),
) -> Result<(), Malformed> {
    for line in lines {
        let mut reader = Reader { rest: trim_spaces(line) };
        while !reader.rest.is_empty() {
            let key = reader.key()?;
            let value = if reader.take(b'=') { reader.item_or_list()? } else { Bare::Boolean(true) };
            reader.parameters()?;
            member(key, value);
            reader.blank();
            if reader.rest.is_empty() {
                break;
            }
            if !reader.take(b',') {
                return Err(Malformed);
            }
            reader.blank();
            // A comma with nothing behind it.
            if reader.rest.is_empty() {
                return Err(Malformed);
            }
        }
    }
    Ok(())
}

fn trim_spaces(mut line: &[u8]) -> &[u8] {
    while let Some(rest) = line.strip_prefix(b" ") {
        line = rest;
    }
    while let Some(rest) = line.strip_suffix(b" ") {
        line = rest;
    }
    line
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, wanted: u8) -> bool {
        self.take_if(|byte| byte == wanted).is_some()
    }

    fn take_if(&mut self, wanted: impl FnOnce(u8) -> bool) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        wanted(first).then(|| {
            self.rest = rest;
            first
        })
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !wanted(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn blank(&mut self) {
        self.take_while(|byte| byte == b' ' || byte == b'\t');
    }

    fn key(&mut self) -> Result<&'a [u8], Malformed> {
        match self.rest.first() {
            Some(b'a'..=b'z' | b'*') => Ok(self.take_while(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
            })),
            _ => Err(Malformed),
        }
    }

    fn item_or_list(&mut self) -> Result<Bare, Malformed> {
        if !self.take(b'(') {
            return self.bare();
        }
        loop {
            self.take_while(|byte| byte == b' ');
            if self.take(b')') {
                return Ok(Bare::Other);
            }
            self.bare()?;
            self.parameters()?;
            if !matches!(self.rest.first(), Some(b' ' | b')')) {
                return Err(Malformed);
            }
        }
    }

    fn parameters(&mut self) -> Result<(), Malformed> {
        while self.take(b';') {
            self.take_while(|byte| byte == b' ');
            self.key()?;
            if self.take(b'=') {
                self.bare()?;
            }
        }
        Ok(())
    }

    fn bare(&mut self) -> Result<Bare, Malformed> {
        match self.rest.first() {
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'"') => self.string(),
            Some(b'*' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.take_while(|byte| is_token(byte) || matches!(byte, b':' | b'/'));
                Ok(Bare::Other)
            }
            Some(b':') => {
                self.take(b':');
                self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
                if self.take(b':') { Ok(Bare::Other) } else { Err(Malformed) }
            }
            Some(b'?') => {
                self.take(b'?');
                let digit = self.take_if(|byte| matches!(byte, b'0' | b'1')).ok_or(Malformed)?;
                Ok(Bare::Boolean(digit == b'1'))
            }
            _ => Err(Malformed),
        }
    }

    fn number(&mut self) -> Result<Bare, Malformed> {
        let negative = self.take(b'-');
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return Err(Malformed);
        }
        if self.take(b'.') {
            let part = self.take_while(|byte| byte.is_ascii_digit());
            return if whole.len() <= 12 && (1..=3).contains(&part.len()) { Ok(Bare::Other) } else { Err(Malformed) };
        }
        let number = whole.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        Ok(Bare::Integer(if negative { -number } else { number }))
    }

    fn string(&mut self) -> Result<Bare, Malformed> {
        self.take(b'"');
        loop {
            match self.take_if(|_| true).ok_or(Malformed)? {
                b'"' => return Ok(Bare::Other),
                b'\\' => {
                    self.take_if(|byte| matches!(byte, b'"' | b'\\')).ok_or(Malformed)?;
                }
                b' '..=b'~' => {}
                _ => return Err(Malformed),
            }
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Vec<(&str, Bare)>, Malformed> {
        let mut found = Vec::new();
        dictionary([line.as_bytes()].into_iter(), |key, value| found.push((std::str::from_utf8(key).unwrap(), value)))?;
        Ok(found)
    }

    #[test]
    fn every_type_is_read() {
        let line = r#"a, b=1;x;y="z", c=-2 , d=1.5,	e="a\"b", f=tok:en/x, g=:YQ==:, h=?0, i=(1 "b";q c);r"#;
        let values: Vec<Bare> = read(line).unwrap().into_iter().map(|(_, value)| value).collect();
        let expected = [Bare::Boolean(true), Bare::Integer(1), Bare::Integer(-2), Bare::Other, Bare::Other];
        assert_eq!(values[..5], expected);
        assert_eq!(values[5..], [Bare::Other, Bare::Other, Bare::Boolean(false), Bare::Other]);
    }

    #[test]
    fn one_slip_spoils_the_whole_field() {
        for line in [
            "a=",
            "a= 1",
            "a =1",
            "A=1",
            "a,",
            "a b",
            "a,,b",
            ",a",
            "a=1234567890123456",
            "a=1.",
            "a=1.2345",
            "a=-",
            "a=?2",
            "a=\"x",
            "a=\"\\x\"",
            "a=(1",
            "a=(1,2)",
            "a=:x",
            "a;",
            "a;B",
            "&",
            "a=\u{e9}",
            "1",
            "\ta",
        ] {
            assert_eq!(read(line), Err(Malformed), "{line}");
        }
    }
}
