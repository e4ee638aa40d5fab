//! The header, with which each request and response begins.

pub(super) const HEADER: usize = 24;
pub(super) const REQUEST_MAGIC: u8 = 0x80;
pub(super) const RESPONSE_MAGIC: u8 = 0x81;

pub(super) const GET: u8 = 0x00;
pub(super) const SET: u8 = 0x01;
pub(super) const ADD: u8 = 0x02;
pub(super) const REPLACE: u8 = 0x03;
pub(super) const DELETE: u8 = 0x04;
pub(super) const INCREMENT: u8 = 0x05;
pub(super) const DECREMENT: u8 = 0x06;
pub(super) const NOOP: u8 = 0x0a;
pub(super) const GETK: u8 = 0x0c;
pub(super) const GETKQ: u8 = 0x0d;
pub(super) const APPEND: u8 = 0x0e;
pub(super) const PREPEND: u8 = 0x0f;
pub(super) const TOUCH: u8 = 0x1c;
pub(super) const SASL_AUTH: u8 = 0x21;

/// Appends a request header. `key`, `extras` and `value` are lengths in bytes.
pub(super) fn write_header(opcode: u8, key: usize, extras: usize, value: usize, cas: u64, out: &mut Vec<u8>) {
    // Keys have at most 250 bytes, extras at most 20, and values at most a gigabyte.
    let (key, extras, body) = (key as u16, extras as u8, (key + extras + value) as u32);
    out.extend_from_slice(&[REQUEST_MAGIC, opcode]);
    out.extend_from_slice(&key.to_be_bytes());
    out.extend_from_slice(&[extras, 0, 0, 0]);
    out.extend_from_slice(&body.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&cas.to_be_bytes());
}
