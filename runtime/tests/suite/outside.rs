//! What panics without a worker names the caller's line, and says what to do.

use std::cell::RefCell;
use std::panic::{catch_unwind, set_hook, take_hook};
use std::sync::Once;

use runtime::Builder;

thread_local! {
    static PANIC: RefCell<Option<(String, u32, String)>> = const { RefCell::new(None) };
}

/// The file, the line and the message of the panic of `action`.
fn panic_of(action: fn()) -> (String, u32, String) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            let message = info.payload().downcast_ref::<String>().cloned().unwrap_or_default();
            let location = info.location().unwrap();
            PANIC.set(Some((location.file().to_owned(), location.line(), message)));
            before(info);
        }));
    });
    catch_unwind(action).unwrap_err();
    PANIC.take().unwrap()
}

#[test]
fn a_call_outside_of_a_runtime_panics_at_the_callers_line() {
    let calls: [fn(); 5] = [
        || drop(runtime::spawn(async {})),
        || drop(runtime::spawn_on(0, || async {})),
        || _ = runtime::current_worker(),
        || drop(runtime::reports()),
        || drop(runtime::metrics::Snapshot::take()),
    ];
    for call in calls {
        let (file, _, message) = panic_of(call);
        assert!(file.ends_with("outside.rs"), "{file}: {message}");
        assert!(message.contains("#[runtime::main]"), "{message}");
    }
}

#[test]
fn a_call_on_a_thread_of_spawn_blocking_says_how_to_reach_a_worker() {
    let runtime = Builder::new().ignore_environment().workers(2).build().unwrap();
    let handle = runtime.handle();
    let panicked = handle.spawn_blocking(|| panic_of(|| drop(runtime::spawn(async {}))));
    let (file, _, message) = handle.block_on(panicked).unwrap();
    assert!(file.ends_with("outside.rs") && message.contains("spawn_on"), "{file}: {message}");
}

#[test]
fn a_runtime_in_a_thread_local_ends_with_its_thread() {
    thread_local! {
        static RUNTIME: RefCell<Option<runtime::Runtime>> = const { RefCell::new(None) };
    }
    let (dropped, drops) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // Before the runtime's own thread locals, so that it is dropped after them.
        RUNTIME.set(None);
        let runtime = Builder::new().ignore_environment().workers(1).build().unwrap();
        runtime.block_on(async {
            drop(runtime::spawn(async move {
                std::future::pending::<()>().await;
                drop(dropped);
            }));
        });
        RUNTIME.set(Some(runtime));
    });
    thread.join().unwrap();
    assert!(drops.recv().is_err(), "its task was leaked");
}
