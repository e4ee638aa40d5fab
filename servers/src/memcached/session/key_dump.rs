//! Commands that list keys: `lru_crawler metadump`, `lru_crawler mgdump` and `stats cachedump`.

use std::ops::ControlFlow;

use super::{KeyDump, Outcome, SEND_AT, Session, SessionStep};
use crate::memcached::numbers;
use crate::memcached::protocol::classic::DumpFormat;
use crate::memcached::protocol::{BAD_FORMAT, tuning};
use crate::memcached::store::WalkPosition;

/// The longest reply to `stats cachedump`, in bytes; memcached has the same limit.
const MAX_CACHEDUMP: usize = 2 << 20;
/// Steps of the store's walk before other connections run.
const STEPS_PER_TURN: usize = 20;

impl Session<'_> {
    /// Replies with the keys of slab classes.
    pub(super) fn dump_classes(&mut self, format: DumpFormat, classes: &[u8]) -> Outcome {
        let [start, end, _, refusal] = format.replies();
        match tuning::has_items(classes) {
            _ if !self.context.config.dump_allowed => self.reply(refusal),
            Some(true) => return self.dump(format),
            Some(false) => [start, end].iter().for_each(|part| self.reply(part)),
            None => self.reply(tuning::BAD_CLASS),
        }
        Ok(0)
    }

    /// Replies with the keys of a slab class, in memcached's oldest format. All items are in class
    /// 1.
    pub(super) fn cachedump(&mut self, arguments: &[&[u8]]) -> Outcome {
        let parsed = match arguments {
            [class, limit, ..] => {
                numbers::digits_u32(class).zip(numbers::digits_u32(limit)).ok_or(BAD_FORMAT)
            }
            _ => Err(&b"CLIENT_ERROR bad command line\r\n"[..]),
        };
        let format = DumpFormat::Cachedump { max_keys: parsed.map_or(0, |(_, limit)| limit) };
        match parsed {
            _ if !self.context.config.dump_allowed => self.reply(format.replies()[3]),
            Ok((1, _)) => return self.dump(format),
            Ok((64.., _)) => self.reply(b"CLIENT_ERROR Illegal slab id\r\n"),
            Ok(_) => self.reply(b"END\r\n"),
            Err(error) => self.reply(error),
        }
        Ok(0)
    }

    /// Replies with keys, in steps for which the store is locked. Only one client's list is sent at
    /// a time.
    fn dump(&mut self, format: DumpFormat) -> Outcome {
        let [start, end, busy, _] = format.replies();
        let mut dump = match self.dump.take() {
            Some(dump) => dump,
            None => {
                let Some(_permit) = self.context.dump_permit.try_acquire() else {
                    self.reply(busy);
                    return Ok(0);
                };
                self.reply(start);
                Box::new(KeyDump { _permit, position: WalkPosition::default(), keys: 0, bytes: 0 })
            }
        };
        let is_over = |keys, bytes| match format {
            DumpFormat::Cachedump { max_keys } => {
                bytes >= MAX_CACHEDUMP || (max_keys > 0 && keys >= max_keys)
            }
            DumpFormat::Metadump | DumpFormat::Mgdump => false,
        };
        for _ in 0..STEPS_PER_TURN {
            let (store, replies) = (self.store(), &mut self.replies);
            let KeyDump { keys, bytes, position, .. } = &mut *dump;
            let next = store.walk(*position, self.now, |key, header| {
                let before = replies.len();
                format.write_line(&store.clock, key, header, replies);
                (*keys, *bytes) = (keys.saturating_add(1), *bytes + replies.len() - before);
                match replies.len() < SEND_AT && !is_over(*keys, *bytes) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
            let Some(next) = next.filter(|_| !is_over(*keys, *bytes)) else {
                self.reply(end);
                return Ok(0);
            };
            *position = next;
            if self.is_buffer_full() {
                break;
            }
        }
        // Others run, also if nothing was found.
        self.dump = Some(dump);
        Err(SessionStep::Send)
    }
}
