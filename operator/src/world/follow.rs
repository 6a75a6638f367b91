//! How a store is kept up to date.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use futures::{Stream, StreamExt as _};
use kube::runtime::{
    WatchStreamExt as _,
    reflector::{Lookup, store::Writer},
    watcher::{self, Event},
};

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// A list has it, of which the store has nothing yet: it does not help to look.
    Listed,
    /// The store has it, as it is now.
    Seen,
    /// The store has it no more.
    Gone,
}

/// Keeps a store up to date, for ever, and tells of what was touched.
///
/// What a list has is told of as it comes, and once more when the store has it; what the store had
/// before and the list has not is gone, without an event of its own.
pub(super) async fn follow<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    mut writer: Writer<K>,
    mut touched: impl FnMut(&K, Touch) + Send,
) where
    K: Lookup + Clone + 'static,
    K::DynamicType: Clone + Eq + Hash,
{
    let store = writer.as_reader();
    let mut before: Vec<Arc<K>> = Vec::new();
    let mut events = Box::pin(events.default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if matches!(event, Event::Init) {
                    before = store.state();
                }
                writer.apply_watcher_event(&event);
                match &event {
                    Event::Apply(object) => touched(object, Touch::Seen),
                    Event::InitApply(object) => touched(object, Touch::Listed),
                    Event::Delete(object) => touched(object, Touch::Gone),
                    Event::Init => {}
                    Event::InitDone => {
                        let now = store.state();
                        let known: HashSet<_> = now.iter().map(|object| place(&**object)).collect();
                        let gone = before.iter().filter(|one| !known.contains(&place(&***one)));
                        for object in gone {
                            touched(object, Touch::Gone);
                        }
                        for object in &now {
                            touched(object, Touch::Seen);
                        }
                        before.clear();
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "a watch broke off and is started again"),
        }
    }
}

/// For whom it is enough to be told of what the store has, and whether it is gone.
pub(super) fn unlisted<K>(mut touched: impl FnMut(&K, bool)) -> impl FnMut(&K, Touch) {
    move |object, touch| match touch {
        Touch::Listed => {}
        Touch::Seen => touched(object, false),
        Touch::Gone => touched(object, true),
    }
}

/// Namespace and name.
fn place<K: Lookup>(object: &K) -> (Option<String>, Option<String>) {
    let owned = |text: std::borrow::Cow<'_, str>| text.into_owned();
    (object.namespace().map(owned), object.name().map(owned))
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{ResourceExt as _, runtime::reflector};

    use super::*;

    fn object(name: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.to_owned());
        object.metadata.namespace = Some("chat".to_owned());
        object
    }

    #[tokio::test]
    async fn what_a_later_list_has_not_is_gone_and_what_it_has_is_looked_at_when_it_is_known() {
        let (store, writer) = reflector::store();
        let apply = |name| Event::InitApply(object(name));
        let events = [
            [Event::Init, apply("a"), apply("b"), Event::InitDone],
            [Event::Init, apply("b"), apply("c"), Event::InitDone],
        ];
        let mut told = Vec::new();
        let touched = |object: &ConfigMap, touch| {
            let is_known = store.state().iter().any(|known| **known == *object);
            if touch != Touch::Listed {
                told.push((object.name_any(), touch));
                assert_eq!(is_known, touch == Touch::Seen, "{told:?}");
            }
        };
        let events = stream::iter(events.into_iter().flatten().map(Ok));
        follow(events, writer, touched).await;
        let mut later = told.split_off(2);
        later.sort_by(|(a, _), (b, _)| a.cmp(b));
        let expected = [("a", Touch::Gone), ("b", Touch::Seen), ("c", Touch::Seen)];
        assert_eq!(
            later,
            expected.map(|(name, touch)| (name.to_owned(), touch))
        );
    }
}
