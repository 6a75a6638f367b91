//! Objects with anything in place of anything, as far as they are objects at all: what the operator
//! makes of them is a refusal or something a cluster can be given, and never its end.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use foretoken_crds::{
    AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint, object::Accelerator,
};
use foretoken_operator::{
    Certificates, Object, Settings, accept,
    build::{self, Canary, Given, GivenToEndpoint},
    resolve::{self, Known},
    status::{self, Observed, ObservedEndpoint},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// How many objects are spoilt.
const SPOILT: u64 = 10_000;

/// A generator of numbers (Steele, Lea, Flood 2014: `SplitMix64`).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[(self.next() % all.len() as u64) as usize]
    }
}

/// The objects of the API's table and of the examples, good and bad ones.
fn objects() -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = [
        "tests/fixtures/api/specdecodedeployments.yaml",
        "tests/fixtures/api/speculationendpoints.yaml",
        "tests/fixtures/api/acceleratorprofiles.yaml",
        "examples/shared-endpoint.yaml",
        "examples/multi-gpu.yaml",
    ];
    let read = |file| fs::read_to_string(root.join(file)).unwrap();
    let values = |file| serde_saphyr::from_multiple::<Value>(&read(file)).unwrap();
    files.into_iter().flat_map(values).collect()
}

/// Places within `value`, as JSON pointers.
fn places(value: &Value, path: &str, found: &mut Vec<String>) {
    let mut visit = |key: &str, value| {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        places(value, &path, found);
        found.push(path);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| visit(key, value)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| visit(&index.to_string(), value));
        }
        _ => {}
    }
}

/// What stands in place of a value, beside what stands elsewhere.
fn spoils() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(64),
        json!(u32::MAX),
        json!(1e30),
        json!(""),
        json!("a"),
        json!("A b/\u{0}\u{e9}"),
        json!("x".repeat(1100)),
        json!("hf://a/b"),
        json!("pvc://a/b"),
        json!([]),
        json!([{}]),
        json!({}),
        json!({"a": "b"}),
        json!({"name": "target", "$patch": "delete"}),
    ]
}

/// Something else at one to three places of `object`: what stands under the same name elsewhere, or
/// anything.
fn spoil(object: &Value, others: &Others, chance: &mut Chance) -> Value {
    let mut object = object.clone();
    for _ in 0..=chance.next() % 3 {
        let mut found = vec!["/metadata/name".to_owned()];
        places(&object["spec"], "/spec", &mut found);
        let path: &String = chance.one_of(&found);
        let other = match others.named.get(last(path)) {
            Some(known) if !chance.next().is_multiple_of(4) => chance.one_of(known),
            _ => chance.one_of(&others.anything),
        };
        // What was put in place before may have taken this one away.
        if let Some(place) = object.pointer_mut(path) {
            *place = other.clone();
        }
    }
    object
}

/// What stands in place of values.
struct Others {
    /// By the name of the field that it stands under somewhere.
    named: BTreeMap<String, Vec<Value>>,
    anything: Vec<Value>,
}

impl Others {
    fn of(objects: &[Value]) -> Self {
        let mut others = Self {
            named: BTreeMap::new(),
            anything: spoils(),
        };
        for object in objects {
            let mut found = Vec::new();
            places(object, "", &mut found);
            for path in found {
                let value = object.pointer(&path).cloned().unwrap_or_default();
                others.anything.push(value.clone());
                let name = last(&path).to_owned();
                others.named.entry(name).or_default().push(value);
            }
        }
        others
    }
}

/// The last name of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// A cluster, as far as an object is judged by it.
struct Cluster {
    endpoints: Vec<Arc<SpeculationEndpoint>>,
    profiles: Vec<AcceleratorProfile>,
    settings: Settings,
}

impl Cluster {
    fn profile(&self, asked: Option<&Accelerator>) -> Option<&AcceleratorProfile> {
        let name = asked?.profile.as_deref();
        let mut profiles = self.profiles.iter();
        profiles.find(|profile| profile.metadata.name.as_deref() == name)
    }

    /// What is wanted for a deployment, if it is accepted and its template makes a pod.
    fn deployment(&self, object: &SpecDecodeDeployment) -> Option<Vec<Object>> {
        let profile = self.profile(object.spec.target.accelerator.as_ref());
        let known = Known {
            endpoints: &self.endpoints,
            labels: &[("drafts".to_owned(), "shared".to_owned())].into(),
        };
        let resolved = resolve::resolve(object, &known);
        let given = Given {
            profile,
            endpoints: &resolved.found,
            ..Given::default()
        };
        let accepted = accept::deployment(object, profile).ok();
        let wanted = accepted.and_then(|()| build::deployment(object, given, &self.settings).ok());
        let observed = Observed {
            resolved,
            ..Observed::default()
        };
        let before = object.status.as_ref();
        status::deployment(object, before, &observed, Timestamp::UNIX_EPOCH);
        wanted
    }

    /// The same of an endpoint.
    fn endpoint(&self, object: &SpeculationEndpoint) -> Option<Vec<Object>> {
        let profile = self.profile(object.spec.accelerator.as_ref());
        let labels: BTreeMap<_, _> = [("drafts".to_owned(), "shared".to_owned())].into();
        let given = GivenToEndpoint {
            profile,
            grants: resolve::granted(object, [("chat".to_owned(), &labels)].into_iter()),
            drafts: None,
            canary: Some(Canary {
                spec: &object.spec,
                profile,
                replicas: 1,
            }),
        };
        let accepted = accept::endpoint(object, profile).ok();
        let wanted = accepted.and_then(|()| build::endpoint(object, &given, &self.settings).ok());
        let before = object.status.as_ref();
        let observed = ObservedEndpoint::default();
        status::endpoint(object, before, &observed, Timestamp::UNIX_EPOCH);
        wanted
    }
}

#[test]
fn nothing_that_an_object_says_brings_the_operator_down() {
    let objects = objects();
    let others = Others::of(&objects);
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let cluster = Cluster {
        endpoints: of("SpeculationEndpoint")
            .filter_map(|object| serde_json::from_value(object.clone()).ok())
            .map(Arc::new)
            .collect(),
        profiles: of("AcceleratorProfile")
            .filter_map(|object| serde_json::from_value(object.clone()).ok())
            .collect(),
        settings: Settings {
            image: "foretoken:1".into(),
            image_pull_policy: None,
            hub_endpoint: None,
            certificates: Certificates::Own,
        },
    };
    let judged: Vec<&Value> = of("SpecDecodeDeployment")
        .chain(of("SpeculationEndpoint"))
        .collect();
    let (mut chance, mut understood, mut built) = (Chance(1), 0, 0);
    for _ in 0..SPOILT {
        let spoilt = spoil(chance.one_of::<&Value>(&judged), &others, &mut chance);
        let wanted = if spoilt["kind"] == "SpecDecodeDeployment" {
            let object = serde_json::from_value(spoilt);
            object.ok().map(|object| cluster.deployment(&object))
        } else {
            let object = serde_json::from_value(spoilt);
            object.ok().map(|object| cluster.endpoint(&object))
        };
        understood += u64::from(wanted.is_some());
        built += u64::from(wanted.flatten().is_some_and(|wanted| !wanted.is_empty()));
    }
    // Else nothing was tried.
    assert!(understood > SPOILT / 4, "{understood} were objects");
    assert!(built > SPOILT / 20, "{built} were acted upon");
}
