//! `foretoken chat` and `foretoken up` on a terminal.

use std::fs;

use crate::fixture::{Up, machine, manifest, play};

#[test]
fn an_interrupt_stops_an_answer_and_leaves_chat_and_terminal_in_order() {
    let up = Up::start(1);
    let target = up.service("target-0").unwrap()["pid"].to_string();
    play("chatting.py", &[up.url.as_ref(), target.as_ref()], &[]);
}

#[test]
fn up_shows_how_much_of_each_model_is_loaded() {
    let _machine = machine();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("story.yaml");
    fs::write(&file, manifest(1)).unwrap();
    play("loading.py", &[file.as_ref(), folder.path().as_ref()], &[]);
}
