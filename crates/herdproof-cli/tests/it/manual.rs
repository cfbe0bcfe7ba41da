//! Completions and manual pages.

use crate::run::{output, printed, stderr};

#[test]
fn every_shell_gets_completions_that_know_the_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = printed(&["completions", shell]);
        assert!(script.contains("completions") && script.contains("lab"), "{shell}");
    }
}

#[test]
fn the_manual_page_is_one() {
    let page = printed(&["man"]);
    assert!(page.contains(".TH herdproof 1") && page.contains(r"retry\-wall"), "{page}");
}

#[test]
fn the_manual_can_be_written_to_a_folder_and_says_so_when_it_cannot() {
    let dir = std::env::temp_dir().join(format!("herdproof-man-{}", std::process::id()));
    printed(&["man", "--dir", dir.to_str().expect("a path of text")]);
    assert!(dir.join("herdproof.1").exists() && dir.join("herdproof-lab-run.1").exists());
    let file = dir.join("herdproof.1").join("below-a-file");
    let failed = output(&["man", "--dir", file.to_str().expect("a path of text")]);
    assert_eq!(failed.status.code(), Some(3));
    assert!(stderr(&failed).contains("cannot write manual pages to"), "{}", stderr(&failed));
    std::fs::remove_dir_all(dir).expect("it was there");
}
