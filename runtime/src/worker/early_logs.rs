//! Warnings that come before the application has installed a subscriber: `#[runtime::main]` starts
//! the workers before its body runs.

use std::cell::RefCell;

use tracing::level_filters::LevelFilter;

/// How many warnings are kept.
const MOST: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct EarlyLogs(RefCell<Vec<String>>);

impl EarlyLogs {
    /// Logs a warning, or keeps it until there is a subscriber.
    pub(crate) fn warn(&self, text: String) {
        self.log_kept();
        if self.0.borrow().len() < MOST {
            self.0.borrow_mut().push(text);
        }
        self.log_kept();
    }

    pub(crate) fn log_kept(&self) {
        if self.0.borrow().is_empty() || LevelFilter::current() == LevelFilter::OFF {
            return;
        }
        // Taken out first: the subscriber is foreign code.
        for text in self.0.take() {
            // With the target of the crate, whichever module it comes from.
            tracing::warn!(target: "runtime", "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_came_before_the_subscriber_is_logged_once_when_there_is_one() {
        let (logs, written) = (EarlyLogs::default(), Written::default());
        (0..MOST).for_each(|number| logs.0.borrow_mut().push(format!("early {number}.")));
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            logs.log_kept();
            logs.warn("late.".to_owned());
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            (text.matches("WARN runtime: early").count(), text.matches("late.").count()),
            (MOST, 1),
            "{text}"
        );
        assert!(logs.0.borrow().is_empty(), "{text}");
    }
}
