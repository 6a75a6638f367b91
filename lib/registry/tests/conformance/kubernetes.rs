//! Kubernetes: a real API server, whose `EndpointSlices` the test writes.

use std::{cell::Cell, collections::BTreeMap, fs, path::Path, process::Command, rc::Rc};

use foretoken_protocol::Address;
use foretoken_registry::{
    Directory, EndpointEntry, Health, Interest, KubernetesRegistry, Pools, Registry, TargetEntry,
};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::{
    programs::{self, Etcd, Program, TRIES, free_ports},
    proxy::Proxy,
    suite::{Backend, becomes, conforms},
};

/// An API server, and what it needs.
struct Plane {
    api_server: Program,
    admin: Client,
    port: u16,
    folder: TempDir,
    _etcd: Etcd,
}

impl Plane {
    async fn start(programs: &Path) -> Self {
        let etcd = Etcd::start(programs, "http", &[]);
        let mut tries = (0..TRIES).map(|_| api_server(programs, etcd.port));
        let (api_server, port, folder) = tries.find_map(|it| it).unwrap();
        let kubeconfig = Kubeconfig::read_from(folder.path().join("admin.kubeconfig")).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut plane = Self {
            api_server,
            admin: Client::try_from(config.unwrap()).unwrap(),
            port,
            folder,
            _etcd: etcd,
        };
        plane.wait().await;
        plane
    }

    async fn wait(&mut self) {
        let namespaces: Api<Namespace> = Api::all(self.admin.clone());
        let ready = async || namespaces.get("default").await.is_ok();
        self.api_server.wait(ready).await;
    }
}

/// An API server that keeps what it knows in the etcd on that port, its port, and the folder of its
/// credentials; none if it ends at once.
fn api_server(programs: &Path, etcd: u16) -> Option<(Program, u16, TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    let [port] = free_ports();
    let wrote = Command::new(programs.join("credentials"))
        .arg(format!("--folder={}", folder.path().display()))
        .arg(format!("--server=https://127.0.0.1:{port}"))
        .args(["--node=node", "--hosts=127.0.0.1"])
        .status();
    assert!(wrote.unwrap().success());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let key = file("service-accounts.key");
    let arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--endpoint-reconciler-type=none".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        format!("--client-ca-file={}", file("ca.crt")),
        format!("--tls-cert-file={}", file("kube-apiserver.crt")),
        format!("--tls-private-key-file={}", file("kube-apiserver.key")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={key}"),
        format!("--service-account-signing-key-file={key}"),
        "--authorization-mode=RBAC".to_owned(),
    ];
    let log = folder.path().join("kube-apiserver.log");
    let api_server = Program::start(programs.join("kube-apiserver"), arguments, log);
    Some((api_server.listening(port)?, port, folder))
}

/// A namespace with Services, and a file that names them.
struct Source {
    plane: Rc<Mutex<Plane>>,
    admin: Client,
    /// What the registry asks by: an account that may read `EndpointSlices`, through the proxy.
    client: Client,
    proxy: Proxy,
    namespace: String,
    folder: TempDir,
    /// Slices that exist, by name.
    slices: BTreeMap<String, Value>,
    dies: bool,
}

impl Source {
    async fn start(plane: &Rc<Mutex<Plane>>, namespace: String) -> Self {
        let locked = plane.lock().await;
        let (admin, port) = (locked.admin.clone(), locked.port);
        let ca = locked.folder.path().join("ca.crt");
        drop(locked);
        let proxy = Proxy::start(port).await;
        let named = |name: &str| json!({"name": name, "namespace": namespace});
        for (group, version, kind, body) in [
            (
                "",
                "v1",
                "Namespace",
                json!({"metadata": {"name": namespace}}),
            ),
            (
                "",
                "v1",
                "ServiceAccount",
                json!({"metadata": named("reader")}),
            ),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "Role",
                json!({"metadata": named("reader"), "rules": [{
                    "apiGroups": ["discovery.k8s.io"],
                    "resources": ["endpointslices"],
                    "verbs": ["list", "watch"],
                }]}),
            ),
            (
                "rbac.authorization.k8s.io",
                "v1",
                "RoleBinding",
                json!({
                    "metadata": named("reader"),
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                    "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
                }),
            ),
        ] {
            let gvk = kube::core::GroupVersionKind::gvk(group, version, kind);
            apply(&admin, &ApiResource::from_gvk(&gvk), &body).await;
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), &namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec::default(),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let token = accounts.create_token_request("reader", &params, &request);
        let token = token.await.unwrap().status.unwrap().token;
        let url = format!("https://127.0.0.1:{}", proxy.port);
        let mut config = Config::new(url.parse().unwrap());
        config.root_cert_file = Some(ca);
        config.auth_info.token = Some(token.into());
        Self {
            plane: Rc::clone(plane),
            admin,
            client: Client::try_from(config).unwrap(),
            proxy,
            namespace,
            folder: tempfile::tempdir().unwrap(),
            slices: BTreeMap::new(),
            dies: false,
        }
    }

    fn registry(&self) -> KubernetesRegistry {
        let file = self.folder.path().join("directory.json");
        KubernetesRegistry::open_in(self.client.clone(), file, Interest::All).unwrap()
    }

    fn address(&self, service: &str, port: u16) -> Address {
        let host = format!("{service}.{}.svc", self.namespace);
        Address::Tcp { host, port }
    }

    /// Pools, and addresses of each Service.
    fn pools(&self, directory: &Directory) -> (Pools, BTreeMap<String, Vec<String>>) {
        let mut pools = Pools::default();
        let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let host = |address: &Address| match address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(path) => path.display().to_string(),
        };
        for target in &directory.targets {
            let service = format!("model-{}", target.model);
            services.entry(service.clone()).or_insert_with(|| {
                pools.targets.push(TargetEntry {
                    address: self.address(&service, 7000),
                    name: service.clone(),
                    model: target.model.clone(),
                    serves: target.serves.clone(),
                });
                Vec::new()
            });
            let known = services.get_mut(&service);
            known.unwrap().push(host(&target.address));
        }
        for endpoint in &directory.endpoints {
            let service = format!("weight-{}", endpoint.weight);
            services.entry(service.clone()).or_insert_with(|| {
                pools.endpoints.push(EndpointEntry {
                    address: self.address(&service, 7100),
                    name: service.clone(),
                    weight: endpoint.weight,
                    serves: endpoint.serves.clone(),
                });
                Vec::new()
            });
            let known = services.get_mut(&service);
            known.unwrap().push(host(&endpoint.address));
        }
        (pools, services)
    }

    /// A slice with who is ready, and others who are not or end.
    fn slice(&self, service: &str, name: &str, ready: &[String]) -> Value {
        let one = |address: &str, ready: bool, terminating: bool| {
            json!({"addresses": [address], "conditions": {
                "ready": ready, "serving": ready, "terminating": terminating,
            }})
        };
        let ready = ready.iter().map(|address| one(address, true, false));
        let others = [one("10.9.0.1", false, false), one("10.9.0.2", true, true)];
        json!({
            "metadata": {"name": name, "namespace": self.namespace, "labels": {
                "kubernetes.io/service-name": service,
            }},
            "addressType": "IPv4",
            "endpoints": ready.chain(others).collect::<Vec<_>>(),
            "ports": [{"name": "generate", "port": 7000, "protocol": "TCP"}],
        })
    }

    async fn write_slices(&mut self, slices: BTreeMap<String, Value>) {
        for (name, slice) in &slices {
            if self.slices.get(name) != Some(slice) {
                apply(&self.admin, &slice_resource(), slice).await;
            }
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.admin.clone(), &self.namespace, &slice_resource());
        for name in self
            .slices
            .keys()
            .filter(|name| !slices.contains_key(*name))
        {
            api.delete(name, &DeleteParams::default()).await.unwrap();
        }
        self.slices = slices;
    }

    fn write_file(&self, text: &str) {
        let path = self.folder.path().join("directory.json");
        let staged = path.with_extension("new");
        fs::write(&staged, text).unwrap();
        fs::rename(staged, path).unwrap();
    }
}

fn slice_resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::discovery::v1::EndpointSlice>(&())
}

async fn apply(client: &Client, resource: &ApiResource, body: &Value) {
    let mut body = body.clone();
    body["apiVersion"] = resource.api_version.as_str().into();
    body["kind"] = resource.kind.as_str().into();
    let object: DynamicObject = serde_json::from_value(body).unwrap();
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let params = PatchParams::apply("test").force();
    let (name, patch) = (object.name_any(), Patch::Apply(&object));
    api.patch(&name, &params, &patch).await.unwrap();
}

impl Backend for Source {
    async fn write(&mut self, directory: &Directory) {
        let (pools, services) = self.pools(directory);
        let mut slices = BTreeMap::new();
        for (service, addresses) in &services {
            // Two slices each, as large Services have them.
            let (first, second) = addresses.split_at(addresses.len() / 2);
            for (number, part) in [first, second].into_iter().enumerate() {
                let name = format!("{service}-{number}");
                let slice = self.slice(service, &name, part);
                slices.insert(name, slice);
            }
        }
        self.write_slices(slices).await;
        let file = Directory {
            pools,
            ..Directory::default()
        };
        self.write_file(&serde_json::to_string(&file).unwrap());
    }

    async fn open(&self) -> Box<dyn Registry> {
        Box::new(self.registry())
    }

    fn called(&self, directory: &Directory) -> Directory {
        let mut directory = directory.clone();
        let host = |address: &Address| match address {
            Address::Tcp { host, .. } => host.clone(),
            Address::Unix(path) => path.display().to_string(),
        };
        for target in &mut directory.targets {
            target.name = format!("model-{}@{}", target.model, host(&target.address));
        }
        for endpoint in &mut directory.endpoints {
            endpoint.name = format!("weight-{}@{}", endpoint.weight, host(&endpoint.address));
        }
        directory
    }

    async fn spoil(&mut self) {
        self.write_file(r#"{"pools": {"targets": [{"name": "t", "model": "m", "address": "http://10.0.0.1:1"}]}}"#);
    }

    fn culprit(&self) -> String {
        "is no Service; write SERVICE.NAMESPACE.svc".into()
    }

    async fn leave(&mut self) {
        if self.dies {
            self.plane.lock().await.api_server.kill();
        } else {
            self.proxy.cut();
        }
    }

    async fn come_back(&mut self, directory: &Directory) {
        if self.dies {
            let mut plane = self.plane.lock().await;
            plane.api_server.run();
            plane.wait().await;
        }
        // What changes while nobody listens is found later.
        self.write(directory).await;
        self.proxy.mend();
        self.dies = !self.dies;
    }
}

#[tokio::test]
async fn kubernetes_conforms() {
    let Some(programs) = programs::folder() else {
        return;
    };
    let plane = Rc::new(Mutex::new(Plane::start(&programs).await));
    let number = Cell::new(0);
    let make = async || {
        number.set(number.get() + 1);
        Source::start(&plane, format!("test-{}", number.get())).await
    };
    conforms(&make).await;
    readiness_is_followed(make().await).await;
    what_may_not_be_read_is_told(make().await).await;
}

async fn readiness_is_followed(mut source: Source) {
    let slice = |source: &Source, ready: &[&str]| {
        let ready: Vec<String> = ready.iter().map(ToString::to_string).collect();
        let slice = source.slice("service", "service-0", &ready);
        BTreeMap::from([("service-0".to_owned(), slice)])
    };
    let address = source.address("service", 7000);
    let pool = json!({"name": "t", "model": "m", "address": address});
    source.write_file(&json!({"pools": {"targets": [pool]}}).to_string());
    let registry = source.registry();
    becomes(&mut registry.health(), "current", |now| {
        *now == Health::Current
    })
    .await;
    assert_eq!(**registry.watch().borrow(), Directory::default());
    for ready in [
        &["10.0.0.1"][..],
        &[],
        &["10.0.0.1", "10.0.0.2"],
        &["10.0.0.2"],
        &[],
    ] {
        let next = slice(&source, ready);
        source.write_slices(next).await;
        let names: Vec<String> = ready.iter().map(|ip| format!("t@{ip}")).collect();
        becomes(&mut registry.watch(), "who is ready", |now| {
            now.targets.iter().map(|target| &target.name).eq(&names)
        })
        .await;
    }
}

async fn what_may_not_be_read_is_told(source: Source) {
    let address = "http://service.default.svc:7000";
    let pool = json!({"name": "t", "model": "m", "address": address});
    source.write_file(&json!({"pools": {"targets": [pool]}}).to_string());
    let registry = source.registry();
    becomes(&mut registry.health(), "refused", |now| {
        let Health::Stale { why } = now else {
            return false;
        };
        why.contains("default/service") && why.contains("cannot list resource")
    })
    .await;
    let file = source.folder.path().join("directory.json");
    let client = source.client.clone();
    let indifferent = KubernetesRegistry::open_in(client, file, Interest::Endpoints).unwrap();
    becomes(&mut indifferent.health(), "current", |now| {
        *now == Health::Current
    })
    .await;
}
