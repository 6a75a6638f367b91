//! Services whose logs nobody can write.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

/// A target with an endpoint that nobody serves, of which its log would tell, and where it shows its health.
fn target() -> (Child, String) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args([
            "target",
            "--child",
            "--simulated",
            "step-us=1",
            "--metrics-listen",
        ])
        .args(["127.0.0.1:0", "--endpoint", "unix:/nowhere/endpoint"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(full)
        .spawn()
        .unwrap();
    let reports = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut reports = reports.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let ready = reports.find_map(|report| Some(report.get("ready")?.clone()));
    let ready = ready.expect("it has to serve");
    // It says what became of a link once its log was to say so.
    let is_down = |report: &Value| report["links"]["links"][0].to_string().contains("nowhere");
    assert!(reports.any(|report| is_down(&report)));
    (child, ready["metrics"].as_str().unwrap().to_owned())
}

#[test]
fn a_log_that_nobody_can_write_ends_no_service() {
    let (mut child, address) = target();
    let mut connection = TcpStream::connect(address).unwrap();
    let asked = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    connection.write_all(asked).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    child.kill().unwrap();
    child.wait().unwrap();
}
