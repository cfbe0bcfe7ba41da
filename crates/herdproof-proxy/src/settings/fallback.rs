//! What a route answers with while the origin cannot.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

/// Bytes of a body, at most.
const MOST: u64 = 1 << 20;

/// An answer for when the origin fails or is not asked, and nothing is kept that may be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its status.
    pub status: StatusCode,
    /// What its body is.
    pub content_type: HeaderValue,
    /// Its body.
    pub body: Bytes,
}

/// What a file says of one.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) status: Option<u32>,
    pub(super) body: Option<String>,
    pub(super) file: Option<String>,
    pub(super) content_type: Option<String>,
}

impl Fallback {
    /// A file is looked for in this folder.
    pub(super) fn new(said: Said, folder: &Path) -> Result<Fallback, String> {
        let Said { status, body, file, content_type } = said;
        let guessed = file.as_deref().map_or(Some("text/plain; charset=utf-8"), guess);
        let body = match (body, file) {
            (Some(body), None) if body.len() as u64 <= MOST => Bytes::from(body),
            (Some(_), None) => return Err("the body is larger than 1MiB".into()),
            (None, Some(file)) => read(&folder.join(file))?,
            (Some(_), Some(_)) => return Err("there is a `body` and a `file`; one of them is enough".into()),
            (None, None) => {
                return Err("there is neither a `body` nor a `file`; body = \"\" would be an empty one".into());
            }
        };
        let status = status.unwrap_or(200);
        let has_body = matches!(status, 200 | 203 | 400..=599);
        let status =
            u16::try_from(status).ok().filter(|_| has_body).and_then(|status| StatusCode::from_u16(status).ok());
        let content_type =
            content_type.as_deref().or(guessed).ok_or("what the file is has to be said in `content_type`")?;
        Ok(Fallback {
            status: status.ok_or("the status has to be 200, 203, or from 400 to 599")?,
            content_type: HeaderValue::from_str(content_type)
                .map_err(|_| format!("{content_type:?} is not a type; such as \"text/html\" would be right"))?,
            body,
        })
    }
}

fn read(path: &Path) -> Result<Bytes, String> {
    let cannot = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let mut bytes = Vec::new();
    // However large it is, or if it has no end, no more is read.
    File::open(path).map_err(cannot)?.take(MOST + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MOST {
        return Err(format!("{} is larger than 1MiB", path.display()));
    }
    Ok(bytes.into())
}

/// What a file of this name is, if that is sure.
fn guess(name: &str) -> Option<&'static str> {
    let known = [
        ("css", "text/css"),
        ("htm", "text/html; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("js", "text/javascript"),
        ("json", "application/json"),
        ("svg", "image/svg+xml"),
        ("txt", "text/plain; charset=utf-8"),
        ("xml", "application/xml"),
    ];
    let ending = Path::new(name).extension()?.to_str()?;
    known.iter().find(|(known, _)| ending.eq_ignore_ascii_case(known)).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_beside_the_settings_and_is_bounded() {
        let folder = std::env::temp_dir().join(format!("herdproof-fallback-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("sorry.HTML"), "<p>sorry").unwrap();
        std::fs::write(folder.join("large.txt"), vec![b'x'; 1 << 20]).unwrap();
        std::fs::write(folder.join("larger.txt"), vec![b'x'; (1 << 20) + 1]).unwrap();
        let file = |name: &str| Fallback::new(Said { file: Some(name.into()), ..Said::default() }, &folder);
        let sorry = file("sorry.HTML").unwrap();
        assert_eq!((sorry.status, sorry.content_type), (StatusCode::OK, "text/html; charset=utf-8".parse().unwrap()));
        assert_eq!(sorry.body, "<p>sorry");
        assert_eq!(file("large.txt").unwrap().body.len(), 1 << 20);
        assert!(file("larger.txt").unwrap_err().ends_with("larger.txt is larger than 1MiB"));
        assert!(file("none.txt").unwrap_err().contains("none.txt: "));
        assert!(file("sorry").is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
