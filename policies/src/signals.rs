//! Handlers for signals, run on one thread of the process.
//!
//! The first SIGINT or SIGTERM goes to the program's [`intercept`] handlers, if it has any (a
//! graceful stop). Otherwise, and at the second signal, all [`on_termination`] actions run, and the
//! process dies of the signal as it would without this module. A signal that has an [`on_signal`]
//! handler goes to that, and terminates nothing while the handler is registered.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use signal_hook::consts::{FORBIDDEN, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

type Action = Box<dyn FnMut() + Send>;

#[derive(Default)]
struct Registry {
    last_key: u64,
    on_termination: BTreeMap<u64, Action>,
    intercept: BTreeMap<u64, Action>,
    on_signal: BTreeMap<u64, (i32, Action)>,
    intercepted: bool,
}

static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();

fn registry() -> std::sync::MutexGuard<'static, Registry> {
    REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registered action. Dropping it removes the action.
#[derive(Debug)]
pub struct Registration(u64);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = registry();
        // Dropped after the lock: an action may own another registration.
        let removed = (
            registry.on_termination.remove(&self.0),
            registry.intercept.remove(&self.0),
            registry.on_signal.remove(&self.0),
        );
        drop(registry);
        drop(removed);
    }
}

/// Runs `action` before the process dies of SIGINT or SIGTERM.
pub fn on_termination(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.on_termination.insert(key, Box::new(action));
    })
}

/// Runs `action` at the first SIGINT or SIGTERM instead of terminating. The second signal
/// terminates.
pub fn intercept(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.intercept.insert(key, Box::new(action));
    })
}

/// Runs `action` at each signal of this number. Signals that come before the thread has taken the
/// first of them are one.
///
/// From the first registration on, the signal's default action is not taken, also after all
/// registrations are dropped. SIGINT and SIGTERM differ: they terminate the process whenever no
/// action is registered.
///
/// # Errors
/// `InvalidInput` for SIGKILL and SIGSTOP, which can't be handled, and SIGILL, SIGFPE and SIGSEGV,
/// which another thread can't handle; and for a number outside of 1 to 64. The error of
/// `sigaction(2)`; or if the thread can't be set up.
pub fn on_signal(signal: i32, action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    if FORBIDDEN.contains(&signal) || !(1..=64).contains(&signal) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("signal {signal} can't be handled")));
    }
    let handle = start()?;
    // Before the handler: a signal that comes in between is not lost.
    let registration = register(|registry, key| {
        registry.on_signal.insert(key, (signal, Box::new(action)));
    })?;
    handle.add_signal(signal)?;
    Ok(registration)
}

fn register(insert: impl FnOnce(&mut Registry, u64)) -> io::Result<Registration> {
    start()?;
    let mut registry = registry();
    registry.last_key += 1;
    let key = registry.last_key;
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
    let mut handled = false;
    for (_, action) in registry.on_signal.values_mut().filter(|(handles, _)| *handles == signal) {
        handled = true;
        action();
    }
    if ![SIGINT, SIGTERM].contains(&signal) {
        return;
    }
    if !registry.intercepted && !registry.intercept.is_empty() {
        registry.intercepted = true;
        registry.intercept.values_mut().for_each(|action| action());
        return;
    }
    if handled {
        return;
    }
    let actions = std::mem::take(&mut registry.on_termination);
    drop(registry);
    for mut action in actions.into_values().rev() {
        action();
    }
    // Terminates here with the signal's status; if that fails, the process must not survive either.
    if emulate_default_handler(signal).is_err() {
        std::process::exit(128 + signal);
    }
}
