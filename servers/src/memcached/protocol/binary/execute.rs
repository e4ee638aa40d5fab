//! Executes commands of the binary protocol.

use super::parse::{self, Command, Parsed, Request, Status, u32_at, u64_at};
use crate::memcached::VERSION;
use crate::memcached::mutation::{self, Condition, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::session::{RequestOutcome, Session};
use crate::memcached::stats::stats_reply;
use crate::memcached::store::{ItemBits, NewItem, NewValue, StoredValue};

/// The expiry of an arithmetic command that does not create an item.
const NO_VIVIFY: u32 = u32::MAX;
/// The longest name of a SASL mechanism, in bytes.
const MAX_MECHANISM: usize = 32;
/// The longest SASL credentials, in bytes.
const MAX_CREDENTIALS: usize = 1024;

impl Session<'_> {
    /// Executes the request at the start of `rest`, which is not empty.
    pub fn execute_binary(&mut self, rest: &[u8]) -> RequestOutcome {
        match parse::parse(rest, self.authenticated) {
            Parsed::Incomplete => RequestOutcome::Incomplete,
            Parsed::NotBinary => RequestOutcome::Close(0),
            Parsed::Fatal { header, status } => {
                header.write_error(status, &mut self.replies);
                RequestOutcome::Close(rest.len())
            }
            Parsed::Unknown { header, used, body } => {
                header.write_error(Status::UnknownCommand, &mut self.replies);
                self.discard_input(body);
                RequestOutcome::Done(used)
            }
            Parsed::Request { command, request, used } => {
                self.execute_binary_command(command, &request, &rest[used..], used)
            }
        }
    }

    fn execute_binary_command(
        &mut self,
        command: Command,
        request: &Request<'_>,
        after: &[u8],
        used: usize,
    ) -> RequestOutcome {
        let header = &request.header;
        let is_get =
            matches!(command, Command::Get { touches: false, .. } | Command::Noop | Command::Version);
        if self.gets_only && !is_get {
            return RequestOutcome::Close(used);
        }
        match command {
            Command::Get { with_key, touches } => self.binary_get(request, with_key, touches, true),
            Command::Touch => self.binary_get(request, false, true, false),
            Command::Store(condition) => {
                let (flags, expiry) = (u32_at(request.extras, 0), u32_at(request.extras, 4));
                let received = self.binary_store(request, condition, flags, expiry, after);
                return RequestOutcome::Done(used + received);
            }
            Command::Concatenate(condition) => {
                return RequestOutcome::Done(used + self.binary_store(request, condition, 0, 0, after));
            }
            Command::Delete => self.binary_delete(request),
            Command::Delta { increments } => self.binary_delta(request, increments),
            Command::Quit => {
                header.write_success(0, &mut self.replies);
                return RequestOutcome::Close(used);
            }
            Command::Flush => {
                let delay = if request.extras.is_empty() { 0 } else { u32_at(request.extras, 0) };
                if self.flush(delay.into()) {
                    header.write_success(0, &mut self.replies);
                } else {
                    header.write_error(Status::Unauthenticated, &mut self.replies);
                }
            }
            Command::Noop => header.write_success(0, &mut self.replies),
            Command::Version => {
                header.write_response(Status::Ok, 0, &[], &[], VERSION.as_bytes(), &mut self.replies);
            }
            Command::Stat
                if request.key == stats_reply::POLICY && !self.context.policy_section.is_fresh() =>
            {
                return RequestOutcome::NeedsPolicy;
            }
            Command::Stat => self.binary_stat(request),
            Command::SaslList if self.context.config.sasl => {
                header.write_response(Status::Ok, 0, &[], &[], b"PLAIN", &mut self.replies);
            }
            Command::SaslAuth if self.context.config.sasl => {
                return self.binary_authenticate(request, after, used);
            }
            Command::SaslStep if self.context.config.sasl => {
                // The only mechanism, PLAIN, has a single step.
                header.write_error(Status::Unauthenticated, &mut self.replies);
                self.discard_input(request.value_length);
            }
            Command::SaslList | Command::SaslAuth | Command::SaslStep => {
                header.write_error(Status::UnknownCommand, &mut self.replies);
                self.discard_input(request.value_length);
            }
        }
        RequestOutcome::Done(used)
    }

    fn binary_get(&mut self, request: &Request<'_>, with_key: bool, touches: bool, with_value: bool) {
        let (store, header, key) = (self.store(), &request.header, request.key);
        let mut entry = store.lock(key, self.now);
        if touches {
            entry.set_expiry(store.clock().expiry(u32_at(request.extras, 0).into()));
        }
        entry.record_fetch();
        let found = entry.value();
        match touches {
            true => self.counters.count_touch(found.is_some()),
            false => self.counters.count_get(found.is_some()),
        }
        let returned_key = if with_key { key } else { &[] };
        let Some((item, value)) = found else {
            match (header.quiet, with_key) {
                (true, _) => {}
                (false, true) => {
                    header.write_response(Status::NotFound, 0, &[], key, &[], &mut self.replies);
                }
                (false, false) => header.write_error(Status::NotFound, &mut self.replies),
            }
            return;
        };
        let value = if with_value { value } else { StoredValue::Inline(&[]) };
        let flags = item.flags.to_be_bytes();
        let replies = &mut self.replies;
        let lengths = (flags.len(), returned_key.len(), value.bytes().len());
        Self::reserve_for(replies, &value, returned_key.len() + 64);
        header.write_header(Status::Ok, item.cas, lengths, replies);
        replies.extend_from_slice(&flags);
        replies.extend_from_slice(returned_key);
        let large = Self::write_value(replies, value, &[]);
        drop(entry);
        self.queue_large_value(large);
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
            key: request.key,
            flags,
            expiry: self.store().clock().expiry(expiry.into()),
            expected_cas: request.cas,
            new_cas: None,
            accepts_stale: false,
            bits: ItemBits::default(),
            length: request.value_length,
        };
        self.begin_store(&store_request, StoreReply::Binary(request.header), after)
    }

    fn binary_delete(&mut self, request: &Request<'_>) {
        let mut entry = self.store().lock(request.key, self.now);
        let status = match entry.header() {
            None => Status::NotFound,
            Some(item) if request.cas != 0 && request.cas != item.cas => Status::Exists,
            Some(_) => Status::Ok,
        };
        if status == Status::Ok {
            entry.remove();
        }
        drop(entry);
        match status {
            Status::Ok => {
                self.counters.count_delete(true);
                request.header.write_success(0, &mut self.replies);
            }
            status => {
                if status == Status::NotFound {
                    self.counters.count_delete(false);
                }
                request.header.write_error(status, &mut self.replies);
            }
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
                    expiry: store.clock().expiry(expiry.into()),
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
                let value = value.to_be_bytes();
                header.write_response(Status::Ok, cas, &[], &[], &value, &mut self.replies);
            }
            Err(status) => header.write_error(status, &mut self.replies),
        }
    }

    fn binary_stat(&mut self, request: &Request<'_>) {
        let header = &request.header;
        let replies = &mut self.replies;
        let mut write = |name: &str, value: &str| {
            header.write_response(Status::Ok, 0, &[], name.as_bytes(), value.as_bytes(), replies);
        };
        if stats_reply::write_section(self.context, request.key, &mut write) {
            header.write_response(Status::Ok, 0, &[], &[], &[], replies);
        } else {
            header.write_error(Status::NotFound, replies);
        }
    }

    fn binary_authenticate(&mut self, request: &Request<'_>, after: &[u8], used: usize) -> RequestOutcome {
        let header = &request.header;
        if request.key.len() > MAX_MECHANISM || request.value_length > MAX_CREDENTIALS {
            header.write_error(Status::Invalid, &mut self.replies);
            return RequestOutcome::Close(used);
        }
        if after.len() < request.value_length {
            return RequestOutcome::Incomplete;
        }
        let credentials = &after[..request.value_length];
        // PLAIN (RFC 4616): authorization identity, user and password, separated by zero bytes.
        let mut parts = credentials.splitn(3, |&byte| byte == 0);
        let (_, user, password) = (parts.next(), parts.next(), parts.next());
        let valid = request.key == b"PLAIN"
            && user.zip(password).is_some_and(|(user, password)| self.context.authenticate(user, password));
        self.counters.auth_cmds.add(1);
        self.authenticated = valid;
        if valid {
            header.write_response(Status::Ok, 0, &[], &[], b"Authenticated", &mut self.replies);
        } else {
            self.counters.auth_errors.add(1);
            header.write_error(Status::Unauthenticated, &mut self.replies);
        }
        RequestOutcome::Done(used + request.value_length)
    }
}
