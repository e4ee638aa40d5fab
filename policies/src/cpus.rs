//! A set of CPUs, with the kernel's two notations: list (`0-3,5`) and mask (`0000002f`).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

pub use rustix::thread::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
/// A set of CPU numbers.
///
/// [`FromStr`] and [`Display`](fmt::Display) use the kernel's list notation:
///
/// ```
/// use policies::Cpus;
///
/// let cpus: Cpus = "0-3,5".parse()?;
/// assert!(cpus.contains(2) && !cpus.contains(4));
/// assert_eq!(cpus.to_mask(), "0000002f");
/// # Ok::<(), policies::InvalidCpus>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Cpus(BTreeSet<u32>);

/// The largest CPU number accepted. Far above `CONFIG_NR_CPUS` (8192 on x86); bounds the memory
/// that parsing `0-4000000000` takes.
const LARGEST_CPU: u32 = 1 << 16;

impl Cpus {
    pub fn none() -> Self {
        Self::default()
    }

    pub fn one(cpu: u32) -> Self {
        Self(BTreeSet::from([cpu]))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs that the calling thread may run on (`sched_getaffinity(2)`).
    ///
    /// # Errors
    /// The error of `sched_getaffinity`.
    pub fn allowed() -> io::Result<Self> {
        Self::of_thread(None)
    }

    /// The CPUs that are online.
    ///
    /// # Errors
    /// If `/sys/devices/system/cpu/online` can't be read.
    pub fn online() -> io::Result<Self> {
        let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
        list.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The CPUs that a thread may run on; `None` is the calling thread.
    ///
    /// # Errors
    /// The error of `sched_getaffinity`: `ESRCH` if there is no such thread.
    pub fn of_thread(thread: Option<Pid>) -> io::Result<Self> {
        let set = sched_getaffinity(thread)?;
        Ok((0..CpuSet::MAX_CPU as u32).filter(|&cpu| set.is_set(cpu as usize)).collect())
    }

    /// Restricts a thread to these CPUs (`sched_setaffinity(2)`); `None` is the calling thread.
    /// Numbers beyond `CPU_SETSIZE` are ignored.
    ///
    /// # Errors
    /// The error of `sched_setaffinity`: `EINVAL` if none of the CPUs is available to the thread,
    /// `ESRCH` if there is no such thread, `EPERM` without `CAP_SYS_NICE` for another user's
    /// thread.
    pub fn pin(&self, thread: Option<Pid>) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.iter().filter(|&cpu| (cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu as usize));
        Ok(sched_setaffinity(thread, &set)?)
    }

    /// Parses the kernel's mask notation: comma-separated 32-bit hexadecimal words, highest first
    /// (`rps_cpus`, `smp_affinity`).
    ///
    /// # Errors
    /// [`InvalidCpus`] if a word is not a 32-bit hexadecimal number.
    pub fn from_mask(text: &str) -> Result<Self, InvalidCpus> {
        let invalid = || InvalidCpus { given: text.trim().to_owned() };
        let mut cpus = BTreeSet::new();
        for (word_index, word) in text.trim().split(',').rev().enumerate() {
            let word = u32::from_str_radix(word.trim(), 16).map_err(|_| invalid())?;
            cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| word_index as u32 * 32 + bit));
        }
        Ok(Self(cpus))
    }

    /// The set in the kernel's mask notation.
    pub fn to_mask(&self) -> String {
        let words = self.0.last().map_or(1, |&last| last / 32 + 1);
        (0..words)
            .rev()
            .map(|word| {
                let bits =
                    self.0.range(word * 32..word * 32 + 32).fold(0u32, |bits, cpu| bits | 1 << (cpu % 32));
                format!("{bits:08x}")
            })
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl FromIterator<u32> for Cpus {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        let text: Vec<_> = ranges
            .into_iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
            .collect();
        f.pad(&text.join(","))
    }
}

/// Text that is neither a list nor a mask of CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidCpus {
    given: String,
}

crate::error_text!(InvalidCpus: Self { given } => "{given:?} is not a list of CPUs; write for example 0-3,5");

impl FromStr for Cpus {
    type Err = InvalidCpus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidCpus { given: text.to_owned() };
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u32 = first.trim().parse().map_err(|_| invalid())?;
            let last: u32 = last.trim().parse().map_err(|_| invalid())?;
            if first > last || last > LARGEST_CPU {
                return Err(invalid());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

crate::json::json_text!(Cpus);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks_name_the_same_cpus() {
        let cpus: Cpus = "0-3,5,40".parse().unwrap();
        assert_eq!(cpus.to_string(), "0-3,5,40");
        assert_eq!(cpus.to_mask(), "00000100,0000002f");
        assert_eq!(Cpus::from_mask("100,0000002f\n").unwrap(), cpus);
    }

    #[test]
    fn the_empty_set_is_an_empty_list_and_a_zero_mask() {
        assert_eq!("".parse::<Cpus>().unwrap(), Cpus::none());
        assert_eq!(Cpus::none().to_mask(), "00000000");
        assert_eq!(Cpus::from_mask("0").unwrap(), Cpus::none());
    }

    #[test]
    fn invalid_lists_are_rejected_and_quoted_in_the_error() {
        for text in ["a", "3-1", "-", "0-4000000000", "1;2"] {
            let message = text.parse::<Cpus>().unwrap_err().to_string();
            assert!(message.contains(text), "{message}");
        }
    }
}
