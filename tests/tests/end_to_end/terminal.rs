//! `foretoken chat` on a terminal.

use std::{path::Path, process::Command};

use crate::fixture::{Up, executable};

#[test]
fn an_interrupt_stops_an_answer_and_leaves_chat_and_terminal_in_order() {
    let up = Up::start(1);
    let target = up.service("target-0").unwrap()["pid"].to_string();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/terminal.py");
    let output = Command::new("python3")
        .arg(script)
        .arg(executable())
        .arg(&up.url)
        .arg(target)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}
