//! The name somebody probably meant.

/// The name of `known` nearest to `name`, if one is near enough to be a slip of the finger.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    known
        .iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_single_character_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_slip_finds_the_name_and_a_different_word_finds_none() {
        let known = ["replicas", "scaling", "parallelism"];
        assert_eq!(nearest("replcias", &known), Some("replicas"));
        assert_eq!(nearest("Replicas", &known), Some("replicas"));
        assert_eq!(nearest("storage", &known), None);
    }
}
