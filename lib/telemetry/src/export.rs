//! From the thread that ends a span to a collector.

use std::{fmt, time::Duration};

use opentelemetry::Context;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter as _, SpanProcessor},
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::Settings;

/// Most spans of one message to a collector.
const BATCH: usize = 512;
/// How long what is left may take once the service ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// What became of spans.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    exported: Counter,
    dropped: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Counts {
    /// Shows them.
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "foretoken_spans_exported",
            "Spans that a collector took",
            self.exported.clone(),
        );
        registry.register(
            "foretoken_spans_dropped",
            "Spans that were not sent: the queue was full, or the collector did not take them",
            self.dropped.clone(),
        );
        for reason in ["queue", "collector"] {
            self.dropped_for(reason);
        }
    }

    fn dropped_for(&self, reason: &'static str) -> Counter {
        self.dropped.get_or_create_owned(&[("reason", reason)])
    }
}

/// Takes ended spans from the threads that end them.
pub(crate) struct Queue {
    spans: mpsc::Sender<SpanData>,
    full: Counter,
}

impl Queue {
    /// A queue for so many spans, and where they come out.
    pub(crate) fn new(spans: usize, counts: &Counts) -> (Self, mpsc::Receiver<SpanData>) {
        let (sender, receiver) = mpsc::channel(spans);
        let full = counts.dropped_for("queue");
        let spans = sender;
        (Self { spans, full }, receiver)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.spans.try_send(span).is_err() {
            self.full.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends spans. Dropped, it goes on until its runtime ends.
#[derive(Debug)]
pub struct Exporting {
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Exporting {
    /// Nothing is sent.
    pub(crate) fn nothing() -> Self {
        Self {
            stop: CancellationToken::new(),
            task: None,
        }
    }

    /// Starts sending on the runtime this is called on.
    pub(crate) fn start(
        settings: &Settings,
        resource: &Resource,
        counts: &Counts,
    ) -> Result<(Self, Queue), ExporterBuildError> {
        let mut exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(settings.endpoint.clone())
            .with_timeout(settings.patience)
            .build()?;
        exporter.set_resource(resource);
        let (queue, spans) = Queue::new(settings.queue, counts);
        let stop = CancellationToken::new();
        let sender = Sender {
            exporter,
            exported: counts.exported.clone(),
            lost: counts.dropped_for("collector"),
            endpoint: settings.endpoint.clone(),
            patience: settings.patience,
            is_failing: false,
        };
        let task = tokio::spawn(send(sender, spans, settings.gather, stop.clone()));
        let task = Some(task);
        Ok((Self { stop, task }, queue))
    }

    /// Sends what is left, within two seconds, and ends.
    pub async fn finish(self) {
        self.stop.cancel();
        if let Some(task) = self.task
            && timeout(FAREWELL, task).await.is_err()
        {
            tracing::debug!("the last spans were not sent in time");
        }
    }
}

/// Gathers spans and sends them, until told to stop.
async fn send(
    mut to: Sender,
    mut spans: mpsc::Receiver<SpanData>,
    gather: Duration,
    stop: CancellationToken,
) {
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            count = spans.recv_many(&mut batch, BATCH) => if count == 0 { break },
        }
        let until = Instant::now() + gather;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            let more = timeout_at(until, spans.recv_many(&mut batch, room));
            tokio::select! {
                () = stop.cancelled() => break,
                more = more => if !matches!(more, Ok(1..)) { break },
            }
        }
        to.send(std::mem::take(&mut batch)).await;
    }
    spans.close();
    while spans.recv_many(&mut batch, BATCH).await > 0 {
        to.send(std::mem::take(&mut batch)).await;
    }
}

/// The way to a collector.
struct Sender {
    exporter: SpanExporter,
    exported: Counter,
    lost: Counter,
    endpoint: String,
    patience: Duration,
    is_failing: bool,
}

impl Sender {
    async fn send(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        // The exporter's own limit leaves out the time until it is connected.
        let sent = timeout(self.patience, self.exporter.export(batch)).await;
        let problem = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {:?}", self.patience)),
        };
        let endpoint = &self.endpoint;
        if let Some(problem) = &problem {
            self.lost.inc_by(count);
            if !self.is_failing {
                tracing::warn!(
                    endpoint,
                    problem,
                    "traces cannot be sent; requests are not affected"
                );
            }
        } else {
            self.exported.inc_by(count);
            if self.is_failing {
                tracing::info!(endpoint, "traces are sent again");
            }
        }
        self.is_failing = problem.is_some();
    }
}
