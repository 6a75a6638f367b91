use std::time::Duration;

use opentelemetry_sdk::trace::SpanData;
use prometheus_client::encoding::text::encode;
use tokio::sync::mpsc;

use super::*;
use crate::{Sampling, attribute};

/// A tracer whose spans come out here.
fn tracer(sampling: Sampling, queue: usize) -> (Tracer, mpsc::Receiver<SpanData>) {
    let settings = Settings {
        sampling,
        ..Settings::new("http://nobody", "test", "t-0")
    };
    let counts = Counts::default();
    let (queue, spans) = Queue::new(queue, &counts);
    let tracer = Tracer::recording(&settings, settings.resource(), queue, counts);
    (tracer, spans)
}

const ALL: Sampling = Sampling {
    ratio: 1.0,
    follows_caller: true,
};
const NONE: Sampling = Sampling {
    ratio: 0.0,
    follows_caller: true,
};

fn caller(flags: &str) -> Option<TraceContext> {
    let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    TraceContext::parse(&text)
}

#[test]
fn a_part_of_a_request_is_in_the_callers_trace_at_its_own_times() {
    let (tracer, mut spans) = tracer(NONE, 8);
    let start = Instant::now();
    let later = |ms| start + Duration::from_millis(ms);
    let trace = tracer.begin("generate", SpanKind::Server, caller("01"), start);
    let onwards = trace.context().unwrap();
    assert_eq!(onwards.trace, caller("01").unwrap().trace);
    assert!(onwards.is_sampled());
    let span = trace.span().unwrap();
    span.add(
        "round",
        later(2),
        later(5),
        [(attribute::ACCEPTED, 3.into())],
    );
    span.set(attribute::ROUNDS, 1);
    span.end(later(9));
    drop(trace);

    let round = spans.try_recv().unwrap();
    let whole = spans.try_recv().unwrap();
    assert!(spans.try_recv().is_err(), "each ends once");
    assert_eq!((&*round.name, &*whole.name), ("round", "generate"));
    assert_eq!(round.parent_span_id, whole.span_context.span_id());
    assert_eq!(
        whole.parent_span_id,
        caller("01").unwrap().span.get().into()
    );
    let took = |span: &SpanData| span.end_time.duration_since(span.start_time).unwrap();
    assert_eq!(took(&round), Duration::from_millis(3));
    assert_eq!(took(&whole), Duration::from_millis(9));
    assert_eq!(
        round.attributes,
        [KeyValue::new(attribute::ACCEPTED, 3_i64)]
    );
    assert_eq!(whole.attributes, [KeyValue::new(attribute::ROUNDS, 1_i64)]);
}

#[test]
fn what_a_caller_does_not_record_is_not_recorded_and_passed_on() {
    let (tracer, mut spans) = tracer(ALL, 8);
    let trace = tracer.begin("generate", SpanKind::Server, caller("00"), Instant::now());
    assert!(trace.span().is_none());
    let onwards = trace.context().unwrap();
    assert_eq!(onwards.trace, caller("00").unwrap().trace);
    assert!(!onwards.is_sampled(), "nobody behind decides otherwise");
    let part = trace.begin("part", SpanKind::Client, Instant::now());
    assert_eq!(part.context(), trace.context());
    drop((part, trace));
    assert!(spans.try_recv().is_err());
}

#[test]
fn a_service_without_a_collector_passes_on_what_it_was_told() {
    let off = Tracer::default();
    assert!(!off.is_on());
    let trace = off.begin("generate", SpanKind::Server, caller("01"), Instant::now());
    assert_eq!(trace.context(), caller("01"));
    assert!(trace.into_span().is_none());
    let trace = off.begin("generate", SpanKind::Server, None, Instant::now());
    assert_eq!(trace.context(), None);
}

#[test]
fn a_share_of_the_traces_that_begin_here_is_recorded() {
    let half = Sampling { ratio: 0.5, ..ALL };
    let (tracer, _spans) = tracer(half, 8);
    let recorded = (0..400)
        .map(|_| tracer.begin("generate", SpanKind::Server, None, Instant::now()))
        .filter(|trace| {
            let is_recorded = trace.span().is_some();
            assert_eq!(trace.context().unwrap().is_sampled(), is_recorded);
            is_recorded
        });
    let recorded = recorded.count();
    assert!((100..300).contains(&recorded), "{recorded} of 400");
}

#[test]
fn a_full_queue_drops_and_counts() {
    let (tracer, mut spans) = tracer(ALL, 2);
    for _ in 0..5 {
        drop(tracer.begin("generate", SpanKind::Server, None, Instant::now()));
    }
    let mut registry = Registry::default();
    tracer.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let line = "foretoken_spans_dropped_total{reason=\"queue\"} 3";
    assert!(text.contains(line), "{text}");
    assert!(spans.try_recv().is_ok() && spans.try_recv().is_ok());
    assert!(spans.try_recv().is_err());
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let mut settings = Settings::new("http://127.0.0.1:9", "test", "t-0");
    settings.gather = Duration::from_millis(1);
    let (tracer, exporting) = Tracer::start(Some(&settings));
    for _ in 0..5 {
        drop(tracer.begin("generate", SpanKind::Server, None, Instant::now()));
    }
    let mut registry = Registry::default();
    tracer.register(&mut registry);
    let line = "foretoken_spans_dropped_total{reason=\"collector\"} 5";
    for _ in 0..1000 {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        if text.contains(line) {
            return exporting.finish().await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the spans were not given up");
}
