//! Times as GitHub writes them: `2026-11-30T21:25:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads one. Fractions of a second are left out; zones other than UTC are not read.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
    let time = time.split('.').next()?;
    let [year, month, day] = numbers(day, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let fits = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !fits {
        return None;
    }
    // Years begin in March here, so that the day that comes and goes is their last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    let secs = days * 86_400 + hour * 3600 + minute * 60 + second;
    Some(UNIX_EPOCH + Duration::from_secs(secs))
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let numbers: Option<Vec<u64>> = text
        .split(between)
        .map(|part| {
            let digits = part.bytes().all(|b| b.is_ascii_digit()) && part.len() <= 4;
            digits.then(|| part.parse().ok()).flatten()
        })
        .collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_they_are_written() {
        for (text, secs) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2016-07-11T22:14:10Z", 1_468_275_250),
            ("2024-12-31T23:59:59.123Z", 1_735_689_599),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(
                parse(text),
                Some(UNIX_EPOCH + Duration::from_secs(secs)),
                "{text}"
            );
        }
        for text in [
            "",
            "2016-07-11",
            "2016-07-11T22:14:10+02:00",
            "2016-13-11T22:14:10Z",
            "a-b-cT1:2:3Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
