//! Handlers for SIGINT, SIGTERM and SIGHUP, run on one thread of the process.
//!
//! The first SIGINT or SIGTERM goes to the program's [`intercept`] handlers, if it has any (a graceful
//! stop). Otherwise, and at the second signal, all [`on_termination`] actions run, and the process dies of
//! the signal as it would without this module. SIGHUP goes to the [`on_hangup`] handlers.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

type Action = Box<dyn FnMut() + Send>;

#[derive(Default)]
struct Registry {
    last_key: u64,
    on_termination: BTreeMap<u64, Action>,
    intercept: BTreeMap<u64, Action>,
    on_hangup: BTreeMap<u64, Action>,
    /// Whether the intercept handlers have run.
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
        let removed = [
            registry.on_termination.remove(&self.0),
            registry.intercept.remove(&self.0),
            registry.on_hangup.remove(&self.0),
        ];
        drop(registry);
        drop(removed);
    }
}

/// Runs `action` before the process dies of SIGINT or SIGTERM.
///
/// # Errors
/// If the signal handler or its thread can't be set up.
pub fn on_termination(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.on_termination.insert(key, Box::new(action));
    })
}

/// Runs `action` at the first SIGINT or SIGTERM instead of terminating. The second signal terminates.
///
/// # Errors
/// If the signal handler or its thread can't be set up.
pub fn intercept(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    register(|registry, key| {
        registry.intercept.insert(key, Box::new(action));
    })
}

/// Runs `action` at each SIGHUP. From the first registration on, SIGHUP does not terminate the process.
///
/// # Errors
/// If the signal handler or its thread can't be set up.
pub fn on_hangup(action: impl FnMut() + Send + 'static) -> io::Result<Registration> {
    start()?.add_signal(SIGHUP)?;
    register(|registry, key| {
        registry.on_hangup.insert(key, Box::new(action));
    })
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
    if signal == SIGHUP {
        registry.on_hangup.values_mut().for_each(|action| action());
        return;
    }
    if !registry.intercepted && !registry.intercept.is_empty() {
        registry.intercepted = true;
        registry.intercept.values_mut().for_each(|action| action());
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
