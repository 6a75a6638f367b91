//! Requests from a router to a target, over real sockets.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use foretoken_protocol::{
    Address, Listener,
    generate::{
        EmittedToken, EventSender, FinishReason, GenerateClient, GenerateError, GenerateEvent,
        GenerateRequest, GenerateService, Round, TargetInfo, TargetLoad, serve_generate,
    },
};
use foretoken_speculation::{Seed, TokenId, TraceContext, sampling::SamplingParams};
use futures::{StreamExt, future::join_all};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(120);

/// Events of one long answer.
const COUNT: u32 = 100_000;

/// Keeps what it is given, so that the test can answer.
#[derive(Default)]
struct Target {
    requests: Mutex<Vec<(GenerateRequest, EventSender)>>,
    busy: AtomicBool,
}

impl GenerateService for Target {
    fn generate(&self, request: GenerateRequest, events: EventSender) -> Result<(), GenerateError> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(GenerateError::Busy {
                instance: "target-0".into(),
            });
        }
        if request.max_tokens == 0 {
            return Err(GenerateError::Invalid(
                "max_tokens is 0: ask for at least 1".into(),
            ));
        }
        self.requests
            .lock()
            .expect("nobody panics")
            .push((request, events));
        Ok(())
    }

    fn info(&self) -> TargetInfo {
        TargetInfo {
            instance: "target-0".into(),
            model_digest: "digest".into(),
            path: "portable".into(),
            tokenizer_digest: "t0ken".into(),
            vocab_size: 12,
            max_positions: 512,
            policy: "Speculative".into(),
            load: TargetLoad {
                running: 1,
                waiting: 2,
                kv_used_permille: 3,
                draining: true,
            },
        }
    }
}

impl Target {
    /// The oldest request that has not been taken.
    async fn take(&self) -> (GenerateRequest, EventSender) {
        loop {
            {
                let mut requests = self.requests.lock().expect("nobody panics");
                if !requests.is_empty() {
                    return requests.remove(0);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Running {
    target: Arc<Target>,
    address: Address,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

fn start(address: &Address) -> Running {
    let listener = Listener::bind(address).expect("binds");
    let address = listener.address().clone();
    let target = Arc::new(Target::default());
    let stop = CancellationToken::new();
    let serving = serve_generate(listener, Arc::clone(&target), stop.clone());
    let server = tokio::spawn(async move { serving.await.expect("serves") });
    Running {
        target,
        address,
        stop,
        server,
    }
}

fn request() -> GenerateRequest {
    GenerateRequest {
        request_id: "r".into(),
        owner: 0,
        tokens: vec![TokenId(1), TokenId(2)],
        prompt_len: 2,
        sampling: SamplingParams::default(),
        seed: Seed(7),
        max_tokens: 5,
        ignore_eos: false,
        stop_token_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        policy: None,
        lookahead: None,
        cache_prompt: true,
        cache_salt: None,
        endpoints: Vec::new(),
        tell_stats: false,
        hold: Duration::ZERO,
        trace: TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    }
}

fn tokens(token: u32) -> GenerateEvent {
    GenerateEvent::Tokens(Round {
        drafted: 4,
        tokens: vec![EmittedToken {
            token: TokenId(token),
            accepted: token.is_multiple_of(2),
            logprobs: None,
        }],
        stats: None,
    })
}

fn finished() -> GenerateEvent {
    GenerateEvent::Finished {
        reason: FinishReason::Length,
        stats: Box::default(),
    }
}

/// Runs `test` with a server and its client, over TCP and over a Unix socket.
async fn over_sockets(test: impl AsyncFn(Running, GenerateClient)) {
    let folder = TempDir::new().expect("a folder");
    for address in [
        Address::loopback(0),
        Address::Unix(folder.path().join("target")),
    ] {
        let running = start(&address);
        let client = GenerateClient::new("target-0", running.address.clone());
        timeout(LONG, test(running, client))
            .await
            .expect("nothing hangs");
    }
}

#[tokio::test]
async fn a_request_arrives_whole_and_its_events_come_back_in_order() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (taken, events) = running.target.take().await;
        assert_eq!(taken, request());
        let started = GenerateEvent::Started {
            cached_tokens: 1,
            prompt_logprobs: Vec::new(),
            policy: "Speculative".into(),
            verification: "Coupled".into(),
        };
        let all = [started, tokens(3), tokens(4), finished()];
        for event in &all {
            events.send(event.clone()).expect("the router waits");
        }
        for event in all {
            assert_eq!(stream.next().await, Some(Ok(event)));
        }
        assert_eq!(stream.next().await, None);
        assert_eq!(client.info().await, Ok(running.target.info()));
    })
    .await;
}

#[tokio::test]
async fn dropping_the_stream_cancels_the_request() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        events.send(tokens(1)).expect("the router waits");
        assert_eq!(stream.next().await, Some(Ok(tokens(1))));
        assert!(!events.is_cancelled());
        drop(stream);
        events.cancelled().await;
        assert!(events.is_cancelled());
        events.send(tokens(2)).expect_err("nobody waits");
    })
    .await;
}

#[tokio::test]
async fn many_that_are_given_up_at_once_end_no_other() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        for given_up in 0..40 {
            let many = (0..256).map(|_| client.generate(request()));
            // Most are under way, and some of those the target has not even seen.
            let _ = timeout(Duration::from_micros(200 * given_up), join_all(many)).await;
            events
                .send(tokens(given_up as u32))
                .expect("the router waits");
            assert_eq!(stream.next().await, Some(Ok(tokens(given_up as u32))));
        }
    })
    .await;
}

#[tokio::test]
async fn refusals_come_back_as_what_they_were() {
    over_sockets(async |running, client| {
        let refused = client
            .generate(GenerateRequest {
                max_tokens: 0,
                ..request()
            })
            .await;
        let Err(GenerateError::Invalid(message)) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(message, "max_tokens is 0: ask for at least 1");
        let mut wrong = request();
        wrong.sampling.top_p = 7.0;
        let refused = client.generate(wrong).await;
        let Err(GenerateError::Invalid(message)) = refused else {
            panic!("{refused:?}")
        };
        assert!(message.contains("top_p is 7"), "{message}");
        running.target.busy.store(true, Ordering::SeqCst);
        let refused = client.generate(request()).await;
        let busy = GenerateError::Busy {
            instance: "target-0".into(),
        };
        assert_eq!(refused.err(), Some(busy));
    })
    .await;
}

#[tokio::test]
async fn an_error_in_the_middle_reaches_the_router_and_ends_the_stream() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        events.send(tokens(1)).expect("the router waits");
        events.fail(GenerateError::Busy {
            instance: "target-0".into(),
        });
        assert_eq!(stream.next().await, Some(Ok(tokens(1))));
        let busy = GenerateError::Busy {
            instance: "target-0".into(),
        };
        assert_eq!(stream.next().await, Some(Err(busy)));
        assert_eq!(stream.next().await, None);
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_lost_target() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        events.send(tokens(1)).expect("the router waits");
        drop(events);
        assert_eq!(stream.next().await, Some(Ok(tokens(1))));
        let error = stream.next().await.expect("an item").expect_err("an error");
        assert!(
            error.replayable() && error.to_string().contains("target-0"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_killed_target_is_lost_at_once_and_found_again_when_it_is_back() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        events.send(tokens(1)).expect("the router waits");
        assert_eq!(stream.next().await, Some(Ok(tokens(1))));
        running.server.abort();
        // The target's end of the answer goes with it.
        drop(events);
        let error = stream.next().await.expect("an item").expect_err("an error");
        assert!(matches!(&error, GenerateError::Lost { instance, .. } if instance == "target-0"));
        let _ = running.server.await;

        let mut again = loop {
            match Listener::bind(&running.address) {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        assert_eq!(again.address(), &running.address);
        drop(again);
        let lost = client.info().await.expect_err("nobody is there");
        assert!(lost.replayable(), "{lost}");
        again = Listener::bind(&running.address).expect("binds");
        let target = Arc::new(Target::default());
        tokio::spawn(serve_generate(
            again,
            Arc::clone(&target),
            CancellationToken::new(),
        ));
        while client.info().await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.generate(request()).await.expect("is taken");
        target.take().await;
    })
    .await;
}

#[tokio::test]
async fn why_a_target_cannot_be_reached_is_said_once() {
    let folder = TempDir::new().expect("a folder");
    let nobody = Address::Unix(folder.path().join("target"));
    let client = GenerateClient::new("target-0", nobody);
    let error = client.info().await.expect_err("nobody is there");
    assert_eq!(
        error.to_string(),
        "lost target target-0: transport error: No such file or directory (os error 2)"
    );
}

#[tokio::test]
async fn a_frozen_target_is_lost_too() {
    // Accepts connections and never says a word.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let port = silent.local_addr().expect("is bound").port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = silent.accept().await {
            held.push(socket);
        }
    });
    let client = GenerateClient::new("target-0", Address::loopback(port));
    let (info, stream) = timeout(LONG, async {
        tokio::join!(client.info(), client.generate(request()))
    })
    .await
    .expect("gives up by itself");
    assert!(matches!(info, Err(GenerateError::Lost { .. })), "{info:?}");
    assert!(
        matches!(stream, Err(GenerateError::Lost { .. })),
        "{stream:?}"
    );
}

#[tokio::test]
async fn stopping_lets_running_requests_finish() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        running.stop.cancel();
        events.send(tokens(1)).expect("the router waits");
        assert_eq!(stream.next().await, Some(Ok(tokens(1))));
        assert!(!running.server.is_finished());
        events.send(finished()).expect("the router waits");
        drop(events);
        assert_eq!(stream.next().await, Some(Ok(finished())));
        assert_eq!(stream.next().await, None);
        running.server.await.expect("returns by itself");
    })
    .await;
}

#[tokio::test]
async fn a_router_that_does_not_read_never_blocks_the_target() {
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        for token in 0..COUNT {
            events.send(tokens(token)).expect("the router waits");
        }
        events.send(finished()).expect("the router waits");
        for token in 0..COUNT {
            assert_eq!(stream.next().await, Some(Ok(tokens(token))));
        }
        assert_eq!(stream.next().await, Some(Ok(finished())));
    })
    .await;
}

#[tokio::test]
async fn a_target_sees_that_nobody_reads_and_can_wait_until_somebody_does() {
    const PATIENCE: usize = 100_000;
    over_sockets(async |running, client| {
        let mut stream = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        let (stuck, is_stuck) = tokio::sync::oneshot::channel();
        let sending = tokio::spawn(async move {
            let (mut stuck, mut stalls) = (Some(stuck), 0);
            for token in 0..COUNT {
                while events.unread() > PATIENCE {
                    stalls += 1;
                    if stalls == 100
                        && let Some(stuck) = stuck.take()
                    {
                        stuck.send(token).expect("the test waits");
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                events.send(tokens(token)).expect("the router waits");
            }
            events.send(finished()).expect("the router waits");
        });
        // What fits into the connection has gone, and no more.
        let sent = is_stuck.await.expect("it gets stuck");
        assert!(sent < COUNT / 2, "{sent} events went somewhere");
        for token in 0..COUNT {
            assert_eq!(stream.next().await, Some(Ok(tokens(token))));
        }
        assert_eq!(stream.next().await, Some(Ok(finished())));
        sending.await.expect("sends everything");
    })
    .await;
}

#[tokio::test]
async fn answers_that_nobody_reads_hold_up_nobody_else() {
    over_sockets(async |running, client| {
        let mut unread = Vec::new();
        for _ in 0..8 {
            unread.push(client.generate(request()).await.expect("is taken"));
            let (_, events) = running.target.take().await;
            for token in 0..COUNT {
                events.send(tokens(token)).expect("the router waits");
            }
        }
        // Long enough for the unread answers to fill whatever they can fill.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(client.info().await.is_ok());
        let mut read = client.generate(request()).await.expect("is taken");
        let (_, events) = running.target.take().await;
        events.send(finished()).expect("the router waits");
        assert_eq!(read.next().await, Some(Ok(finished())));
        drop(unread);
    })
    .await;
}
