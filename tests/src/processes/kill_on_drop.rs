//! Child processes that end with their test.

use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Output};

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct KillOnDrop(Option<Child>);

impl From<Child> for KillOnDrop {
    fn from(child: Child) -> Self {
        Self(Some(child))
    }
}

impl KillOnDrop {
    /// Waits until the process exits. Returns its output.
    ///
    /// # Errors
    /// If its output can't be read.
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        match self.0.take() {
            Some(child) => child.wait_with_output(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Why a child is there: only methods that consume the guard take it out.
const PRESENT: &str = "the child is taken out only with its guard";

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect(PRESENT)
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect(PRESENT)
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // Fails if it has exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
