//! A worker's timers, in a hierarchical wheel, and the clocks: that of the event loop, and that of
//! its timers, which tests can pause.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use slab::Slab;

/// The monotonic clock, which is that of `Instant`, in nanoseconds since an arbitrary start.
pub(crate) fn monotonic_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock as it was at the kernel's last tick, up to 10 ms ago. It is read in a fraction of
/// the time.
pub(crate) fn coarse_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. Every kernel has these clocks, so the call can't fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The clock of one worker's timers, in nanoseconds: the monotonic clock, unless it was paused.
#[derive(Default)]
pub(crate) struct TimerClock {
    /// The time at which it stands.
    paused_at: Cell<Option<u64>>,
    /// How far it is ahead of the monotonic clock while it runs; negative after a pause.
    ahead: Cell<i64>,
}

impl TimerClock {
    /// The time when the monotonic clock shows `monotonic`.
    pub(crate) fn at(&self, monotonic: u64) -> u64 {
        self.paused_at.get().unwrap_or_else(|| monotonic.saturating_add_signed(self.ahead.get()))
    }

    /// What the monotonic clock shows at a time of this clock, if that is not paused until then.
    pub(crate) fn to_monotonic(&self, time: u64) -> u64 {
        time.saturating_add_signed(-self.ahead.get())
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_at.get().is_some()
    }

    /// Whether it shows something else than the monotonic clock.
    pub(crate) fn differs(&self) -> bool {
        self.is_paused() || self.ahead.get() != 0
    }

    pub(crate) fn pause(&self) {
        self.paused_at.set(Some(self.at(monotonic_nanos())));
    }

    pub(crate) fn resume(&self) {
        if let Some(paused_at) = self.paused_at.take() {
            // Both are less than 2^63: 292 years after the machine's start.
            self.ahead.set(paused_at.cast_signed() - monotonic_nanos().cast_signed());
        }
    }

    /// Moves a paused clock to `time`, but not back.
    pub(crate) fn advance_to(&self, time: u64) {
        self.paused_at.set(self.paused_at.get().map(|paused_at| paused_at.max(time)));
    }
}

/// A tick is 2^10 ns, about a microsecond.
const TICK_BITS: u32 = 10;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Nine digits cover 64 bits of nanoseconds, 584 years.
const LEVELS: usize = 9;
/// The number of a slot's timers that are searched for the earliest one. With a fuller slot the
/// wait ends at the slot's start instead, and its timers are sorted into the levels below.
const MAX_SEARCHED: usize = 16;

static WHEELS: AtomicU64 = AtomicU64::new(0);

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimerKey {
    index: u32,
    /// Differs from that of a later timer with the same index.
    sequence: u64,
}

struct Timer {
    /// Nanoseconds since the start of the wheel.
    deadline: u64,
    sequence: u64,
    waker: Waker,
    level: u8,
    slot: u8,
    previous: u32,
    next: u32,
}

struct Level {
    /// One bit per slot: whether it has timers.
    occupied: u64,
    first: [u32; SLOTS],
}

pub(crate) struct TimerWheel {
    start: Instant,
    /// `start` on the other clock, or slightly later, so that no timer fires early.
    start_nanos: u64,
    /// The current tick. Advanced only by `take_due`.
    tick: u64,
    levels: [Level; LEVELS],
    timers: Slab<Timer>,
    sequence: u64,
    /// The cached result of `next`.
    earliest: Option<u64>,
}

impl Default for TimerWheel {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            start_nanos: monotonic_nanos(),
            tick: 0,
            levels: std::array::from_fn(|_| Level { occupied: 0, first: [NONE; SLOTS] }),
            timers: Slab::new(),
            // A key that outlives its wheel must not match a timer of a later one: each wheel has
            // its own range of 2^40 sequence numbers.
            sequence: WHEELS.fetch_add(1, Ordering::Relaxed) << 40,
            earliest: None,
        }
    }
}

impl TimerWheel {
    /// An instant on the clock of [`monotonic_nanos`].
    pub(crate) fn on_clock(&self, instant: Instant) -> u64 {
        self.start_nanos.saturating_add(self.nanos(instant))
    }

    /// The instant of a time on the clock of [`monotonic_nanos`], which [`TimerWheel::on_clock`]
    /// turns into that time.
    pub(crate) fn instant(&self, time: u64) -> Instant {
        self.start + Duration::from_nanos(time.saturating_sub(self.start_nanos))
    }

    fn nanos(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn insert(&mut self, deadline: Instant, waker: Waker) -> TimerKey {
        self.sequence += 1;
        let (deadline, sequence) = (self.nanos(deadline), self.sequence);
        let timer = Timer { deadline, sequence, waker, level: 0, slot: 0, previous: NONE, next: NONE };
        // Four billion timers of 56 bytes would not fit in memory.
        let index = u32::try_from(self.timers.insert(timer)).expect("too many timers");
        self.link(index);
        if self.earliest.is_some_and(|earliest| deadline < earliest) {
            self.earliest = Some(deadline);
        }
        TimerKey { index, sequence }
    }

    pub(crate) fn waker(&mut self, key: TimerKey) -> Option<&mut Waker> {
        let timer = self.timers.get_mut(key.index as usize)?;
        (timer.sequence == key.sequence).then_some(&mut timer.waker)
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.timers.get(key.index as usize).filter(|timer| timer.sequence == key.sequence)?;
        self.unlink(key.index);
        let timer = self.timers.remove(key.index as usize);
        if self.earliest == Some(timer.deadline) {
            self.earliest = None;
        }
        Some(timer.waker)
    }

    /// When to call `take_due`: at the earliest deadline, or, with many timers in the first slot,
    /// somewhat earlier.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if self.earliest.is_none() {
            let (level, slot) = self.first_slot()?;
            let (mut earliest, mut index) = (u64::MAX, self.levels[level].first[slot]);
            for _ in 0..MAX_SEARCHED {
                let Some(timer) = self.timers.get(index as usize) else { break };
                earliest = earliest.min(timer.deadline);
                index = timer.next;
            }
            let crowded = index != NONE;
            self.earliest = Some(if crowded { self.tick_of(level, slot) << TICK_BITS } else { earliest });
        }
        self.earliest.map(|earliest| self.start_nanos.saturating_add(earliest))
    }

    /// Takes the wakers of all timers that are due, the earliest first.
    pub(crate) fn take_due(&mut self, now: u64) -> Vec<Waker> {
        let now = now.saturating_sub(self.start_nanos);
        let tick = now >> TICK_BITS;
        let mut due = Vec::new();
        let mut later = NONE;
        while let Some((level, slot)) = self.first_slot() {
            let slot_tick = self.tick_of(level, slot);
            if slot_tick > tick {
                break;
            }
            self.tick = self.tick.max(slot_tick);
            let mut index = self.empty(level, slot);
            while index != NONE {
                let timer = &mut self.timers[index as usize];
                let next = timer.next;
                if timer.deadline <= now {
                    let timer = self.timers.remove(index as usize);
                    due.push((timer.deadline, timer.sequence, timer.waker));
                } else if level == 0 {
                    // Later in the current tick: goes back to the same slot.
                    timer.next = later;
                    later = index;
                } else {
                    self.link(index);
                }
                index = next;
            }
        }
        self.tick = self.tick.max(tick);
        while later != NONE {
            let next = self.timers[later as usize].next;
            self.link(later);
            later = next;
        }
        self.earliest = None;
        due.sort_unstable_by_key(|&(deadline, sequence, _)| (deadline, sequence));
        due.into_iter().map(|(_, _, waker)| waker).collect()
    }

    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = self.levels.iter().position(|level| level.occupied != 0)?;
        Some((level, self.levels[level].occupied.trailing_zeros() as usize))
    }

    /// The first tick of a slot: the current tick's digits above the level, the slot's digit, and
    /// zeros.
    fn tick_of(&self, level: usize, slot: usize) -> u64 {
        let shift = DIGIT_BITS * level as u32;
        let above = self.tick >> shift >> DIGIT_BITS << DIGIT_BITS << shift;
        above | (slot as u64) << shift
    }

    /// Puts a timer into its slot, relative to the current tick.
    fn link(&mut self, index: u32) {
        let deadline = self.timers[index as usize].deadline;
        // An overdue timer is due in the current tick.
        let tick = (deadline >> TICK_BITS).max(self.tick);
        let differs = self.tick ^ tick;
        let level = (63 - (differs | 1).leading_zeros()) / DIGIT_BITS;
        let slot = (tick >> (DIGIT_BITS * level)) as usize % SLOTS;
        let level = level as usize;
        let first = std::mem::replace(&mut self.levels[level].first[slot], index);
        self.levels[level].occupied |= 1 << slot;
        if let Some(second) = self.timers.get_mut(first as usize) {
            second.previous = index;
        }
        let timer = &mut self.timers[index as usize];
        (timer.level, timer.slot) = (level as u8, slot as u8);
        (timer.previous, timer.next) = (NONE, first);
    }

    fn unlink(&mut self, index: u32) {
        let timer = &self.timers[index as usize];
        let (previous, next) = (timer.previous, timer.next);
        let (level, slot) = (usize::from(timer.level), usize::from(timer.slot));
        if let Some(next) = self.timers.get_mut(next as usize) {
            next.previous = previous;
        }
        if let Some(previous) = self.timers.get_mut(previous as usize) {
            previous.next = next;
            return;
        }
        self.levels[level].first[slot] = next;
        if next == NONE {
            self.levels[level].occupied &= !(1 << slot);
        }
    }

    /// Empties a slot. Returns the index of its first timer, which links to the others.
    fn empty(&mut self, level: usize, slot: usize) -> u32 {
        self.levels[level].occupied &= !(1 << slot);
        std::mem::replace(&mut self.levels[level].first[slot], NONE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    #[test]
    fn only_due_timers_are_taken_and_removed_ones_never() {
        let mut timers = TimerWheel::default();
        let now = timers.start;
        let early = timers.insert(now, Waker::noop().clone());
        let same = timers.insert(now, Waker::noop().clone());
        let late = timers.insert(now + Duration::from_secs(1), Waker::noop().clone());
        assert!(timers.remove(same).is_some());
        let on_clock = timers.on_clock(now);
        assert_eq!(timers.take_due(on_clock).len(), 1);
        assert!(timers.waker(early).is_none());
        assert!(timers.remove(early).is_none());
        assert!(timers.waker(late).is_some());
        assert_eq!(timers.next(), Some(on_clock + 1_000_000_000));
    }

    #[test]
    fn a_key_does_not_match_a_later_timer_with_the_same_index() {
        let mut timers = TimerWheel::default();
        let deadline = timers.start + Duration::from_secs(1);
        let old = timers.insert(deadline, Waker::noop().clone());
        assert!(timers.remove(old).is_some());
        let new = timers.insert(deadline, Waker::noop().clone());
        assert_eq!(old.index, new.index);
        assert!(timers.remove(old).is_none() && timers.waker(old).is_none());
        assert!(timers.remove(new).is_some());
    }

    #[test]
    fn a_deadline_in_a_century_is_kept_exactly() {
        let mut timers = TimerWheel::default();
        let century = timers.start + Duration::from_secs(100 * 365 * 86_400);
        timers.insert(century, Waker::noop().clone());
        let century = timers.on_clock(century);
        assert_eq!(timers.next(), Some(century));
        let day = timers.on_clock(timers.start + Duration::from_secs(86_400));
        assert!(timers.take_due(day).is_empty());
        assert_eq!(timers.take_due(century).len(), 1);
    }

    struct Numbered(u64, Arc<Mutex<Vec<u64>>>);

    impl Wake for Numbered {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    fn random(state: &AtomicU64) -> u64 {
        // xorshift64
        let mut x = state.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.store(x, Ordering::Relaxed);
        x
    }

    /// Against a sorted map: the same timers are due, in the same order, and `next` is never later
    /// than the earliest deadline.
    #[test]
    fn random_timers_fire_as_from_a_sorted_list() {
        for seed in 1..=20 {
            let state = AtomicU64::new(seed * 0x9e37_79b9);
            let woken = Arc::new(Mutex::new(Vec::new()));
            let mut timers = TimerWheel::default();
            let mut model: BTreeMap<(u64, u64), TimerKey> = BTreeMap::new();
            let (mut now, mut number) = (0_u64, 0);
            for _ in 0..3000 {
                match random(&state) % 4 {
                    0 | 1 => {
                        // From nanoseconds to days ahead, and now and then overdue.
                        let ahead = random(&state) % (1 << (random(&state) % 48));
                        let deadline = (now + ahead).saturating_sub(random(&state) % 2 * 5000);
                        number += 1;
                        let waker = Waker::from(Arc::new(Numbered(number, Arc::clone(&woken))));
                        let key = timers.insert(timers.start + Duration::from_nanos(deadline), waker);
                        model.insert((deadline, number), key);
                    }
                    2 => {
                        let pick = random(&state) as usize % model.len().max(1);
                        if let Some(&index) = model.keys().nth(pick) {
                            assert!(timers.remove(model.remove(&index).unwrap()).is_some());
                        }
                    }
                    _ => {
                        let next = timers.next().map(|next| next - timers.start_nanos);
                        let earliest = model.keys().next().map(|&(deadline, _)| deadline);
                        assert_eq!(next.is_some(), earliest.is_some());
                        if let (Some(next), Some(earliest)) = (next, earliest) {
                            assert!(next <= earliest, "{next} is after {earliest}");
                        }
                        now = match random(&state) % 3 {
                            0 => now + random(&state) % 100_000,
                            1 => now.max(next.unwrap_or(now)),
                            _ => now + random(&state) % (1 << (random(&state) % 44)),
                        };
                        let due = timers.take_due(timers.start_nanos + now);
                        due.into_iter().for_each(Waker::wake);
                        let later = model.split_off(&(now + 1, 0));
                        let expected: Vec<u64> = model.keys().map(|&(_, number)| number).collect();
                        model = later;
                        assert_eq!(std::mem::take(&mut *woken.lock().unwrap()), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn a_full_slot_is_sorted_when_it_begins() {
        let mut timers = TimerWheel::default();
        for number in 0..1000 {
            let deadline = timers.start + Duration::from_secs(30) + Duration::from_micros(number);
            timers.insert(deadline, Waker::noop().clone());
        }
        let first = timers.on_clock(timers.start + Duration::from_secs(30));
        let mut calls = 0;
        let fired = loop {
            let next = timers.next().unwrap();
            assert!(next <= first);
            calls += 1;
            let due = timers.take_due(next);
            if !due.is_empty() {
                break due.len();
            }
        };
        assert!(calls <= LEVELS, "{calls} calls for one deadline");
        assert!(fired <= 2, "{fired} timers at once that are a microsecond apart");
    }
}
