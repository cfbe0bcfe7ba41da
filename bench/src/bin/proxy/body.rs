//! Bodies that tell whose they are, so that a client sees a wrong one.
//!
//! The first line names the path, the origin's answer that it was, and for whom it was made. The rest repeats a token made
//! of all three: bytes of two answers in one body do not go unnoticed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
};

const TOKEN: usize = 16;

/// For whom an answer is that is for everybody.
pub const EVERYBODY: &str = "-";

/// What a body says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Label {
    /// Which of the origin's answers it was.
    pub version: u64,
    /// For whom it was made.
    pub who: String,
}

/// A body of that size, or longer where its first line needs more.
pub fn write(path: &str, version: u64, who: &str, size: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(size);
    let _ = writeln!(body, "herd {path} {version} {who}");
    let token = token(path, version, who);
    while body.len() < size {
        let rest = (size - body.len()).min(TOKEN);
        body.extend_from_slice(&token[..rest]);
    }
    body
}

/// What the body says, if it is whole and an answer for this path.
pub fn read(body: &[u8], path: &str) -> Option<Label> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&body[..end]).ok()?;
    let mut words = line.strip_prefix("herd ")?.split(' ');
    let (about, version, who) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let token = token(path, version, who);
    let is_whole = body[end + 1..].chunks(TOKEN).all(|part| *part == token[..part.len()]);
    (about == path && is_whole).then(|| Label { version, who: who.into() })
}

fn token(path: &str, version: u64, who: &str) -> [u8; TOKEN] {
    let mut hasher = DefaultHasher::new();
    (path, version, who).hash(&mut hasher);
    let mut token = [0; TOKEN];
    let _ = write!(&mut token[..], "{:016x}", hasher.finish());
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_another_answer_do_not_go_unnoticed() {
        let body = write("/a", 7, EVERYBODY, 1024);
        assert_eq!(body.len(), 1024);
        assert_eq!(read(&body, "/a"), Some(Label { version: 7, who: EVERYBODY.into() }));
        assert_eq!(read(&body, "/b"), None);
        let other = write("/a", 8, EVERYBODY, 1024);
        let torn = [&body[..512], &other[512..]].concat();
        assert_eq!(read(&torn, "/a"), None);
    }
}
