//! `foretoken chat` as scripts meet it, with a server whose answers are known.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    thread,
};

use serde_json::{Value, json};

/// Most messages that the server has room for.
const ROOM: usize = 4;

/// A server that tells how many messages it was asked with; where it is.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in listener.incoming() {
            // Whoever has asked may be gone.
            let _ = answer(connection.unwrap());
        }
    });
    address
}

fn answer(mut connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut length = 0;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(told) = lower.strip_prefix("content-length:") {
            length = told.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, body) = if body.is_empty() {
        (200, json!({"data": [{"id": "m"}]}).to_string())
    } else {
        completion(&serde_json::from_slice(&body)?)
    };
    write!(
        connection,
        "HTTP/1.1 {status} S\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn completion(request: &Value) -> (u16, String) {
    let messages = request["messages"].as_array().unwrap();
    let said = messages.last().unwrap()["content"].as_str().unwrap();
    if messages.len() > ROOM || said == "long" {
        let error = json!({"message": "no room", "code": "context_length_exceeded"});
        return (400, json!({ "error": error }).to_string());
    }
    let text = format!("of {}", messages.len());
    let mut events = vec![json!({"choices": [{"delta": {"content": text}}]})];
    if said == "break" {
        events.push(json!({"error": {"message": "all targets are lost"}}));
    }
    let events = events.iter().map(|event| format!("data: {event}\n\n"));
    (200, events.chain(["data: [DONE]\n\n".to_owned()]).collect())
}

fn chat(flags: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(["chat", "--url", &server()]).args(flags);
    command
        .env_remove("FORETOKEN_API_KEY")
        .stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that ends before it reads is what some tests are about.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

/// Exit code, answers and remarks.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn flags_that_no_server_takes_are_refused_with_what_is_allowed() {
    for (flag, value, allowed) in [
        ("--policy", "ssd", "SSD"),
        ("--lookahead", "99", "32"),
        ("--max-tokens", "0", "1.."),
        ("--max-tokens", "-1", "1.."),
    ] {
        let (code, _, said) = told(&chat(&[flag, value], b""));
        assert_eq!(code, Some(64), "{flag} {value}: {said}");
        let names = said.contains(flag) && said.contains(allowed);
        assert!(names, "{flag} {value}: {said}");
    }
    let (code, _, said) = told(&chat(&["--policy", "SSD", "--lookahead", "32"], b"a\n"));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_conversation_that_is_too_long_loses_its_oldest_turns_and_goes_on() {
    let turns = b"one\ntwo\nthree\nfour\n";
    let (code, answers, said) = told(&chat(&["--system", "s"], turns));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("oldest turn is left out").count(), 2, "{said}");
    // The instruction stays, with the turn before and the latest one.
    let sizes = ["of 2", "of 4"].map(|size| answers.matches(size).count());
    assert_eq!(sizes, [1, 3], "{answers}");

    let (code, _, said) = told(&chat(&[], b"one\nlong\n"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("in fewer words: no room"), "{said}");
}

#[test]
fn an_answer_that_breaks_off_ends_its_line_before_the_error_is_told() {
    let (code, answers, said) = told(&chat(&[], b"break\n"));
    assert_eq!(code, Some(1), "{said}");
    assert!(answers.ends_with("of 1\n"), "{answers:?}");
    assert!(said.ends_with("error: all targets are lost\n"), "{said}");
}

#[test]
fn input_that_is_no_text_is_not_blamed_on_a_terminal() {
    let (code, _, said) = told(&chat(&[], b"\xff\n"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot read standard input"), "{said}");
}
