use std::{fs, future::Future, io, path::PathBuf};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;

use super::*;

#[path = "../../tests/tls/authority.rs"]
mod authority;

use authority::{Authority, Wanted};

const TARGET: &str = "spiffe://foretoken/ns/chat/target/story";
const DRAFT: &str = "spiffe://foretoken/ns/drafts/draft/story";

/// What both ends say when the draft of `files` is dialled by `dial`, which also sends a byte.
async fn meet<F: Future<Output = io::Result<()>>>(
    draft: &TlsFiles,
    dial: impl FnOnce(TcpStream) -> F,
) -> [String; 2] {
    let draft = Tls::open(draft, Role::Draft).expect("the draft's files are good");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = async {
        let (stream, _) = listener.accept().await?;
        let mut secured = accept(&draft, stream).await?;
        assert_eq!(secured.peer().to_string(), TARGET);
        secured.write_all(b"x").await?;
        secured.shutdown().await
    };
    let dialling = async {
        let stream = TcpStream::connect(address).await?;
        dial(stream).await
    };
    let (served, dialled) = tokio::join!(serving, dialling);
    [served, dialled].map(|ended| ended.map_or_else(|error| error.to_string(), |()| "fine".into()))
}

/// The same for a target with these files.
async fn meet_target(draft: &TlsFiles, target: &TlsFiles) -> [String; 2] {
    let target = Tls::open(target, Role::Target).expect("the target's files are good");
    meet(draft, |stream| async move {
        let mut secured = connect(&target, stream).await?;
        assert_eq!(secured.peer().to_string(), DRAFT);
        secured.read_u8().await.map(drop)
    })
    .await
}

/// Both ends say `expected`, or something with it.
fn both_say(said: &[String; 2], expected: [&str; 2]) {
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.contains(expected), "{said:?} without {expected:?}");
    }
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn of(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Files of the service of this name.
    fn files(&self, ca: &Authority, folder: &str, name: &str) -> TlsFiles {
        files(ca.write(&self.of(folder), name))
    }
}

fn files([certificate, key, ca]: [PathBuf; 3]) -> TlsFiles {
    TlsFiles {
        certificate,
        key,
        ca,
    }
}

fn until(name: &str, until: i32) -> Wanted<'_> {
    let name = Some(name);
    Wanted { name, until }
}

#[tokio::test]
async fn ends_with_certificates_of_one_authority_know_each_other() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let draft = folder.files(&ca, "draft", DRAFT);
    let target = folder.files(&ca, "target", TARGET);
    both_say(&meet_target(&draft, &target).await, ["fine", "fine"]);
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_both_ends_say_so() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let old = |place, name| {
        let issued = ca.issue(&until(name, 2021));
        files(authority::write(&folder.of(place), &issued, &ca.pem))
    };
    let draft = folder.files(&ca, "draft", DRAFT);
    let target = old("target", TARGET);
    let said = meet_target(&draft, &target).await;
    both_say(
        &said,
        [
            "the peer's certificate has expired",
            "this side's certificate has expired",
        ],
    );
    let draft = old("draft", DRAFT);
    let target = folder.files(&ca, "target", TARGET);
    let said = meet_target(&draft, &target).await;
    both_say(
        &said,
        [
            "this side's certificate has expired",
            "the peer's certificate has expired",
        ],
    );
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_and_both_ends_say_so() {
    let (folder, ca, other) = (Folder::new(), Authority::new("ca"), Authority::new("ca"));
    let draft = folder.files(&ca, "draft", DRAFT);
    let both = format!("{}{}", ca.pem, other.pem);
    let issued = other.issue(&until(TARGET, 2999));
    let believer = files(authority::write(&folder.of("target"), &issued, &both));
    let said = meet_target(&draft, &believer).await;
    both_say(
        &said,
        [
            "is of an authority that this side does not accept",
            "the peer does not accept the authority of this side's certificate",
        ],
    );
    let stranger = folder.files(&other, "target", TARGET);
    let said = meet_target(&draft, &stranger).await;
    both_say(
        &said,
        [
            "the peer does not accept the authority of this side's certificate",
            "is of an authority that this side does not accept",
        ],
    );
    fs::write(&draft.ca, &both).expect("a file");
    fs::write(&stranger.ca, both).expect("a file");
    let said = meet_target(&draft, &stranger).await;
    both_say(&said, ["fine", "fine"]);
}

/// What a stranger dials with, who may have a certificate.
fn stranger(ca: &Authority, shown: Option<[String; 2]>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let parsed = CertificateDer::from_pem_slice(ca.pem.as_bytes());
    roots.add(parsed.expect("PEM")).expect("an authority");
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(verify::IsService::new(Arc::new(roots), provider.clone()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some([certificate, key]) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
            config
                .with_client_auth_cert(vec![certificate.expect("PEM")], key.expect("PEM"))
                .expect("they go together")
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn meet_stranger(draft: &TlsFiles, stranger: TlsConnector) -> [String; 2] {
    meet(draft, |stream| async move {
        let name = ServerName::try_from("host").expect("a name");
        let mut stream = stranger.connect(name, stream).await?;
        stream.read_u8().await.map(drop).map_err(explain::explain)
    })
    .await
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused_and_told_so() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let draft = folder.files(&ca, "draft", DRAFT);
    let said = meet_stranger(&draft, stranger(&ca, None)).await;
    both_say(
        &said,
        [
            "the peer has no certificate",
            "the peer asks for a certificate",
        ],
    );
}

#[tokio::test]
async fn a_peer_in_clear_text_is_refused_and_can_tell_why() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let draft = folder.files(&ca, "draft", DRAFT);
    let said = meet(&draft, |mut stream| async move {
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await?;
        let mut first = [0; 2];
        stream.read_exact(&mut first).await?;
        cleartext(&first)
    })
    .await;
    both_say(
        &said,
        ["the peer speaks plain text", "the port asks for TLS"],
    );
}

#[tokio::test]
async fn a_certificate_without_the_name_of_one_service_is_refused() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let draft = folder.files(&ca, "draft", DRAFT);
    let admin = "spiffe://foretoken/ns/chat/admin/x";
    for (name, problem) in [
        (None, "has no name of a service"),
        (Some(admin), "is no name of a service"),
    ] {
        let issued = ca.issue(&Wanted { name, until: 2999 });
        let own = files(authority::write(&folder.of("own"), &issued, &ca.pem));
        let refused = Tls::open(&own, Role::Target).expect_err("nobody's");
        assert!(refused.to_string().contains(problem), "{refused}");
        let said = meet_stranger(&draft, stranger(&ca, Some(issued))).await;
        both_say(&said, [problem, ""]);
    }
}

#[test]
fn files_that_cannot_be_used_say_what_is_wrong_with_which() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let problem = |own: &TlsFiles| {
        let error = Tls::open(own, Role::Draft).expect_err("not usable");
        error.to_string()
    };
    let good = folder.files(&ca, "good", DRAFT);
    let target = folder.files(&ca, "target", TARGET);
    assert!(problem(&target).contains("this service is a draft: give it one for a draft"));
    let foreign = TlsFiles {
        key: target.key.clone(),
        ..good.clone()
    };
    assert!(
        problem(&foreign).contains("is not the key of"),
        "{}",
        problem(&foreign)
    );
    let missing = TlsFiles {
        ca: folder.of("none"),
        ..good.clone()
    };
    assert!(problem(&missing).contains("cannot read"));
    fs::write(&good.ca, "nothing").expect("a file");
    assert!(problem(&good).contains("has no certificate of an authority in PEM"));
}

#[tokio::test]
async fn files_that_change_are_read_again_and_broken_ones_change_nothing() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = folder.files(&ca, "own", "spiffe://foretoken/ns/chat/target/old");
    let tls = Tls::open(&own, Role::Target).expect("good");
    let becomes = |name: &'static str| {
        let tls = tls.clone();
        async move {
            tokio::time::sleep(2 * LOOK).await;
            assert_eq!(tls.name().name, name);
        }
    };
    fs::write(&own.key, "half a key").expect("a file");
    becomes("old").await;
    folder.files(&ca, "own", "spiffe://foretoken/ns/chat/router/story");
    becomes("old").await;
    folder.files(&ca, "own", TARGET);
    becomes("story").await;
}

#[test]
fn files_that_could_not_be_read_are_read_later_though_nothing_tells_that_they_changed() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = folder.files(&ca, "own", "spiffe://foretoken/ns/chat/target/old");
    let tls = Tls::open(&own, Role::Target).expect("good");
    folder.files(&ca, "own", TARGET);
    let key = fs::read(&own.key).expect("a key");
    fs::remove_file(&own.key).expect("is there");
    // Nobody can read a folder, root neither.
    fs::create_dir(&own.key).expect("a folder");
    std::thread::sleep(2 * LOOK);
    assert_eq!(tls.name().name, "old");
    fs::remove_dir(&own.key).expect("is there");
    fs::write(&own.key, key).expect("a file");
    // As if it was this file that could not be read, for want of file descriptors.
    tls.0.state.lock().expect("whole").stamp = Stamp::of(&own);
    std::thread::sleep(2 * LOOK);
    assert_eq!(tls.name().name, "story");
}

#[test]
fn a_file_that_changed_is_another_version_whatever_time_it_was_given() {
    let (folder, ca) = (Folder::new(), Authority::new("ca"));
    let own = folder.files(&ca, "own", TARGET);
    let before = Stamp::of(&own);
    let modified = fs::metadata(&own.key).and_then(|key| key.modified());
    std::thread::sleep(Duration::from_millis(50));
    let key = fs::File::options().append(true).open(&own.key);
    let key = key.expect("is there");
    key.set_modified(modified.expect("has one"))
        .expect("is set");
    assert_ne!(Stamp::of(&own), before);
}
