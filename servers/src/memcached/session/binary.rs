//! Executes commands of the binary protocol.

use super::{Outcome, Session, SessionStep, stats};
use crate::memcached::config::VERSION;
use crate::memcached::mutation::{self, Condition, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::binary::{self, Command, Parsed, Request, Status, u32_at, u64_at};
use crate::memcached::protocol::store_reply::{StoreCommand, StoreReply};
use crate::memcached::store::{ItemBits, NewItem, NewValue, StoredValue};

/// The expiry of an arithmetic command that does not create an item.
const NO_VIVIFY: u32 = u32::MAX;
/// The longest name of a SASL mechanism, in bytes.
const MAX_MECHANISM: usize = 32;
/// The longest SASL credentials, in bytes.
const MAX_CREDENTIALS: usize = 1024;

impl Session<'_> {
    /// Executes the request at the start of `rest`, which is not empty.
    pub(super) fn execute_binary(&mut self, rest: &[u8]) -> Outcome {
        match binary::parse(rest, self.authenticated) {
            Parsed::Incomplete => Err(SessionStep::NeedInput),
            Parsed::NotBinary => Err(SessionStep::Close),
            Parsed::Fatal { header, status } => {
                header.write_error(status, &mut self.replies);
                Err(SessionStep::Close)
            }
            Parsed::Unknown { header, used, body } => {
                header.write_error(Status::UnknownCommand, &mut self.replies);
                self.discard_input(body);
                Ok(used)
            }
            Parsed::Request { command, request, used } => {
                Ok(used + self.execute_binary_command(command, &request, &rest[used..])?)
            }
        }
    }

    /// Returns how many bytes of `after`, the input behind the key, were used.
    fn execute_binary_command(&mut self, command: Command, request: &Request<'_>, after: &[u8]) -> Outcome {
        let (header, replies) = (&request.header, &mut self.replies);
        let is_get =
            matches!(command, Command::Get { touches: false, .. } | Command::Noop | Command::Version);
        if self.gets_only && !is_get {
            return Err(SessionStep::Close);
        }
        match command {
            Command::Get { with_key, touches } => self.binary_get(request, with_key, touches, true),
            Command::Touch => self.binary_get(request, false, true, false),
            Command::Store(condition) => {
                let (flags, expiry) = (u32_at(request.extras, 0), u32_at(request.extras, 4));
                return Ok(self.binary_store(request, condition, flags, expiry, after));
            }
            Command::Concatenate(condition) => return Ok(self.binary_store(request, condition, 0, 0, after)),
            Command::Delete => self.binary_delete(request),
            Command::Delta { increments } => self.binary_delta(request, increments),
            Command::Quit => {
                header.write_success(0, replies);
                return Err(SessionStep::Close);
            }
            Command::Flush => {
                let delay = if request.extras.is_empty() { 0 } else { u32_at(request.extras, 0) };
                match self.flush(delay.into()) {
                    true => header.write_success(0, &mut self.replies),
                    false => header.write_error(Status::Unauthenticated, &mut self.replies),
                }
            }
            Command::Noop => header.write_success(0, replies),
            Command::Version => header.write_response(Status::Ok, 0, &[], VERSION.as_bytes(), replies),
            Command::Stat => {
                let known = stats::write_section(self.context, request.key, &mut |name, value| {
                    header.write_response(Status::Ok, 0, name.as_bytes(), value.as_bytes(), replies);
                });
                match known {
                    true => header.write_response(Status::Ok, 0, &[], &[], replies),
                    false => header.write_error(Status::NotFound, replies),
                }
            }
            Command::SaslList if self.context.config.sasl => {
                header.write_response(Status::Ok, 0, &[], b"PLAIN", replies);
            }
            Command::SaslAuth if self.context.config.sasl => {
                return self.binary_authenticate(request, after);
            }
            Command::SaslList | Command::SaslAuth | Command::SaslStep => {
                // The only mechanism, PLAIN, has a single step.
                header.write_error(
                    match self.context.config.sasl {
                        true => Status::Unauthenticated,
                        false => Status::UnknownCommand,
                    },
                    replies,
                );
                self.discard_input(request.value_length);
            }
        }
        Ok(0)
    }

    fn binary_get(&mut self, request: &Request<'_>, with_key: bool, touches: bool, with_value: bool) {
        let (header, key) = (&request.header, request.key);
        let mut entry = self.store().lock(key, self.now);
        if touches {
            entry.set_expiry(self.expiry(u32_at(request.extras, 0)));
        }
        entry.record_fetch();
        let found = entry.value();
        self.counters.count_get_or_touch(touches, found.is_some());
        let Some((item, value)) = found else {
            match (header.quiet, with_key) {
                (true, _) => {}
                (false, true) => header.write_response(Status::NotFound, 0, key, &[], &mut self.replies),
                (false, false) => header.write_error(Status::NotFound, &mut self.replies),
            }
            return;
        };
        let value = if with_value { value } else { StoredValue::Inline(&[]) };
        let (flags, key) = (item.flags.to_be_bytes(), if with_key { key } else { &[] });
        let lengths = (flags.len(), key.len(), value.bytes().len());
        self.reserve_for(&value, key.len() + 64);
        header.write_header(Status::Ok, item.cas, lengths, &mut self.replies);
        self.reply(&flags);
        self.reply(key);
        self.write_value(value, &[]);
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
            // In memcached, a CAS unique turns each of these into a `cas`.
            Condition::Always | Condition::Absent | Condition::Present if request.cas != 0 => {
                Condition::CasMatches
            }
            condition => condition,
        };
        let store_request = StoreRequest {
            condition,
            flags,
            expiry: self.expiry(expiry),
            expected_cas: request.cas,
            new_cas: None,
            accepts_stale: false,
            bits: ItemBits::default(),
            length: request.value_length,
        };
        let reply = StoreReply::Binary(request.header);
        let command = StoreCommand { key: request.key, meta_flags: &[], request: store_request, reply };
        self.begin_store(command, after)
    }

    fn binary_delete(&mut self, request: &Request<'_>) {
        let mut entry = self.store().lock(request.key, self.now);
        let status = match entry.header() {
            None => Status::NotFound,
            Some(item) if request.cas != 0 && request.cas != item.cas => Status::Exists,
            Some(_) => {
                entry.remove();
                Status::Ok
            }
        };
        drop(entry);
        if status != Status::Exists {
            self.counters.count_delete(status == Status::Ok);
        }
        match status {
            Status::Ok => request.header.write_success(0, &mut self.replies),
            status => request.header.write_error(status, &mut self.replies),
        }
    }

    fn binary_delta(&mut self, request: &Request<'_>, increments: bool) {
        let (store, header) = (self.store(), &request.header);
        let (amount, initial) = (u64_at(request.extras, 0), u64_at(request.extras, 8));
        let expiry = u32_at(request.extras, 16);
        let mut entry = store.lock(request.key, self.now);
        let delta = Delta { amount, increments, expected_cas: request.cas, new_cas: None };
        let outcome = mutation::apply_delta(store, &mut entry, delta);
        let result = match outcome {
            DeltaOutcome::Changed { value, cas } => Ok((value, cas)),
            DeltaOutcome::NotFound if expiry != NO_VIVIFY => {
                let mut digits = itoa::Buffer::new();
                let cas = store.next_cas();
                let new = NewItem {
                    flags: 0,
                    expiry: self.expiry(expiry),
                    cas,
                    bits: ItemBits::default(),
                    value: NewValue::from(digits.format(initial).as_bytes()),
                };
                entry.put(new).map(|()| (initial, cas)).map_err(|_| Status::OutOfMemory)
            }
            DeltaOutcome::NotFound => Err(Status::NotFound),
            DeltaOutcome::NotANumber => Err(Status::NotANumber),
            DeltaOutcome::Exists => Err(Status::Exists),
            DeltaOutcome::OutOfMemory => Err(Status::OutOfMemory),
        };
        drop(entry);
        if result.is_err() || outcome != DeltaOutcome::NotFound {
            self.counters.count_delta(outcome, increments);
        }
        match result {
            Ok(_) if header.quiet => {}
            Ok((value, cas)) => {
                header.write_response(Status::Ok, cas, &[], &value.to_be_bytes(), &mut self.replies);
            }
            Err(status) => header.write_error(status, &mut self.replies),
        }
    }

    fn binary_authenticate(&mut self, request: &Request<'_>, after: &[u8]) -> Outcome {
        let header = &request.header;
        if request.key.len() > MAX_MECHANISM || request.value_length > MAX_CREDENTIALS {
            header.write_error(Status::Invalid, &mut self.replies);
            return Err(SessionStep::Close);
        }
        let credentials = after.get(..request.value_length).ok_or(SessionStep::NeedInput)?;
        // PLAIN (RFC 4616): authorization identity, user and password, separated by zero bytes.
        let mut parts = credentials.splitn(3, |&byte| byte == 0);
        let (_, user, password) = (parts.next(), parts.next(), parts.next());
        match self.authenticate(user.zip(password).filter(|_| request.key == b"PLAIN")) {
            true => header.write_response(Status::Ok, 0, &[], b"Authenticated", &mut self.replies),
            false => header.write_error(Status::Unauthenticated, &mut self.replies),
        }
        Ok(request.value_length)
    }
}
