//! The one form in which AWS writes a time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Writes `YYYYMMDDThhmmssZ`; none before 1970 and after 9999.
pub(super) fn amz(time: SystemTime) -> Option<String> {
    let secs = time.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = date(days);
    if year > 9999 {
        return None;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    Some(format!(
        "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"
    ))
}

/// The day so many days after 1970-01-01. Years begin in March here, so that the day that comes and goes is their last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (year + era * 400 + next, month, day)
}

/// Tells whether a text is such a time.
pub(super) fn is_amz(text: &str) -> bool {
    text.len() == 16
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 => b == b'T',
            15 => b == b'Z',
            _ => b.is_ascii_digit(),
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_aws_does() {
        for (secs, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(secs);
            assert_eq!(amz(time).as_deref(), Some(text));
            assert!(is_amz(text));
        }
        assert_eq!(amz(UNIX_EPOCH - Duration::from_secs(1)), None);
        assert!(!is_amz("2015-08-30T12:36"));
    }
}
