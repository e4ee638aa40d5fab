//! Commands that tune parts of memcached that this server does not have. Valid settings are
//! accepted without effect.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{BAD_FORMAT, ERROR, OK};
use crate::memcached::numbers;

pub const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
/// memcached's highest slab class.
const MAX_CLASS: u32 = 63;
/// What hot and warm items may take together, in percent.
const MAX_PERCENT: u64 = 80;

/// There are no slab classes to move pages between.
pub fn slabs(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"reassign", _, _] => b"CLIENT_ERROR slab reassignment disabled\r\n",
        [b"automove", b"ratio" | b"freeratio", ratio, ..] if float(ratio).is_some() => OK,
        [b"automove", b"ratio" | b"freeratio", ..] => ERROR,
        [b"automove", b"window", rest @ ..] => {
            match rest.first().and_then(|seconds| numbers::digits_u32(seconds)) {
                Some(3..=1800) => OK,
                Some(_) => b"CLIENT_ERROR automove window too low or too high\r\n",
                None => BAD_FORMAT,
            }
        }
        [b"automove", level, ..] => match numbers::digits_u32(level) {
            Some(0..=2) => OK,
            Some(_) => ERROR,
            None => BAD_FORMAT,
        },
        _ => ERROR,
    }
}

/// The eviction policy is fixed.
pub fn lru(arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"mode", b"flat" | b"segmented", ..] => OK,
        [b"temp_ttl", ttl, ..] if numbers::digits_i32(ttl).is_some() => OK,
        [b"tune", hot, warm, hot_age, warm_age, ..] => tune(hot, warm, [hot_age, warm_age]),
        _ => ERROR,
    }
}

fn tune(hot: &[u8], warm: &[u8], ages: [&[u8]; 2]) -> &'static [u8] {
    let percents = (numbers::digits_u32(hot), numbers::digits_u32(warm));
    let ((Some(hot), Some(warm)), [Some(hot_age), Some(warm_age)]) = (percents, ages.map(float)) else {
        return ERROR;
    };
    if u64::from(hot) + u64::from(warm) > MAX_PERCENT {
        b"ERROR hot and warm pcts must not exceed 80\r\n"
    } else if hot_age <= 0.0 || warm_age <= 0.0 {
        b"ERROR hot/warm age factors must be greater than 0\r\n"
    } else {
        OK
    }
}

fn float(text: &[u8]) -> Option<f64> {
    str::from_utf8(text).ok()?.parse().ok()
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
pub fn lru_crawler(disabled: &AtomicBool, arguments: &[&[u8]]) -> &'static [u8] {
    match arguments {
        [b"enable"] => match disabled.swap(false, Ordering::Relaxed) {
            true => OK,
            false => b"ERROR failed to start lru crawler thread\r\n",
        },
        [b"disable"] => {
            disabled.store(true, Ordering::Relaxed);
            OK
        }
        [b"crawl" | b"metadump" | b"mgdump", _] if disabled.load(Ordering::Relaxed) => {
            b"CLIENT_ERROR lru crawler disabled\r\n"
        }
        [b"crawl", classes] => has_items(classes).map_or(BAD_CLASS, |_| OK),
        [b"tocrawl", number] => numbers::digits_u32(number).map_or(BAD_FORMAT, |_| OK),
        [b"sleep", micros] => match numbers::digits_u32(micros) {
            Some(0..=1_000_000) => OK,
            Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
            None => BAD_FORMAT,
        },
        _ => ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_classes_is_valid_or_not_and_has_items_or_not() {
        for (classes, has) in [
            ("all", Some(true)),
            ("hash", Some(true)),
            ("1", Some(true)),
            ("5,1", Some(true)),
            ("2,63", Some(false)),
            ("0", None),
            ("1,64", None),
            ("x", None),
        ] {
            assert_eq!(has_items(classes.as_bytes()), has, "{classes}");
        }
    }

    #[test]
    fn a_disabled_crawler_lists_nothing_until_it_is_enabled() {
        let disabled = AtomicBool::new(false);
        let execute = |arguments: &[&[u8]]| lru_crawler(&disabled, arguments);
        assert_eq!(execute(&[b"enable"]), b"ERROR failed to start lru crawler thread\r\n");
        assert_eq!((execute(&[b"disable"]), disabled.load(Ordering::Relaxed)), (OK, true));
        for command in [&b"crawl"[..], b"metadump", b"mgdump"] {
            assert_eq!(execute(&[command, b"all"]), b"CLIENT_ERROR lru crawler disabled\r\n");
        }
        assert_eq!((execute(&[b"enable"]), disabled.load(Ordering::Relaxed)), (OK, false));
        assert_eq!(execute(&[b"crawl", b"all"]), OK);
    }
}
