//! etcd, an API server and controllers of this test's own, on ports of their own.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// How long the API server may take to start.
const START: Duration = Duration::from_secs(90);

/// A running control plane; it ends when this is dropped.
pub(crate) struct ControlPlane {
    folder: TempDir,
    programs: PathBuf,
    children: Vec<Child>,
}

impl ControlPlane {
    /// Starts one; none where there are no programs.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            let message = "no programs of a cluster: `make cluster` builds them";
            assert!(
                env::var("FORETOKEN_TEST_CLUSTER").as_deref() != Ok("required"),
                "{message}"
            );
            eprintln!("SKIPPED, nothing was tested: {message}");
            return None;
        };
        let mut plane = Self {
            folder: tempfile::tempdir().unwrap(),
            programs,
            children: Vec::new(),
        };
        let [etcd, peers, port] = free_ports();
        let server = format!("https://127.0.0.1:{port}");
        let credentials = plane.path("credentials");
        let wrote = Command::new(plane.programs.join("credentials"))
            .arg(format!("--folder={credentials}"))
            .arg(format!("--server={server}"))
            .args(["--node=node", "--hosts=127.0.0.1,localhost"])
            .status();
        assert!(wrote.unwrap().success(), "no credentials");
        plane.run("etcd", &plane.etcd(etcd, peers));
        plane.run("kube-apiserver", &plane.api_server(etcd, port));
        plane.wait();
        plane.run("kube-controller-manager", &plane.controllers());
        Some(plane)
    }

    /// Whom everything is allowed.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("credentials/admin.kubeconfig")
    }

    /// Where every write is noted.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn etcd(&self, port: u16, peers: u16) -> Vec<String> {
        let [url, peers] = [port, peers].map(|port| format!("http://127.0.0.1:{port}"));
        vec![
            format!("--data-dir={}", self.path("etcd")),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
            "--unsafe-no-fsync".to_owned(),
        ]
    }

    fn api_server(&self, etcd: u16, port: u16) -> Vec<String> {
        let policy = self.path("audit.json");
        let rules = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]}, {"level": "None"}]}"#;
        fs::write(&policy, rules).unwrap();
        let credential = |name: &str| self.path(&format!("credentials/{name}"));
        let key = credential("service-accounts.key");
        vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            format!("--client-ca-file={}", credential("ca.crt")),
            format!("--tls-cert-file={}", credential("kube-apiserver.crt")),
            format!(
                "--tls-private-key-file={}",
                credential("kube-apiserver.key")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--authorization-mode=RBAC".to_owned(),
            format!("--audit-policy-file={policy}"),
            format!("--audit-log-path={}", self.audit_log().display()),
            "--audit-log-mode=blocking-strict".to_owned(),
        ]
    }

    fn controllers(&self) -> Vec<String> {
        let key = self.path("credentials/service-accounts.key");
        vec![
            format!("--kubeconfig={}", self.kubeconfig().display()),
            format!("--service-account-private-key-file={key}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--controllers=deployment-controller,replicaset-controller,\
             garbage-collector-controller,serviceaccount-controller,namespace-controller"
                .to_owned(),
        ]
    }

    fn run(&mut self, name: &str, arguments: &[String]) {
        let log = fs::File::create(self.folder.path().join(format!("{name}.log"))).unwrap();
        let child = Command::new(self.programs.join(name))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.children.push(child.unwrap());
    }

    /// Waits until the API server answers that all is well.
    fn wait(&mut self) {
        let began = Instant::now();
        let kubeconfig = self.kubeconfig();
        loop {
            let asked = Command::new(self.programs.join("kubectl"))
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .args(["get", "--raw", "/readyz"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if asked.unwrap().success() {
                return;
            }
            let ended = self
                .children
                .iter_mut()
                .any(|child| child.try_wait().unwrap().is_some());
            assert!(
                !ended && began.elapsed() < START,
                "no API server: {}",
                log_end(&self.folder.path().join("kube-apiserver.log"))
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn log_end(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

/// Where `make cluster` has built the control plane, the newest if there are several.
fn programs() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME").map_or_else(
        || Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    let folders = fs::read_dir(cache.join("foretoken/cluster")).ok()?;
    let built = folders.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kubernetes-") && path.join("kube-apiserver").exists()
    });
    built.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok())
}

/// Free ports. None is of those that systems give to whoever asks for any, which another may be given before
/// it is bound here.
fn free_ports() -> [u16; 3] {
    let draw = || loop {
        let port = 15_000 + (RandomState::new().hash_one(()) % 15_000) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return (listener, port);
        }
    };
    // Held until all are there, so that none is drawn twice.
    let drawn = [(); 3].map(|()| draw());
    drawn.map(|(_, port)| port)
}
