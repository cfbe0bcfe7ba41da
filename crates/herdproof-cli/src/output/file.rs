//! A file that is there whole or not at all.

use std::{fs, path::Path};

use super::Failure;

/// A file that was there before is replaced when the new one is written.
pub(crate) fn write_whole(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failed = |error| Failure::Io { what: format!("cannot write {}", file.display()), error };
    // A pipe or a terminal cannot be replaced, nor is there anything in it to be lost.
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return fs::write(file, bytes).map_err(failed);
    }
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, file)).map_err(|error| {
        // What is not whole is of no use to anybody.
        fs::remove_file(&beside).ok();
        failed(error)
    })
}
