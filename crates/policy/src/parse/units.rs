//! Sizes and times as people write them.

use std::time::Duration;

use super::PolicyError;
use super::fields::Item;

/// The longest that a request is held for a word of somebody.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads `10MiB`, or a number of bytes.
pub(super) fn size(item: &Item<'_>) -> Result<u64, PolicyError> {
    if !item.is_string() {
        return item.number(1, u64::MAX);
    }
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("kB", 1000),
        ("KB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
    ];
    let size = number_with(item.string()?, &units).filter(|&size| size > 0);
    size.ok_or_else(|| {
        item.error(
            "this is no size",
            "sizes like \"10MiB\", \"500kB\", \"1GiB\"",
        )
    })
}

/// Reads `90s`.
pub(super) fn time(item: &Item<'_>) -> Result<Duration, PolicyError> {
    let seconds = number_with(item.string()?, &[("s", 1), ("m", 60), ("h", 3600)]);
    let time = seconds
        .map(Duration::from_secs)
        .filter(|time| !time.is_zero() && *time <= MAX_TIMEOUT);
    time.ok_or_else(|| {
        item.error(
            "this is no time to wait",
            "times like \"90s\", \"10m\", \"24h\", and no longer ones",
        )
    })
}

fn number_with(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(unit, is)| Some((text.strip_suffix(unit)?, *is)))?;
    let number = number.trim_end_matches(' ');
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    plain
        .then(|| number.parse::<u64>().ok()?.checked_mul(unit))
        .flatten()
}
