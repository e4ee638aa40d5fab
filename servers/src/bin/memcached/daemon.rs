//! Going into the background, and giving root up.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

use nix::unistd::{ForkResult, Group, User, fork, initgroups, setgid, setsid, setuid};

/// The process that goes on in the background, and its word to the one that was started.
pub struct Background(PipeWriter);

/// What the started process hears when all is well.
const READY: u8 = b'+';

/// Goes on in the background. The process that was started waits until the other one has begun to serve,
/// and ends with its word: `Err` is for it.
pub fn go() -> Result<Background, ExitCode> {
    let fail = |what: &str, error: io::Error| {
        eprintln!("memcached: cannot go into the background: {what}: {error}");
        ExitCode::FAILURE
    };
    let (reader, writer) = io::pipe().map_err(|error| fail("pipe", error))?;
    // SAFETY: this is called before any other thread is there, so the child may do all that the parent
    // may.
    match unsafe { fork() } {
        Err(error) => Err(fail("fork", error.into())),
        Ok(ForkResult::Parent { .. }) => {
            drop(writer);
            Err(wait_for_word(reader))
        }
        Ok(ForkResult::Child) => {
            drop(reader);
            setsid().map_err(|error| fail("setsid", error.into()))?;
            Ok(Background(writer))
        }
    }
}

fn wait_for_word(mut reader: PipeReader) -> ExitCode {
    let mut word = Vec::new();
    match reader.read_to_end(&mut word) {
        Ok(_) if word == [READY] => ExitCode::SUCCESS,
        _ => {
            // What went wrong the child has said itself.
            ExitCode::FAILURE
        }
    }
}

impl Background {
    /// Tells the process that was started that all is well, and lets go of the terminal, unless there is
    /// something to log to it.
    pub fn ready(mut self, keep_terminal: bool) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        if !keep_terminal {
            let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
        }
        // Where nobody waits any more that is as well.
        let _ = self.0.write_all(&[READY]);
        Ok(())
    }
}

/// A user to become.
pub struct Identity {
    user: User,
}

impl Identity {
    /// Looks a user up.
    pub fn of(name: &str) -> Result<Self, String> {
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Self { user }),
            Ok(None) => Err(format!("-u: there is no user {name:?}")),
            Err(error) => Err(format!("-u: cannot look {name:?} up: {error}")),
        }
    }

    pub fn is_root(&self) -> bool {
        self.user.uid.is_root()
    }

    /// Becomes the user, in all threads.
    pub fn assume(&self) -> Result<(), String> {
        let name = std::ffi::CString::new(self.user.name.as_str()).map_err(|error| error.to_string())?;
        let failed = |what: &'static str| {
            move |error: nix::Error| format!("-u {}: {what}: {error}", name_of(&self.user))
        };
        initgroups(&name, self.user.gid).map_err(failed("cannot take its groups"))?;
        setgid(self.user.gid).map_err(failed("cannot take its group"))?;
        setuid(self.user.uid).map_err(failed("cannot become it"))?;
        Ok(())
    }

    /// The user's group, for messages.
    pub fn describe(&self) -> String {
        let group = Group::from_gid(self.user.gid).ok().flatten().map(|group| group.name);
        format!("{}:{}", self.user.name, group.unwrap_or_else(|| self.user.gid.to_string()))
    }
}

fn name_of(user: &User) -> &str {
    &user.name
}
