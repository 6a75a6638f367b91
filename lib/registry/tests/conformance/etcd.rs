//! etcd: a real one, which is killed, held, cut off and emptied.

use std::{
    collections::BTreeMap, fs, net::TcpListener, path::Path, process::Command, time::Duration,
};

use foretoken_registry::{
    Announced, Announcement, Directory, EtcdConfig, EtcdRegistry, Health, Registry, Secret,
    TargetEntry,
};
use serde_json::json;
use tokio::sync::watch;
use tracing::Level;

use crate::{
    gateway::Gateway,
    log::Log,
    programs::{self, Etcd},
    proxy::Proxy,
    suite::{Backend, PATIENCE, becomes, conforms},
};

/// How long a service may be gone before it is missed. A busy machine may keep it waiting for seconds.
const LEASE: Duration = Duration::from_secs(6);

struct Source {
    etcd: Etcd,
    proxy: Proxy,
    gateway: Gateway,
    keys: BTreeMap<String, String>,
    absence: Absence,
}

/// How etcd is away, now or the next time.
#[derive(Clone, Copy)]
enum Absence {
    Dead,
    Held,
}

impl Source {
    async fn start(programs: &Path) -> Self {
        let etcd = Etcd::start(programs, "http", &[]);
        let proxy = Proxy::start(etcd.port).await;
        let gateway = Gateway {
            port: etcd.port,
            token: None,
        };
        let mut source = Self {
            etcd,
            proxy,
            gateway,
            keys: BTreeMap::new(),
            absence: Absence::Dead,
        };
        source.wait().await;
        source
    }

    async fn wait(&mut self) {
        let Self { etcd, gateway, .. } = self;
        etcd.program.wait(async || gateway.answers().await).await;
    }

    fn config(&self) -> EtcdConfig {
        EtcdConfig {
            // The first never answers.
            endpoints: vec![
                "http://127.0.0.1:1".into(),
                format!("http://127.0.0.1:{}", self.proxy.port),
            ],
            prefix: "test/".into(),
            ..EtcdConfig::default()
        }
    }

    fn registry(&self) -> EtcdRegistry {
        EtcdRegistry::open(self.config()).unwrap()
    }
}

impl Backend for Source {
    async fn write(&mut self, directory: &Directory) {
        let mut keys = BTreeMap::new();
        for target in &directory.targets {
            let value = serde_json::to_string(target).unwrap();
            keys.insert(format!("test/targets/{}", target.name), value);
        }
        for endpoint in &directory.endpoints {
            let value = serde_json::to_string(endpoint).unwrap();
            keys.insert(format!("test/endpoints/{}", endpoint.name), value);
        }
        for (key, value) in &keys {
            if self.keys.get(key) != Some(value) {
                self.gateway.put(key, value).await;
            }
        }
        for key in self.keys.keys().filter(|key| !keys.contains_key(*key)) {
            self.gateway.delete(key).await;
        }
        self.keys = keys;
    }

    async fn open(&self) -> Box<dyn Registry> {
        Box::new(self.registry())
    }

    async fn spoil(&mut self) {
        let (key, value) = self.keys.iter_mut().next_back().unwrap();
        "nonsense".clone_into(value);
        self.gateway.put(key, value).await;
    }

    fn culprit(&self) -> String {
        let key = self.keys.keys().next_back().unwrap();
        format!("etcd key {key:?} is of no use")
    }

    async fn leave(&mut self) {
        match self.absence {
            Absence::Dead => self.etcd.program.kill(),
            Absence::Held => self.etcd.program.signal("STOP"),
        }
    }

    async fn come_back(&mut self, directory: &Directory) {
        self.absence = match self.absence {
            Absence::Dead => {
                self.etcd.program.run();
                Absence::Held
            }
            Absence::Held => {
                self.etcd.program.signal("CONT");
                Absence::Dead
            }
        };
        self.wait().await;
        self.write(directory).await;
    }
}

fn target() -> TargetEntry {
    TargetEntry {
        name: "t".into(),
        model: "m".into(),
        address: "http://10.0.0.1:7000".parse().unwrap(),
        serves: None,
    }
}

fn announce(config: EtcdConfig) -> Announcement {
    Announcement::start(config, Announced::Target(target()), LEASE).unwrap()
}

async fn has_targets(registry: &EtcdRegistry, count: usize) {
    let mut watch: watch::Receiver<_> = registry.watch();
    becomes(&mut watch, "that many targets", |now| {
        now.targets.len() == count
    })
    .await;
}

/// Waits until `key` is written after `revision`, and says which lease holds it.
async fn announced_again(source: &Source, key: &str, revision: u64) -> u64 {
    eventually("it should be announced again", async || {
        source.gateway.lease_of(key, revision).await
    })
    .await
}

/// Waits until there is no lease, for less than one takes to run out.
async fn leaves_no_lease(source: &Source) {
    let none_is_left = eventually("no lease should be left", async || {
        source.gateway.leases().await.is_empty().then_some(())
    });
    let left = tokio::time::timeout(LEASE / 2, none_is_left).await;
    left.expect("no lease should be left to run out");
}

/// Announces a target, and withdraws it as soon as others see it.
async fn comes_and_goes(source: &Source, registry: &EtcdRegistry, config: EtcdConfig) {
    let announcement = announce(config);
    has_targets(registry, 1).await;
    announcement.withdraw().await;
    leaves_no_lease(source).await;
    has_targets(registry, 0).await;
}

/// Asks until there is an answer, which `should` be.
async fn eventually<T>(should: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let answer = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    answer.expect(should)
}

#[tokio::test]
async fn etcd_conforms() {
    let Some(programs) = programs::folder() else {
        return;
    };
    conforms(async || Source::start(&programs).await).await;
}

#[tokio::test]
async fn who_announces_itself_is_there_as_long_as_it_lives() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let mut source = Source::start(&programs).await;
    let registry = source.registry();
    let announcement = announce(source.config());
    has_targets(&registry, 1).await;
    assert_eq!(registry.watch().borrow().targets, [target()]);

    // A successor of the same name is there before the predecessor's lease has run out.
    let successor = announce(source.config());
    eventually("there should be two leases", async || {
        (source.gateway.leases().await.len() == 2).then_some(())
    })
    .await;
    drop(announcement);
    let has_run_out = async {
        while source.gateway.leases().await.len() > 1 {
            assert_eq!(registry.watch().borrow().targets, [target()]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LEASE * 10, has_run_out).await.unwrap();
    assert_eq!(registry.watch().borrow().targets, [target()]);

    let lost = source.gateway.leases().await;
    assert_eq!(source.gateway.revoke_all().await, 1);
    eventually("there should be another lease", async || {
        let leases = source.gateway.leases().await;
        leases.iter().find(|lease| !lost.contains(lease)).copied()
    })
    .await;
    has_targets(&registry, 1).await;

    source.etcd.program.signal("STOP");
    tokio::time::sleep(LEASE * 2).await;
    source.etcd.program.signal("CONT");
    source.wait().await;
    tokio::time::sleep(LEASE).await;
    has_targets(&registry, 1).await;

    successor.withdraw().await;
    has_targets(&registry, 0).await;
    assert_eq!(
        source.gateway.revoke_all().await,
        0,
        "nothing is left behind"
    );
}

#[tokio::test]
async fn who_withdraws_is_gone_at_once_though_the_first_member_is_silent() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let source = Source::start(&programs).await;
    // Whoever dials gets a connection, and never an answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = source.config();
    config.endpoints[0] = format!("http://{}", silent.local_addr().unwrap());
    let registry = source.registry();
    comes_and_goes(&source, &registry, config).await;
}

#[tokio::test]
async fn who_withdraws_as_soon_as_others_see_it_leaves_nothing_behind() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let source = Source::start(&programs).await;
    let registry = source.registry();
    for _ in 0..20 {
        // Others can hear of an entry before who wrote it hears that it is written.
        comes_and_goes(&source, &registry, source.config()).await;
    }
}

#[tokio::test]
async fn an_entry_that_somebody_took_away_or_wrote_over_comes_back() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let source = Source::start(&programs).await;
    let registry = source.registry();
    let _announcement = announce(source.config());
    has_targets(&registry, 1).await;
    let lease = source.gateway.leases().await[0];
    let key = format!("test/targets/t/{lease:x}");

    // Readers may never see it missing: what is announced again at once can reach them together.
    let other = r#"{"name": "t", "model": "m", "address": "http://10.0.0.9:7000"}"#;
    let deleted = source.gateway.delete(&key).await;
    assert_eq!(announced_again(&source, &key, deleted).await, lease);
    let put = source.gateway.put(&key, other).await;
    assert_eq!(announced_again(&source, &key, put).await, lease);
    becomes(&mut registry.watch(), "ours", |now| {
        now.targets == [target()]
    })
    .await;
}

#[tokio::test]
async fn what_was_compacted_away_is_listed_again() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let mut source = Source::start(&programs).await;
    let first = Directory {
        targets: vec![target()],
        ..Directory::default()
    };
    source.write(&first).await;
    let registry = source.registry();
    has_targets(&registry, 1).await;
    let log = Log::listen_to(Level::INFO);
    source.proxy.cut();
    becomes(&mut registry.health(), "stale", |now| {
        matches!(now, Health::Stale { .. })
    })
    .await;
    source.write(&Directory::default()).await;
    source
        .gateway
        .put("test/endpoints/d", r#"{"name": "d", "address": "unix:/d"}"#)
        .await;
    source.gateway.compact().await;
    source.proxy.mend();
    has_targets(&registry, 0).await;
    becomes(&mut registry.watch(), "one endpoint", |now| {
        now.endpoints.len() == 1
    })
    .await;
    let said = log.take();
    assert!(said.contains("has compacted what was asked for"), "{said}");
}

#[tokio::test]
async fn an_etcd_that_has_lost_everything_is_told_anew() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let mut source = Source::start(&programs).await;
    source
        .gateway
        .put("test/endpoints/d", r#"{"name": "d", "address": "unix:/d"}"#)
        .await;
    let registry = source.registry();
    let _announcement = announce(source.config());
    has_targets(&registry, 1).await;
    source.etcd.program.kill();
    source.etcd.forget();
    source.etcd.program.run();
    source.wait().await;
    becomes(&mut registry.watch(), "only who announces itself", |now| {
        now.targets.len() == 1 && now.endpoints.is_empty()
    })
    .await;
}

#[tokio::test]
async fn etcd_lets_in_who_knows_the_password() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let source = Source::start(&programs).await;
    let gateway = &source.gateway;
    gateway
        .put("test/endpoints/d", r#"{"name": "d", "address": "unix:/d"}"#)
        .await;
    let root = json!({"name": "root", "password": "secret"});
    gateway.ask("auth/user/add", root).await.unwrap();
    let role = json!({"user": "root", "role": "root"});
    gateway.ask("auth/user/grant", role).await.unwrap();
    gateway.ask("auth/enable", json!({})).await.unwrap();

    let as_root = |password: &str| EtcdConfig {
        user: Some("root".into()),
        password: Some(Secret(password.into())),
        ..source.config()
    };
    let wrong = [
        (source.config(), "user name is empty"),
        (as_root("guess"), "invalid user ID or password"),
    ];
    for (config, why) in wrong {
        let registry = EtcdRegistry::open(config).unwrap();
        becomes(
            &mut registry.health(),
            why,
            |now| matches!(now, Health::Stale { why: said } if said.contains(why)),
        )
        .await;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "secret\n").unwrap();
    let config = EtcdConfig {
        password: None,
        password_file: Some(file),
        ..as_root("")
    };
    let registry = EtcdRegistry::open(config).unwrap();
    becomes(&mut registry.watch(), "one endpoint", |now| {
        now.endpoints.len() == 1
    })
    .await;
    let _announcement = announce(as_root("secret"));
    has_targets(&registry, 1).await;
}

#[tokio::test]
async fn etcd_and_we_know_each_other_by_certificates() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let wrote = Command::new(programs.join("credentials"))
        .arg(format!("--folder={}", folder.path().display()))
        .args([
            "--server=https://127.0.0.1",
            "--node=node",
            "--hosts=127.0.0.1",
        ])
        .status();
    assert!(wrote.unwrap().success());
    let file = |name: &str| folder.path().join(name);
    let option = |name: &str, path: &str| format!("--{name}={}", file(path).display());
    let options = [
        option("cert-file", "kube-apiserver.crt"),
        option("key-file", "kube-apiserver.key"),
        option("trusted-ca-file", "ca.crt"),
        "--client-cert-auth".to_owned(),
    ];
    let etcd = Etcd::start(&programs, "https", &options);
    let known = EtcdConfig {
        endpoints: vec![format!("https://127.0.0.1:{}", etcd.port)],
        cacert: Some(file("ca.crt")),
        cert: Some(file("admin.crt")),
        key: Some(file("admin.key")),
        ..EtcdConfig::default()
    };
    let _announcement = announce(known.clone());
    let registry = EtcdRegistry::open(known.clone()).unwrap();
    becomes(&mut registry.health(), "current", |now| {
        *now == Health::Current
    })
    .await;
    has_targets(&registry, 1).await;
    let strangers = [
        EtcdConfig {
            cert: None,
            key: None,
            ..known.clone()
        },
        EtcdConfig {
            cacert: None,
            ..known.clone()
        },
    ];
    for stranger in strangers {
        let registry = EtcdRegistry::open(stranger).unwrap();
        becomes(&mut registry.health(), "refused", |now| {
            matches!(now, Health::Stale { .. })
        })
        .await;
    }
    let missing = EtcdConfig {
        key: None,
        ..known.clone()
    };
    let error = EtcdRegistry::open(missing).unwrap_err().to_string();
    assert_eq!(error, "key is missing: cert is given");
    let plain = EtcdConfig {
        endpoints: vec!["http://127.0.0.1:1".into()],
        ..known
    };
    let error = EtcdRegistry::open(plain).unwrap_err().to_string();
    assert!(error.contains("write https://"), "{error}");
}
