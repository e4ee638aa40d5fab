//! Commands that tune parts of memcached that this server does not have. Valid settings are
//! accepted without effect.

use std::ops::RangeInclusive;

use crossbeam_utils::atomic::AtomicCell;

use super::{BAD_FORMAT, ERROR, OK};
use crate::memcached::numbers;

pub const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
const MAX_CLASS: u32 = 63;
/// What hot and warm items may take together, in percent.
const MAX_PERCENT: u64 = 80;

/// The reply to a number: `otherwise` if it is not in the range.
fn check(number: &[u8], range: RangeInclusive<u32>, otherwise: &'static [u8]) -> &'static [u8] {
    match numbers::digits_u32(number) {
        Some(number) if range.contains(&number) => OK,
        Some(_) => otherwise,
        None => BAD_FORMAT,
    }
}

fn float(text: &[u8]) -> Option<f64> {
    str::from_utf8(text).ok()?.parse().ok()
}

/// There are no slab classes to move pages between.
pub fn slabs(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"reassign", _, _] => b"CLIENT_ERROR slab reassignment disabled\r\n",
        [b"automove", b"ratio" | b"freeratio", ratio, ..] if float(ratio).is_some() => OK,
        [b"automove", b"ratio" | b"freeratio", ..] => ERROR,
        [b"automove", b"window", seconds, ..] => {
            check(seconds, 3..=1800, b"CLIENT_ERROR automove window too low or too high\r\n")
        }
        [b"automove", level, ..] => check(level, 0..=2, ERROR),
        _ => ERROR,
    }
}

/// The eviction policy is fixed.
pub fn lru(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"mode", b"flat" | b"segmented", ..] => OK,
        [b"temp_ttl", ttl, ..] if numbers::digits_i32(ttl).is_some() => OK,
        [b"tune", hot, warm, ages @ ..] if ages.len() >= 2 => {
            let percents = numbers::digits_u32(hot).zip(numbers::digits_u32(warm));
            match (percents, float(ages[0]).zip(float(ages[1]))) {
                (Some((hot, warm)), Some(_)) if u64::from(hot) + u64::from(warm) > MAX_PERCENT => {
                    b"ERROR hot and warm pcts must not exceed 80\r\n"
                }
                (Some(_), Some((hot, warm))) if hot > 0.0 && warm > 0.0 => OK,
                (Some(_), Some(_)) => b"ERROR hot/warm age factors must be greater than 0\r\n",
                _ => ERROR,
            }
        }
        _ => ERROR,
    }
}

/// Whether a list of slab classes, `all` or `hash` has class 1, in which all items are. `None` if
/// it is invalid.
pub fn has_items(classes: &[u8]) -> Option<bool> {
    if matches!(classes, b"all" | b"hash") {
        return Some(true);
    }
    let numbers = classes.split(|&byte| byte == b',').filter(|class| !class.is_empty());
    let mut classes =
        numbers.map(|class| numbers::digits_u32(class).filter(|class| (1..=MAX_CLASS).contains(class)));
    classes.try_fold(false, |found, class| class.map(|class| found || class == 1))
}

/// `disabled`: whether a client has disabled the crawler. Then it may not list keys; expired items
/// are removed all the same.
pub fn lru_crawler(disabled: &AtomicCell<bool>, arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"enable"] => match disabled.swap(false) {
            true => OK,
            false => b"ERROR failed to start lru crawler thread\r\n",
        },
        [b"disable"] => {
            disabled.store(true);
            OK
        }
        [b"crawl" | b"metadump" | b"mgdump", _] if disabled.load() => {
            b"CLIENT_ERROR lru crawler disabled\r\n"
        }
        [b"crawl", classes] => has_items(classes).map_or(BAD_CLASS, |_| OK),
        [b"tocrawl", number] => check(number, 0..=u32::MAX, ERROR),
        [b"sleep", micros] => {
            check(micros, 0..=1_000_000, b"CLIENT_ERROR sleep must be one second or less\r\n")
        }
        _ => ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disabled_crawler_lists_nothing_until_it_is_enabled() {
        let disabled = AtomicCell::new(false);
        let execute = |arguments: &[&[u8]]| lru_crawler(&disabled, arguments);
        assert_eq!(execute(&[b"enable"]), b"ERROR failed to start lru crawler thread\r\n");
        assert_eq!((execute(&[b"disable"]), disabled.load()), (OK, true));
        for command in [&b"crawl"[..], b"metadump", b"mgdump"] {
            assert_eq!(execute(&[command, b"all"]), b"CLIENT_ERROR lru crawler disabled\r\n");
        }
        assert_eq!((execute(&[b"enable"]), disabled.load()), (OK, false));
        assert_eq!(execute(&[b"crawl", b"all"]), OK);
    }
}
