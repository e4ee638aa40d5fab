//! Drops root privileges.

use nix::unistd::{Group, User, initgroups, setgid, setuid};

/// The user that the server runs as.
pub struct RunAsUser {
    user: User,
}

impl RunAsUser {
    /// Looks up a user by name.
    pub fn look_up(name: &str) -> Result<Self, String> {
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Self { user }),
            Ok(None) => Err(format!("-u: there is no user {name:?}")),
            Err(error) => Err(format!("-u: cannot look up {name:?}: {error}")),
        }
    }

    /// Refuses to serve as root unless a user was named, as memcached does.
    pub fn require(name: Option<&str>) -> Result<(), &'static str> {
        let is_root = rustix::process::getuid().is_root() || rustix::process::geteuid().is_root();
        match name {
            None if is_root => {
                Err("can't run as root without the -u switch; give -u USER, or -u root to stay root")
            }
            _ => Ok(()),
        }
    }

    pub fn is_root(&self) -> bool {
        self.user.uid.is_root()
    }

    /// Switches all threads to the user and its groups.
    pub fn switch(&self) -> Result<(), String> {
        let name = std::ffi::CString::new(self.user.name.as_str()).map_err(|error| error.to_string())?;
        let failed =
            |what: &'static str| move |error: nix::Error| format!("-u {}: {what}: {error}", self.user.name);
        initgroups(&name, self.user.gid).map_err(failed("cannot set supplementary groups"))?;
        setgid(self.user.gid).map_err(failed("cannot set the group"))?;
        setuid(self.user.uid).map_err(failed("cannot set the user"))?;
        Ok(())
    }

    /// `user:group`, for messages.
    pub fn describe(&self) -> String {
        let group = Group::from_gid(self.user.gid).ok().flatten().map(|group| group.name);
        format!("{}:{}", self.user.name, group.unwrap_or_else(|| self.user.gid.to_string()))
    }
}
