use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

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

#[test]
fn the_request_itself_comes_before_the_table() {
    let tokens = ids(&[1, 2, 3, 4, 1, 2]);
    let mut index = SuffixIndex::new(64);
    index.extend(&tokens);
    let mut table = Recycling::new(10);
    table.observe(TokenId(2), TokenId(9));
    table.observe(TokenId(5), TokenId(6));
    let mut proposals = vec![TokenId(8)];
    let origin = propose(&index, Some(&table), &tokens, 2, &mut proposals);
    assert_eq!(origin, Origin::Suffix(2));
    assert_eq!(proposals, ids(&[3, 4]));
    let fresh = ids(&[7, 5]);
    let mut index = SuffixIndex::new(64);
    index.extend(&fresh);
    let origin = propose(&index, Some(&table), &fresh, 2, &mut proposals);
    assert_eq!((origin, &proposals[..]), (Origin::Recycled, &ids(&[6])[..]));
    let origin = propose(&index, None, &fresh, 2, &mut proposals);
    assert_eq!((origin, proposals.len()), (Origin::Nothing, 0));
    let origin = propose(&index, Some(&table), &[], 2, &mut proposals);
    assert_eq!((origin, proposals.len()), (Origin::Nothing, 0));
}
