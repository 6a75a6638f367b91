//! Which web pages may ask (the CORS protocol of the Fetch standard).
//!
//! A browser asks whether it may before it sends a page's request, without a key, and keeps the answer
//! from the page unless its header says otherwise. Pages that the user's own machine serves may ask, as
//! its programs may; those of the web only if they are named, since every page that somebody visits could
//! use a router on that machine.

use std::time::Duration;

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, Method, Uri, header},
};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Stands for all origins.
const ANY: &str = "*";

/// How long a browser may go by an answer.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Answers what browsers ask, and tells them who may read answers. `exposed` are the headers that pages
/// may read.
pub(crate) fn layer(allowed: &[String], exposed: impl Into<Vec<HeaderName>>) -> CorsLayer {
    let origins = if may_all(allowed) {
        AllowOrigin::any()
    } else {
        let allowed = allowed.to_vec();
        AllowOrigin::predicate(move |origin, _| may_ask(origin, &allowed))
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST])
        // "*" would leave out `Authorization`.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(exposed.into())
        .max_age(MAX_AGE)
}

/// Whether a browser may have sent a request for a page that is not `allowed` to ask, without asking first. Of
/// such a ("simple") one it only keeps the answer from the page, and what it asks for would be done. JSON is
/// never sent so, and forms are no use of this API; so pages of the router's own origin, which a browser does
/// not ask for and no list names, lose nothing.
pub(crate) fn may_be_foreign(request: &Request, allowed: &[String]) -> bool {
    let headers = request.headers();
    let is_json = |kind: &HeaderValue| {
        let essence = kind.to_str().ok().and_then(|kind| kind.split(';').next());
        essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
    };
    request.method() == Method::POST
        && !may_all(allowed)
        && headers
            .get(header::ORIGIN)
            .is_some_and(|origin| !may_ask(origin, allowed))
        && !headers.get(header::CONTENT_TYPE).is_some_and(is_json)
}

/// Whether pages of all origins may ask.
fn may_all(allowed: &[String]) -> bool {
    allowed.iter().any(|origin| origin == ANY)
}

fn may_ask(origin: &HeaderValue, allowed: &[String]) -> bool {
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    let uri = origin.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host);
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]"))
        || allowed.iter().any(|allowed| allowed == origin)
}

/// Whether it is what browsers send as `Origin`: a scheme, a host and perhaps a port; or [`ANY`]. The
/// API of a cluster takes the same for one.
pub(crate) fn is_origin(text: &str) -> bool {
    let Some((scheme, authority)) = text.split_once("://") else {
        return text == ANY;
    };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    // Browsers leave out the port that goes without saying.
    let own = match scheme {
        "http" => Some("80"),
        "https" => Some("443"),
        _ => None,
    };
    is_scheme(scheme) && is_host(host) && port.is_none_or(|port| is_port(port) && Some(port) != own)
}

fn is_scheme(text: &str) -> bool {
    let is_inner = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'+' | b'-' | b'.');
    text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(is_inner)
}

/// A name or an address of IPv4, or one of IPv6 in brackets.
fn is_host(text: &str) -> bool {
    let within = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let is_part = |byte| match within {
        Some(_) => matches!(byte, b'a'..=b'f' | b'0'..=b'9' | b':'),
        None => matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_'),
    };
    let parts = within.unwrap_or(text);
    !parts.is_empty() && parts.bytes().all(is_part)
}

fn is_port(text: &str) -> bool {
    let is_written = (1..=5).contains(&text.len()) && !text.starts_with('0');
    is_written && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send() {
        for good in [
            "*",
            "https://chat.example.com",
            "http://localhost:3000",
            "http://[::1]:1",
            "http://[::80]",
            "http://h:443",
            "tauri://localhost",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "",
            "chat.example.com",
            "https://",
            "://h",
            "https://h/",
            "https://h/path",
            "https://*.example.com",
            "https://me@h",
            "https://H",
            "https://a b",
            "https://h:443",
            "http://h:80",
            "http://h:",
            "http://h:x",
            "http://h:080",
            "http://h:100000",
            "http://[::1",
            "http://[]",
            "http://[::1]80",
            "http://h!",
            "1h://h",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
