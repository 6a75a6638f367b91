//! What the operator itself is told.

/// What the operator itself is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the pods it makes: the one that has `foretoken`.
    pub image: String,
    /// When nodes pull images; none: as Kubernetes does by default.
    pub image_pull_policy: Option<String>,
    /// Hub that `hf://` models are downloaded from; none: the public one.
    pub hub_endpoint: Option<String>,
    /// Where the certificates of services come from.
    pub certificates: Certificates,
}

/// Where the certificates of services come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// The operator's own authority.
    #[default]
    Own,
    /// cert-manager, from this issuer.
    CertManager(Issuer),
    /// Nowhere: services speak clear text.
    Off,
}

/// An issuer of cert-manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// `ClusterIssuer`, or `Issuer` of each namespace with certificates.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl Certificates {
    /// Whether services have any.
    pub fn are_used(&self) -> bool {
        *self != Self::Off
    }
}
