use proptest::prelude::*;

use super::*;

/// Text shown and stop string found when `pieces` come one after the other.
fn run(strings: &[&str], include: bool, pieces: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(Arc::new(StopStrings::new(strings)), include);
    let mut out = String::new();
    for piece in pieces {
        if let Some(index) = matcher.push(piece, &mut out) {
            return (out, Some(index));
        }
    }
    matcher.finish(&mut out);
    (out, None)
}

/// What the definition says: the first end, after so many bytes, of any stop string, the longest of
/// those.
fn reference(strings: &[String], text: &str, after: usize) -> Option<(usize, usize)> {
    (after + 1..=text.len())
        .filter(|&end| text.is_char_boundary(end))
        .find_map(|end| {
            let ending = strings
                .iter()
                .filter(|s| !s.is_empty() && text[..end].ends_with(*s));
            ending.map(|s| (end - s.len(), end)).min()
        })
}

#[test]
fn a_stop_string_across_pieces_is_found_and_cut() {
    assert_eq!(
        run(&["stop"], false, &["one s", "to", "p two"]),
        ("one ".into(), Some(0))
    );
    assert_eq!(
        run(&["stop"], true, &["one s", "to", "p two"]),
        ("one stop".into(), Some(0))
    );
}

#[test]
fn text_that_may_begin_a_stop_string_is_held_back_and_comes_later() {
    let mut matcher = StopMatcher::new(Arc::new(StopStrings::new(&["\n\n"])), false);
    let mut out = String::new();
    assert_eq!(matcher.push("a\n", &mut out), None);
    assert_eq!(out, "a");
    assert_eq!(matcher.push("b", &mut out), None);
    assert_eq!(out, "a\nb");
    assert_eq!(matcher.push("c\n", &mut out), None);
    matcher.finish(&mut out);
    assert_eq!(out, "a\nbc\n");
}

#[test]
fn of_strings_that_end_together_the_longest_counts() {
    assert_eq!(run(&["b", "ab"], false, &["xab"]), ("x".into(), Some(1)));
    assert_eq!(
        run(&["abcd", "bc"], false, &["abcd"]),
        ("a".into(), Some(1))
    );
}

#[test]
fn characters_are_never_split() {
    assert_eq!(
        run(&["é!", "日本"], false, &["caf", "é", "日", "本"]),
        ("café".into(), Some(1))
    );
    assert_eq!(
        run(&["日本"], false, &["日", "日月"]),
        ("日日月".into(), None)
    );
}

#[test]
fn a_thousand_strings_are_as_good_as_one() {
    let strings: Vec<String> = (0..1000).map(|i| format!("<end-{i}>")).collect();
    let refs: Vec<&str> = strings.iter().map(String::as_str).collect();
    let text = "<end-<end-99".repeat(50);
    let (out, found) = run(&refs, false, &[&text, "9> tail"]);
    assert_eq!(found, Some(999));
    assert_eq!(out, text[..text.len() - "<end-99".len()]);
}

#[test]
fn strings_take_little_more_than_their_bytes() {
    let strings: Vec<String> = (0..64).map(|i| format!("{i:04096}")).collect();
    let StopStrings {
        bytes,
        after,
        fail,
        depth,
        found,
        lengths,
    } = StopStrings::new(&strings);
    let words = [after, fail, depth, found, lengths].map(|words| words.capacity());
    let taken = bytes.capacity() + 4 * words.iter().sum::<usize>();
    let given: usize = strings.iter().map(String::len).sum();
    assert!(taken < 18 * given, "{taken} for {given}");
}

#[test]
fn without_strings_nothing_is_held_back() {
    let mut matcher = StopMatcher::new(Arc::new(StopStrings::new::<&str>(&[])), false);
    let mut out = String::new();
    assert_eq!(matcher.push("abc", &mut out), None);
    assert_eq!(out, "abc");
}

/// Checks what was shown of `text` and found in it against the definition, if what ends in the first
/// `after` bytes does not count.
fn agrees(
    strings: &[String],
    include: bool,
    (text, after): (&str, usize),
    (out, found): (&str, Option<usize>),
) -> Result<(), TestCaseError> {
    match reference(strings, text, after) {
        None => {
            prop_assert_eq!(found, None);
            prop_assert_eq!(out, text);
        }
        Some((start, end)) => {
            let index = found.expect("found");
            prop_assert_eq!(&strings[index], &text[start..end]);
            prop_assert_eq!(
                out,
                if include {
                    &text[..end]
                } else {
                    &text[..start]
                }
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_pieces_give_what_the_definition_says(
        strings in prop::collection::vec("[abé]{0,4}", 0..6),
        pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        include in any::<bool>(),
    ) {
        let text = pieces.concat();
        let refs: Vec<&str> = strings.iter().map(String::as_str).collect();
        let parts: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (out, found) = run(&refs, include, &parts);
        agrees(&strings, include, (&text, 0), (&out, found))?;
    }

    #[test]
    fn a_stop_string_that_ends_after_what_is_passed_counts_wherever_it_begins(
        strings in prop::collection::vec("[abé]{0,4}", 0..6),
        passed in prop::collection::vec("[abcé]{0,5}", 0..4),
        pieces in prop::collection::vec("[abcé]{0,5}", 0..6),
        include in any::<bool>(),
    ) {
        let mut matcher = StopMatcher::new(Arc::new(StopStrings::new(&strings)), include);
        let mut out = String::new();
        for piece in &passed {
            matcher.pass(piece, &mut out);
        }
        let found = pieces.iter().find_map(|piece| matcher.push(piece, &mut out));
        if found.is_none() {
            matcher.finish(&mut out);
        }
        let passed = passed.concat();
        let text = passed.clone() + &pieces.concat();
        agrees(&strings, include, (&text, passed.len()), (&out, found))?;
    }

    #[test]
    fn what_is_held_back_is_never_more_than_the_beginning_of_a_stop_string(
        strings in prop::collection::vec("[ab]{1,5}", 1..4),
        text in "[abc]{0,20}",
    ) {
        let mut matcher = StopMatcher::new(Arc::new(StopStrings::new(&strings)), false);
        let mut out = String::new();
        if matcher.push(&text, &mut out).is_none() {
            let held = &text[out.len()..];
            prop_assert!(held.is_empty() || strings.iter().any(|s| s.starts_with(held)));
        }
    }
}
