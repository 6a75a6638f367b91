//! Unit tests, and random operations against a naive model.

use foretoken_speculation::TokenId;
use proptest::prelude::*;

use super::idle::IdleList;
use super::prefix::{PageHash, PageTokens, Prefixes};
use super::*;
use crate::runner::PageIndex;

fn page_of(token: u32) -> PageTokens {
    [TokenId(token); PAGE_TOKENS]
}

/// A hash with 2 values: nearly everything collides.
fn weak_hash(parent: &PageHash, tokens: &PageTokens) -> PageHash {
    PageHash([(parent.0[0] ^ tokens[0].0 as u8) & 1; 32])
}

fn pool(pages: usize) -> PagePool {
    PagePool::new(pages, "model")
}

/// A published page after `parent`, still referenced.
fn published(pool: &mut PagePool, parent: Link, token: u32) -> (PageIndex, Link) {
    let page = pool.take().unwrap();
    assert_eq!(pool.publish(parent, &page_of(token), page), page);
    (page, pool.link(page).unwrap())
}

#[test]
fn a_published_page_is_found_under_its_parent_and_salt_only() {
    let mut pool = pool(8);
    let root = pool.root(Salt::of("tenant"));
    let (first, link) = published(&mut pool, root, 1);
    let (second, _) = published(&mut pool, link, 2);
    assert_eq!(pool.find(root, &page_of(1)), Some(first));
    assert_eq!(pool.find(link, &page_of(2)), Some(second));
    assert_eq!(pool.find(root, &page_of(2)), None, "another parent");
    assert_eq!(
        pool.find(pool.root(Salt::of("other")), &page_of(1)),
        None,
        "another tenant"
    );
    assert_ne!(
        pool.root(Salt::default()),
        PagePool::new(8, "other").root(Salt::default())
    );
}

#[test]
fn a_collision_of_hashes_is_no_hit() {
    let mut pool = PagePool::with_prefixes(8, Prefixes::with_hash(8, "model", weak_hash));
    let root = pool.root(Salt::default());
    let (first, _) = published(&mut pool, root, 1);
    assert_eq!(pool.find(root, &page_of(3)), None);
    pool.release(first);
    let (second, _) = published(&mut pool, root, 3);
    assert_eq!(pool.find(root, &page_of(3)), Some(second));
    assert_eq!(pool.find(root, &page_of(1)), None);
    let usage = pool.audit([&[second, second][..]].into_iter()).unwrap();
    assert_eq!(
        usage,
        Usage {
            free: 7,
            cached: 0,
            referenced: 1
        }
    );
}

#[test]
fn a_page_is_not_found_under_a_later_parent_of_the_same_hash() {
    let mut pool = PagePool::with_prefixes(8, Prefixes::with_hash(8, "model", weak_hash));
    let root = pool.root(Salt::default());
    let (parent, old) = published(&mut pool, root, 0);
    // Tokens that give the child the other one of the two hashes.
    let child = 1;
    let (page, _) = published(&mut pool, old, child);
    assert_eq!(pool.find(old, &page_of(child)), Some(page));

    pool.unpublish(parent);
    let (_, new) = published(&mut pool, root, 2);
    assert_eq!(
        pool.find(new, &page_of(child)),
        None,
        "its parent held other tokens"
    );
}

#[test]
fn a_page_that_holds_what_is_cached_already_is_given_back() {
    let mut pool = pool(4);
    let root = pool.root(Salt::default());
    let (first, _) = published(&mut pool, root, 1);
    let again = pool.take().unwrap();
    assert_eq!(pool.publish(root, &page_of(1), again), first);
    let usage = pool.audit([&[first, first][..]].into_iter()).unwrap();
    assert_eq!(
        usage,
        Usage {
            free: 3,
            cached: 0,
            referenced: 1
        }
    );
}

#[test]
fn the_page_unused_for_longest_is_evicted_and_free_ones_first() {
    let mut pool = pool(4);
    let root = pool.root(Salt::default());
    let pages: Vec<_> = (0..3)
        .map(|token| published(&mut pool, root, token).0)
        .collect();
    for page in &pages {
        pool.release(*page);
    }
    // Use makes the first one the youngest.
    assert_eq!(pool.find(root, &page_of(0)), Some(pages[0]));
    pool.release(pages[0]);
    assert_eq!(
        pool.usage(),
        Usage {
            free: 1,
            cached: 3,
            referenced: 0
        }
    );
    let taken: Vec<_> = (0..4).map(|_| pool.take().unwrap()).collect();
    assert_eq!(taken[1..], [pages[1], pages[2], pages[0]]);
    assert_eq!(pool.take(), None);
    assert_eq!(pool.find(root, &page_of(0)), None, "evicted");
}

#[test]
fn an_audit_finds_counts_that_differ_from_the_tables() {
    let mut pool = pool(4);
    let page = pool.take().unwrap();
    let wrong = AuditError::Count {
        page,
        count: 1,
        tables: 2,
    };
    assert_eq!(pool.audit([&[page, page][..]].into_iter()), Err(wrong));
    assert_eq!(
        pool.audit([].into_iter()),
        Err(AuditError::Count {
            page,
            count: 1,
            tables: 0
        })
    );
    assert!(pool.audit([&[page][..]].into_iter()).is_ok());
}

/// What a naive pool would know of a page.
#[derive(Clone, Debug, Default, PartialEq)]
struct Naive {
    count: usize,
    text: Option<Text>,
}

/// What a published page holds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Text {
    /// A token for each page from the beginning to this one.
    tokens: Vec<u32>,
    /// Which publication this is, and which its parent's is.
    edition: u64,
    parent: u64,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Take,
    Retain(usize),
    Release(usize),
    /// Publishes a held page after a held published one or the root.
    Publish {
        page: usize,
        parent: usize,
        token: u32,
    },
    Find {
        parent: usize,
        token: u32,
    },
    Unpublish(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let any = || 0..12_usize;
    let token = || 0..3_u32;
    let op = prop_oneof![
        3 => Just(Op::Take),
        1 => any().prop_map(Op::Retain),
        4 => any().prop_map(Op::Release),
        4 => (any(), any(), token())
            .prop_map(|(page, parent, token)| Op::Publish { page, parent, token }),
        4 => (any(), token()).prop_map(|(parent, token)| Op::Find { parent, token }),
        1 => any().prop_map(Op::Unpublish),
    ];
    prop::collection::vec(op, 1..200)
}

/// A pool with a naive model of it.
struct Trial {
    pool: PagePool,
    pages: Vec<Naive>,
    /// References held, one entry each.
    held: Vec<PageIndex>,
    /// Published pages without references, in order of eviction.
    idle: Vec<PageIndex>,
    editions: u64,
}

impl Trial {
    fn naive(&mut self, page: PageIndex) -> &mut Naive {
        &mut self.pages[page.0 as usize]
    }

    /// The text and link of one of the held pages, or of the root.
    fn parent(&self, i: usize) -> (Text, Link) {
        let held = self.held.get(i % (self.held.len() + 1));
        let text = held.and_then(|page| self.pages[page.0 as usize].text.clone());
        let link = held.and_then(|page| self.pool.link(*page));
        assert_eq!(text.is_some(), link.is_some());
        text.zip(link)
            .unwrap_or((Text::default(), self.pool.root(Salt::default())))
    }

    /// The text of a page after `parent`, and whoever has the same tokens.
    fn child(&self, parent: Text, token: u32) -> (Text, Option<PageIndex>) {
        let mut text = Text {
            parent: parent.edition,
            edition: self.editions + 1,
            ..parent
        };
        text.tokens.push(token);
        let same = |naive: &Naive| naive.text.as_ref().is_some_and(|t| t.tokens == text.tokens);
        let holder = self
            .pages
            .iter()
            .position(same)
            .map(|page| PageIndex(page as u32));
        (text, holder)
    }

    fn hold(&mut self, page: PageIndex) {
        self.idle.retain(|other| *other != page);
        self.naive(page).count += 1;
        self.held.push(page);
    }

    fn drop_count(&mut self, page: PageIndex) {
        self.naive(page).count -= 1;
        if self.pages[page.0 as usize].count == 0 && self.pages[page.0 as usize].text.is_some() {
            self.idle.push(page);
        }
    }

    fn apply(&mut self, op: Op) {
        let held = |i: usize| self.held.get(i % self.held.len().max(1)).copied();
        match op {
            Op::Take => {
                let free = self.pages.iter().any(|naive| *naive == Naive::default());
                let taken = self.pool.take();
                let Some(page) = taken else {
                    assert!(!free && self.idle.is_empty());
                    return;
                };
                assert_eq!(self.naive(page).count, 0);
                if !free {
                    assert_eq!(page, self.idle.remove(0), "not the one unused for longest");
                }
                self.naive(page).text = None;
                self.hold(page);
            }
            Op::Retain(i) => {
                if let Some(page) = held(i) {
                    self.pool.retain(page);
                    self.hold(page);
                }
            }
            Op::Release(i) => {
                if !self.held.is_empty() {
                    let page = self.held.swap_remove(i % self.held.len());
                    self.pool.release(page);
                    self.drop_count(page);
                }
            }
            Op::Publish {
                page,
                parent,
                token,
            } => {
                if let Some(page) = held(page) {
                    self.publish(page, parent, token);
                }
            }
            Op::Find { parent, token } => {
                let (parent, link) = self.parent(parent);
                let (text, holder) = self.child(parent, token);
                let fits = |page: &PageIndex| {
                    self.pages[page.0 as usize].text.as_ref().unwrap().parent == text.parent
                };
                let expected = holder.filter(fits);
                assert_eq!(self.pool.find(link, &page_of(token)), expected);
                if let Some(page) = expected {
                    self.hold(page);
                }
            }
            Op::Unpublish(i) => {
                if let Some(page) = held(i).filter(|page| !self.pool.is_shared(*page)) {
                    self.pool.unpublish(page);
                    self.naive(page).text = None;
                }
            }
        }
    }

    fn publish(&mut self, page: PageIndex, parent: usize, token: u32) {
        let (parent, link) = self.parent(parent);
        let (text, holder) = self.child(parent, token);
        let available = self.pool.available();
        let kept = self.pool.publish(link, &page_of(token), page);
        assert!(self.pool.available() >= available);
        if self.naive(page).text.is_some() {
            assert_eq!(kept, page, "it is published already");
            return;
        }
        let there = holder.map(|holder| self.naive(holder).text.clone().unwrap().parent);
        if let Some(holder) = holder.filter(|_| there == Some(text.parent)) {
            if self.naive(page).count > 1 {
                assert_eq!(kept, page, "others reference it too");
                return;
            }
            assert_eq!(kept, holder);
            let i = self.held.iter().position(|held| *held == page).unwrap();
            self.held.swap_remove(i);
            self.drop_count(page);
            self.hold(holder);
            return;
        }
        assert_eq!(kept, page);
        if let Some(orphan) = holder {
            self.naive(orphan).text = None;
            self.idle.retain(|other| *other != orphan);
        }
        self.editions = text.edition;
        self.naive(page).text = Some(text);
    }

    fn check(&self) {
        let usage = self
            .pool
            .audit(std::iter::once(self.held.as_slice()))
            .unwrap();
        let referenced = self.pages.iter().filter(|naive| naive.count > 0).count();
        assert_eq!(
            (usage.cached, usage.referenced),
            (self.idle.len(), referenced)
        );
        assert_eq!(usage.free + usage.cached, self.pool.available());
        assert_eq!(
            usage.free + usage.cached + usage.referenced,
            self.pages.len()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_operations_leave_the_pool_as_a_naive_one(ops in ops(), pages in 1..10_usize) {
        let mut trial = Trial {
            pool: pool(pages),
            pages: vec![Naive::default(); pages],
            held: Vec::new(),
            idle: Vec::new(),
            editions: 0,
        };
        for op in ops {
            trial.apply(op);
            trial.check();
        }
        while !trial.held.is_empty() {
            trial.apply(Op::Release(0));
        }
        trial.check();
        prop_assert_eq!(trial.pool.usage().referenced, 0);
    }

    #[test]
    fn the_idle_list_is_a_queue_that_members_can_leave(
        ops in prop::collection::vec((0..8_u32, any::<bool>()), 0..60),
    ) {
        let mut list = IdleList::new(8);
        let mut naive: Vec<PageIndex> = Vec::new();
        for (page, pop) in ops {
            let page = PageIndex(page);
            if pop {
                let first = (!naive.is_empty()).then(|| naive.remove(0));
                prop_assert_eq!(list.pop(), first);
            } else if let Some(i) = naive.iter().position(|other| *other == page) {
                naive.remove(i);
                list.remove(page);
            } else {
                naive.push(page);
                list.push(page);
            }
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), naive.clone());
            prop_assert_eq!(list.len(), naive.len());
        }
    }
}
