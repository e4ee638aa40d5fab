//! An item of the model, and the replies that contain it.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub flags: u16,
    pub value: Vec<u8>,
}

/// Parses a number as memcached does.
pub fn number(value: &[u8]) -> Option<u64> {
    // Bytes that are not UTF-8 are neither digits nor spaces.
    let text = String::from_utf8_lossy(value);
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, text) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let behind = text[digits..].bytes().next();
    if digits == 0 || behind.is_some_and(|byte| !b" \t\n\x0b\x0c\r".contains(&byte)) {
        return None;
    }
    let value: u64 = text[..digits].parse().ok()?;
    match negative {
        false => Some(value),
        true => Some(value.wrapping_neg()).filter(|value| (*value as i64) >= 0),
    }
}

/// Changes an item's number. `None` if it is not a number.
pub fn apply_delta(item: &mut Item, amount: u64, up: bool) -> Option<u64> {
    let old = number(&item.value)?;
    let new = if up { old.wrapping_add(amount) } else { old.saturating_sub(amount) };
    let mut text = new.to_string().into_bytes();
    text.resize(text.len().max(item.value.len()), b' ');
    item.value = text;
    Some(new)
}

/// The reply to `get`, or to `gets`.
pub fn got(key: &str, item: Option<&Item>, cas: Option<u64>) -> Vec<u8> {
    let Some(item) = item else { return b"END\r\n".to_vec() };
    let cas = cas.map_or(String::new(), |cas| format!(" {cas}"));
    let line = format!("VALUE {key} {} {}{cas}\r\n", item.flags, item.value.len());
    [line.as_bytes(), &item.value, b"\r\nEND\r\n"].concat()
}

/// The reply to `mg`.
pub fn meta_got(item: &Item, value: bool, flags: bool, size: bool) -> Vec<u8> {
    let mut reply = if value { format!("VA {}", item.value.len()) } else { "HD".to_owned() };
    if flags {
        reply.push_str(&format!(" f{}", item.flags));
    }
    if size {
        reply.push_str(&format!(" s{}", item.value.len()));
    }
    let block: &[&[u8]] = if value { &[&item.value, b"\r\n"] } else { &[] };
    [reply.as_bytes(), b"\r\n", &block.concat()].concat()
}
