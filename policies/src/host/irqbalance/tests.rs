//! Tests against a double of irqbalance, which speaks the protocol of its socket, and moves
//! nothing.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Irqbalance, parse_setup};

/// A double with an id beyond those of processes, on its abstract address. It ends when it is
/// dropped.
pub(crate) struct FakeIrqbalance {
    handle: Irqbalance,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    banned: Mutex<BTreeSet<u32>>,
    replacements: AtomicUsize,
    ignores_bans: AtomicBool,
    refuses: AtomicBool,
    ends: AtomicBool,
}

fn address(handle: &Irqbalance) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("irqbalance{}.sock", handle.pid)).unwrap()
}

impl FakeIrqbalance {
    /// The handle of one that does not run yet.
    pub(crate) fn unused() -> Irqbalance {
        static NEXT: AtomicI32 = AtomicI32::new(0);
        // Abstract addresses are shared with other processes that run these tests.
        let own = i32::try_from(std::process::id()).unwrap() * 64;
        Irqbalance { pid: (1 << 30) + own + NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    pub(crate) fn start(banned: &[u32]) -> Self {
        Self::start_as(Self::unused(), banned)
    }

    pub(crate) fn start_as(handle: Irqbalance, banned: &[u32]) -> Self {
        let listener = UnixListener::bind_addr(&address(&handle)).unwrap();
        let state = Arc::new(State::default());
        state.banned.lock().unwrap().extend(banned);
        let served = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if served.ends.load(Ordering::SeqCst) {
                    return;
                }
                served.answer(stream);
            }
        });
        Self { handle, state, thread: Some(thread) }
    }

    pub(crate) fn that_ignores_bans(self) -> Self {
        self.state.ignores_bans.store(true, Ordering::SeqCst);
        self
    }

    /// As if others than root asked it.
    pub(crate) fn that_refuses(self) -> Self {
        self.state.refuses.store(true, Ordering::SeqCst);
        self
    }

    pub(crate) fn handle(&self) -> Irqbalance {
        self.handle.clone()
    }

    /// What it does not move, in ascending order.
    pub(crate) fn banned(&self) -> Vec<u32> {
        self.state.banned.lock().unwrap().iter().copied().collect()
    }

    pub(crate) fn replacements(&self) -> usize {
        self.state.replacements.load(Ordering::SeqCst)
    }
}

impl Drop for FakeIrqbalance {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::SeqCst);
        drop(UnixStream::connect_addr(&address(&self.handle)));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl State {
    /// One request, which comes in one piece. The connection is closed after it.
    fn answer(&self, mut stream: UnixStream) {
        let mut request = [0; 4096];
        let length = stream.read(&mut request).unwrap();
        let request = std::str::from_utf8(&request[..length]).unwrap();
        if self.refuses.load(Ordering::SeqCst) {
            return;
        }
        let mut banned = self.banned.lock().unwrap();
        if request == "setup" {
            let lines: String =
                banned.iter().map(|irq| format!("IRQ {irq} LOAD 0 DIFF 0 CLASS 5 ")).collect();
            stream.write_all(format!("SLEEP 10 {lines}BANNED 00000000").as_bytes()).unwrap();
        } else if let Some(list) = request.strip_prefix("settings ban irqs ") {
            self.replacements.fetch_add(1, Ordering::SeqCst);
            if !self.ignores_bans.load(Ordering::SeqCst) {
                *banned = list.split(' ').filter_map(|irq| irq.parse().ok()).collect();
            }
        } else {
            panic!("unknown request: {request}");
        }
    }
}

#[test]
fn the_ban_list_is_read_and_replaced_over_the_socket() {
    let running = FakeIrqbalance::start(&[31, 40]);
    let irqbalance = running.handle();
    assert_eq!(irqbalance.banned().unwrap(), [31, 40]);
    irqbalance.ban(&[5]).unwrap();
    assert_eq!(running.banned(), [5]);
    irqbalance.ban(&[]).unwrap();
    assert_eq!(irqbalance.banned().unwrap(), [0u32; 0]);
    drop(running);
    assert!(irqbalance.banned().is_err(), "it has ended");
}

#[test]
fn banned_interrupts_are_parsed_from_the_setup_reply() {
    let reply = "SLEEP 10 IRQ 31 LOAD 0 DIFF 12 CLASS 5 IRQ 40 LOAD 3 DIFF 0 CLASS 5 BANNED 00000000";
    assert_eq!(parse_setup(reply), [31, 40]);
    assert_eq!(parse_setup("SLEEP 10 BANNED 0"), [0u32; 0]);
}
