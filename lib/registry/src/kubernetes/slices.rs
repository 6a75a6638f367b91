//! What `EndpointSlices` say of a Service. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// A Service of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Service {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Service {
    /// The Service that is called `SERVICE.NAMESPACE.svc`, with or without the cluster's domain.
    pub(super) fn parse(host: &str) -> Option<Self> {
        let mut parts = host.splitn(4, '.');
        let (name, namespace, svc) = (parts.next()?, parts.next()?, parts.next()?);
        let is_one = svc == "svc" && !name.is_empty() && !namespace.is_empty();
        is_one.then(|| Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// What its slices are labelled with.
    pub(super) fn selector(&self) -> String {
        format!("kubernetes.io/service-name={}", self.name)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Addresses of whoever is ready and not about to end, one for each pod: the first of its IPv4
/// addresses, or else of its others. While slices are divided anew, one may be in two of them.
pub(super) fn ready<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> BTreeSet<IpAddr> {
    let mut without_pod = BTreeSet::new();
    let mut of_pods: BTreeMap<&str, IpAddr> = BTreeMap::new();
    for endpoint in slices.into_iter().flat_map(|slice| &slice.endpoints) {
        // The addresses of one endpoint are alternatives; those that are names are none of ours.
        let address = endpoint.addresses.iter().find_map(|it| it.parse().ok());
        let (Some(address), true) = (address, is_ready(endpoint)) else {
            continue;
        };
        let pod = endpoint
            .target_ref
            .as_ref()
            .and_then(|pod| pod.uid.as_deref());
        match pod {
            Some(pod) => {
                // IPv4 addresses come first.
                let known = of_pods.entry(pod).or_insert(address);
                *known = address.min(*known);
            }
            None => {
                without_pod.insert(address);
            }
        }
    }
    without_pod.extend(of_pods.into_values());
    without_pod
}

fn is_ready(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.as_ref();
    // What is not said of readiness means yes, and of an end no.
    conditions.is_none_or(|it| it.ready != Some(false) && it.terminating != Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(endpoints: &[Value]) -> Vec<String> {
        let slices: Vec<EndpointSlice> = endpoints
            .iter()
            .map(|endpoints| {
                let slice = json!({"addressType": "IPv4", "endpoints": endpoints});
                serde_json::from_value(slice).expect("a slice")
            })
            .collect();
        let addresses = ready(&slices);
        addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_who_is_ready_and_stays_is_found() {
        let slice = json!([
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": true, "terminating": true}},
            {"addresses": ["10.0.0.4"]},
            {"addresses": ["10.0.0.5"], "conditions": {"serving": true, "terminating": false}},
            {"addresses": ["name.example"], "conditions": {"ready": true}},
            {"addresses": []},
        ]);
        assert_eq!(found(&[slice]), ["10.0.0.1", "10.0.0.4", "10.0.0.5"]);
        assert_eq!(found(&[]), [""; 0]);
    }

    #[test]
    fn who_is_in_two_slices_or_has_two_addresses_is_one() {
        let pod = |address: &str, uid: &str| json!({"addresses": [address], "targetRef": {"kind": "Pod", "uid": uid}});
        let slices = [
            json!([pod("fd00::1", "a"), pod("10.0.0.2", "b")]),
            json!([pod("10.0.0.1", "a"), pod("10.0.0.2", "b")]),
            json!([pod("fd00::3", "c"), {"addresses": ["10.0.0.2"]}]),
        ];
        assert_eq!(found(&slices), ["10.0.0.1", "10.0.0.2", "fd00::3"]);
    }

    #[test]
    fn a_service_is_known_by_its_name() {
        let service = Service::parse("story-draft.drafts.svc.cluster.local").expect("a Service");
        assert_eq!(service.to_string(), "drafts/story-draft");
        assert_eq!(Service::parse("story-draft.drafts.svc"), Some(service));
        for other in [
            "10.0.0.1",
            "drafts.example.com",
            "localhost",
            ".a.svc",
            "a.b.svcs",
        ] {
            assert_eq!(Service::parse(other), None, "{other}");
        }
    }
}
