//! Work on another worker: the closure crosses threads, the future that it makes stays there.
//!
//! ```sh
//! cargo run -p lull-runtime --example spawn_on
//! ```

use std::panic::resume_unwind;
use std::rc::Rc;

#[runtime::main(workers = 3)]
async fn main() -> Result<(), runtime::JoinError> {
    let tasks: Vec<_> = (0..runtime::workers())
        .map(|worker| {
            runtime::spawn_on(worker, move || async move {
                // Made on the other worker, so it need not be `Send`.
                let local = Rc::new(runtime::current_worker());
                runtime::yield_now().await;
                let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
                format!("worker {local} runs on thread {name}")
            })
        })
        .collect();
    for task in tasks {
        println!("{}", task.await?);
    }

    // A panic on another worker is an error here, and that worker goes on. (`resume_unwind` panics
    // without a message on stderr.)
    let error = runtime::spawn_on(1, || async { resume_unwind(Box::new("on purpose")) })
        .await
        .map(|(): ()| ())
        .unwrap_err();
    println!("error: {error}");
    println!("worker 1 still answers: {}", runtime::spawn_on(1, || async { 6 * 7 }).await?);
    Ok(())
}
