//! The standard streams of a process.

use std::time::Duration;

use futures_util::io::BufReader;
use futures_util::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, TryStreamExt};
use runtime::process::{Command, Stdio};
use runtime::stdio::{stderr, stdin, stdout};
use runtime::{DriverKind, timeout};

use crate::drivers::{drivers, one_worker};

/// The driver of the process that this program starts of itself.
const CHILD: &str = "LULL_TEST_STDIO_CHILD";

/// Says that it is ready while a read waits, then returns each line in brackets.
async fn bracket_lines() {
    let (mut input, mut output) = (stdin(), stdout());
    let early = timeout(Duration::from_millis(1), input.read(&mut [0])).await;
    assert!(early.is_err(), "nothing was written yet");
    output.write_all(b"\nready\n").await.unwrap();
    output.flush().await.unwrap();
    let mut lines = input.lines();
    while let Some(line) = lines.try_next().await.unwrap() {
        output.write_all(format!("<{line}>\n").as_bytes()).await.unwrap();
        output.flush().await.unwrap();
    }
    let mut errors = stderr();
    errors.write_all(b"input has ended").await.unwrap();
    errors.close().await.unwrap();
}

#[test]
fn standard_streams_are_read_and_written_while_the_worker_goes_on() {
    match std::env::var(CHILD) {
        Ok(driver) => one_worker(driver.parse().unwrap()).block_on(bracket_lines()),
        Err(_) => {
            drivers().into_iter().for_each(|driver| one_worker(driver).block_on(talk_to_a_child(driver)));
        }
    }
}

async fn talk_to_a_child(driver: DriverKind) {
    let name = "stdio::standard_streams_are_read_and_written_while_the_worker_goes_on";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(CHILD, driver.to_string()).kill_on_drop(true);
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let long = "x".repeat(200_000);
    let exchanged = timeout(Duration::from_secs(30), async {
        // Skips what the test harness of the child prints first.
        while output.try_next().await.unwrap().expect("the child has ended") != "ready" {}
        for line in ["one", "two", &long] {
            input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            assert_eq!(output.try_next().await.unwrap().unwrap(), format!("<{line}>"));
        }
        input.close().await.unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
        assert!(errors.contains("input has ended"), "{errors}");
    });
    exchanged.await.expect("the worker waits in a read");
}
