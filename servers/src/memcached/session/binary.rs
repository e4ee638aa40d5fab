//! Executes commands of the binary protocol.

use super::stats::{self, Written};
use super::{Outcome, Session, SessionStep};
use crate::memcached::config::VERSION;
use crate::memcached::mutation::{self, Condition, Delta, DeltaOutcome, StoreRequest};
use crate::memcached::protocol::binary::{self, Command, Request, Status, Unparsed, u32_at, u64_at};
use crate::memcached::protocol::store_reply::{StoreCommand, StoreReply};
use crate::memcached::store::StoredValue;

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
            Ok(request) => Ok(request.used + self.execute_binary_request(&request, &rest[request.used..])?),
            Err(Unparsed::Incomplete) => Err(SessionStep::NeedInput),
            Err(Unparsed::NotBinary) => Err(SessionStep::Close),
            Err(Unparsed::Refused(header, status)) => {
                header.write_error(status, &mut self.replies);
                Err(SessionStep::Close)
            }
        }
    }

    /// Returns how many bytes of `after`, the input behind the key, were used.
    fn execute_binary_request(&mut self, request: &Request<'_>, after: &[u8]) -> Outcome {
        let (header, replies) = (&request.header, &mut self.replies);
        let is_get = matches!(
            request.command,
            Command::Get { touches: false, .. } | Command::Noop | Command::Version | Command::Unknown
        );
        if self.gets_only && !is_get {
            return Err(SessionStep::Close);
        }
        match request.command {
            Command::Get { with_key, touches } => self.binary_get(request, with_key, touches, true),
            Command::Touch => self.binary_get(request, false, true, false),
            Command::Store(condition) => return Ok(self.binary_store(request, condition, after)),
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
                    false => header.write_error(Status::UNAUTHENTICATED, &mut self.replies),
                }
            }
            Command::Noop => header.write_success(0, replies),
            Command::Version => header.write_response(Status::OK, 0, &[], VERSION.as_bytes(), replies),
            Command::Stat => {
                let done = &mut self.conns_done;
                let written = stats::write_section(self.context, request.key, done, &mut |name, value| {
                    header.write_response(Status::OK, 0, name.as_bytes(), value.as_bytes(), replies);
                });
                match written {
                    Written::All => header.write_response(Status::OK, 0, &[], &[], replies),
                    Written::Part => return Err(SessionStep::Send),
                    Written::Nothing => header.write_error(Status::NOT_FOUND, replies),
                }
            }
            Command::SaslList if self.context.config.sasl => {
                header.write_response(Status::OK, 0, &[], b"PLAIN", replies);
            }
            Command::SaslAuth if self.context.config.sasl => {
                return self.binary_authenticate(request, after);
            }
            command => {
                // The only mechanism, PLAIN, has a single step.
                let is_step = command == Command::SaslStep && self.context.config.sasl;
                let status = if is_step { Status::UNAUTHENTICATED } else { Status::UNKNOWN_COMMAND };
                header.write_error(status, replies);
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
                (false, true) => header.write_response(Status::NOT_FOUND, 0, key, &[], &mut self.replies),
                (false, false) => header.write_error(Status::NOT_FOUND, &mut self.replies),
            }
            return;
        };
        let value = if with_value { value } else { StoredValue::Inline(&[]) };
        let (flags, key) = (item.flags.to_be_bytes(), if with_key { key } else { &[] });
        let lengths = (flags.len(), key.len(), value.bytes().len());
        self.reserve_for(&value, key.len() + 64);
        header.write_header(Status::OK, item.cas, lengths, &mut self.replies);
        self.reply(&flags);
        self.reply(key);
        self.write_value(value, &[]);
    }

    fn binary_store(&mut self, request: &Request<'_>, condition: Condition, after: &[u8]) -> usize {
        let reply = StoreReply::Binary(request.header);
        let Request { key, extras, cas: expected_cas, value_length: length, .. } = *request;
        let mut request = StoreRequest { condition, expected_cas, length, ..Default::default() };
        // Those of `append` and `prepend` have none.
        if !extras.is_empty() {
            (request.flags, request.expiry) = (u32_at(extras, 0), self.expiry(u32_at(extras, 4)));
            // In memcached, a CAS unique turns each of these into a `cas`.
            if expected_cas != 0 {
                request.condition = Condition::CasMatches;
            }
        }
        self.begin_store(StoreCommand { key, meta_flags: &[], request, reply }, after)
    }

    fn binary_delete(&mut self, request: &Request<'_>) {
        let mut entry = self.store().lock(request.key, self.now);
        let error = match entry.header() {
            None => Some(Status::NOT_FOUND),
            Some(item) if request.cas != 0 && request.cas != item.cas => Some(Status::EXISTS),
            Some(_) => {
                entry.remove();
                None
            }
        };
        drop(entry);
        if error != Some(Status::EXISTS) {
            self.counters.count_delete(error.is_none());
        }
        match error {
            None => request.header.write_success(0, &mut self.replies),
            Some(error) => request.header.write_error(error, &mut self.replies),
        }
    }

    fn binary_delta(&mut self, request: &Request<'_>, increments: bool) {
        let (extras, header) = (request.extras, &request.header);
        let vivify = Some(u32_at(extras, 16)).filter(|expiry| *expiry != NO_VIVIFY);
        let vivify = vivify.map(|expiry| (u64_at(extras, 8), self.expiry(expiry)));
        let (amount, expected_cas) = (u64_at(extras, 0), request.cas);
        let delta = Delta { amount, increments, expected_cas, vivify, ..Default::default() };
        let mut entry = self.store().lock(request.key, self.now);
        let outcome = mutation::apply_delta(self.store(), &mut entry, delta);
        drop(entry);
        self.counters.count_delta(outcome, increments);
        let error = match outcome {
            DeltaOutcome::Changed { value, cas } | DeltaOutcome::Created { value, cas } => {
                if !header.quiet {
                    header.write_response(Status::OK, cas, &[], &value.to_be_bytes(), &mut self.replies);
                }
                return;
            }
            DeltaOutcome::NotFound => Status::NOT_FOUND,
            DeltaOutcome::NotANumber => Status::NOT_A_NUMBER,
            DeltaOutcome::Exists => Status::EXISTS,
            DeltaOutcome::OutOfMemory => Status::OUT_OF_MEMORY,
        };
        header.write_error(error, &mut self.replies);
    }

    fn binary_authenticate(&mut self, request: &Request<'_>, after: &[u8]) -> Outcome {
        let header = &request.header;
        if request.key.len() > MAX_MECHANISM || request.value_length > MAX_CREDENTIALS {
            header.write_error(Status::INVALID, &mut self.replies);
            return Err(SessionStep::Close);
        }
        let credentials = after.get(..request.value_length).ok_or(SessionStep::NeedInput)?;
        // PLAIN (RFC 4616): authorization identity, user and password, separated by zero bytes.
        let mut parts = credentials.splitn(3, |&byte| byte == 0);
        let (_, user, password) = (parts.next(), parts.next(), parts.next());
        match self.authenticate(user.zip(password).filter(|_| request.key == b"PLAIN")) {
            true => header.write_response(Status::OK, 0, &[], b"Authenticated", &mut self.replies),
            false => header.write_error(Status::UNAUTHENTICATED, &mut self.replies),
        }
        Ok(request.value_length)
    }
}
