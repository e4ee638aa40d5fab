//! SIGINT and SIGTERM, for those who must act before the process dies of them; and SIGHUP, at which
//! daemons read their files again.
//!
//! One thread a process waits for both. A signal goes to the program's own handler first, if it has
//! one ([`intercept`]: a graceful stop); else, or at the second signal, every [`on_termination`]
//! action runs and the process dies of the signal as it would have without this module.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

type Action = Box<dyn FnMut() + Send>;

#[derive(Default)]
struct Registry {
    next: u64,
    last_will: BTreeMap<u64, Action>,
    interceptors: BTreeMap<u64, Action>,
    hangups: BTreeMap<u64, Action>,
    /// Whether a signal was handed to the interceptors already.
    delivered: bool,
}

static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();

fn registry() -> std::sync::MutexGuard<'static, Registry> {
    REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// An action's place in the list; dropping it takes the action off.
#[derive(Debug)]
pub struct Registration(u64);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = registry();
        // Dropped outside the lock: an action may own what drops a registration.
        let removed = [
            registry.last_will.remove(&self.0),
            registry.interceptors.remove(&self.0),
            registry.hangups.remove(&self.0),
        ];
        drop(registry);
        drop(removed);
    }
}

/// Runs `action` before the process dies of SIGINT or SIGTERM.
pub fn on_termination(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.last_will.insert(key, Box::new(action));
    })
}

/// Runs `action` at the first SIGINT or SIGTERM instead of dying of it. The second one kills.
pub fn intercept(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.interceptors.insert(key, Box::new(action));
    })
}

/// Runs `action` at each SIGHUP, which no longer kills the process from here on.
pub fn on_hangup(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    start()?.add_signal(SIGHUP)?;
    register(|registry, key| {
        registry.hangups.insert(key, Box::new(action));
    })
}

fn register(insert: impl FnOnce(&mut Registry, u64)) -> io::Result<Registration> {
    start()?;
    let mut registry = registry();
    registry.next += 1;
    let key = registry.next;
    insert(&mut registry, key);
    Ok(Registration(key))
}

fn start() -> io::Result<Handle> {
    static STARTED: Mutex<Option<Handle>> = Mutex::new(None);
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*started {
        return Ok(handle.clone());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    std::thread::Builder::new().name("lull-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            deliver(signal);
        }
    })?;
    *started = Some(handle.clone());
    Ok(handle)
}

fn deliver(signal: i32) {
    let mut registry = registry();
    if signal == SIGHUP {
        registry.hangups.values_mut().for_each(|action| action());
        return;
    }
    if !registry.delivered && !registry.interceptors.is_empty() {
        registry.delivered = true;
        registry.interceptors.values_mut().for_each(|action| action());
        return;
    }
    let wills = std::mem::take(&mut registry.last_will);
    drop(registry);
    for mut will in wills.into_values().rev() {
        will();
    }
    // Dies here with the signal's own status; an error would leave a process that ignores SIGTERM.
    if emulate_default_handler(signal).is_err() {
        std::process::exit(128 + signal);
    }
}
