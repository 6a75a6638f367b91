//! Who a service is, as its certificate says.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What all names begin with: the trust domain of SPIFFE ids, and the namespace.
const PREFIX: &str = "spiffe://foretoken/ns/";

/// Most characters of a namespace or a name, as in a cluster.
const LONGEST: usize = 63;

/// Most characters that errors show of a text.
const MOST_SHOWN: usize = 200;

/// What a service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Decides tokens.
    Target,
    /// Drafts.
    Draft,
    /// Speaks HTTP with users.
    Router,
}

/// Who a service is: `spiffe://foretoken/ns/NAMESPACE/target|draft|router/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// Namespace of the object that it serves.
    pub namespace: String,
    /// What it is for.
    pub role: Role,
    /// Name of that object: a deployment, or an endpoint.
    pub name: String,
}

/// Which object a service serves, `NAMESPACE/NAME`: a deployment, or an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Served {
    namespace: String,
    name: String,
}

/// A text that is no object's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not NAMESPACE/NAME, as certificates have them")]
pub struct ServedError(String);

/// A text that is nobody's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name of a service; those are spiffe://foretoken/ns/NAMESPACE/ROLE/NAME, with the role target, draft or router"
)]
pub struct NameError(String);

impl Role {
    fn parse(text: &str) -> Option<Self> {
        [Self::Target, Self::Draft, Self::Router]
            .into_iter()
            .find(|role| role.as_str() == text)
    }

    /// As it is in names.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Draft => "draft",
            Self::Router => "router",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            role,
            name,
        } = self;
        write!(f, "{PREFIX}{namespace}/{role}/{name}")
    }
}

impl FromStr for ServiceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let fail = || NameError(text.chars().take(MOST_SHOWN).collect());
        let rest = text.strip_prefix(PREFIX).ok_or_else(fail)?;
        let mut parts = rest.split('/');
        let (Some(namespace), Some(role), Some(name), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(fail());
        };
        if !is_label(namespace) || !is_label(name) {
            return Err(fail());
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            role: Role::parse(role).ok_or_else(fail)?,
            name: name.to_owned(),
        })
    }
}

impl Served {
    /// The object called `name` in `namespace`.
    pub fn new(namespace: &str, name: &str) -> Result<Self, ServedError> {
        if !is_label(namespace) || !is_label(name) {
            let text = format!("{namespace}/{name}");
            return Err(ServedError(text.chars().take(MOST_SHOWN).collect()));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Whether `service` is there for it.
    pub fn is_by(&self, service: &ServiceName) -> bool {
        (&self.namespace, &self.name) == (&service.namespace, &service.name)
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl TryFrom<String> for Served {
    type Error = ServedError;

    fn try_from(text: String) -> Result<Self, ServedError> {
        let (namespace, name) = text.split_once('/').unwrap_or((&text, ""));
        Self::new(namespace, name)
    }
}

impl From<Served> for String {
    fn from(served: Served) -> Self {
        served.to_string()
    }
}

/// Whether `text` is a name as clusters have them, so that no two spellings mean the same.
fn is_label(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_it_is_read() {
        let text = "spiffe://foretoken/ns/chat/target/story";
        let name: ServiceName = text.parse().expect("a name");
        assert_eq!((name.namespace.as_str(), name.role), ("chat", Role::Target));
        assert_eq!(name.to_string(), text);
    }

    #[test]
    fn what_is_served_is_said_by_namespace_and_name() {
        let served = Served::try_from("chat/story".to_owned()).expect("both");
        assert_eq!(String::from(served.clone()), "chat/story");
        let service = |text: &str| text.parse::<ServiceName>().expect("a name");
        for role in ["target", "draft", "router"] {
            let name = format!("spiffe://foretoken/ns/chat/{role}/story");
            assert!(served.is_by(&service(&name)));
        }
        assert!(!served.is_by(&service("spiffe://foretoken/ns/chat/target/other")));
        assert!(!served.is_by(&service("spiffe://foretoken/ns/other/target/story")));
        for text in [
            "",
            "chat",
            "chat/",
            "/story",
            "chat/story/more",
            "Chat/story",
        ] {
            assert!(Served::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_could_be_taken_for_somebody_else_is_no_name() {
        for text in [
            "spiffe://elsewhere/ns/chat/target/story",
            "spiffe://foretoken/ns/chat/target/story/",
            "spiffe://foretoken/ns/chat/target/story/more",
            "spiffe://foretoken/ns/chat/operator/story",
            "spiffe://foretoken/ns//target/story",
            "spiffe://foretoken/ns/chat/target/",
            "spiffe://foretoken/ns/Chat/target/story",
            "spiffe://foretoken/ns/ch%61t/target/story",
            "SPIFFE://foretoken/ns/chat/target/story",
            "",
        ] {
            assert!(text.parse::<ServiceName>().is_err(), "{text}");
        }
    }
}
