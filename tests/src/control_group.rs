//! Control groups of version 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, mount};

/// A group, which is removed on drop.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// In the calling process's mount namespace, whose `/sys` shows no control groups. `None` where
    /// the kernel has none of version 2.
    pub fn new() -> Option<Self> {
        let root = "/sys/fs/cgroup";
        let mounted = mount("none", root, "cgroup2", MountFlags::empty(), None).ok();
        let group = Path::new(root).join(format!("lull-test-{}", std::process::id()));
        let made = mounted.and_then(|()| fs::create_dir(&group).ok()).map(|()| Self(group));
        crate::require("cgroup2 with cgroup.kill", made.filter(|group| group.0.join("cgroup.kill").exists()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn add(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }

    pub fn is_empty(&self) -> bool {
        fs::read_to_string(self.0.join("cgroup.procs")).unwrap().is_empty()
    }

    /// Kills its processes, which may end later.
    pub fn kill(&self) {
        fs::write(self.0.join("cgroup.kill"), "1").unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Its processes may not have ended yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
