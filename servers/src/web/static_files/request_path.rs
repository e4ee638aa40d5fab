//! The path of a request, made safe to open.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::percent_decode_str;

/// A path relative to the root: no segment is empty, `.` or `..`, and none has a NUL or an encoded
/// slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    /// Its segments, with a slash between two.
    bytes: Vec<u8>,
    /// Whether it names a folder by a slash at its end. The root does.
    folder: bool,
}

/// Why a path is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// It leads out of the root, or has bytes that no file name has.
    Malformed,
    /// A segment begins with a dot.
    Hidden,
}

/// Whether a path is as it would be after decoding and normalizing it.
pub fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first() == Some(&b'/')
        && !bytes.contains(&b'%')
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'))
}

impl RequestPath {
    /// Decodes and normalizes the path of a URI. `dotfiles`: whether segments may begin with a dot.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(path: &str, dotfiles: bool) -> Result<Self, PathError> {
        let mut segments: Vec<Vec<u8>> = Vec::new();
        let mut folder = true;
        for encoded in path.strip_prefix('/').ok_or(PathError::Malformed)?.split('/') {
            let segment: Vec<u8> = percent_decode_str(encoded).collect();
            // Proxies before this server may read an encoded slash otherwise, and let a path
            // through that they refuse.
            if segment.contains(&0) || segment.contains(&b'/') {
                return Err(PathError::Malformed);
            }
            folder = matches!(&segment[..], b"" | b"." | b"..");
            match &segment[..] {
                b"" | b"." => {}
                b".." => {
                    segments.pop().ok_or(PathError::Malformed)?;
                }
                [b'.', ..] if !dotfiles => return Err(PathError::Hidden),
                _ => segments.push(segment),
            }
        }
        Ok(Self { bytes: segments.join(&b'/'), folder })
    }

    /// The path as URIs have it, but decoded.
    pub fn absolute(&self) -> Vec<u8> {
        let end: &[u8] = if self.folder && !self.bytes.is_empty() { b"/" } else { b"" };
        [b"/", &self.bytes[..], end].concat()
    }

    /// What to open, relative to the root.
    pub fn relative(&self) -> &Path {
        match &self.bytes[..] {
            [] => Path::new("."),
            bytes => Path::new(OsStr::from_bytes(bytes)),
        }
    }

    /// Whether it ends with a slash.
    pub fn is_folder(&self) -> bool {
        self.folder
    }

    /// The path of a file in this folder.
    pub fn join(&self, name: &str) -> Self {
        let mut bytes = self.bytes.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name.as_bytes());
        Self { bytes, folder: false }
    }

    /// The path with a suffix, as `.gz`.
    pub fn with_suffix(&self, suffix: &str) -> Self {
        Self { bytes: [&self.bytes, suffix.as_bytes()].concat(), folder: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> Result<(String, bool), PathError> {
        let parsed = RequestPath::parse(path, false)?;
        Ok((parsed.relative().to_str().unwrap().to_owned(), parsed.is_folder()))
    }

    #[test]
    fn paths_are_decoded_and_normalized() {
        let file = |path: &str| Ok((path.to_owned(), false));
        assert_eq!(parsed("/a/b.html"), file("a/b.html"));
        assert_eq!(parsed("//a///b.html"), file("a/b.html"));
        assert_eq!(parsed("/a/./b/../c"), file("a/c"));
        assert_eq!(parsed("/a%20b"), file("a b"));
        assert_eq!(parsed("/%61"), file("a"));
        // Decoded once only.
        assert_eq!(parsed("/%2561"), file("%61"));
        assert_eq!(parsed("/a\\..\\b"), file("a\\..\\b"));
        let folder = |path: &str| Ok((path.to_owned(), true));
        assert_eq!(parsed("/"), folder("."));
        assert_eq!(parsed("/a/"), folder("a"));
        assert_eq!(parsed("/a/."), folder("a"));
        assert_eq!(parsed("/a/b/.."), folder("a"));
    }

    #[test]
    fn plain_paths_are_those_that_decoding_and_normalizing_leave_as_they_are() {
        for path in ["/", "/a", "/a/b.html", "/a/", "/a.b/c..d/e.", "/a b"] {
            assert!(is_plain(path), "{path}");
            assert_eq!(RequestPath::parse(path, true).unwrap().absolute(), path.as_bytes(), "{path}");
        }
        for path in ["", "a", "*", "//a", "/a//b", "/./a", "/a/..", "/%61", "/.a"] {
            assert!(!is_plain(path), "{path}");
        }
        for path in ["//a", "/./a", "/%61", "/b/../a"] {
            assert_eq!(RequestPath::parse(path, true).unwrap().absolute(), b"/a", "{path}");
        }
    }

    /// Which status a path gets is the kind's: 400 or 404.
    #[test]
    fn an_error_says_whether_a_path_is_malformed_or_hidden() {
        for path in ["/..", "/a/%2e%2e/%2E%2e/b", "/..%2fetc/passwd", "/a%00.html", "a", "", "*"] {
            assert_eq!(parsed(path), Err(PathError::Malformed), "{path}");
        }
        // A backslash is a character of a name here.
        for path in ["/..\\etc", "/a/.htpasswd", "/%2egit/config", "/.../a"] {
            assert_eq!(parsed(path), Err(PathError::Hidden), "{path}");
        }
    }
}
