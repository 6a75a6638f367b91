//! Web pages of other origins.

use serde_json::json;

use crate::{Script, completions::completion, config, start_with};

const ALLOWED: &str = "access-control-allow-origin";
const CHAT: &str = "https://chat.example.com";

#[tokio::test]
async fn a_page_of_the_users_machine_may_ask_with_its_key() {
    let config = foretoken_router::RouterConfig {
        api_keys: vec!["good".to_owned()],
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let path = "/v1/completions";
    let local = "http://localhost:5173";
    let page = || setup.client().header("origin", local);
    let asked = page()
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type",
        )
        .send("OPTIONS", path, b"")
        .await;
    assert_eq!(asked.status, 200, "a browser asks without the key");
    assert_eq!(asked.header(ALLOWED), Some(local));
    let headers = asked.header("access-control-allow-headers");
    assert_eq!(headers, Some("authorization,content-type"));
    let methods = asked.header("access-control-allow-methods").unwrap();
    assert!(methods.contains("post"), "{methods}");

    let client = page().header("authorization", "Bearer good");
    let answer = client.post(path, &completion(json!({}))).await;
    assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some(local)));
    let exposed = answer.header("access-control-expose-headers").unwrap();
    assert!(exposed.contains("x-request-id"), "{exposed}");
    let refused = page().post(path, &completion(json!({}))).await;
    assert_eq!(
        (refused.status, refused.header(ALLOWED)),
        (401, Some(local))
    );
}

#[tokio::test]
async fn pages_of_the_web_may_ask_if_they_are_named_or_all_are() {
    let foreign = "https://localhost.example.com";
    for (named, origin, allowed) in [
        (&[][..], CHAT, None),
        (&[], "http://127.0.0.1:1", Some("http://127.0.0.1:1")),
        (&[], "http://[::1]", Some("http://[::1]")),
        (&[], foreign, None),
        (&[], "null", None),
        (&[CHAT], CHAT, Some(CHAT)),
        (&[CHAT], foreign, None),
        (&["*"], foreign, Some("*")),
    ] {
        let config = foretoken_router::RouterConfig {
            allowed_origins: named.iter().map(ToString::to_string).collect(),
            ..config()
        };
        let setup = start_with(config, vec![Script::says(" ok")]).await;
        let page = || setup.client().header("origin", origin);
        let asked = page()
            .header("access-control-request-method", "POST")
            .send("OPTIONS", "/v1/completions", b"")
            .await;
        assert_eq!(asked.header(ALLOWED), allowed, "{origin}");
        let answer = page().get("/v1/models").await;
        assert_eq!(answer.header(ALLOWED), allowed, "{origin}");
    }
}

#[tokio::test]
async fn what_a_browser_sends_for_any_page_without_asking_is_not_done() {
    let setup = start_with(config(), vec![Script::says(" ok")]).await;
    let path = "/v1/completions";
    let body = completion(json!({})).to_string();
    for (origin, kind, status) in [
        (Some(CHAT), Some("text/plain;charset=UTF-8"), 403),
        (Some(CHAT), Some("text/plain; application/json"), 403),
        (Some("null"), None, 403),
        (None, Some("text/plain"), 200),
        (Some("http://localhost:5173"), Some("text/plain"), 200),
        // A browser that sends this has asked, or it is a page of the router's own origin.
        (Some(CHAT), Some("application/json; charset=utf-8"), 200),
    ] {
        let mut page = setup.client().of_kind(kind);
        if let Some(origin) = origin {
            page = page.header("origin", origin);
        }
        let answer = page.send("POST", path, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{origin:?} {kind:?}");
    }
}
