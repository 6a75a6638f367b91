//! Spans, begun and ended at times that are known.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Instant, SystemTime},
};

use foretoken_speculation::{TraceContext, trace::TraceFlags};
use opentelemetry::{
    Context, KeyValue, StringValue, Value,
    trace::{
        self, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _,
        TraceState, Tracer as _, TracerProvider as _,
    },
};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};
use prometheus_client::registry::Registry;

use crate::{
    Settings, attribute,
    export::{Counts, Exporting, Queue},
};

/// What makes spans. Cheap to clone; the default records nothing.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    tracer: SdkTracer,
    /// Keeps the queue.
    provider: SdkTracerProvider,
    counts: Counts,
    /// One moment on both clocks.
    anchor: (Instant, SystemTime),
}

impl Recorder {
    fn time(&self, at: Instant) -> SystemTime {
        let (instant, system) = self.anchor;
        match at.checked_duration_since(instant) {
            Some(later) => system + later,
            None => system - (instant - at),
        }
    }

    fn build(
        &self,
        name: Cow<'static, str>,
        kind: SpanKind,
        at: Instant,
        parent: &Context,
    ) -> opentelemetry_sdk::trace::Span {
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_start_time(self.time(at));
        self.tracer.build_with_context(builder, parent)
    }
}

impl Tracer {
    /// Begins to record, and to send what is recorded; on a tokio runtime. Settings that name no
    /// collector which can be spoken to are warned of, and nothing is recorded.
    pub fn start(settings: Option<&Settings>) -> (Self, Exporting) {
        let Some(settings) = settings else {
            return (Self::default(), Exporting::nothing());
        };
        let (resource, counts) = (settings.resource(), Counts::default());
        let (exporting, queue) = match Exporting::start(settings, &resource, &counts) {
            Ok(started) => started,
            Err(error) => {
                let endpoint = &settings.endpoint;
                tracing::warn!(endpoint, %error, "no traces are sent: give http://HOST:4317");
                return (Self::default(), Exporting::nothing());
            }
        };
        (
            Self::recording(settings, resource, queue, counts),
            exporting,
        )
    }

    fn recording(settings: &Settings, resource: Resource, queue: Queue, counts: Counts) -> Self {
        let provider = SdkTracerProvider::builder()
            .with_span_processor(queue)
            .with_sampler(settings.sampler())
            .with_resource(resource)
            .build();
        Self(Some(Arc::new(Recorder {
            tracer: provider.tracer("foretoken"),
            provider,
            counts,
            anchor: (Instant::now(), SystemTime::now()),
        })))
    }

    /// Whether anything is ever recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Shows what becomes of spans, if any are made.
    pub fn register(&self, registry: &mut Registry) {
        if let Some(recorder) = &self.0 {
            recorder.counts.register(registry);
        }
    }

    /// Begins what this service does for a request, as part of its caller's trace if there is one.
    /// Whether it is recorded is decided here.
    pub fn begin(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        caller: Option<TraceContext>,
        at: Instant,
    ) -> Trace {
        let Some(recorder) = &self.0 else {
            return Trace {
                context: caller,
                span: None,
            };
        };
        let parent = caller.map_or_else(Context::new, remote);
        let span = recorder.build(name.into(), kind, at, &parent);
        let context = context_of(span.span_context());
        let span = span.is_recording().then(|| Span {
            recorder: Arc::clone(recorder),
            cx: Context::new().with_span(span),
        });
        Trace { context, span }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It has nothing left to flush: the queue sends by itself.
        let _ = self.provider.shutdown();
    }
}

/// A request's trace in a service.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    context: Option<TraceContext>,
    span: Option<Span>,
}

impl Trace {
    /// What to tell whoever is asked to do something for it, recorded or not.
    pub fn context(&self) -> Option<TraceContext> {
        self.context
    }

    /// What this service does for it, if that is recorded.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// The same, by value.
    pub fn into_span(self) -> Option<Span> {
        self.span
    }

    /// Begins a part of what this service does for it.
    #[must_use]
    pub fn begin(&self, name: &'static str, kind: SpanKind, at: Instant) -> Self {
        match &self.span {
            None => self.clone(),
            Some(span) => {
                let span = span.begin(name, kind, at);
                Self {
                    context: span.context(),
                    span: Some(span),
                }
            }
        }
    }
}

/// Something that is recorded. Clones are the same; it ends when told to, or with the last of them.
#[derive(Clone, Debug)]
pub struct Span {
    recorder: Arc<Recorder>,
    cx: Context,
}

impl Span {
    /// What to tell whoever does something for it.
    pub fn context(&self) -> Option<TraceContext> {
        context_of(self.cx.span().span_context())
    }

    /// Begins a part of it.
    #[must_use]
    pub fn begin(&self, name: &'static str, kind: SpanKind, at: Instant) -> Self {
        let span = self.recorder.build(name.into(), kind, at, &self.cx);
        Self {
            recorder: Arc::clone(&self.recorder),
            cx: Context::new().with_span(span),
        }
    }

    /// Adds a part of it that is over.
    pub fn add(
        &self,
        name: &'static str,
        from: Instant,
        to: Instant,
        attributes: impl IntoIterator<Item = (&'static str, Value)>,
    ) {
        let recorder = &self.recorder;
        let mut span = recorder.build(name.into(), SpanKind::Internal, from, &self.cx);
        span.set_attributes(
            attributes
                .into_iter()
                .map(|(name, value)| KeyValue::new(name, value)),
        );
        span.end_with_timestamp(recorder.time(to));
    }

    /// Says something of it.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.cx.span().set_attribute(KeyValue::new(name, value));
    }

    /// Says why the output that it is about ended.
    pub fn finished(&self, reason: &'static str) {
        let reasons = vec![StringValue::from(reason)];
        self.set(attribute::FINISH_REASONS, Value::Array(reasons.into()));
    }

    /// Says that something happened in it.
    pub fn event(&self, name: &'static str, at: Instant) {
        let at = self.recorder.time(at);
        self.cx
            .span()
            .add_event_with_timestamp(name, at, Vec::new());
    }

    /// Says that it failed.
    pub fn fail(&self, why: impl Into<Cow<'static, str>>) {
        self.cx.span().set_status(Status::error(why));
    }

    /// Ends it. What is said of it later is lost.
    pub fn end(&self, at: Instant) {
        self.cx.span().end_with_timestamp(self.recorder.time(at));
    }
}

/// A caller's span, as a parent.
fn remote(caller: TraceContext) -> Context {
    let context = SpanContext::new(
        caller.trace.get().into(),
        caller.span.get().into(),
        trace::TraceFlags::new(caller.flags.bits()),
        true,
        TraceState::NONE,
    );
    Context::new().with_remote_span_context(context)
}

/// What others are told of a span; none if it names nothing.
fn context_of(context: &SpanContext) -> Option<TraceContext> {
    Some(TraceContext {
        trace: u128::from_be_bytes(context.trace_id().to_bytes())
            .try_into()
            .ok()?,
        span: u64::from_be_bytes(context.span_id().to_bytes())
            .try_into()
            .ok()?,
        flags: TraceFlags::new(context.trace_flags().to_u8()),
    })
}

#[cfg(test)]
mod tests;
