//! Targets that die, clients that leave: the stream goes on unchanged, and nothing is left over.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use foretoken_protocol::Address;
use foretoken_router::{Router, RouterConfig};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::{
    Script, Setup,
    client::Client,
    config, start, start_with,
    target::{DRAFTED, Target},
};

const TEXT: &str = " one two three four five six seven eight nine ten eleven twelve";

/// Waits for something that has to happen soon, and fails the test if it does not.
pub(crate) async fn soon(what: &str, mut test: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if test() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

fn text(events: &[Value]) -> String {
    events
        .iter()
        .filter_map(|e| e["choices"][0]["text"].as_str())
        .collect()
}

fn ids(events: &[Value]) -> Vec<Value> {
    let lists = events
        .iter()
        .filter_map(|e| e["choices"][0]["token_ids"].as_array());
    lists.flatten().cloned().collect()
}

#[tokio::test]
async fn a_stream_whose_target_dies_goes_on_elsewhere_with_not_one_token_changed() {
    let body = json!({
        "prompt": "x", "max_tokens": 100, "seed": 3, "stream": true, "return_token_ids": true,
    });
    let want = {
        let setup = start(Script::says(TEXT)).await;
        setup.client().post("/v1/completions", &body).await.events()
    };
    for dies_after in [0, 1, 2, 5, 8] {
        let mut dying = Script::says(TEXT);
        dying.dies_after = Some(dies_after);
        let setup = start_with(config(), vec![dying.clone(), dying]).await;
        setup.targets[1].change(|script| script.dies_after = Some(dies_after + 4));
        let events = setup.client().post("/v1/completions", &body).await.events();
        assert_eq!(text(&events), TEXT, "{dies_after}");
        assert_eq!(ids(&events), ids(&want), "{dies_after}");
        assert!(setup.metric("foretoken_replays_total").await >= 1.0);
        let requests: Vec<_> = setup.targets.iter().flat_map(|t| t.requests()).collect();
        assert!(requests.len() >= 2);
        for request in &requests {
            assert_eq!(
                (request.prompt_len, request.seed.0, request.max_tokens),
                (2, 3, 100)
            );
        }
    }
}

#[tokio::test]
async fn a_whole_answer_is_replayed_too_and_counts_each_token_once() {
    let mut dying = Script::says(TEXT);
    dying.dies_after = Some(4);
    let setup = start_with(config(), vec![dying.clone(), dying]).await;
    let body = json!({"prompt": "x", "max_tokens": 100, "logprobs": 0, "echo": true});
    let json = setup.client().post("/v1/completions", &body).await.json();
    let choice = &json["choices"][0];
    assert_eq!(choice["text"], format!("x{TEXT}"));
    let tokens = json["usage"]["completion_tokens"].as_u64().unwrap();
    let listed = choice["logprobs"]["tokens"].as_array().unwrap().len() as u64;
    assert_eq!(
        listed,
        json["usage"]["prompt_tokens"].as_u64().unwrap() + tokens
    );
    let all = Script::says(TEXT).output.len();
    // Over both targets, but for each one's pass over its prompt.
    let own = &json["usage"]["foretoken"];
    let said: usize = [4, all - 4].iter().map(|n| (n - 1).div_ceil(3)).sum();
    assert_eq!(own["rounds"], said);
    assert_eq!(own["drafted"], said * DRAFTED as usize);
    assert_eq!(own["policy"], "Speculative");
    assert_eq!(json["timings"]["draft_n"], own["drafted"]);
    assert!(json["timings"]["prompt_ms"].as_f64().unwrap() > 0.0);
}

#[tokio::test]
async fn a_target_that_is_killed_and_comes_back_at_its_address_is_gone_on_with() {
    let script = Script::says(TEXT);
    // Its own runtime, so that all its connections can be cut at once.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    let (mut first, stop) = (script.clone(), CancellationToken::new());
    // It is killed in the midst of what it says.
    first.pause = Duration::from_secs(3600);
    let first = {
        let stop = stop.clone();
        runtime
            .spawn(async move { Target::start("target", first, stop) })
            .await
            .unwrap()
    };
    let mut config = config();
    config
        .targets
        .push(crate::entry("target", first.address.clone()));
    let setup = start_with(config, Vec::new()).await;
    setup.wait_ready().await;

    let client = setup.client();
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true}).to_string();
    let mut stream = client
        .open("POST", "/v1/completions", body.as_bytes())
        .await;
    let mut told = Vec::new();
    while !String::from_utf8_lossy(&told).contains(r#""text":" "#) {
        assert!(stream.read_buf(&mut told).await.unwrap() > 0, "it goes on");
    }
    let address = first.address.clone();
    runtime.shutdown_background();
    let second = restart(address, script, stop).await;
    stream.read_to_end(&mut told).await.unwrap();
    assert_eq!(text(&Client::parse(&told).events()), TEXT);
    assert!(
        second.request().tokens.len() > second.request().prompt_len,
        "it got the tokens so far"
    );
}

/// Starts a target at an address that another may not have left yet.
async fn restart(address: Address, script: Script, stop: CancellationToken) -> Arc<Target> {
    for _ in 0..500 {
        if foretoken_protocol::Listener::bind(&address).is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Target::start_at("target", script, &address, stop)
}

#[tokio::test]
async fn a_stream_that_cannot_go_on_ends_with_an_error_within_its_time() {
    let mut script = Script::says(TEXT);
    script.dies_after = Some(2);
    let mut config = config();
    config.replay = Duration::from_secs(3);
    let setup = start_with(config, vec![script]).await;
    let target = Arc::clone(&setup.targets[0]);
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let answering = {
        let client = setup.client();
        tokio::spawn(async move { client.post("/v1/completions", &body).await })
    };
    soon("the request is there", || !target.requests().is_empty()).await;
    target.change(|script| script.busy = true);
    let events = answering.await.unwrap().events();
    let last = events.last().unwrap();
    assert_eq!(last["error"]["code"], "targets_full", "{last}");
    assert!(TEXT.starts_with(&text(&events)));
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_target_at_once() {
    for stream in [true, false] {
        let setup = start(Script::endless()).await;
        let target = Arc::clone(&setup.targets[0]);
        let body = json!({"prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": stream});
        let body = body.to_string();
        let connection = setup
            .client()
            .open("POST", "/v1/completions", body.as_bytes())
            .await;
        soon("it runs", || {
            target.running() == 1 && target.tokens_sent() > 2
        })
        .await;
        drop(connection);
        soon("it is cancelled", || {
            target.cancelled() == 1 && target.running() == 0
        })
        .await;
        assert!(target.tokens_sent() < 1000, "long before its end");
        soon_cancelled(&setup).await;
    }
}

async fn soon_cancelled(setup: &Setup) {
    for _ in 0..1000 {
        if setup.metric("foretoken_requests_cancelled_total").await >= 1.0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the router did not count it");
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_hold_up_others() {
    let setup = start(Script::endless()).await;
    let body = json!({
        "prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": true, "logprobs": 20,
    });
    let body = body.to_string();
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(
            setup
                .client()
                .open("POST", "/v1/completions", body.as_bytes())
                .await,
        );
    }
    let target = Arc::clone(&setup.targets[0]);
    soon("all are taken", || target.requests().len() == 8).await;
    let quick = json!({"prompt": "x", "max_tokens": 3});
    let answer = setup.client().post("/v1/completions", &quick).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
    // One of them reads after all: its stream is whole.
    let mut bytes = Vec::new();
    silent.remove(0).read_to_end(&mut bytes).await.unwrap();
    assert!(String::from_utf8_lossy(&bytes).contains("data: [DONE]"));
}

#[tokio::test]
async fn a_full_target_is_passed_over() {
    let mut full = Script::says(TEXT);
    full.busy = true;
    let setup = start_with(config(), vec![full, Script::says(" ok")]).await;
    for _ in 0..4 {
        let body = json!({"prompt": "x"});
        let json = setup.client().post("/v1/completions", &body).await.json();
        assert_eq!(json["choices"][0]["text"], " ok");
    }
}

#[tokio::test]
async fn prompts_with_one_beginning_go_to_one_target() {
    let scripts = vec![Script::says(" a"), Script::says(" b"), Script::says(" c")];
    let setup = start_with(config(), scripts).await;
    let prefix: Vec<u32> = (10..110).collect();
    for tail in 0..9 {
        let mut prompt = prefix.clone();
        prompt.push(200 + tail);
        setup
            .client()
            .post("/v1/completions", &json!({"prompt": prompt}))
            .await;
    }
    let counts: Vec<usize> = setup.targets.iter().map(|t| t.requests().len()).collect();
    assert_eq!(counts.iter().max(), Some(&9), "{counts:?}");
    for i in 0..9 {
        let prompt: Vec<u32> = (1000 + i * 100..1064 + i * 100).collect();
        setup
            .client()
            .post("/v1/completions", &json!({"prompt": prompt}))
            .await;
    }
    let counts: Vec<usize> = setup.targets.iter().map(|t| t.requests().len()).collect();
    assert!(
        counts.iter().all(|&n| n >= 3),
        "new prompts are spread: {counts:?}"
    );
}

#[tokio::test]
async fn who_took_over_an_address_and_has_another_tokenizer_is_passed_over() {
    let stop = CancellationToken::new();
    let ours = Target::start("t", Script::says(" ours"), stop.clone());
    let mut script = Script::says(" theirs");
    let stranger = {
        script.tokenizer_digest = "another".into();
        Target::start("somebody", script, stop.clone())
    };
    let mut config = config();
    config.targets = vec![
        crate::entry("t", ours.address.clone()),
        crate::entry("u", stranger.address.clone()),
    ];
    let setup = start_with(config, Vec::new()).await;
    while setup.client().get("/ready").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for round in 0..8 {
        let body = json!({"prompt": format!("{round} x")});
        let answer = setup.client().post("/v1/completions", &body).await;
        assert_eq!(answer.json()["choices"][0]["text"], " ours");
    }
    // The address of a target that served is somebody else's now.
    ours.change(|script| script.tokenizer_digest = "another".into());
    while setup.client().get("/ready").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
}

#[tokio::test]
async fn targets_come_and_go_with_the_registry_file() {
    let stop = CancellationToken::new();
    let target = Target::start("late", Script::says(" ok"), stop.clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory.json");
    let mut directory = foretoken_registry::Directory::default();
    foretoken_registry::write_directory(&path, &directory).unwrap();
    let mut config = config();
    config.registry = Some(path.clone().into());
    let setup = start_with(config, Vec::new()).await;
    assert_eq!(setup.client().get("/ready").await.status, 503);
    directory
        .targets
        .push(crate::entry("late", target.address.clone()));
    foretoken_registry::write_directory(&path, &directory).unwrap();
    while setup.client().get("/ready").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = setup
        .client()
        .post("/v1/completions", &json!({"prompt": "x"}))
        .await;
    assert_eq!(answer.json()["choices"][0]["text"], " ok");
    directory.targets.clear();
    foretoken_registry::write_directory(&path, &directory).unwrap();
    while setup.client().get("/ready").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
}

#[tokio::test]
async fn a_request_between_one_target_and_the_next_waits_for_it_and_not_for_those_that_hang() {
    let (old, new) = (CancellationToken::new(), CancellationToken::new());
    let target = Target::start("old", Script::says(" old"), old.clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("directory.json");
    let mut directory = foretoken_registry::Directory::default();
    let listed = |name: &str, address: &Address| crate::entry(name, address.clone());
    directory.targets = vec![listed("old", &target.address)];
    foretoken_registry::write_directory(&path, &directory).unwrap();
    let mut config = config();
    config.registry = Some(path.clone().into());
    let setup = start_with(config, Vec::new()).await;
    setup.wait_ready().await;

    // As when a pod is replaced: the old one is gone, its address answers nobody, the next one comes.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute = Address::Tcp {
        host: "127.0.0.1".into(),
        port: silent.local_addr().unwrap().port(),
    };
    directory.targets = vec![listed("mute", &mute)];
    foretoken_registry::write_directory(&path, &directory).unwrap();
    old.cancel();
    while setup.client().get("/ready").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let client = setup.client();
    let asking = tokio::spawn(async move {
        client
            .post("/v1/completions", &json!({"prompt": "x"}))
            .await
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!asking.is_finished(), "it was refused");
    let next = Target::start("new", Script::says(" new"), new.clone());
    directory.targets.push(listed("new", &next.address));
    foretoken_registry::write_directory(&path, &directory).unwrap();
    let answer = asking.await.unwrap();
    assert_eq!(answer.json()["choices"][0]["text"], " new");
    directory.targets.clear();
    foretoken_registry::write_directory(&path, &directory).unwrap();
    new.cancel();
}

/// For how long nobody may have come for a router that lingers to end.
const QUIET: Duration = Duration::from_secs(2);

/// Asks a router that lingers for longer than it does without anybody. None if this machine has kept it
/// without anybody for as long.
async fn is_asked_while_it_lingers(address: SocketAddr) -> Option<()> {
    let begun = Instant::now();
    let mut last = begun;
    while begun.elapsed() < Duration::from_secs(5) {
        let next = Instant::now();
        let asking = tokio::spawn(async move {
            let client = Client::new(address);
            let answer = client
                .post("/v1/completions", &json!({"prompt": "x"}))
                .await;
            (answer, client.get("/ready").await)
        });
        let answers = asking.await;
        if last.elapsed() >= QUIET {
            return None;
        }
        let (answer, ready) = answers.unwrap();
        assert_eq!(answer.json()["choices"][0]["text"], " ok");
        assert_eq!(ready.status, 200, "it still serves");
        last = next;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Some(())
}

/// Tells a router to stop that lingers, and asks it as above.
async fn lingers(config: RouterConfig) -> Option<()> {
    let stop = CancellationToken::new();
    let router = Router::bind(config).await.expect("binds");
    let client = Client::new(router.address());
    let running = tokio::spawn(router.run(stop.clone()));
    while client.get("/ready").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    let asked = is_asked_while_it_lingers(client.address).await;
    // Those who only look whether it is well do not keep it.
    while !running.is_finished() {
        let _ = tokio::net::TcpStream::connect(client.address).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.await.unwrap().unwrap();
    asked
}

#[tokio::test]
async fn a_router_that_lingers_serves_whoever_still_comes_and_then_ends() {
    let targets = CancellationToken::new();
    let target = Target::start("target", Script::says(" ok"), targets.clone());
    let config = RouterConfig {
        targets: vec![crate::entry("target", target.address.clone())],
        linger: Duration::from_secs(60),
        ..config()
    };
    let mut tries = 1;
    while lingers(config.clone()).await.is_none() {
        assert!(tries < 10, "nobody asks in time");
        tries += 1;
    }
    targets.cancel();
}
