//! The slices of a vectored write.

use std::io::IoSlice;

/// The most slices that one `sendmsg(2)` takes (`UIO_MAXIOV`).
const MOST_SLICES: usize = libc::UIO_MAXIOV as usize;

/// What one `sendmsg(2)` takes of a vectored write: more slices are an error. Without the empty
/// ones at the front, which could be all that it takes: it would return 0, for `write_all` an
/// error.
pub(crate) fn sendable<'a, 'bytes>(slices: &'a [IoSlice<'bytes>]) -> &'a [IoSlice<'bytes>] {
    let first = slices.iter().position(|slice| !slice.is_empty()).unwrap_or(0);
    &slices[first..slices.len().min(first + MOST_SLICES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_slices_at_the_front_leave_room_for_the_others() {
        let mut slices = vec![IoSlice::new(b""); 1500];
        assert_eq!(sendable(&slices).len(), 1024);
        slices.extend([IoSlice::new(b"a"); 1500]);
        let some = sendable(&slices);
        assert_eq!((some.len(), &*some[0]), (1024, &b"a"[..]));
        assert!(sendable(&[]).is_empty());
    }
}
