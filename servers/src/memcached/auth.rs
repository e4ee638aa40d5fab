//! Who may use the server: a file of users and passwords.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

use super::command::words;
use super::numbers;
use super::session::{Flow, Session};

/// The longest name or password.
const LONGEST: usize = 256;
/// The largest data block that is looked at before a client has said who it is.
const LARGEST_BLOCK: usize = 16 << 10;
/// The longest line, likewise.
const LONGEST_LINE: usize = 2048;
/// A line with a user in it can't be shorter.
const SHORTEST_LINE: usize = 6;

/// Users and their passwords.
#[derive(Debug)]
pub struct Passwords {
    path: PathBuf,
    entries: RwLock<Vec<Entry>>,
}

/// Both filled up with zeros, and their lengths, so that comparing takes the same time for all.
#[derive(Clone, PartialEq, Eq)]
struct Entry([u8; 2 * LONGEST + 4]);

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

impl Entry {
    fn new(user: &[u8], password: &[u8]) -> Option<Self> {
        if user.len() > LONGEST || password.len() > LONGEST {
            return None;
        }
        let mut entry = [0; 2 * LONGEST + 4];
        entry[..user.len()].copy_from_slice(user);
        entry[LONGEST..LONGEST + password.len()].copy_from_slice(password);
        entry[2 * LONGEST..2 * LONGEST + 2].copy_from_slice(&(user.len() as u16).to_le_bytes());
        entry[2 * LONGEST + 2..].copy_from_slice(&(password.len() as u16).to_le_bytes());
        Some(Self(entry))
    }
}

/// Reads `user:password` lines.
fn read(path: &Path) -> io::Result<Vec<Entry>> {
    let invalid = |line: usize, what: &str| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}, line {line}: {what}", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read the users of {}: {error}", path.display()))
    })?;
    let mut entries = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let colon = memchr::memchr(b':', line).ok_or_else(|| invalid(index + 1, "write user:password"))?;
        let entry = Entry::new(&line[..colon], &line[colon + 1..])
            .ok_or_else(|| invalid(index + 1, "a name and a password may have 256 bytes each"))?;
        entries.push(entry);
    }
    if entries.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} names no user; write lines of user:password", path.display()),
        ));
    }
    Ok(entries)
}

impl Passwords {
    /// Reads them from a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), entries: RwLock::new(read(path)?) })
    }

    /// Reads the file again; on an error what there was goes on to hold.
    pub fn reload(&self) -> io::Result<()> {
        let entries = read(&self.path)?;
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        Ok(())
    }

    /// Looks at every user, so that the time tells nothing about them.
    pub fn check(&self, user: &[u8], password: &[u8]) -> bool {
        let Some(given) = Entry::new(user, password) else { return false };
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let found = entries.iter().fold(Choice::from(0), |found, entry| found | entry.0.ct_eq(&given.0));
        found.into()
    }
}

impl Session<'_> {
    /// Takes `set <any key> <flags> <expiry> <length>` and a block of user and password with a space
    /// between, as memcached's `-Y` has it; anything else is refused.
    pub(super) fn authenticate_text(&mut self, rest: &[u8]) -> Flow {
        let Some(end) = memchr::memchr(b'\n', rest) else {
            return if rest.len() > LONGEST_LINE { Flow::Close(0) } else { Flow::Wait };
        };
        if end < SHORTEST_LINE {
            return Flow::Close(end + 1);
        }
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let used = end + 1;
        let mut arguments = words(line);
        let is_set = arguments.next() == Some(b"set");
        let length = arguments.nth(3).and_then(numbers::digits_u32).filter(|_| is_set);
        let Some(length) = length else {
            self.out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return Flow::Done(used);
        };
        let length = length as usize;
        if length > LARGEST_BLOCK {
            self.out.extend_from_slice(b"CLIENT_ERROR auth token too long\r\n");
            return Flow::Done(used);
        }
        let Some(block) = rest[used..].get(..length + 2) else { return Flow::Wait };
        let answer: &[u8] = match block.strip_suffix(b"\r\n") {
            None => b"CLIENT_ERROR bad command line termination\r\n",
            Some(token) => match memchr::memchr(b' ', token) {
                None => b"CLIENT_ERROR bad authentication token format\r\n",
                Some(space) => {
                    self.stats.auth_cmds.add(1);
                    self.trusted = self.shared.check(&token[..space], &token[space + 1..]);
                    if self.trusted {
                        b"STORED\r\n"
                    } else {
                        self.stats.auth_errors.add(1);
                        b"CLIENT_ERROR authentication failure\r\n"
                    }
                }
            },
        };
        self.out.extend_from_slice(answer);
        Flow::Done(used + length + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_of_the_right_user_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "ann:secret\nbob:pass:word\r\n").unwrap();
        let passwords = Passwords::open(&path).unwrap();
        assert!(passwords.check(b"ann", b"secret") && passwords.check(b"bob", b"pass:word"));
        for (user, password) in
            [("ann", "Secret"), ("ann", ""), ("bob", "secret"), ("", ""), ("anns", "ecret")]
        {
            assert!(!passwords.check(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!passwords.check(b"ann", &[0; 300]) && !passwords.check(b"ann", b"secret\0"));
        std::fs::write(&path, "carl:new\n").unwrap();
        passwords.reload().unwrap();
        assert!(passwords.check(b"carl", b"new") && !passwords.check(b"ann", b"secret"));
        std::fs::write(&path, "broken\n").unwrap();
        assert!(passwords.reload().unwrap_err().to_string().contains("line 1"));
        assert!(passwords.check(b"carl", b"new"));
    }
}
