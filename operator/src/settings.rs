//! What the operator itself is told.

/// What the operator itself is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of the pods it makes: the one that has `foretoken`.
    pub image: String,
    /// When nodes pull images; none: as Kubernetes does by default.
    pub image_pull_policy: Option<String>,
}
