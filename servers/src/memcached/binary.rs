//! The binary protocol: headers and commands as memcached's `protocol_binary.h` has them.

use super::VERSION;
use super::command::KEY_MAX;
use super::reply::Reply;
use super::report;
use super::session::{Flow, Session};
use super::store::{Bits, Data, New, Value};
use super::storing::{self, Condition, Counted, Delta, Incoming};

/// The first byte of a request, and of an answer.
pub const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
/// Bytes of a header.
const HEADER: usize = 24;
/// The largest body that is taken for one: 1 GiB, memcached's limit of an item.
const LARGEST_BODY: usize = 1 << 30;
/// An expiry that tells a counter not to make an item.
const NO_ITEM: u32 = u32::MAX;
/// The longest name of a SASL mechanism.
const LONGEST_MECHANISM: usize = 32;
/// Until a client has said who it is, it may not say more at once.
const LONGEST_CREDENTIALS: usize = 1024;

/// What an answer says of how it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    Ok = 0x00,
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    Invalid = 0x04,
    NotStored = 0x05,
    NotANumber = 0x06,
    Unauthenticated = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Status::Ok => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::Invalid => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotANumber => "Non-numeric server-side value for incr or decr",
            Status::Unauthenticated => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
        }
    }
}

/// A command, without whether it is quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Get { with_key: bool, touches: bool },
    Touch,
    Store(Condition),
    Join(Condition),
    Delete,
    Count { up: bool },
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    SaslList,
    SaslAuth,
    SaslStep,
}

impl Operation {
    /// By its number; and whether it is the quiet kind.
    fn of(code: u8) -> Option<(Self, bool)> {
        use Operation::*;
        let append = Condition::Append { vivify: false };
        let prepend = Condition::Prepend { vivify: false };
        Some(match code {
            0x00 => (Get { with_key: false, touches: false }, false),
            0x01 => (Store(Condition::Always), false),
            0x02 => (Store(Condition::Absent), false),
            0x03 => (Store(Condition::Present), false),
            0x04 => (Delete, false),
            0x05 => (Count { up: true }, false),
            0x06 => (Count { up: false }, false),
            0x07 => (Quit, false),
            0x08 => (Flush, false),
            0x09 => (Get { with_key: false, touches: false }, true),
            0x0a => (Noop, false),
            0x0b => (Version, false),
            0x0c => (Get { with_key: true, touches: false }, false),
            0x0d => (Get { with_key: true, touches: false }, true),
            0x0e => (Join(append), false),
            0x0f => (Join(prepend), false),
            0x10 => (Stat, false),
            0x11 => (Store(Condition::Always), true),
            0x12 => (Store(Condition::Absent), true),
            0x13 => (Store(Condition::Present), true),
            0x14 => (Delete, true),
            0x15 => (Count { up: true }, true),
            0x16 => (Count { up: false }, true),
            0x17 => (Quit, true),
            0x18 => (Flush, true),
            0x19 => (Join(append), true),
            0x1a => (Join(prepend), true),
            0x1c => (Touch, false),
            0x1d => (Get { with_key: false, touches: true }, false),
            0x1e => (Get { with_key: false, touches: true }, true),
            0x20 => (SaslList, false),
            0x21 => (SaslAuth, false),
            0x22 => (SaslStep, false),
            0x23 => (Get { with_key: true, touches: true }, false),
            0x24 => (Get { with_key: true, touches: true }, true),
            _ => return None,
        })
    }

    /// Whether key, extras and value may be of such lengths.
    fn accepts(self, key: usize, extras: usize, value: usize) -> bool {
        use Operation::*;
        match self {
            Get { touches: false, .. } | Delete => key > 0 && extras == 0 && value == 0,
            Get { touches: true, .. } | Touch => key > 0 && extras == 4 && value == 0,
            Store(_) => key > 0 && extras == 8,
            Join(_) => key > 0 && extras == 0,
            Count { .. } => key > 0 && extras == 20 && value == 0,
            Quit | Noop | Version | SaslList => key == 0 && extras == 0 && value == 0,
            Flush => key == 0 && value == 0 && matches!(extras, 0 | 4),
            Stat => extras == 0 && value == 0,
            SaslAuth | SaslStep => key > 0 && extras == 0,
        }
    }

    /// Whether a client may ask it before it has said who it is.
    fn is_open(self) -> bool {
        matches!(self, Operation::SaslList | Operation::SaslAuth | Operation::SaslStep | Operation::Version)
    }
}

/// What an answer has of its request.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    code: u8,
    opaque: [u8; 4],
    /// Whether only errors, and what was found, are answered.
    pub quiet: bool,
}

impl Header {
    /// Appends an answer.
    pub fn respond(
        &self,
        status: Status,
        cas: u64,
        extras: &[u8],
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.begin(status, cas, (extras.len(), key.len(), value.len()), out);
        out.extend_from_slice(extras);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }

    /// Appends an answer's header; the lengths are of extras, key and value.
    fn begin(&self, status: Status, cas: u64, lengths: (usize, usize, usize), out: &mut Vec<u8>) {
        let (extras, key, value) = lengths;
        out.extend_from_slice(&[RESPONSE, self.code]);
        out.extend_from_slice(&(key as u16).to_be_bytes());
        out.extend_from_slice(&[extras as u8, 0]);
        out.extend_from_slice(&(status as u16).to_be_bytes());
        out.extend_from_slice(&((extras + key + value) as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&cas.to_be_bytes());
    }

    /// Appends an answer that tells an error in words.
    pub fn refuse(&self, status: Status, out: &mut Vec<u8>) {
        self.respond(status, 0, &[], &[], status.text().as_bytes(), out);
    }
}

/// A request whose header, extras and key are here.
struct Request<'a> {
    header: Header,
    cas: u64,
    extras: &'a [u8],
    key: &'a [u8],
    /// Bytes of its value.
    value: usize,
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

impl Session<'_> {
    /// Answers the request that `rest` begins with.
    pub(super) fn binary(&mut self, rest: &[u8]) -> Flow {
        if rest[0] != REQUEST {
            return Flow::Close(0);
        }
        if rest.len() < HEADER {
            return Flow::Wait;
        }
        let (key, extras, body) = (u16_at(rest, 2), usize::from(rest[4]), u32_at(rest, 8) as usize);
        let mut header =
            Header { code: rest[1], opaque: [rest[12], rest[13], rest[14], rest[15]], quiet: false };
        let operation = Operation::of(rest[1]);
        let refusal = if key + extras > body {
            Some(Status::UnknownCommand)
        } else if body > LARGEST_BODY {
            Some(Status::Invalid)
        } else if !self.trusted && !operation.is_some_and(|(operation, _)| operation.is_open()) {
            Some(Status::Unauthenticated)
        } else if key > KEY_MAX {
            Some(Status::Invalid)
        } else {
            None
        };
        if let Some(status) = refusal {
            header.refuse(status, &mut self.out);
            return Flow::Close(rest.len());
        }
        let Some((operation, quiet)) = operation else {
            header.refuse(Status::UnknownCommand, &mut self.out);
            self.swallow(body);
            return Flow::Done(HEADER);
        };
        let value = body - key - extras;
        if !operation.accepts(key, extras, value) {
            header.refuse(Status::Invalid, &mut self.out);
            return Flow::Close(rest.len());
        }
        let used = HEADER + extras + key;
        if rest.len() < used {
            return Flow::Wait;
        }
        header.quiet = quiet;
        let (extras, key) = rest[HEADER..used].split_at(extras);
        let request = Request { header, cas: u64_at(rest, 16), extras, key, value };
        self.operate(operation, &request, &rest[used..], used)
    }

    fn operate(&mut self, operation: Operation, request: &Request<'_>, after: &[u8], used: usize) -> Flow {
        let header = &request.header;
        match operation {
            Operation::Get { with_key, touches } => self.binary_get(request, with_key, touches, true),
            Operation::Touch => self.binary_get(request, false, true, false),
            Operation::Store(condition) => {
                let (flags, expiry) = (u32_at(request.extras, 0), u32_at(request.extras, 4));
                return Flow::Done(used + self.binary_store(request, condition, flags, expiry, after));
            }
            Operation::Join(condition) => {
                return Flow::Done(used + self.binary_store(request, condition, 0, 0, after));
            }
            Operation::Delete => self.binary_delete(request),
            Operation::Count { up } => self.binary_count(request, up),
            Operation::Quit => {
                if !header.quiet {
                    header.respond(Status::Ok, 0, &[], &[], &[], &mut self.out);
                }
                return Flow::Close(used);
            }
            Operation::Flush => {
                let delay = if request.extras.is_empty() { 0 } else { u32_at(request.extras, 0) };
                if self.flush(delay.into()) {
                    self.acknowledge(header, 0);
                } else {
                    header.refuse(Status::Unauthenticated, &mut self.out);
                }
            }
            Operation::Noop => self.acknowledge(header, 0),
            Operation::Version => {
                header.respond(Status::Ok, 0, &[], &[], VERSION.as_bytes(), &mut self.out);
            }
            Operation::Stat => self.binary_stat(request),
            Operation::SaslList if self.shared.settings.sasl => {
                header.respond(Status::Ok, 0, &[], &[], b"PLAIN", &mut self.out);
            }
            Operation::SaslAuth if self.shared.settings.sasl => {
                return self.binary_authenticate(request, after, used);
            }
            Operation::SaslStep if self.shared.settings.sasl => {
                // The one mechanism there is has a single step.
                header.refuse(Status::Unauthenticated, &mut self.out);
                self.swallow(request.value);
            }
            Operation::SaslList | Operation::SaslAuth | Operation::SaslStep => {
                header.refuse(Status::UnknownCommand, &mut self.out);
                self.swallow(request.value);
            }
        }
        Flow::Done(used)
    }

    fn acknowledge(&mut self, header: &Header, cas: u64) {
        if !header.quiet {
            header.respond(Status::Ok, cas, &[], &[], &[], &mut self.out);
        }
    }

    fn binary_get(&mut self, request: &Request<'_>, with_key: bool, touches: bool, with_value: bool) {
        let (store, header, key) = (self.store(), &request.header, request.key);
        let mut slot = store.lock(key, self.now);
        if touches {
            slot.set_expiry(store.clock().expiry(u32_at(request.extras, 0).into()));
        }
        slot.touch();
        let found = slot.value();
        match touches {
            true => self.stats.count_touch(found.is_some()),
            false => self.stats.count_get(found.is_some()),
        }
        let shown = if with_key { key } else { &[] };
        let Some((item, value)) = found else {
            match (header.quiet, with_key) {
                (true, _) => {}
                (false, true) => header.respond(Status::NotFound, 0, &[], key, &[], &mut self.out),
                (false, false) => header.refuse(Status::NotFound, &mut self.out),
            }
            return;
        };
        let value = if with_value { value } else { Value::Inline(&[]) };
        let flags = item.flags.to_be_bytes();
        let out = &mut self.out;
        header.begin(Status::Ok, item.cas, (flags.len(), shown.len(), value.bytes().len()), out);
        out.extend_from_slice(&flags);
        out.extend_from_slice(shown);
        let large = Self::send_value(out, value, &[]);
        drop(slot);
        self.send_large(large);
    }

    fn binary_store(
        &mut self,
        request: &Request<'_>,
        condition: Condition,
        flags: u32,
        expiry: u32,
        after: &[u8],
    ) -> usize {
        let condition = match condition {
            // memcached makes any of these a `cas` where there is a number.
            Condition::Always | Condition::Absent | Condition::Present if request.cas != 0 => {
                Condition::Unchanged
            }
            condition => condition,
        };
        let item = Incoming {
            condition,
            key: request.key,
            flags,
            expiry: self.store().clock().expiry(expiry.into()),
            compare: request.cas,
            number: None,
            accepts_stale: false,
            bits: Bits::default(),
            length: request.value,
        };
        self.begin_store(&item, Reply::Binary(request.header), after)
    }

    fn binary_delete(&mut self, request: &Request<'_>) {
        let mut slot = self.store().lock(request.key, self.now);
        let status = match slot.header() {
            None => Status::NotFound,
            Some(item) if request.cas != 0 && request.cas != item.cas => Status::Exists,
            Some(_) => Status::Ok,
        };
        if status == Status::Ok {
            slot.remove();
        }
        drop(slot);
        match status {
            Status::Ok => {
                self.stats.count_delete(true);
                self.acknowledge(&request.header, 0);
            }
            status => {
                if status == Status::NotFound {
                    self.stats.count_delete(false);
                }
                request.header.refuse(status, &mut self.out);
            }
        }
    }

    fn binary_count(&mut self, request: &Request<'_>, up: bool) {
        let (store, header) = (self.store(), &request.header);
        let (amount, initial) = (u64_at(request.extras, 0), u64_at(request.extras, 8));
        let expiry = u32_at(request.extras, 16);
        let mut slot = store.lock(request.key, self.now);
        let delta = Delta { amount, up, compare: request.cas, number: None };
        let counted = storing::count(store, &mut slot, delta);
        let answer = match counted {
            Counted::Value(value, cas) => Ok((value, cas)),
            Counted::NotFound if expiry != NO_ITEM => {
                let mut digits = itoa::Buffer::new();
                let cas = store.next_cas();
                let new = New {
                    flags: 0,
                    expiry: store.clock().expiry(expiry.into()),
                    cas,
                    bits: Bits::default(),
                    value: Data::from(digits.format(initial).as_bytes()),
                };
                slot.put(new).map(|()| (initial, cas)).map_err(|_| Status::OutOfMemory)
            }
            Counted::NotFound => Err(Status::NotFound),
            Counted::NotANumber => Err(Status::NotANumber),
            Counted::Exists => Err(Status::Exists),
            Counted::OutOfMemory => Err(Status::OutOfMemory),
        };
        drop(slot);
        if answer.is_err() || counted != Counted::NotFound {
            self.stats.count_delta(counted, up);
        }
        match answer {
            Ok(_) if header.quiet => {}
            Ok((value, cas)) => {
                header.respond(Status::Ok, cas, &[], &[], &value.to_be_bytes(), &mut self.out);
            }
            Err(status) => header.refuse(status, &mut self.out),
        }
    }

    fn binary_stat(&mut self, request: &Request<'_>) {
        let header = &request.header;
        let out = &mut self.out;
        let mut put = |name: &str, value: &str| {
            header.respond(Status::Ok, 0, &[], name.as_bytes(), value.as_bytes(), out);
        };
        if report::stats(self.shared, request.key, &mut put) {
            header.respond(Status::Ok, 0, &[], &[], &[], out);
        } else {
            header.refuse(Status::NotFound, out);
        }
    }

    fn binary_authenticate(&mut self, request: &Request<'_>, after: &[u8], used: usize) -> Flow {
        let header = &request.header;
        if request.key.len() > LONGEST_MECHANISM || request.value > LONGEST_CREDENTIALS {
            header.refuse(Status::Invalid, &mut self.out);
            return Flow::Close(used);
        }
        if after.len() < request.value {
            return Flow::Wait;
        }
        let credentials = &after[..request.value];
        // PLAIN, RFC 4616: who to act for, who it is, the password.
        let mut parts = credentials.splitn(3, |&byte| byte == 0);
        let (_, user, password) = (parts.next(), parts.next(), parts.next());
        let valid = request.key == b"PLAIN"
            && user.zip(password).is_some_and(|(user, password)| self.shared.check(user, password));
        self.stats.auth_cmds.add(1);
        self.trusted = valid;
        if valid {
            header.respond(Status::Ok, 0, &[], &[], b"Authenticated", &mut self.out);
        } else {
            self.stats.auth_errors.add(1);
            header.refuse(Status::Unauthenticated, &mut self.out);
        }
        Flow::Done(used + request.value)
    }
}
