//! Models that come from a hub.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use foretoken_tests::{repository, shipped_model};
use serde_json::json;

use crate::{
    fixture::{Up, executable, greeting, manifest, play, run, wait},
    mirror::Mirror,
};

const PROMPT: &str = "Question: Tom has 3 apples.";
/// What the mirror sends of the weights before it stalls: many of its blocks, and far from all.
const PART: usize = 3_000_000;

/// `foretoken generate` with a target of this address and a cache in `home`.
fn generate(command: &mut Command, mirror: &Mirror, home: &Path, target: &str) -> Output {
    prepared(command, mirror, home, target).output().unwrap()
}

fn prepared<'a>(
    command: &'a mut Command,
    mirror: &Mirror,
    home: &Path,
    target: &str,
) -> &'a mut Command {
    with_hub(command, mirror, home)
        .args(["generate", "--model", target, "--temperature", "0"])
        .args(["--max-tokens", "12", "--threads", "1", PROMPT])
}

/// The same command with a hub, and a cache in `home`.
fn with_hub<'a>(command: &'a mut Command, mirror: &Mirror, home: &Path) -> &'a mut Command {
    command
        .env_remove("HF_HUB_CACHE")
        .env("HF_ENDPOINT", &mirror.url)
        .env("HF_HOME", home)
}

/// Runs it until the mirror stalls.
fn run_to_stall(command: &mut Command, home: &Path) -> Child {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = quiet.spawn().unwrap();
    wait("the bytes before the stall", || {
        (partial(home) == PART as u64).then_some(())
    });
    child
}

fn text(output: &Output) -> String {
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What the shipped target says, read from its folder.
fn expected(mirror: &Mirror, home: &Path) -> String {
    let target = shipped_model("target");
    let target = target.to_str().unwrap();
    text(&generate(
        &mut Command::new(executable()),
        mirror,
        home,
        target,
    ))
}

#[test]
fn a_terminal_shows_how_much_of_a_download_is_there() {
    let mirror = Mirror::start(None);
    let home = tempfile::tempdir().unwrap();
    let variables = [
        ("HF_ENDPOINT", mirror.url.as_ref()),
        ("HF_HUB_CACHE", home.path().as_os_str()),
    ];
    play("fetching.py", &["hf://owner/target".as_ref()], &variables);
}

#[test]
fn up_fetches_both_models_from_the_mirror_and_generate_finds_them_in_the_cache() {
    let mirror = Mirror::start(None);
    let home = tempfile::tempdir().unwrap();
    let models = format!("file://{}", repository().join("models").display());
    let text_of_file = manifest(1).replace(&models, "hf://owner");
    assert!(text_of_file.contains("hf://owner/target"), "{text_of_file}");
    let variables = [
        ("HF_ENDPOINT", mirror.url.as_str()),
        ("HF_HOME", home.path().to_str().unwrap()),
    ];
    let up = greeting("ready: story (Speculative) at", || {
        Up::serving(&text_of_file, &variables)
    });
    let answered = run(async {
        let request = json!({
            "model": "story", "prompt": PROMPT, "max_tokens": 12, "temperature": 0,
        });
        up.complete(&request).await["choices"][0]["text"].clone()
    });
    let downloads = mirror.seen().downloads;
    assert!(
        downloads >= 4,
        "weights and tokenizers of two models: {downloads}"
    );
    let found = generate(
        &mut Command::new(executable()),
        &mirror,
        home.path(),
        "hf://owner/target",
    );
    let found = text(&found);
    assert_eq!(mirror.seen().downloads, downloads, "it was fetched again");
    assert_eq!(found.trim_end(), answered.as_str().unwrap().trim_end());
    assert_eq!(found, expected(&mirror, home.path()));
}

#[test]
fn a_download_that_was_killed_goes_on_where_it_stopped() {
    let mirror = Mirror::start(Some(PART));
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(executable());
    let command = prepared(&mut command, &mirror, home.path(), "hf://owner/target");
    let mut killed = run_to_stall(command, home.path());
    killed.kill().unwrap();
    killed.wait().unwrap();
    let have = partial(home.path());
    let target = "hf://owner/target";
    let resumed = generate(
        &mut Command::new(executable()),
        &mirror,
        home.path(),
        target,
    );
    assert_eq!(text(&resumed), expected(&mirror, home.path()));
    let ranges = mirror.seen().ranges;
    let from = format!("bytes={have}-");
    assert!(
        ranges.iter().any(|range| range.starts_with(&from)),
        "{from} is not in {ranges:?}"
    );
    assert_eq!(partial(home.path()), 0, "parts are left");
}

#[test]
fn a_service_that_is_told_to_stop_while_it_loads_ends_at_once() {
    let mirror = Mirror::start(Some(PART));
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(executable());
    let command = with_hub(&mut command, &mirror, home.path())
        // Until then it does not give up.
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "600")
        .args(["target", "--child", "--model", "hf://owner/target"])
        .stdin(Stdio::piped());
    let mut child = run_to_stall(command, home.path());
    let mut orders = child.stdin.take().unwrap();
    orders.write_all(b"drain\n").unwrap();
    let status = wait("its end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

/// Bytes of all files that are not complete.
fn partial(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            partial(&path)
        } else if path.extension() == Some(OsStr::new("incomplete")) {
            entry.metadata().map_or(0, |meta| meta.len())
        } else {
            0
        }
    });
    sizes.sum()
}

/// A command that runs the executable with a disk of 4 MB at `home`, which is gone with it.
fn on_small_disk(home: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--map-root-user", "sh", "-c"])
        .arg("mount -t tmpfs -o size=4m none \"$0\" && exec \"$@\"")
        .arg(home);
    command
}

#[test]
fn a_full_disk_is_named_with_what_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let probe = on_small_disk(home.path()).arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        let why = "this user may not mount a small disk (unshare, mount -t tmpfs)";
        let required = env::var("FORETOKEN_TEST_CLUSTER").as_deref() == Ok("required");
        assert!(!required, "{why}");
        eprintln!("NOT RUN, nothing was tested: {why}");
        return;
    }
    let mirror = Mirror::start(None);
    let mut command = on_small_disk(home.path());
    command.arg(executable());
    let output = generate(&mut command, &mirror, home.path(), "hf://owner/target");
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains(" is full: ") && log.contains("more bytes are needed"),
        "{log}"
    );
    assert!(log.contains(home.path().to_str().unwrap()), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}
