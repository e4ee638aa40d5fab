//! An attachment, killed before its system calls that change something.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use policies::attach::{AttachConfig, Attachment, Target};
use policies::{Cpus, signals};
use tests::kill_at_call::{OLDER, SystemCall, Traced, run_until};
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{policies_command, program, testbed_test};

use super::attached::state;
use super::servers;

/// How long attachments are killed, unless `LULL_ATTACH_KILL_SECONDS` names another time.
const TIME: Duration = Duration::from_secs(2);
/// `EPIOCSPARAMS` of `linux/eventpoll.h`.
const SET_EPOLL_PARAMS: u64 = 0x4008_8a01;
/// `NETDEV_CMD_NAPI_SET` of `linux/netdev.h`.
const NAPI_SET: u8 = 14;
/// Generic netlink families have numbers from here on (`NLMSG_MIN_TYPE`).
const FIRST_FAMILY: u16 = 0x10;

/// Calls that may change what others see: the journal, NAPIs, epoll instances, and kernel threads.
const CALLS: [i64; 13] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_ioctl,
    libc::SYS_sendto,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
];
/// Whether one of them changes anything.
fn changes_something(call: &SystemCall) -> bool {
    let SystemCall { thread, number, arguments } = call;
    match *number {
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_writev | libc::SYS_ftruncate => {
            let file = std::fs::read_link(format!("/proc/{thread}/fd/{}", arguments[0])).unwrap_or_default();
            file.starts_with("/run/lull")
        }
        libc::SYS_ioctl => is_set(call),
        // Most messages only ask. A generic netlink message has its type at byte 4 and its command
        // at byte 16.
        libc::SYS_sendto => {
            let mut message = [0; 17];
            let at = RemoteIoVec { base: arguments[1] as usize, len: message.len() };
            let read = process_vm_readv(*thread, &mut [IoSliceMut::new(&mut message)], &[at]);
            let family = u16::from_ne_bytes([message[4], message[5]]);
            read.is_ok() && family >= FIRST_FAMILY && message[16] == NAPI_SET
        }
        // Of the calling thread, or of a NAPI's.
        libc::SYS_sched_setaffinity | libc::SYS_sched_setscheduler => arguments[0] != 0,
        _ => true,
    }
}

/// Whether a call sets the parameters of an epoll instance.
fn is_set(call: &SystemCall) -> bool {
    call.number == libc::SYS_ioctl && call.arguments[1] == SET_EPOLL_PARAMS
}

/// 1 to `count`, in an order in which each beginning is spread over the whole.
fn spread(count: usize) -> Vec<usize> {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    let mut order: Vec<usize> = (1..=count).collect();
    order.sort_by(|one, other| {
        let place = |number: &usize| (*number as f64 * GOLDEN).fract();
        place(one).total_cmp(&place(other))
    });
    order
}

/// The process to which a process of this program attaches.
const ATTACHES: &str = "LULL_TEST_ATTACHES_TO";

/// Attaches until SIGTERM, as `policies attach` does, but so that waits poll whenever packets come,
/// which the controller leaves to the timer below saturation.
#[test]
fn attaches_if_asked() {
    let Ok(pid) = std::env::var(ATTACHES) else { return };
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    let _signals = signals::intercept(move || stop.store(true, Ordering::Release)).unwrap();
    let target = Target::Process(pid.parse().unwrap());
    let config = AttachConfig { polls_always: true, ..AttachConfig::new(target) };
    let attachment = Attachment::start(config, |event| println!("{event}")).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while !stopped.load(Ordering::Acquire) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    attachment.detach();
}

#[testbed_test]
fn wherever_an_attachment_is_killed_restore_puts_everything_back_and_the_server_serves() {
    let testbed = enter_plain(1);
    let (Some(server), Some(_)) = (servers::memcached(), program("python3")) else { return };
    // Not so much that the tracer and the attachment have to wait for a core.
    let load = server.load_by(&testbed, 6, Duration::from_micros(500));
    // As in the tests of `policies apply`: on one core no wake-up between tracer and traced crosses
    // cores.
    Cpus::one(1).pin(None).unwrap();
    let before = state(&[server.pid()]);
    let own = std::env::current_exe().unwrap();
    let attaches = format!("{ATTACHES}={}", server.pid());
    let attach = ["env", &attaches, own.to_str().unwrap(), "kills::attaches_if_asked", "--exact"];
    let calls = [&CALLS[..], &OLDER].concat();
    let run = |stop| {
        let asked = Cell::new(false);
        run_until(&attach, Traced::Only(&calls), stop, 0, |call| {
            // It detaches as soon as an instance polls.
            if is_set(call) && !asked.replace(true) {
                kill(call.thread, Signal::SIGTERM).unwrap();
            }
            changes_something(call)
        })
    };
    let stops = run(usize::MAX);
    assert_eq!(state(&[server.pid()]), before, "it was not killed");
    assert!(stops > 15, "{stops} calls that change something");
    let seconds = std::env::var("LULL_ATTACH_KILL_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + seconds.map_or(TIME, Duration::from_secs);
    let (mut killed, mut queues, mut instances) = (0, 0, 0);
    for stop in spread(stops) {
        if Instant::now() > end && killed > 5 && queues > 0 && instances > 0 {
            break;
        }
        // The number of calls depends on what the controller chooses: a late one may not come.
        killed += usize::from(run(stop) >= stop);
        let left = state(&[server.pid()]);
        queues += usize::from(left.0 != before.0);
        instances += usize::from(left.1 != before.1);
        let restored = policies_command(&["restore"]).output().unwrap();
        assert!(restored.status.success(), "killed at {stop}: {restored:?}");
        assert_eq!(state(&[server.pid()]), before, "killed at {stop} of {stops}: {restored:?}");
        assert!(!std::path::Path::new("/run/lull").exists(), "killed at {stop} of {stops}: {restored:?}");
        let served = load.requests();
        wait_until("the server still serves", || load.requests() > served + 20);
    }
    println!(
        "killed {killed} times before one of {stops} calls: {queues} queues and {instances} instances were set"
    );
    assert!(
        killed > 5 && queues > 0 && instances > 0,
        "{killed} kills, {queues} queues, {instances} instances"
    );
    load.end();
}
