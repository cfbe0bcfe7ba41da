//! Numbers on the command line: whatever is said instead of one is told the range.

/// A whole number from the least to the most.
pub(super) fn whole<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("it takes a whole number from {least} to {most}"))
    }
}

/// What everything random follows from.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    whole(0, u64::MAX)(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_such_number_is_told_the_range() {
        let read = whole::<u32>(1, 100);
        assert_eq!((read("1"), read("100")), (Ok(1), Ok(100)));
        for text in ["0", "101", "-1", "1.5", "abc", "", "99999999999999999999"] {
            assert_eq!(read(text), Err("it takes a whole number from 1 to 100".into()), "{text:?}");
        }
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
    }
}
