//! What somebody may have meant.

/// The name that shares most letters in order with what was asked for, if it is most of them. Of both: a short name is found in any
/// long word.
pub(crate) fn nearest(asked: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let asked = asked.to_lowercase();
    known
        .map(|known| (known.to_lowercase(), known))
        .map(|(small, known)| (closeness(&small, &asked), !asked.is_empty() && small.contains(&asked), known))
        .filter(|((common, longer), is_part, _)| common * 2 >= *longer || *is_part)
        .max_by(|((a, of_a), ..), ((b, of_b), ..)| (a * of_b).cmp(&(b * of_a)))
        .map(|(.., known)| known)
}

/// How many letters two names share in order, and how many the longer one has.
fn closeness(known: &str, asked: &str) -> (usize, usize) {
    let mut best = vec![0; known.len() + 1];
    for letter in asked.bytes() {
        let mut before = 0;
        for (at, other) in known.bytes().enumerate() {
            let here = if letter == other { before + 1 } else { best[at + 1].max(best[at]) };
            before = best[at + 1];
            best[at + 1] = here;
        }
    }
    (best[known.len()], known.len().max(asked.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_the_one_with_most_letters_in_common() {
        let known = ["retry-wall", "retry-storm", "retry-chain", "cron"];
        let near = |asked| nearest(asked, known.into_iter());
        assert_eq!(near("retry-strom"), Some("retry-storm"));
        assert_eq!(near("retrychain"), Some("retry-chain"));
        assert_eq!(near("wall"), Some("retry-wall"));
        assert_eq!((near("quicksort"), near("")), (None, None));
    }
}
