//! How much of a connection is handled before others have their turn.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long a connection's bytes are handled in one poll. Then others have their turn, whatever the
/// bytes are: thousands of small frames come in one receive.
const LENGTH: Duration = Duration::from_micros(100);
/// How many bytes are handled before it is known how long they take: a request, or a dozen small
/// frames.
const FIRST: usize = 256;
/// At least as many: some frames.
const LEAST: usize = 64;
/// At most as many, which is more than HTTP reads at once.
const MOST: usize = 64 << 10;

/// The turn of a connection.
#[derive(Debug)]
pub(super) struct Turn {
    /// How many bytes may be handled next, without a look at the clock.
    room: usize,
    /// When this turn began, and when bytes were last given. None between turns.
    times: Option<(Instant, Instant)>,
}

impl Turn {
    pub(super) fn new() -> Self {
        Self { room: FIRST, times: None }
    }

    /// How many bytes may be handled next. Pending at the end of a turn; the task has been woken
    /// for its next one then.
    pub(super) fn poll_room(&mut self, context: &Context<'_>) -> Poll<usize> {
        self.poll_room_at(Instant::now(), context)
    }

    fn poll_room_at(&mut self, now: Instant, context: &Context<'_>) -> Poll<usize> {
        let Some((begun, last)) = self.times else {
            self.times = Some((now, now));
            return Poll::Ready(self.room);
        };
        // So that the next look at the clock comes in time.
        let is_slow = now.saturating_duration_since(last) > LENGTH / 4;
        self.room = if is_slow { self.room / 4 } else { self.room * 2 }.clamp(LEAST, MOST);
        if now.saturating_duration_since(begun) > LENGTH {
            self.end();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.times = Some((begun, now));
        Poll::Ready(self.room)
    }

    /// Nothing is left to handle.
    pub(super) fn end(&mut self) {
        self.times = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use super::super::wake_counter::WakeCounter;
    use super::*;

    #[test]
    fn a_turn_ends_in_time_and_goes_on_after_others() {
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&woken));
        let (context, mut turn, begun) = (Context::from_waker(&waker), Turn::new(), Instant::now());
        let mut look = |micros| turn.poll_room_at(begun + Duration::from_micros(micros), &context);
        assert_eq!([0, 1, 2].map(&mut look), [256, 512, 1024].map(Poll::Ready));
        // Slow bytes come in smaller parts.
        assert_eq!([60, 100].map(&mut look), [256, 64].map(Poll::Ready));
        assert_eq!((look(101), woken.count()), (Poll::Pending, 1));
        assert_eq!(look(200), Poll::Ready(128));
        turn.end();
        // The time that it has waited for bytes doesn't count.
        let later = begun + Duration::from_secs(1);
        assert_eq!(turn.poll_room_at(later, &context), Poll::Ready(128));
    }
}
