//! Points in time as transcripts write them. This crate never reads a clock.

use protocol::UnixMillis;

/// Returns a time as ISO 8601 in UTC with milliseconds.
pub(crate) fn iso(at: UnixMillis) -> String {
    let (secs, millis) = (at.0 / 1000, at.0 % 1000);
    let (days, rest) = (secs / 86_400, secs % 86_400);
    // Civil date from days (Howard Hinnant's algorithm), for years from 1970 on.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z - era * 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (
        doy - (153 * mp + 2) / 5 + 1,
        if mp < 10 { mp + 3 } else { mp - 9 },
    );
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(iso(UnixMillis(0)), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            iso(UnixMillis(1_796_011_203_455)),
            "2026-11-30T04:00:03.455Z"
        );
        assert_eq!(
            iso(UnixMillis(1_709_164_800_001)),
            "2024-02-29T00:00:00.001Z"
        );
    }
}
