//! The layout of netlink messages (`include/uapi/linux/netlink.h`): a header, the family's own
//! header, attributes.

/// `struct nlmsghdr`: length, type, flags, sequence number, port.
pub(super) const HEADER: usize = 16;
/// `NLA_F_NESTED`, and with `NLA_F_NET_BYTEORDER` the bits that are no part of an attribute's type.
const NESTED: u16 = 1 << 15;
const FLAGS: u16 = NESTED | 1 << 14;

/// A message without its `struct nlmsghdr`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The message's type: a command of rtnetlink, or the id of a generic netlink family.
    pub kind: u16,
    /// The family's header, and the attributes after it.
    pub body: Vec<u8>,
}

/// An attribute: its type and its value, numbers in host byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    kind: u16,
    value: Vec<u8>,
}

impl Attribute {
    /// An attribute with these bytes.
    pub fn bytes(kind: u16, value: impl Into<Vec<u8>>) -> Self {
        Self { kind, value: value.into() }
    }

    pub fn number(kind: u16, value: u32) -> Self {
        Self::bytes(kind, value.to_ne_bytes())
    }

    pub fn byte(kind: u16, value: u8) -> Self {
        Self::bytes(kind, [value])
    }

    pub fn text(kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        Self::bytes(kind, bytes)
    }

    pub fn flag(kind: u16) -> Self {
        Self::bytes(kind, [])
    }

    pub fn nested(kind: u16, inner: &[Attribute]) -> Self {
        Self::bytes(kind | NESTED, emit(inner))
    }

    /// The attribute's type, without flags.
    pub fn kind(&self) -> u16 {
        self.kind & !FLAGS
    }

    /// The value's bytes.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The attributes in an attribute. Empty if it contains something else.
    pub fn inner(&self) -> Vec<Attribute> {
        attributes(&self.value)
    }

    /// The value as an unsigned number of 1, 2, 4 or 8 bytes (netlink's `uint` has 4 or 8); `None`
    /// for other sizes.
    pub fn as_number(&self) -> Option<u64> {
        let value = self.value.as_slice();
        Some(match value.len() {
            1 => u64::from(value[0]),
            2 => u64::from(u16::from_ne_bytes(value.try_into().ok()?)),
            4 => u64::from(u32::from_ne_bytes(value.try_into().ok()?)),
            8 => u64::from_ne_bytes(value.try_into().ok()?),
            _ => return None,
        })
    }

    pub fn as_text(&self) -> String {
        String::from_utf8_lossy(&self.value).trim_end_matches('\0').to_owned()
    }
}

/// Attributes as they stand in a message: each is a `struct nlattr` and its value, padded to four
/// bytes.
///
/// # Panics
/// If a value is longer than an attribute can be (65,531 bytes).
pub fn emit(attributes: &[Attribute]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Attribute { kind, value } in attributes {
        let length = u16::try_from(4 + value.len())
            .expect("the value of a netlink attribute has at most 65,531 bytes");
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

/// The attributes in these bytes, up to the first that is cut off.
pub fn attributes(mut bytes: &[u8]) -> Vec<Attribute> {
    let mut found = Vec::new();
    while let Some((length, kind)) = read_u16(bytes, 0).zip(read_u16(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        found.push(Attribute::bytes(kind, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

pub(super) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back_as_they_were_written() {
        let inner = [Attribute::text(2, "eth0"), Attribute::flag(3)];
        let written = [Attribute::byte(1, 7), Attribute::nested(5, &inner), Attribute::number(9, 1 << 20)];
        let bytes = emit(&written);
        assert_eq!(bytes.len(), 8 + 4 + 12 + 4 + 8);
        let read = attributes(&bytes);
        assert_eq!(read, written);
        assert_eq!((read[0].as_number(), read[2].as_number()), (Some(7), Some(1 << 20)));
        assert_eq!((read[1].kind(), read[1].inner()), (5, inner.to_vec()));
        assert_eq!(read[1].inner()[0].as_text(), "eth0");
    }

    #[test]
    fn what_is_cut_off_or_too_short_ends_the_list() {
        let bytes = emit(&[Attribute::number(1, 1), Attribute::number(2, 2)]);
        for cut in 0..bytes.len() {
            assert_eq!(attributes(&bytes[..cut]).len(), cut / 8, "{cut}");
        }
        // A length that does not even cover its own header.
        assert!(attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).is_empty());
        assert!(attributes(&[0; 8]).is_empty());
    }
}
