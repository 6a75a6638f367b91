//! A relay between a target and an endpoint that harms what passes.
//!
//! ```text
//! target ══ frames ══> Relay ══ frames ══> endpoint, and back
//! ```
//!
//! It drops, repeats, holds back and delays whole frames in both directions, and ends links. A
//! socket does only the last two; queues that overflow drop. Introductions and beats pass as they
//! are, so that links come up and are not taken for dead: what is harmed is what sessions say.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use bytes::{Buf as _, BufMut as _, Bytes};
use foretoken_protocol::link::{decode_draft_frame, decode_target_frame};
use foretoken_speculation::noise::philox;
use futures::{Stream, StreamExt as _, stream};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{
        BoxFuture, BoxStream, Service,
        http::{self, uri::PathAndQuery},
    },
    server::{self, NamedService},
    transport::{Endpoint, Server, server::TcpIncoming},
};

/// Frames that may wait in a direction.
const ROOM: usize = 64;
/// Longest delay of a direction, in milliseconds: about the time of two slow steps.
const LONGEST_DELAY: u32 = 20;
/// Most later frames that come before one that is held back.
const FURTHEST_BACK: u32 = 3;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It never arrives.
    Dropped,
    /// It arrives, and once more after a few that follow it.
    Repeated,
    /// It arrives after a few that follow it.
    HeldBack,
    /// It arrives late, and what follows it later still.
    Delayed,
    /// The link ends.
    Cut,
    /// It arrives.
    Passed,
}

impl Fate {
    /// All that is harm, with how often it happens: in thousandths of the frames.
    const HARM: [(Self, u32); 5] = [
        (Self::Dropped, 40),
        (Self::Repeated, 80),
        (Self::HeldBack, 50),
        (Self::Delayed, 50),
        (Self::Cut, 2),
    ];

    fn of(word: u32) -> Self {
        let mut dice = word % 1000;
        for (fate, share) in Self::HARM {
            if dice < share {
                return fate;
            }
            dice -= share;
        }
        Self::Passed
    }
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    ToEndpoint,
    ToTarget,
}

impl Way {
    /// Whether sessions say something in this frame.
    fn has_messages(self, frame: &Bytes) -> bool {
        let frame = frame.clone();
        match self {
            Self::ToEndpoint => decode_target_frame(frame).is_ok_and(|f| !f.messages.is_empty()),
            Self::ToTarget => decode_draft_frame(frame).is_ok_and(|f| !f.messages.is_empty()),
        }
    }
}

/// How many frames of each direction had each fate, of those that sessions said something in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<(Way, Fate), u32>);

impl Tally {
    /// All harm of both directions happened.
    pub(crate) fn assert_all(&self) {
        for (fate, _) in Fate::HARM {
            let of = |way| self.0.get(&(way, fate)).copied().unwrap_or(0);
            let (there, back) = (of(Way::ToEndpoint), of(Way::ToTarget));
            // A link ends in both directions, whichever was to be cut.
            let happened = match fate {
                Fate::Cut => there + back > 0,
                _ => there > 0 && back > 0,
            };
            assert!(happened, "no frame was {fate:?}: {self:?}");
        }
    }
}

/// Serves targets in place of an endpoint until it is dropped.
pub(crate) struct Relay {
    /// Where targets reach it.
    pub(crate) url: String,
    dice: Arc<Mutex<Dice>>,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Relay {
    /// A relay to the endpoint at `endpoint`.
    pub(crate) fn start(endpoint: &str, seed: u32) -> Self {
        let dice = Arc::new(Mutex::new(Dice {
            seed,
            tally: Tally::default(),
        }));
        let stop = CancellationToken::new();
        let links = Links {
            endpoint: endpoint.to_owned(),
            dice: Arc::clone(&dice),
            stop: stop.clone(),
        };
        let (bound, address) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            crate::fixture::run(async {
                let stop = links.stop.clone();
                let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
                bound.send(incoming.local_addr().unwrap()).unwrap();
                let serving = Server::builder()
                    .add_service(links)
                    .serve_with_incoming(incoming.with_nodelay(Some(true)));
                if let Some(served) = stop.run_until_cancelled(serving).await {
                    served.unwrap();
                }
            });
        });
        Self {
            url: format!("http://{}", address.recv().unwrap()),
            dice,
            stop,
            thread: Some(thread),
        }
    }

    /// What it has done so far.
    pub(crate) fn tally(&self) -> Tally {
        self.dice.lock().unwrap().tally.clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It only panics if its port cannot be bound, which has been reported there.
            let _ = thread.join();
        }
    }
}

/// Decides what happens: a function of the seed and of how many frames of a direction there were,
/// over all links.
struct Dice {
    seed: u32,
    tally: Tally,
}

impl Dice {
    /// The fate of the next frame, and a number that says how late it is.
    fn throw(&mut self, way: Way) -> (Fate, u32) {
        let of_way = self.tally.0.iter().filter(|((of, _), _)| *of == way);
        let thrown = of_way.map(|(_, count)| count).sum();
        let [word, late, ..] = philox([thrown, way as u32, 0, 0], [self.seed, 0xfa17]);
        let fate = Fate::of(word);
        *self.tally.0.entry((way, fate)).or_default() += 1;
        (fate, late)
    }
}

/// Carries links.
#[derive(Clone)]
struct Links {
    endpoint: String,
    dice: Arc<Mutex<Dice>>,
    stop: CancellationToken,
}

impl Links {
    /// Carries a link that a target dialled.
    async fn carry(self, frames: Streaming<Bytes>) -> Result<Response<BoxStream<Bytes>>, Status> {
        let unavailable = |error| Status::unavailable(format!("{error}"));
        let channel = Endpoint::from_shared(self.endpoint.clone())
            .map_err(unavailable)?
            .connect()
            .await
            .map_err(unavailable)?;
        let mut client = client::Grpc::new(channel);
        client.ready().await.map_err(unavailable)?;
        let cut = self.stop.child_token();
        let there = self.pass(Way::ToEndpoint, frames, &cut);
        let path = PathAndQuery::from_static("/foretoken.speculation.v1.Speculation/Link");
        let answer = client.streaming(Request::new(there), path, Raw).await?;
        let back = self.pass(Way::ToTarget, answer.into_inner(), &cut);
        Ok(Response::new(back.map(Ok).boxed()))
    }

    /// What becomes of the frames of a direction. Without a reader, and when the link is `cut`, it
    /// ends at once, with what is under way.
    fn pass(
        &self,
        way: Way,
        mut frames: Streaming<Bytes>,
        cut: &CancellationToken,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let (sender, mut receiver) = mpsc::channel(ROOM);
        let dice = Arc::clone(&self.dice);
        let link = cut.clone();
        tokio::spawn(async move {
            let mut direction = Direction {
                way,
                dice,
                held: Vec::new(),
            };
            let passing = async {
                while let Ok(Some(frame)) = frames.message().await {
                    let Some(arriving) = direction.harm(frame).await else {
                        return;
                    };
                    for frame in arriving {
                        if sender.send(frame).await.is_err() {
                            return;
                        }
                    }
                }
            };
            link.run_until_cancelled(passing).await;
            link.cancel();
        });
        stream::poll_fn(move |cx| receiver.poll_recv(cx)).take_until(cut.clone().cancelled_owned())
    }
}

/// One direction of a link.
struct Direction {
    way: Way,
    dice: Arc<Mutex<Dice>>,
    /// Frames that come later, and after how many others.
    held: Vec<(u32, Bytes)>,
}

impl Direction {
    /// What arrives now that the target or the endpoint has sent `frame`; none: the link ends.
    async fn harm(&mut self, frame: Bytes) -> Option<Vec<Bytes>> {
        let (fate, late) = if self.way.has_messages(&frame) {
            self.dice.lock().unwrap().throw(self.way)
        } else {
            (Fate::Passed, 0)
        };
        let waiting = std::mem::take(&mut self.held);
        let mut arriving = Vec::new();
        let others = 1 + late % FURTHEST_BACK;
        match fate {
            Fate::Passed => arriving.push(frame),
            Fate::Dropped => {}
            Fate::Repeated => {
                arriving.push(frame.clone());
                self.held.push((others, frame));
            }
            Fate::HeldBack => self.held.push((others, frame)),
            Fate::Delayed => {
                sleep(Duration::from_millis((1 + late % LONGEST_DELAY).into())).await;
                arriving.push(frame);
            }
            Fate::Cut => return None,
        }
        for (others, frame) in waiting {
            match others - 1 {
                0 => arriving.push(frame),
                others => self.held.push((others, frame)),
            }
        }
        Some(arriving)
    }
}

impl NamedService for Links {
    const NAME: &'static str = "foretoken.speculation.v1.Speculation";
}

impl Service<http::Request<Body>> for Links {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let links = self.clone();
        Box::pin(async move { Ok(server::Grpc::new(Raw).streaming(links, request).await) })
    }
}

impl Service<Request<Streaming<Bytes>>> for Links {
    type Response = Response<BoxStream<Bytes>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(self.clone().carry(request.into_inner()))
    }
}

/// Frames as the bytes that they are.
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, frame: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(frame);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}
