//! Traces of requests: what a service did for each, when, and for whom, sent to an `OpenTelemetry`
//! collector.
//!
//! ```text
//! TraceContext in --> Tracer::begin --> Trace --> TraceContext out
//!                                         '--> Span, if recorded --> queue --> batches --> OTLP
//! ```
//!
//! A request that is not recorded has no [`Span`], and a service that has none does nothing: no
//! clock is read, nothing allocated, no lock taken. A span that is recorded is made and put into a
//! queue by the thread that ends it, and sent by a task. The queue is bounded: what does not fit, or cannot be sent, is
//! dropped and counted, and never waited for.
//!
//! Spans are begun and ended explicitly, with times that services have read anyway. An engine
//! thread serves many requests in one step, so no span is ever "the current one", which is what
//! bridges from log macros are made for.

mod export;
mod settings;
mod span;

pub use export::Exporting;
pub use opentelemetry::{Key, Value, trace::SpanKind};
pub use settings::{Sampling, Settings};
pub use span::{Span, Trace, Tracer};

/// Names of attributes that several services give.
///
/// What `OpenTelemetry`'s conventions name has their name.
pub mod attribute {
    /// Tokens of the prompt.
    pub const INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    /// Tokens of the output.
    pub const OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    /// Name that users know the model by.
    pub const MODEL: &str = "gen_ai.request.model";
    /// Why the outputs ended; a list, of one here.
    pub const FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    /// Name of a request, as in logs and answers.
    pub const REQUEST: &str = "foretoken.request_id";
    /// Policy of the request.
    pub const POLICY: &str = "foretoken.policy";
    /// Target passes after the prompt.
    pub const ROUNDS: &str = "foretoken.rounds";
    /// Tokens proposed and verified.
    pub const DRAFTED: &str = "foretoken.drafted_tokens";
    /// Of these, accepted.
    pub const ACCEPTED: &str = "foretoken.accepted_tokens";
    /// Verdicts that a window had been drafted for while they were under way.
    pub const HITS: &str = "foretoken.hits";
    /// Verdicts for which only other outcomes had been drafted.
    pub const MISSES: &str = "foretoken.misses";
    /// Windows that did not come in time.
    pub const LATE: &str = "foretoken.late_windows";
    /// Tokens of the prompt that were found in a cache.
    pub const CACHED: &str = "foretoken.cached_tokens";
}
