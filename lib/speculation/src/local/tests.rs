use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::TokenId;

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().copied().map(TokenId).collect()
}

/// What follows the longest of the suffixes of 8, 6, 4, 3 and 2 tokens that occurred before, where
/// it did last; by looking everywhere.
fn naive_suffix(tokens: &[TokenId], n: usize) -> Option<(u32, Vec<TokenId>)> {
    for length in [8, 6, 4, 3, 2] {
        if tokens.len() < length {
            continue;
        }
        let suffix = &tokens[tokens.len() - length..];
        let ends = (length..tokens.len()).rev();
        if let Some(end) = ends
            .into_iter()
            .find(|end| &tokens[end - length..*end] == suffix)
        {
            let mut text = tokens.to_vec();
            (0..n).for_each(|i| text.push(text[end + i]));
            return Some((length as u32, text.split_off(tokens.len())));
        }
    }
    None
}

/// Sequences that repeat themselves, of few different tokens.
fn any_tokens() -> impl Strategy<Value = Vec<TokenId>> {
    (1..12_u32, 0..300_usize)
        .prop_flat_map(|(kinds, len)| prop::collection::vec((0..kinds).prop_map(TokenId), len))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn the_longest_and_latest_match_is_continued(
        tokens in any_tokens(), n in 0..12_usize, steps in prop::collection::vec(1..40_usize, 1..20),
    ) {
        let mut index = SuffixIndex::new(1000);
        let (mut proposals, mut len) = (Vec::new(), 0);
        for step in steps {
            len = (len + step).min(tokens.len());
            let tokens = &tokens[..len];
            index.extend(tokens);
            let matched = index.propose(tokens, n, &mut proposals);
            let expected = naive_suffix(tokens, n);
            prop_assert_eq!(matched, expected.as_ref().map(|expected| expected.0));
            prop_assert_eq!(&proposals, &expected.map(|expected| expected.1).unwrap_or_default());
        }
    }

    #[test]
    fn a_bounded_index_finds_at_least_what_is_recent(
        tokens in any_tokens(), positions in 1..40_usize,
    ) {
        let mut index = SuffixIndex::new(positions);
        let mut proposals = Vec::new();
        for len in 0..=tokens.len() {
            index.extend(&tokens[..len]);
            let matched = index.propose(&tokens[..len], 3, &mut proposals);
            // Matches that end among the last `positions` tokens and begin anywhere.
            let recent = (2..=8).filter(|length| [8, 6, 4, 3, 2].contains(length)).rev();
            let expected = recent.into_iter().find(|&length| {
                len > length && (len.saturating_sub(positions).max(length)..len)
                    .any(|end| tokens[end - length..end] == tokens[len - length..len])
            });
            prop_assert!(matched.unwrap_or(0) >= expected.unwrap_or(0) as u32);
            if matched.is_some() {
                prop_assert_eq!(proposals.len(), 3);
            }
        }
    }

    #[test]
    fn recycled_successors_are_the_latest_different_ones(tokens in any_tokens()) {
        let mut table = Recycling::new(12);
        table.extend(&tokens);
        for token in (0..12).map(TokenId) {
            let mut expected: Vec<TokenId> = Vec::new();
            for pair in tokens.windows(2).rev() {
                if pair[0] == token && !expected.contains(&pair[1]) {
                    expected.push(pair[1]);
                }
            }
            expected.truncate(8);
            let found: Vec<TokenId> = table.successors(token).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_index_of_another_sequence_continues_only_what_is_there(tokens in any_tokens(), other in any_tokens()) {
        let mut index = SuffixIndex::new(16);
        index.extend(&tokens);
        let mut proposals = Vec::new();
        if let Some(matched) = index.propose(&other, 5, &mut proposals) {
            // Whatever the index says, what is continued is a place of this sequence.
            let length = matched as usize;
            let mut ends = length..other.len();
            let suffix = &other[other.len() - length..];
            prop_assert!(ends.any(|end| &other[end - length..end] == suffix));
        }
        prop_assert!(proposals.len() <= 5);
        index.extend(&other);
        index.propose(&other, 5, &mut proposals);
    }
}

#[test]
fn periodic_text_goes_on_without_end() {
    let tokens = ids(&[7, 1, 2, 3, 1, 2, 3]);
    let mut index = SuffixIndex::new(64);
    index.extend(&tokens);
    let mut proposals = Vec::new();
    assert_eq!(index.propose(&tokens, 8, &mut proposals), Some(3));
    assert_eq!(proposals, ids(&[1, 2, 3, 1, 2, 3, 1, 2]));
}

#[test]
fn memory_is_bounded_however_long_the_sequence() {
    let mut index = SuffixIndex::new(100);
    let tokens: Vec<TokenId> = (0..50_000).map(TokenId).collect();
    for end in (0..=tokens.len()).step_by(1000) {
        index.extend(&tokens[..end]);
    }
    assert!(index.slots() <= 2 * 2048, "{} slots", index.slots());
}

#[test]
fn chains_of_successors_end_where_nothing_is_known() {
    let mut table = Recycling::new(10);
    table.extend(&ids(&[1, 2, 3, 1, 4]));
    let mut proposals = Vec::new();
    table.propose(TokenId(3), 9, &mut proposals);
    assert_eq!(proposals, ids(&[1, 4]));
    table.propose(TokenId(9), 9, &mut proposals);
    assert!(proposals.is_empty());
    // Outside the vocabulary.
    table.observe(TokenId(10), TokenId(1));
    table.observe(TokenId(1), TokenId(10));
    table.observe(TokenId(u32::MAX), TokenId(u32::MAX));
    assert_eq!(table.successors(TokenId(1)).next(), Some(TokenId(4)));
    assert_eq!(table.successors(TokenId(u32::MAX)).count(), 0);
}

/// A proposer that follows `tokens`, all of them new, for the one tenant that there is.
fn told(tokens: &[TokenId]) -> (Proposer, Tenants<()>) {
    let mut tenants = Tenants::new(1000, 0);
    let mut proposer = Proposer::new(64);
    proposer.follow(tokens, &[], 4, &mut tenants.of((), true));
    (proposer, tenants)
}

fn free(_: u32) -> f64 {
    0.0
}

#[test]
fn the_source_that_was_right_is_believed() {
    // "1 2" is followed by something new each time.
    let mut tokens = Vec::new();
    for i in 0..60 {
        tokens.extend(ids(&[1, 2, 100 + 2 * i, 101 + 2 * i]));
    }
    let (mut proposer, mut tenants) = told(&tokens[..4]);
    let mut tenant = tenants.of((), true);
    for i in 4..tokens.len() {
        proposer.follow(&tokens[..i], &tokens[i..=i], 4, &mut tenant);
    }
    let first = |tenant: &Tenant<'_>, origin| tenant.yields.reached(origin).next().unwrap();
    let short = first(&tenant, Origin::Suffix(2));
    assert!(short < 0.1, "{short}: it was always wrong");
    // The table knows what follows 1, but not what follows 2.
    let recycled = first(&tenant, Origin::Recycled);
    assert!((recycled - 0.5).abs() < 0.1, "{recycled}");
    // A new request of the tenant, that has said nothing yet, has the table.
    let said = ids(&[9, 5, 6, 7, 8]);
    tenant.recycling.as_mut().unwrap().extend(&said);
    let mut other = Proposer::new(64);
    other.follow(&ids(&[50, 9]), &[], 4, &mut tenant);
    let proposal = other.propose(tenant.yields, free);
    assert_eq!(proposal.origin, Origin::Recycled);
    assert_eq!(proposal.tokens, ids(&[5, 6, 7, 8]));
    assert!(proposal.accepted > 0.4);
    // Where both have something to say, the more trustworthy one is heard.
    other.follow(&ids(&[50, 9, 1, 2, 33, 1, 2]), &[], 4, &mut tenant);
    let after = |tenant: &Tenant<'_>| other.propose(tenant.yields, free).origin;
    assert_eq!(after(&tenant), Origin::Recycled);
    for _ in 0..400 {
        tenant.yields.observe(Origin::Suffix(2), 4, 4);
        tenant.yields.observe(Origin::Recycled, 4, 0);
    }
    assert_eq!(after(&tenant), Origin::Suffix(2));
}

#[test]
fn proposals_end_where_a_row_costs_more_than_it_brings() {
    let (proposer, mut tenants) = told(&ids(&[1, 2, 3, 4, 5, 1, 2]));
    let tenant = tenants.of((), true);
    // Of four tokens the first is accepted always, the second half of the times.
    for i in 0..2000 {
        tenant.yields.observe(Origin::Suffix(2), 4, 1 + i % 2);
        tenant.yields.observe(Origin::Recycled, 4, 0);
    }
    let propose = |price: f64| {
        let proposal = proposer.propose(tenant.yields, |rows| price * f64::from(rows));
        (proposal.tokens.len(), proposal.accepted)
    };
    assert_eq!(propose(0.0).0, 4);
    assert_eq!(propose(0.3).0, 2);
    assert_eq!(propose(0.7).0, 1);
    assert!((propose(0.7).1 - 1.0).abs() < 0.02);
    assert_eq!(propose(1.1), (0, 0.0));
    // Steps whose cost rises by stairs: the second row comes for nothing.
    let stairs = |rows| if rows > 0 { 1.2 } else { 0.0 };
    assert_eq!(proposer.propose(tenant.yields, stairs).tokens.len(), 4);
}

#[test]
fn how_good_proposals_are_is_learned_without_proposing_any() {
    let tokens: Vec<TokenId> = (0..400).map(|i| TokenId(i % 5)).collect();
    let (mut proposer, mut tenants) = told(&tokens[..20]);
    let mut tenant = tenants.of((), true);
    let worth = |proposer: &Proposer, tenant: &Tenant<'_>| {
        let dear = |rows| 0.85 * f64::from(rows);
        proposer.propose(tenant.yields, dear).tokens.len()
    };
    assert_eq!(worth(&proposer, &tenant), 0, "nothing is known yet");
    let mut end = 20;
    while end < 380 {
        // Verdicts of one to four tokens, some of them not told.
        let emitted = 1 + end % 4;
        end += emitted + (end % 3);
        proposer.follow(
            &tokens[..end - emitted],
            &tokens[end - emitted..end],
            4,
            &mut tenant,
        );
    }
    assert_eq!(worth(&proposer, &tenant), 4);
}

/// What a new request of `key` is proposed after token 1.
fn after_one<K: Copy + PartialEq>(
    tenants: &mut Tenants<K>,
    key: K,
    recycles: bool,
) -> Vec<TokenId> {
    let mut proposer = Proposer::new(64);
    let mut tenant = tenants.of(key, recycles);
    proposer.follow(&ids(&[1]), &[], 3, &mut tenant);
    proposer.propose(tenant.yields, free).tokens.to_vec()
}

/// A request of `key` says "1 2 3 1 2 3".
fn say<K: Copy + PartialEq>(tenants: &mut Tenants<K>, key: K, recycles: bool) {
    let said = ids(&[1, 2, 3, 1, 2, 3]);
    let mut tenant = tenants.of(key, recycles);
    Proposer::new(64).follow(&said, &[], 3, &mut tenant);
}

#[test]
fn what_one_tenant_said_is_never_proposed_to_another() {
    let mut tenants = Tenants::new(100, Recycling::bytes(100) * 2);
    say(&mut tenants, "a", true);
    assert_eq!(after_one(&mut tenants, "a", true), ids(&[2, 3, 1]));
    assert_eq!(after_one(&mut tenants, "b", true), []);
    // A request that shares nothing neither takes nor gives.
    assert_eq!(after_one(&mut tenants, "a", false), []);
    say(&mut tenants, "b", false);
    assert_eq!(after_one(&mut tenants, "b", true), []);
    // Nor does anybody inherit what somebody had who is long gone.
    for _ in 0..2000 {
        after_one(&mut tenants, "b", true);
    }
    assert_eq!(after_one(&mut tenants, "c", true), []);
    say(&mut tenants, "c", true);
    assert_eq!(after_one(&mut tenants, "c", true), ids(&[2, 3, 1]));
    assert_eq!(after_one(&mut tenants, "a", true), [], "it was forgotten");
}

#[test]
fn a_table_in_use_is_never_taken_away_however_many_want_one() {
    let mut tenants = Tenants::new(100, Recycling::bytes(100) * 3);
    for round in 0..1000 {
        let proposed: Vec<_> = (0..4)
            .map(|key| after_one(&mut tenants, key, true))
            .collect();
        if round > 0 {
            let know = proposed.iter().filter(|tokens| tokens.len() == 3).count();
            assert_eq!((know, proposed[3].len()), (3, 0), "in round {round}");
        }
        (0..4).for_each(|key| say(&mut tenants, key, true));
    }
    // Of one that nobody uses any more, the one that waits for it has the place.
    for _ in 0..1000 {
        (1..4).for_each(|key| say(&mut tenants, key, true));
    }
    let lens = [1, 2, 3, 0].map(|key| after_one(&mut tenants, key, true).len());
    assert_eq!(lens, [3, 3, 3, 0]);
}

#[test]
fn who_has_no_part_in_a_table_takes_none_from_others() {
    let mut tenants = Tenants::new(100, Recycling::bytes(100));
    for key in 0..9 {
        say(&mut tenants, key, false);
    }
    say(&mut tenants, 9, true);
    assert_eq!(after_one(&mut tenants, 9, true), ids(&[2, 3, 1]));
    assert!(tenants.of(9, false).recycling.is_none());
}

#[test]
fn how_good_proposals_are_is_kept_where_there_is_no_table() {
    let mut tenants = Tenants::new(100, Recycling::bytes(100));
    let seen = |tenants: &mut Tenants<u32>, key| {
        let tenant = tenants.of(key, true);
        tenant.yields.observe(Origin::Suffix(2), 1, 0);
        tenant.yields.reached(Origin::Suffix(2)).next().unwrap()
    };
    let alone = seen(&mut tenants, 0);
    for _ in 0..100 {
        (0..200).for_each(|key| _ = seen(&mut tenants, key));
    }
    for key in 0..200 {
        let known = seen(&mut tenants, key);
        assert!(known < 0.2 * alone, "tenant {key}: {known}");
    }
    // However many there are, one's figures are never another's, and no more are kept than some.
    for key in 200..100_000 {
        let known = seen(&mut tenants, key);
        assert!(known >= alone, "tenant {key}: {known}");
    }
}

#[test]
fn nothing_to_go_by_is_nothing_proposed() {
    for said in [&[][..], &[5], &[u32::MAX, 7, u32::MAX]] {
        let (proposer, mut tenants) = told(&ids(said));
        let yields = tenants.of((), true).yields;
        assert_eq!(proposer.propose(yields, free), Proposal::default());
    }
}
