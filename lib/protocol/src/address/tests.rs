use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp {
        host: host.into(),
        port,
    }
}

#[test]
fn an_address_reads_back_what_it_prints() {
    for (text, address) in [
        ("http://127.0.0.1:8000", tcp("127.0.0.1", 8000)),
        ("http://[::1]:80", tcp("::1", 80)),
        ("http://draft-0.drafts:7000", tcp("draft-0.drafts", 7000)),
        (
            "unix:/run/foretoken/a.sock",
            Address::Unix("/run/foretoken/a.sock".into()),
        ),
    ] {
        assert_eq!(text.parse(), Ok(address.clone()));
        assert_eq!(address.to_string(), text);
    }
}

#[test]
fn short_forms_are_understood() {
    assert_eq!("localhost:1".parse(), Ok(tcp("localhost", 1)));
    assert_eq!("http://localhost:1/".parse(), Ok(tcp("localhost", 1)));
    assert_eq!("unix:///a".parse(), Ok(Address::Unix("/a".into())));
}

#[test]
fn a_bad_address_is_refused_with_what_is_wrong_and_what_to_write() {
    for (text, problem) in [
        ("http://localhost", "the port is missing"),
        ("http://:80", "the host is missing"),
        ("http://a:b", "not a number"),
        ("http://a:65536", "not a number"),
        ("http://::1:80", "brackets"),
        ("http://a/b:80", "characters"),
        ("https://a:80", "TLS"),
        ("unix:", "no path"),
        ("", "the port is missing"),
    ] {
        let message = text.parse::<Address>().expect_err(text).to_string();
        assert!(message.contains(problem), "{text}: {message}");
        assert!(message.contains("unix:/PATH"), "{text}: {message}");
    }
}

#[test]
fn a_free_port_is_reported_and_a_taken_one_is_an_error() {
    let first = Listener::bind(&Address::loopback(0)).expect("binds");
    let Address::Tcp { port, .. } = first.address() else {
        unreachable!("bound to TCP")
    };
    assert_ne!(*port, 0);
    let error = Listener::bind(first.address()).expect_err("is taken");
    assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_in_use() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("a.sock");
    // A listener that died leaves its file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    assert!(path.exists());

    let address = Address::Unix(path.clone());
    let listener = Listener::bind(&address).expect("replaces the stale socket");
    assert!(matches!(
        Listener::bind(&address),
        Err(BindError::InUse { .. })
    ));
    drop(listener);
    assert!(!path.exists(), "a closed listener takes its file away");
}

#[test]
fn a_file_that_is_no_socket_is_never_deleted() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").expect("writes");
    let error = Listener::bind(&Address::Unix(path.clone())).expect_err("is no socket");
    assert!(matches!(error, BindError::NotASocket { .. }), "{error:?}");
    assert_eq!(std::fs::read(&path).expect("still there"), b"data");
}

#[test]
fn a_socket_is_for_its_user_alone() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("a.sock");
    let _listener = Listener::bind(&Address::Unix(path.clone())).expect("binds");
    let mode = std::fs::metadata(path)
        .expect("is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}
