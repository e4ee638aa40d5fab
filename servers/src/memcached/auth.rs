//! The users that may authenticate, and their passwords.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

/// The longest line of a user and a password, in bytes.
const MAX_LENGTH: usize = 512;

/// A file of users cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("users file {}: {problem}", path.display())]
pub struct UsersFileError {
    path: PathBuf,
    problem: String,
}

#[derive(Debug)]
pub struct Users {
    path: PathBuf,
    entries: RwLock<Vec<Credentials>>,
}

/// A line of user and password, padded with zeros, and its length. The fixed size makes every
/// comparison take the same time.
struct Credentials([u8; MAX_LENGTH + 2]);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// `None` if the line is too long.
    fn new(line: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_LENGTH + 2];
        bytes[..MAX_LENGTH].get_mut(..line.len())?.copy_from_slice(line);
        bytes[MAX_LENGTH..].copy_from_slice(&(line.len() as u16).to_le_bytes());
        Some(Self(bytes))
    }
}

fn read_users(path: &Path) -> Result<Vec<Credentials>, UsersFileError> {
    let error = |problem| UsersFileError { path: path.to_owned(), problem };
    let text = std::fs::read(path).map_err(|source| error(source.to_string()))?;
    let mut entries = Vec::new();
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let credentials = Credentials::new(line).filter(|_| line.contains(&b':'));
        match credentials {
            Some(credentials) => entries.push(credentials),
            None if line.is_empty() => {}
            None => {
                let number = index + 1;
                return Err(error(format!("line {number}: write user:password, with at most 512 bytes")));
            }
        }
    }
    match entries.is_empty() {
        true => Err(error("it contains no user; write lines of user:password".to_owned())),
        false => Ok(entries),
    }
}

impl Users {
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
        let line = [user, b":", password].concat();
        let Some(given) = Credentials::new(&line).filter(|_| !user.contains(&b':')) else { return false };
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
        let wrong = [("ann", "Secret"), ("ann", ""), ("bob", "secret"), ("", ""), ("bob:pass", "word")];
        for (user, password) in wrong {
            assert!(!users.verify(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!users.verify(b"ann", &[0; 600]) && !users.verify(b"ann", b"secret\0"));
        std::fs::write(&path, "carl:new\n").unwrap();
        users.reload().unwrap();
        assert!(users.verify(b"carl", b"new") && !users.verify(b"ann", b"secret"));
        std::fs::write(&path, "broken\n").unwrap();
        assert!(users.reload().unwrap_err().to_string().contains("line 1"));
        assert!(users.verify(b"carl", b"new"));
    }
}
