//! Traces, as a collector gets them.

mod receiver;

use std::collections::BTreeSet;

use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
use serde_json::{Value, json};

use self::receiver::{Receiver, Seen};
use crate::fixture::{SLOW, Up, manifest, run, wait};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn request() -> Value {
    json!({
        "model": "story",
        "prompt": "Once upon a time",
        "max_tokens": 40,
        "temperature": 0.7,
        "seed": 5,
    })
}

/// The beginning of an answer to a caller with this `traceparent`, if any.
async fn ask(up: &Up, request: &Value, traceparent: Option<&str>) -> reqwest::Response {
    let mut call = reqwest::Client::new().post(format!("{}/v1/completions", up.url));
    if let Some(traceparent) = traceparent {
        call = call.header("traceparent", traceparent);
    }
    call.json(request).send().await.unwrap()
}

/// A completion for such a caller.
async fn complete(up: &Up, traceparent: Option<&str>) -> Value {
    let answer = ask(up, &request(), traceparent).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert!(status.is_success(), "{status}: {body}");
    body
}

/// All spans of a trace, once those of the request's end are in, of all services.
fn whole(receiver: &Receiver, trace: &str) -> Vec<Seen> {
    const LAST: [(&str, &str); 3] = [
        ("foretoken-router", "POST /v1/completions"),
        ("foretoken-target", "generate"),
        ("foretoken-draft", "draft"),
    ];
    wait("a whole trace", || {
        let spans = receiver.of(trace);
        let is_there = |(service, name): &(&str, &str)| {
            let mut spans = spans.iter();
            spans.any(|span| span.service == *service && span.name == *name)
        };
        // What ends sooner comes sooner.
        LAST.iter().all(is_there).then_some(spans)
    })
}

fn only<'a>(spans: &'a [Seen], service: &str, name: &str) -> &'a Seen {
    let mut found = spans
        .iter()
        .filter(|span| span.service == service && span.name == name);
    let first = found.next();
    assert!(found.next().is_none(), "{service} has {name} once");
    assert!(first.is_some(), "{service} has {name} in {spans:#?}");
    first.unwrap()
}

fn sum(spans: &[&Seen], attribute: &str) -> i64 {
    spans.iter().map(|span| span.number(attribute)).sum()
}

#[test]
fn a_request_is_one_trace_through_all_services_that_says_what_usage_says() {
    let receiver = Receiver::start();
    // Ahead of verdicts, so that there are hits and misses to tell.
    let policy = "{type: SSD, ssd: {lookahead: 5, adaptive: false}}";
    let text = manifest(1).replace(
        "{type: Speculative, speculative: {lookahead: 5, adaptive: false}}",
        policy,
    );
    let url = receiver.url();
    let telling = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test",
        ),
    ];
    // A quick target may be done before its draft has read the prompt.
    let up = Up::serving(&text, &[&telling, SLOW].concat());
    let answer = run(complete(&up, Some(&format!("00-{TRACE}-{CALLER}-01"))));
    let usage = &answer["usage"]["foretoken"];
    let spans = whole(&receiver, TRACE);

    let whole = only(&spans, "foretoken-router", "POST /v1/completions");
    let call = only(&spans, "foretoken-router", "generate");
    let served = only(&spans, "foretoken-target", "generate");
    let draft = only(&spans, "foretoken-draft", "draft");
    assert_eq!(whole.parent, CALLER, "the caller's trace goes on");
    assert_eq!(call.parent, whole.id);
    assert_eq!(served.parent, call.id);
    assert_eq!(draft.parent, served.id);
    assert_eq!(call.kind, SpanKind::Client);
    for server in [whole, served, draft] {
        assert_eq!(server.kind, SpanKind::Server, "{}", server.name);
    }
    for (service, parent) in [("target", served), ("draft", draft)] {
        let prefill = only(&spans, &format!("foretoken-{service}"), "prefill");
        assert_eq!(prefill.parent, parent.id);
    }
    assert_eq!(only(&spans, "foretoken-target", "queue").parent, served.id);
    assert_eq!(only(&spans, "foretoken-router", "prepare").parent, whole.id);
    for span in &spans {
        assert!(span.start <= span.end, "{span:?}");
        assert_eq!(span.resource["deployment.environment.name"], "test");
        assert!(span.resource.contains_key("service.instance.id"));
    }

    let rounds: Vec<&Seen> = spans.iter().filter(|span| span.name == "round").collect();
    assert_eq!(json!(rounds.len()), usage["rounds"]);
    let told: [(&str, &str); 2] = [
        ("foretoken.drafted_tokens", "drafted"),
        ("foretoken.accepted_tokens", "accepted"),
    ];
    for (attribute, field) in told {
        assert_eq!(json!(sum(&rounds, attribute)), usage[field], "{field}");
        for span in [call, served] {
            assert_eq!(json!(span.number(attribute)), usage[field], "{field}");
        }
    }
    let numbers: BTreeSet<i64> = rounds.iter().map(|r| r.number("foretoken.round")).collect();
    assert_eq!(numbers.len(), rounds.len(), "each round once");
    assert!(rounds.iter().all(|round| round.parent == served.id));
    let hits = rounds
        .iter()
        .filter(|r| r.flag("foretoken.hit") == Some(true));
    assert_eq!(json!(hits.count()), usage["hits"]);
    for (attribute, field) in [
        ("foretoken.hits", "hits"),
        ("foretoken.misses", "misses"),
        ("foretoken.late_windows", "late"),
    ] {
        assert_eq!(json!(served.number(attribute)), usage[field], "{field}");
    }
    assert_eq!(
        json!(served.number("gen_ai.usage.output_tokens")),
        answer["usage"]["completion_tokens"]
    );
    assert_eq!(served.text("foretoken.endpoint"), Some("draft-tiny-0"));
    assert_eq!(whole.number("http.response.status_code"), 200);
}

#[test]
fn callers_decide_what_is_recorded_and_a_collector_that_dies_costs_nobody_anything() {
    let receiver = Receiver::start();
    // Named by the objects this time.
    let telemetry = format!(
        "spec:\n  telemetry: {{otlp: {{endpoint: \"{}\"}}, samplingRatio: 1}}\n  model",
        receiver.url()
    );
    let text = manifest(1).replace("spec:\n  model", &telemetry);
    let up = Up::serving(&text, &[("OTEL_BSP_SCHEDULE_DELAY", "20")]);
    let first = run(complete(&up, Some(&format!("00-{TRACE}-{CALLER}-00"))));
    let mine = run(complete(&up, None));
    let text = |answer: &Value| answer["choices"][0]["text"].clone();
    assert_eq!(text(&mine), text(&first));
    let trace = wait("a trace of one's own", || receiver.traces().pop_first());
    let spans = whole(&receiver, &trace);
    let root = only(&spans, "foretoken-router", "POST /v1/completions");
    assert_eq!(root.parent, "", "it begins here");
    assert!(!receiver.traces().contains(TRACE), "what nobody wants");

    let port = receiver.stop();
    for _ in 0..3 {
        let answer = run(complete(&up, None));
        assert_eq!(text(&answer), text(&first));
    }
    let receiver = Receiver::start_at(port);
    let again = "0123456789abcdef0123456789abcdef";
    wait("traces again", || {
        let answer = run(complete(&up, Some(&format!("00-{again}-{CALLER}-01"))));
        assert_eq!(text(&answer), text(&first));
        let spans = receiver.of(again).into_iter();
        let services: BTreeSet<String> = spans.map(|span| span.service).collect();
        (services.len() == 3).then_some(())
    });
}

/// The target's span of a request that was cancelled: it says so, and is no error.
fn assert_cancelled(receiver: &Receiver, trace: &str) {
    let served = wait("the target's span", || {
        let mut spans = receiver.of(trace).into_iter();
        spans.find(|span| span.service == "foretoken-target" && span.name == "generate")
    });
    assert_eq!(served.status, StatusCode::Unset, "{served:?}");
    assert_eq!(served.events, ["cancelled"], "{served:?}");
}

#[test]
fn a_stop_string_or_a_client_that_goes_away_is_no_error_of_a_target() {
    let receiver = Receiver::start();
    let url = receiver.url();
    let mut variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    // So slow and so much that the target has not come to the end by itself.
    variables.extend(SLOW);
    let up = Up::serving(&manifest(1), &variables);
    let mut request = request();
    request["max_tokens"] = json!(900);
    request["ignore_eos"] = json!(true);
    let other = "0123456789abcdef0123456789abcdef";
    run(async {
        let mut begun = up.stream(&request).await;
        begun.read_to(40).await;
        let text = begun.text;
        let middle: String = text.chars().skip(10).take(12).collect();

        let mut stopped = request.clone();
        stopped["stop"] = json!([middle]);
        let caller = format!("00-{TRACE}-{CALLER}-01");
        let answer = ask(&up, &stopped, Some(&caller)).await;
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");

        request["stream"] = json!(true);
        let caller = format!("00-{other}-{CALLER}-01");
        let mut answer = ask(&up, &request, Some(&caller)).await;
        assert!(answer.chunk().await.unwrap().is_some());
    });
    // The connection went with its runtime.
    assert_cancelled(&receiver, TRACE);
    assert_cancelled(&receiver, other);
}
