//! Clients that do not send, and clients that do not read.

use std::{sync::Arc, time::Duration};

use foretoken_router::RouterConfig;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::{Script, Setup, client::Client, config, faults::soon, start, start_with};

/// A router that has little patience.
async fn hasty() -> Setup {
    let config = RouterConfig {
        head: Duration::from_millis(500),
        body: Duration::from_millis(500),
        ..config()
    };
    start_with(config, vec![Script::says(" ok")]).await
}

/// What comes until the server hangs up.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // Being reset is being hung up on.
    let _ = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).expect("text")
}

#[tokio::test]
async fn a_client_whose_head_does_not_come_is_hung_up_on() {
    let setup = hasty().await;
    for head in [
        "",
        "POST /v1/comple",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
    ] {
        let mut stream = TcpStream::connect(setup.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        assert!(!rest(&mut stream).await.contains("200 OK"), "{head:?}");
    }
    // A byte now and then does not help.
    let mut stream = TcpStream::connect(setup.address).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let drip = async {
        writing.write_all(b"GET /health HTTP/1.1\r\n").await?;
        loop {
            writing.write_all(b"x: y\r\n").await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        #[expect(unreachable_code, reason = "tells the type")]
        std::io::Result::Ok(())
    };
    let mut bytes = [0; 1024];
    tokio::select! {
        hung_up = reading.read(&mut bytes) => assert!(!matches!(hung_up, Ok(n) if bytes[..n].starts_with(b"HTTP/1.1 200"))),
        broken = drip => assert!(broken.is_err()),
    }
    assert_eq!(setup.client().get("/health").await.status, 200);
}

#[tokio::test]
async fn a_client_whose_body_does_not_come_is_told_so() {
    let setup = hasty().await;
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize"] {
        let mut stream = TcpStream::connect(setup.address).await.unwrap();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{\"prompt\": ");
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("did not come within 0.5 s"), "{answer}");
    }
    assert_eq!(setup.targets[0].requests().len(), 0);
}

#[tokio::test]
async fn a_stream_may_take_longer_than_a_head_or_a_body() {
    let setup = hasty().await;
    setup.targets[0].change(|script| {
        *script = Script::says(" a long story that takes its time");
        script.round = 1;
        script.pause = Duration::from_millis(150);
    });
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let events = setup.client().post("/v1/completions", &body).await.events();
    assert_eq!(
        events.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let setup = start(Script::says(" ok")).await;
    let client = Client::new(setup.address).header("x-large", &"a".repeat(1 << 20));
    assert_eq!(client.get("/health").await.status, 431);
    let mut client = Client::new(setup.address);
    for i in 0..200 {
        client = client.header(&format!("x-{i}"), "a");
    }
    assert_eq!(client.get("/health").await.status, 431);
}

/// Sends a streaming request from a socket whose buffer does not grow.
async fn open_narrow(setup: &Setup, body: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(128 << 10).unwrap();
    let mut stream = socket.connect(setup.address).await.unwrap();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_takes_nothing_for_too_long_gives_its_place_to_others() {
    let mut script = Script::endless();
    (script.pause, script.round) = (Duration::from_millis(1), 32);
    (script.most_unread, script.max_positions) = (64 << 10, 2_000_000);
    let config = RouterConfig {
        max_requests: 1,
        unread: Duration::from_secs(2),
        ..config()
    };
    let setup = start_with(config, vec![script]).await;
    let body = json!({
        "prompt": "x", "max_tokens": 1_000_000, "ignore_eos": true, "stream": true, "logprobs": 20,
    });
    let _silent = open_narrow(&setup, &body.to_string()).await;
    soon("it is at it", || setup.targets[0].tokens_sent() > 0).await;
    let quick = json!({"prompt": "x", "max_tokens": 3});
    let client = setup.client();
    let first = client.post("/v1/completions", &quick).await;
    assert_eq!(first.status, 429, "there is one place");
    soon("it is hung up on", || setup.targets[0].running() == 0).await;
    assert_eq!(client.post("/v1/completions", &quick).await.status, 200);
}

#[test]
fn a_place_is_taken_until_its_text_is_read_whoever_waits_for_it() {
    // Long texts are read one by one.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build();
    runtime.unwrap().block_on(text_that_waits_to_be_read());
}

async fn text_that_waits_to_be_read() {
    let mut script = Script::says(" ok");
    script.max_positions = u32::MAX;
    let config = RouterConfig {
        max_requests: 1,
        ..config()
    };
    let setup = start_with(config, vec![script]).await;
    let (ended, until_then) = std::sync::mpsc::channel::<()>();
    let other_text = tokio::task::spawn_blocking(move || until_then.recv());
    let long = json!({"prompt": "once upon a time ".repeat(100_000)}).to_string();
    let mut gone = open_narrow(&setup, &long).await;
    let quick = json!({"prompt": "x", "max_tokens": 3});
    let client = setup.client();
    let ask = async || client.post("/v1/completions", &quick).await.status;
    // Whoever goes before its body has come had no place.
    while ask().await != 429 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = setup.targets[0].requests().len();
    gone.shutdown().await.unwrap();
    assert_eq!(rest(&mut gone).await, "", "it is hung up on");
    assert_eq!(ask().await, 429, "it has not come to the text yet");
    drop(ended);
    assert!(other_text.await.unwrap().is_err());
    while ask().await != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        setup.targets[0].requests().len(),
        before + 1,
        "of the one that waits"
    );
}

#[tokio::test]
async fn a_client_that_never_reads_stops_its_target_alone_and_misses_nothing_when_it_reads() {
    const TOKENS: usize = 24_000;
    let mut script = Script::says("");
    script.output = (0..TOKENS as u32)
        .map(|i| foretoken_speculation::TokenId(300 + i % 1000))
        .collect();
    script.round = 8;
    script.most_unread = 64 << 10;
    script.max_positions = 2 * TOKENS as u32;
    let want: Vec<u32> = script.output.iter().map(|token| token.0).collect();
    let setup = start(script).await;
    let target = Arc::clone(&setup.targets[0]);
    let body = json!({
        "prompt": "x", "max_tokens": TOKENS, "ignore_eos": true, "stream": true, "logprobs": 20,
        "return_token_ids": true,
    });
    let mut silent = open_narrow(&setup, &body.to_string()).await;
    while target.stalls() < 20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let sent = target.tokens_sent() as usize;
    // What is under way fills the buffers of the system, megabytes, and no more.
    assert!(sent < TOKENS * 3 / 4, "{sent} tokens are under way");
    // Others are served meanwhile.
    let quick = json!({"prompt": "x", "max_tokens": 3});
    let answer = setup.client().post("/v1/completions", &quick).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);

    let mut bytes = Vec::new();
    silent.read_to_end(&mut bytes).await.unwrap();
    let got: Vec<u32> = Client::parse(&bytes)
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["token_ids"].as_array().cloned())
        .flatten()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    assert_eq!(got, want);
}
