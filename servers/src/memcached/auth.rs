//! The users that may authenticate, and their passwords.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

/// The longest user name and the longest password, in bytes.
const MAX_LENGTH: usize = 256;

/// A file of users cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum UsersFileError {
    #[error("cannot read the users from {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A line is not `user:password`.
    #[error("{}, line {line}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: &'static str },
    /// The file contains no user.
    #[error("{} contains no user; write lines of user:password", path.display())]
    Empty { path: PathBuf },
}

#[derive(Debug)]
pub struct Users {
    path: PathBuf,
    entries: RwLock<Vec<Credentials>>,
}

/// A user and a password, padded with zeros, and their lengths. The fixed size makes every
/// comparison take the same time.
#[derive(Clone, PartialEq, Eq)]
struct Credentials([u8; 2 * MAX_LENGTH + 4]);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// `None` if either is too long.
    fn new(user: &[u8], password: &[u8]) -> Option<Self> {
        if user.len() > MAX_LENGTH || password.len() > MAX_LENGTH {
            return None;
        }
        let mut bytes = [0; 2 * MAX_LENGTH + 4];
        bytes[..user.len()].copy_from_slice(user);
        bytes[MAX_LENGTH..MAX_LENGTH + password.len()].copy_from_slice(password);
        bytes[2 * MAX_LENGTH..2 * MAX_LENGTH + 2].copy_from_slice(&(user.len() as u16).to_le_bytes());
        bytes[2 * MAX_LENGTH + 2..].copy_from_slice(&(password.len() as u16).to_le_bytes());
        Some(Self(bytes))
    }
}

fn read_users(path: &Path) -> Result<Vec<Credentials>, UsersFileError> {
    let text =
        std::fs::read(path).map_err(|source| UsersFileError::Read { path: path.to_owned(), source })?;
    let mut entries = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let error = |problem| UsersFileError::Line { path: path.to_owned(), line: index + 1, problem };
        let colon = memchr::memchr(b':', line).ok_or_else(|| error("write user:password"))?;
        let entry = Credentials::new(&line[..colon], &line[colon + 1..])
            .ok_or_else(|| error("user and password may have at most 256 bytes each"))?;
        entries.push(entry);
    }
    if entries.is_empty() {
        return Err(UsersFileError::Empty { path: path.to_owned() });
    }
    Ok(entries)
}

impl Users {
    /// Reads a file of `user:password` lines.
    pub fn open(path: &Path) -> Result<Self, UsersFileError> {
        Ok(Self { path: path.to_owned(), entries: RwLock::new(read_users(path)?) })
    }

    /// Reads the file again. On an error the present users stay.
    pub fn reload(&self) -> Result<(), UsersFileError> {
        let entries = read_users(&self.path)?;
        *self.entries.write().unwrap_or_else(PoisonError::into_inner) = entries;
        Ok(())
    }

    /// Whether a user has this password. Compares with every entry, so that the time reveals
    /// nothing.
    pub fn verify(&self, user: &[u8], password: &[u8]) -> bool {
        let Some(given) = Credentials::new(user, password) else { return false };
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let found = entries.iter().fold(Choice::from(0), |found, entry| found | entry.0.ct_eq(&given.0));
        found.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_of_the_right_user_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("users");
        std::fs::write(&path, "ann:secret\nbob:pass:word\r\n").unwrap();
        let users = Users::open(&path).unwrap();
        assert!(users.verify(b"ann", b"secret") && users.verify(b"bob", b"pass:word"));
        for (user, password) in
            [("ann", "Secret"), ("ann", ""), ("bob", "secret"), ("", ""), ("anns", "ecret")]
        {
            assert!(!users.verify(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!users.verify(b"ann", &[0; 300]) && !users.verify(b"ann", b"secret\0"));
        std::fs::write(&path, "carl:new\n").unwrap();
        users.reload().unwrap();
        assert!(users.verify(b"carl", b"new") && !users.verify(b"ann", b"secret"));
        std::fs::write(&path, "broken\n").unwrap();
        assert!(users.reload().unwrap_err().to_string().contains("line 1"));
        assert!(users.verify(b"carl", b"new"));
    }
}
