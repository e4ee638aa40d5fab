//! Journal files: their owners, their order, and files that can't be read as journals.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::directory::{Contents, JournalDir, JournalFile};
use super::record::{Journal, Lifetime};
use super::restore::{recover, restore};
use super::summary::journals_of;
use crate::host::process::ProcessIdentity;
use crate::policy::Policy;

/// No interface has this index, so there is nothing to restore.
const NO_INTERFACE: u32 = u32::MAX;

struct Directory {
    _folder: tempfile::TempDir,
    journals: JournalDir,
}

impl Directory {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journals = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(journals.path()).unwrap();
        Self { _folder: folder, journals }
    }

    fn write(&self, lifetime: Lifetime, writer: ProcessIdentity) -> JournalFile {
        let mut journal = journal(lifetime);
        journal.writer = writer;
        self.journals.write(&mut journal).unwrap()
    }

    fn read(&self) -> Contents {
        self.journals.read().unwrap()
    }

    fn abandoned(&self) -> Vec<bool> {
        self.read().journals.iter().map(|found| found.is_abandoned()).collect()
    }

    fn names(&self) -> Vec<PathBuf> {
        fs::read_dir(self.journals.path()).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

fn journal(lifetime: Lifetime) -> Journal {
    Journal::new(Policy::Packing, "nonesuch", NO_INTERFACE, lifetime, vec![0])
}

fn running() -> (Child, ProcessIdentity) {
    let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let identity = ProcessIdentity::of(child.id()).unwrap();
    (child, identity)
}

fn ended() -> ProcessIdentity {
    let (mut child, identity) = running();
    child.kill().unwrap();
    child.wait().unwrap();
    identity
}

fn let_go(file: JournalFile) {
    let path = file.path.clone();
    super::files::let_go(file, &path);
}

/// Changes a file in place, so that its lock stays.
fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut journal: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut journal);
    fs::write(path, serde_json::to_vec(&journal).unwrap()).unwrap();
}

fn set_modified(path: &Path, seconds_ago: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds_ago);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn a_journal_belongs_to_its_writer_until_the_lock_ends() {
    let directory = Directory::new();
    let file = directory.write(Lifetime::Process, ProcessIdentity::current());
    assert_eq!(directory.abandoned(), [false]);
    let_go(file);
    assert_eq!(directory.abandoned(), [true], "this process has let it go");
    let kept = directory.write(Lifetime::Process, ProcessIdentity::current());
    kept.keep_locked();
    assert_eq!(directory.abandoned(), [false, true]);
    let outlives = directory.write(Lifetime::Host, ended());
    let_go(outlives);
    assert_eq!(directory.abandoned(), [false, false, true]);
}

#[test]
fn a_journal_that_is_written_again_stays_locked_and_keeps_its_name() {
    let directory = Directory::new();
    let mut journal = journal(Lifetime::Process);
    let first = directory.journals.write(&mut journal).unwrap();
    let second = directory.journals.write(&mut journal).unwrap();
    assert_eq!(first.path, second.path);
    drop(first);
    assert_eq!(directory.abandoned(), [false]);
    assert_eq!(directory.names().len(), 1);
}

#[test]
fn the_lock_tells_a_running_process_from_one_that_had_its_id() {
    let directory = Directory::new();
    let own = std::process::id();
    let journals = || journals_of(own, &directory.journals).map(|it| (it.held, it.left)).unwrap();
    assert_eq!(journals(), (false, false));
    // Of an earlier process with the id of this one.
    let earlier = directory.write(Lifetime::Process, ProcessIdentity::current());
    edit(&earlier.path, |journal| journal["writer"]["start"] = json!(1));
    let_go(earlier);
    assert_eq!(journals(), (false, true));
    let held = directory.write(Lifetime::Process, ProcessIdentity::current());
    assert_eq!(journals(), (true, true));
    assert_eq!(recover(&directory.journals).unwrap().reports.len(), 1);
    assert_eq!(journals(), (true, false));
    let_go(held);
    let_go(directory.write(Lifetime::Host, ProcessIdentity::current()));
    assert_eq!(journals(), (false, true));
}

#[test]
fn a_status_file_is_removed_without_its_lock_though_another_process_has_the_id() {
    let directory = Directory::new();
    let pid = std::process::id();
    let path = directory.journals.path().join(format!("1-2-{pid}.workers"));
    let file = File::create(&path).unwrap();
    super::files::hold_file(&file).unwrap();
    directory.read();
    assert!(path.exists());
    super::files::let_go(file, &path);
    directory.read();
    assert!(!path.exists());
}

#[test]
fn a_process_that_has_inherited_the_lock_does_not_own_the_journal() {
    let directory = Directory::new();
    let _inherited = directory.write(Lifetime::Process, ended());
    assert_eq!(directory.abandoned(), [true]);
}

#[test]
fn a_file_that_was_copied_over_a_running_processs_journal_is_not_abandoned() {
    let directory = Directory::new();
    let (mut child, writer) = running();
    let file = directory.write(Lifetime::Process, writer);
    let copy = file.path.with_extension("copy");
    fs::copy(&file.path, &copy).unwrap();
    fs::rename(&copy, &file.path).unwrap();
    assert_eq!(directory.abandoned(), [false]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(directory.abandoned(), [true], "the lock is on a file that is gone");
}

#[test]
fn journals_are_read_newest_first_whatever_the_clock_says() {
    let directory = Directory::new();
    let files: Vec<JournalFile> =
        (0..4).map(|_| directory.write(Lifetime::Process, ProcessIdentity::current())).collect();
    let [one, two, three, four] = &files[..] else { unreachable!("four were written") };
    for (file, seconds_ago) in [(one, 300), (two, 200), (three, 100), (four, 400)] {
        set_modified(&file.path, seconds_ago);
    }
    let order: Vec<PathBuf> = directory.read().journals.into_iter().map(|found| found.path).collect();
    assert_eq!(order, [four, three, two, one].map(|file| file.path.clone()));
}

#[test]
fn processes_with_the_same_id_have_journals_of_their_own() {
    let directory = Directory::new();
    // In containers that share the directory each first process has the id 1, and its first journal
    // the same number.
    let first = directory.write(Lifetime::Process, ProcessIdentity::current());
    let second = directory.write(Lifetime::Process, ProcessIdentity::current());
    assert_ne!(first.path, second.path);
    assert_eq!(directory.read().journals.len(), 2);
    // Numbers go on from what is there, also if that can't be read.
    fs::rename(&second.path, second.path.with_file_name("1-2-3-s41.json")).unwrap();
    fs::write(second.path.with_file_name("1-2-3-s50.json"), "").unwrap();
    let third = directory.write(Lifetime::Host, ProcessIdentity::current());
    assert!(third.path.to_str().unwrap().ends_with("-host-s51.json"), "{third:?}");
    fs::write(third.path.with_file_name(format!("1-2-3-s{}.json", u64::MAX)), "").unwrap();
    let error = directory.journals.write(&mut journal(Lifetime::Host));
    assert!(error.unwrap_err().to_string().contains("highest possible number"));
}

#[test]
fn what_can_not_be_read_is_reported_by_name_and_the_others_are_restored() {
    let directory = Directory::new();
    let good = directory.write(Lifetime::Process, ended());
    let text = fs::read(&good.path).unwrap();
    let beside = |name: &str| good.path.with_file_name(name);
    fs::write(beside("a-garbage.json"), "\u{0}\u{ff}garbage").unwrap();
    fs::write(beside("b-truncated.json"), &text[..text.len() / 2]).unwrap();
    fs::write(beside("c-empty.json"), "").unwrap();
    fs::create_dir(beside("d-directory.json")).unwrap();
    symlink("/nonexistent", beside("e-link.json")).unwrap();
    mknodat(CWD, beside("f-pipe.json"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    fs::copy(&good.path, beside("g-newer.json")).unwrap();
    edit(&beside("g-newer.json"), |journal| journal["version"] = json!(99));
    let recovery = recover(&directory.journals).unwrap();
    assert_eq!(recovery.reports.len(), 1);
    assert!(!good.path.exists(), "restored and removed");
    assert!(recovery.failed());
    let left: Vec<String> = recovery.left.iter().map(ToString::to_string).collect();
    let expected = [
        ("a-garbage.json", "set them by hand"),
        ("b-truncated.json", "set them by hand"),
        ("c-empty.json", "set them by hand"),
        ("d-directory.json", "not a regular file; remove it"),
        ("e-link.json", "not a regular file; remove it"),
        ("f-pipe.json", "not a regular file; remove it"),
        ("g-newer.json", "version 99 is not supported (this program reads 2); restore with the program"),
    ];
    assert_eq!(left.len(), expected.len(), "{left:?}");
    for (left, (name, remedy)) in left.iter().zip(expected) {
        assert!(left.contains(name) && left.contains(remedy), "{left}");
    }
    // Nothing that is left was changed, and a second restore says the same.
    let again = recover(&directory.journals).unwrap();
    assert_eq!((again.reports.len(), again.left), (0, recovery.left));
}

#[test]
fn an_unreadable_journal_of_a_running_process_or_of_elsewhere_is_not_left_behind() {
    let directory = Directory::new();
    let held = directory.write(Lifetime::Process, ProcessIdentity::current());
    fs::write(&held.path, "{").unwrap();
    let namespace = crate::host::process::network_namespace();
    fs::write(held.path.with_file_name("1-7-host-s1.json"), "{").unwrap();
    let recovery = recover(&directory.journals).unwrap();
    assert!(!recovery.failed(), "{recovery:?}");
    assert!(directory.read().unreadable.iter().all(|unreadable| unreadable.is_held == Some(true)));
    // Of an interface: its index is in the name.
    fs::write(held.path.with_file_name(format!("{namespace}-7-host-s1.json")), "{").unwrap();
    assert_eq!(restore(&directory.journals, None, false).unwrap().left.len(), 1);
    assert_eq!(restore(&directory.journals, Some("lo"), false).unwrap().left, []);
    let_go(held);
    assert_eq!(recover(&directory.journals).unwrap().left.len(), 2);
}

#[test]
fn a_journal_of_an_earlier_boot_is_removed_unless_its_process_runs() {
    let directory = Directory::new();
    let file = directory.write(Lifetime::Process, ProcessIdentity::current());
    // Container managers give each container its own boot id.
    edit(&file.path, |journal| journal["boot"] = json!("another"));
    assert_eq!(directory.abandoned(), [false]);
    let_go(file);
    assert!(directory.abandoned().is_empty());
    assert!(directory.names().is_empty());
    // The writer could not read the boot's id.
    let path = directory.write(Lifetime::Host, ended()).path;
    edit(&path, |journal| journal["boot"] = json!(""));
    assert_eq!(directory.abandoned(), [false]);
}

#[test]
fn two_restores_at_once_restore_each_journal_once() {
    let directory = Directory::new();
    for _ in 0..20 {
        for _ in 0..5 {
            drop(directory.write(Lifetime::Process, ended_long_ago()));
        }
        let restored: usize = std::thread::scope(|scope| {
            let restores: Vec<_> =
                (0..4).map(|_| scope.spawn(|| recover(&directory.journals).unwrap().reports.len())).collect();
            restores.into_iter().map(|restore| restore.join().unwrap()).sum()
        });
        assert_eq!(restored, 5);
    }
}

/// One process for all, as starting one takes a millisecond.
fn ended_long_ago() -> ProcessIdentity {
    static ENDED: std::sync::OnceLock<ProcessIdentity> = std::sync::OnceLock::new();
    ENDED.get_or_init(ended).clone()
}

#[test]
fn the_format_is_that_of_version_2() {
    // Every knob, and what only journals of `attach` have.
    let full = include_str!("testdata/journal.json");
    let mut journal: Journal = serde_json::from_str(full).unwrap();
    assert_eq!(serde_json::to_string_pretty(&journal).unwrap(), full);
    journal.epolls.clear();
    journal.listeners.clear();
    let short = serde_json::to_string_pretty(&journal).unwrap();
    let (entries, _) = full.split_once(",\n  \"epolls\"").unwrap();
    assert_eq!(short, format!("{entries}\n}}"));
    serde_json::from_str::<Journal>(&short).unwrap();
    for (field, other) in
        [("rx-ring", "no-knob"), ("\"sequence\": 5", "\"sequence\": -5"), ("  \"since\"", "  \"\"")]
    {
        assert!(serde_json::from_str::<Journal>(&full.replacen(field, other, 1)).is_err(), "{field}");
    }
}
