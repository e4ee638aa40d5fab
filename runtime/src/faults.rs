//! What a kernel may do at any time, done often: for this repository's tests, which run with the
//! feature `fault-injection`. Without it all of this is nothing.
//!
//! `LULL_FAULTS` in the environment is the seed; without one, or with 0, nothing is disturbed. On
//! both drivers waits are interrupted and tasks woken for nothing, events and completions come in
//! another order or later, operations are interrupted or cancelled, find no buffer, and receive or
//! send a part.

pub(crate) use imp::*;

#[cfg(not(feature = "fault-injection"))]
mod imp {
    use io_uring::squeue::Entry;

    #[inline(always)]
    pub(crate) fn chance(_one_in: u64) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn reorder<T>(_list: &mut [T], _is_fixed: impl Fn(&T, &T) -> bool) {}

    #[inline(always)]
    pub(crate) fn part_of(whole: u32) -> u32 {
        whole
    }

    #[inline(always)]
    pub(crate) fn or_fails(entry: Entry, _errors: &[i32]) -> Entry {
        entry
    }
}

#[cfg(feature = "fault-injection")]
mod imp {
    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use io_uring::opcode;
    use io_uring::squeue::Entry;

    /// `IORING_NOP_INJECT_RESULT` (Linux 6.10), in `nop_flags`: the result is in `len`.
    const INJECT_RESULT: u32 = 1;
    /// Where both are in `struct io_uring_sqe`.
    const LENGTH_AT: usize = 24;
    const FLAGS_AT: usize = 28;

    static SEED: LazyLock<u64> = LazyLock::new(|| {
        let seed = std::env::var("LULL_FAULTS").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
        eprintln!("faults of seed {seed}");
        seed
    });

    thread_local! {
        /// Xorshift: never 0. Each thread has its own numbers.
        static STATE: Cell<u64> = {
            static THREADS: AtomicU64 = AtomicU64::new(1);
            let thread = THREADS.fetch_add(1, Ordering::Relaxed);
            Cell::new((SEED.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ thread.wrapping_mul(0xd134_2543_de82_ef95)) | 1)
        };
    }

    fn random() -> u64 {
        let next = |state: &Cell<u64>| {
            let mut bits = state.get();
            bits ^= bits << 13;
            bits ^= bits >> 7;
            bits ^= bits << 17;
            state.set(bits);
            bits >> 11
        };
        STATE.try_with(next).unwrap_or(1)
    }

    /// True with probability 1 / `one_in`.
    pub(crate) fn chance(one_in: u64) -> bool {
        *SEED != 0 && random().is_multiple_of(one_in)
    }

    /// Exchanges neighbours, except those whose order is fixed.
    pub(crate) fn reorder<T>(list: &mut [T], is_fixed: impl Fn(&T, &T) -> bool) {
        for _ in 0..3 {
            for index in 1..list.len() {
                if chance(2) && !is_fixed(&list[index - 1], &list[index]) {
                    list.swap(index - 1, index);
                }
            }
        }
    }

    /// The bytes that a receive or send moves of those that it could.
    pub(crate) fn part_of(whole: u32) -> u32 {
        if whole > 1 && chance(8) { 1 + (random() % u64::from(whole - 1)) as u32 } else { whole }
    }

    /// The operation, or one that does nothing and has one of these results.
    pub(crate) fn or_fails(entry: Entry, errors: &[i32]) -> Entry {
        if !chance(16) {
            return entry;
        }
        let error = errors[random() as usize % errors.len()];
        let nop = opcode::Nop::new().build().user_data(entry.get_user_data());
        // SAFETY: an entry is one `struct io_uring_sqe` of plain numbers (`repr(C)`), of any values.
        let mut bytes: [u8; size_of::<Entry>()] = unsafe { std::mem::transmute(nop) };
        bytes[LENGTH_AT..LENGTH_AT + 4].copy_from_slice(&(-error).to_ne_bytes());
        bytes[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&INJECT_RESULT.to_ne_bytes());
        // SAFETY: as above.
        unsafe { std::mem::transmute(bytes) }
    }
}
