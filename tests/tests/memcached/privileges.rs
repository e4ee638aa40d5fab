//! A server that is started by root: the user that it runs as, and what it can still do as that
//! user.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serial_test::parallel;
use tests::KillOnDrop;
use tests::memcached::{Memcached, binary, wait_until};

#[test]
#[parallel]
fn a_server_started_by_root_runs_as_the_user_of_its_flag() {
    let Some(()) = tests::root() else { return };
    let server = Memcached::start(&["-u", "nobody"]);
    assert_eq!(server.talk(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    for task in tasks {
        // One that waited for work of the ring may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let words = |name: &str| -> Vec<String> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(
            words("Uid:"),
            std::array::from_fn::<_, 4, _>(|_| nobody.uid.to_string()),
            "real, effective, saved, file system"
        );
        assert_eq!(words("Gid:"), std::array::from_fn::<_, 4, _>(|_| nobody.gid.to_string()));
        assert!(!words("Groups:").contains(&"0".to_owned()), "it is still in root's group");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(words(set)[0].trim_start_matches('0'), "", "capabilities are left in {set}");
        }
    }
}

#[test]
#[parallel]
fn files_that_only_root_may_read_are_read_before_root_is_given_up() {
    let Some(()) = tests::root() else { return };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) =
        (write("chain", certified.cert.pem()), write("key", certified.signing_key.serialize_pem()));
    let files = format!("ssl_chain_cert={chain},ssl_key={key}");
    drop(Memcached::start(&["-u", "nobody", "-Z", "-o", &files]));
    drop(Memcached::start(&["-u", "nobody", "-Y", &write("users", "ann:secret\n".to_owned())]));
}

#[test]
#[parallel]
fn root_is_refused_without_a_user() {
    let Some(()) = tests::root() else { return };
    let child = Command::new(binary()).args(["-p", "-1"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = KillOnDrop::from(child);
    wait_until("the server refuses to run", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && stderr.contains("can't run as root without the -u switch"),
        "{stderr}"
    );
}
