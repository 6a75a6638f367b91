//! The executable as scripts meet it: where its output goes, what it is told wrongly, its variables.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use foretoken_artifacts::Tokenizer;
use serde_json::Value;

/// Runs on a small real model.
const LAPTOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/laptop.yaml");
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/target");

fn foretoken(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    command.args(arguments).env_remove("FORETOKEN_API_KEY");
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A router that has metrics and nothing else, as long as the test runs.
fn router() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut begun = [0; 1024];
            let read = connection.read(&mut begun).unwrap();
            let answer = if begun[..read].starts_with(b"GET /metrics") {
                "200 OK\r\nContent-Length: 26\r\nConnection: close\r\n\r\nforetoken_targets_ready 1\n"
            } else {
                "404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            };
            // Whoever has asked may be gone.
            let _ = write!(connection, "HTTP/1.1 {answer}");
        }
    });
    address
}

#[test]
fn output_that_is_lost_is_an_error_and_a_reader_that_is_gone_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("kinds");
    let address = router();
    for arguments in [
        &["check", LAPTOP][..],
        &["fetch", MODEL],
        &["crd"],
        &["crd", "--dir", folder.to_str().unwrap()],
        // The longer an interval, the longer it waits for answers.
        &["top", "--once", "--interval", "3", "--address", &address],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = foretoken(arguments).stdout(full).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        let line = "error: cannot write the output: No space left on device";
        assert!(said.contains(line), "{arguments:?}: {said}");

        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = foretoken(arguments).stdout(writer).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("error"), "{arguments:?}: {said}");
    }
    let written = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(written, 3, "every kind is written before any is told");
}

#[test]
fn remarks_that_nobody_can_read_change_no_exit_code() {
    for (file, code) in [(LAPTOP, 0), ("/nowhere.yaml", 64)] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = foretoken(&["check", file]);
        let status = command.stderr(full).stdout(Stdio::null()).status();
        assert_eq!(status.unwrap().code(), Some(code), "{file}");
    }
}

/// What became of a command that has to end by itself; it is ended if it does not.
fn refused(mut command: Command) -> Output {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn wrong_flags_of_up_are_refused_by_their_names_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let up = ["up", "-f", LAPTOP, "--port", "0", "--state-dir"];
    let up = [&up[..], &[state.to_str().unwrap()]].concat();
    let no_keys = folder.path().join("keys");
    fs::write(&no_keys, "# none yet\n").unwrap();
    for (variable, flag, value) in [
        (None, "--allowed-origin", "foo"),
        (None, "--target-threads", "0"),
        (None, "--draft-threads", "1025"),
        (None, "--api-key", "a b"),
        (None, "--api-key", ""),
        (None, "--api-key", "a,"),
        (None, "--api-keys-from", "/nowhere"),
        (None, "--api-keys-from", no_keys.to_str().unwrap()),
        (Some("a,b,"), "--allowed-origin", "foo"),
        (Some("a b"), "FORETOKEN_API_KEY", ""),
    ] {
        let mut command = foretoken(&up);
        command.envs(variable.map(|keys| ("FORETOKEN_API_KEY", keys)));
        if flag.starts_with("--") {
            command.args([flag, value]);
        }
        let output = refused(command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{flag} {value}: {said}");
        assert!(said.contains(flag), "{flag} {value}: {said}");
        assert!(!said.contains("[0]"), "a field is named: {said}");
        assert!(!state.exists(), "{flag} {value}: it started");
    }
}

#[test]
fn a_draft_of_other_tokens_is_refused_by_generate_with_both_digests() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(MODEL).with_file_name("draft");
    for file in fs::read_dir(&shipped).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // The vocabulary stays as large as it is: two tokens change places.
    for id in tokenizer["model"]["vocab"]
        .as_object_mut()
        .unwrap()
        .values_mut()
    {
        *id = match id.as_u64() {
            Some(1000) => 1001.into(),
            Some(1001) => 1000.into(),
            _ => continue,
        };
    }
    fs::write(&path, tokenizer.to_string()).unwrap();
    let draft = folder.path().to_str().unwrap();
    let run = |draft: &str| {
        let arguments = ["generate", "--model", MODEL, "--draft", draft];
        let output = foretoken(&arguments)
            .args(["--max-tokens", "1", "x"])
            .output();
        output.unwrap()
    };
    let output = run(draft);
    let digests = [MODEL, draft].map(|folder| {
        let tokenizer = Tokenizer::load(Path::new(folder)).unwrap();
        tokenizer.digest().to_owned()
    });
    assert_eq!(output.status.code(), Some(64), "{}", stderr(&output));
    let told = format!(
        "the target's tokenizer is {}, the draft's {}",
        digests[0], digests[1]
    );
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    assert!(run(shipped.to_str().unwrap()).status.success());
}

#[test]
fn benchmarks_need_nothing_of_the_source_tree() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let output = foretoken(&["bench", "decode", "--threads", "1", "--dtypes", "int8"])
        .args(["--lookaheads", "3", "--rounds", "1", "--prompts", "1"])
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", &cache)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(folder.path().join("target/bench/decode.json").is_file());
    assert!(cache.join("foretoken").is_dir(), "the shipped pair");
}

#[test]
fn a_state_folder_that_cannot_be_made_is_refused_with_what_names_another() {
    let mut command = foretoken(&["up", "-f", LAPTOP, "--port", "0"]);
    command.env("XDG_STATE_HOME", "/dev/null");
    let said = stderr(&refused(command));
    let line = "cannot use /dev/null/foretoken/";
    let ways = said.contains("--state-dir") && said.contains("XDG_STATE_HOME");
    assert!(said.contains(line) && ways, "{said}");
    let up = [
        "up",
        "-f",
        LAPTOP,
        "--port",
        "0",
        "--state-dir",
        "/dev/null/a",
    ];
    let said = stderr(&refused(foretoken(&up)));
    assert!(said.contains("which --state-dir names"), "{said}");
}

#[test]
fn a_router_without_a_model_says_which_flag_names_one() {
    let output = foretoken(&["router"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let said = stderr(&output);
    assert_eq!(said, "error: no model is given: use --model\n");
}

#[test]
fn a_router_that_would_never_have_a_target_says_how_it_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("router.yaml");
    fs::write(&config, format!("models: [{{name: m, folder: {MODEL}}}]\n")).unwrap();
    for flags in [["--model", MODEL], ["--config", config.to_str().unwrap()]] {
        let mut command = foretoken(&["router", "--listen", "127.0.0.1:0"]);
        command.args(flags);
        let output = refused(command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(64), "{flags:?}: {said}");
        let names = said.contains("--target ADDRESS") && said.contains("--registry");
        assert!(names, "{flags:?}: {said}");
    }
}

#[test]
fn targets_of_flags_go_before_those_of_a_router_s_file_and_serve_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("router.yaml");
    let model = |name: &str| format!("  - {{name: {name}, folder: {MODEL}}}\n");
    let file = "targets: [{name: t, model: m, address: 'unix:/t.sock'}]\n";
    let one = format!("models:\n{}{file}", model("m"));
    fs::write(&config, &one).unwrap();
    let flags = ["--target", "unix:/a.sock", "--target", "unix:/b.sock"];
    let router = |flags: &[&str]| {
        let mut command = foretoken(&["router", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(&config).args(flags);
        command
    };
    for (flags, listed) in [
        (&flags[..], 2),
        (&["--model", MODEL, "--model-name", "m"], 1),
    ] {
        let mut child = router(flags).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let found = |line: String| {
            let (_, rest) = line.split_once("addresses=\"http://")?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let address = lines.find_map(|line| found(line.unwrap())).unwrap();
        let mut connection = TcpStream::connect(&address).unwrap();
        write!(connection, "GET /ready HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let expected = format!(r#""model":"m","targets_listed":{listed}"#);
        assert!(answer.contains(&expected), "{flags:?}: {answer}");
    }
    fs::write(&config, format!("models:\n{}{}", model("m"), model("n"))).unwrap();
    let said = stderr(&refused(router(&flags)));
    assert!(said.contains("--target is of one model"), "{said}");
}

#[test]
fn a_file_of_a_service_that_is_wrong_is_refused_with_what_is_wrong_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("service.yaml");
    for service in ["target", "draft", "router"] {
        for (text, names) in [
            ("\nsevice: {}\n", ["sevice", "line 2"]),
            ("tls: [", ["service.yaml", "line 1"]),
        ] {
            fs::write(&config, text).unwrap();
            let mut command = foretoken(&[service, "--config"]);
            command.arg(&config);
            let output = refused(command);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(64), "{service}: {said}");
            let all = names.iter().all(|name| said.contains(name));
            assert!(all, "{service}: {said}");
        }
    }
}

#[test]
fn a_model_without_a_tokenizer_takes_ids_and_gives_ids() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3");
    let generate = |more: &[&str]| {
        let mut command = foretoken(&["generate", "--model", model, "--max-tokens", "4"]);
        command.args(more).stdin(Stdio::null());
        command.output().unwrap()
    };
    let ids = ["--ignore-eos", "--ids", "1,2,3"];
    let json = generate(&[&ids[..], &["--json"]].concat());
    let said: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(said["text"], Value::Null);
    let ours: Vec<String> = said["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(Value::to_string)
        .collect();
    assert_eq!(ours.len(), 4);
    let plain = String::from_utf8(generate(&ids).stdout).unwrap();
    assert_eq!(plain, ours.join(",") + "\n");
    let text = generate(&["a prompt"]);
    assert_eq!(text.status.code(), Some(64));
    let said = stderr(&text);
    assert!(said.contains("give the prompt with --ids"), "{said}");
}

#[test]
fn a_model_is_computed_by_as_many_threads_as_are_asked_for() {
    let mut command = foretoken(&["generate", "--threads", "3", "--max-tokens", "900"]);
    command.args(["--ignore-eos", "--model", MODEL, "One"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    // The one that asks computes too.
    let helpers = || {
        let tasks = fs::read_dir(&tasks).unwrap().flatten();
        let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.starts_with("kernel-")).count()
    };
    while helpers() != 2 && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(helpers(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A running `up`.
struct Up {
    child: Child,
    address: String,
}

impl Up {
    /// Starts one with this `FORETOKEN_API_KEY` and waits until it is ready.
    fn serving(state: &Path, keys: &str, flags: &[&str]) -> Self {
        let mut command = foretoken(&["up", "-f", LAPTOP, "--port", "0", "--target-threads", "1"]);
        command.arg("--state-dir").arg(state).args(flags);
        command.env("FORETOKEN_API_KEY", keys).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .map_while(Result::ok)
            .find(|line| line.starts_with("ready:"));
        let ready = ready.expect("it has to serve");
        let (_, address) = ready.rsplit_once("http://").unwrap();
        Self {
            child,
            address: address.trim_end_matches("/v1").to_owned(),
        }
    }

    /// Status of a request that brings `key`.
    fn asked(&self, key: Option<&str>) -> u16 {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let key = key.map(|key| format!("Authorization: Bearer {key}\r\n"));
        let key = key.unwrap_or_default();
        let request =
            format!("GET /v1/models HTTP/1.1\r\nHost: h\r\n{key}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap();
        status.parse().unwrap()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Its services end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_variable_without_keys_asks_for_none_and_flags_go_before_it() {
    // What one leaves may still be ending when the next begins.
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, third] = folders.each_ref().map(tempfile::TempDir::path);
    let up = Up::serving(first, "", &[]);
    assert_eq!(up.asked(None), 200);
    drop(up);
    let up = Up::serving(second, "a,b,", &[]);
    assert_eq!(
        [None, Some("b"), Some("c")].map(|key| up.asked(key)),
        [401, 200, 401]
    );
    drop(up);
    let up = Up::serving(third, "variable", &["--api-key", "flag"]);
    assert_eq!(
        [Some("flag"), Some("variable")].map(|key| up.asked(key)),
        [200, 401]
    );
}

/// A server with one model, or a proxy to it that refuses everything, as long as the test runs.
fn with_models(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 1024]).unwrap();
            let body = r#"{"data": [{"id": "tiny"}]}"#;
            let (len, kind) = (body.len(), "application/json");
            // Whoever has asked may be gone.
            let _ = write!(
                connection,
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n\
                 Connection: close\r\n\r\n{body}"
            );
        }
    });
    address
}

#[test]
fn a_chat_with_this_machine_asks_no_proxy_and_one_with_another_does() {
    let (server, proxy) = (with_models("200 OK"), with_models("502 Bad Gateway"));
    // For documentation alone (RFC 5737): nobody has it.
    for (asked, code) in [(server.as_str(), 0), ("192.0.2.1:8000", 1)] {
        let mut command = foretoken(&["chat", "--url", asked]);
        command
            .env("HTTP_PROXY", format!("http://{proxy}"))
            .env("http_proxy", format!("http://{proxy}"))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy")
            .stdin(Stdio::null());
        let output = refused(command);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{asked}: {said}");
        let expected = if code == 0 { "tiny" } else { "502" };
        assert!(said.contains(expected), "{asked}: {said}");
    }
}
