//! Pages in [Prometheus' text exposition
//! format](https://prometheus.io/docs/instrumenting/exposition_formats/), version 0.0.4, as the
//! runtime's metrics print them. The crate `prometheus-client` writes OpenMetrics, and brings
//! parking_lot and a derive macro along.
//!
//! ```
//! use policies::prometheus_text::{Kind, Page};
//!
//! let mut page = Page::default();
//! page.family("requests_total", Kind::Counter, "Requests.").sample(&[("path", "/")], 7);
//! assert!(page.into_text().ends_with("requests_total{path=\"/\"} 7\n"));
//! ```

use std::fmt::{self, Display, Write};
use std::time::Duration;

/// A metric's labels: names, which the format must allow, and any values, which are escaped.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// What Prometheus calls a metric's type.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Only grows, from 0 at the start.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bounds, with a sum.
    Histogram,
}

#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Begins a metric: its name, which ends in the unit, and after it in `_total` for a counter;
    /// its type; what it says. Nothing is written until it has a sample. All samples of a name must
    /// be of one family.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        Family { page: &mut self.0, name, kind, help, begun: false }
    }

    pub fn into_text(self) -> String {
        self.0
    }
}

/// A metric whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut String,
    name: &'static str,
    kind: Kind,
    help: &'static str,
    begun: bool,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.write("", labels, None, value);
    }

    /// Adds the samples of a histogram of times: the count of each bucket alone, by ascending upper
    /// bounds, of which the last is `None`, and the sum of all times. In the text buckets are
    /// cumulative.
    pub fn histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: impl IntoIterator<Item = (Option<Duration>, u64)>,
        sum: Duration,
    ) {
        let mut cumulative = 0;
        for (bound, count) in buckets {
            cumulative += count;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| Seconds(bound).to_string());
            self.write("_bucket", labels, Some(&bound), cumulative);
        }
        self.write("_sum", labels, None, Seconds(sum));
        self.write("_count", labels, None, cumulative);
    }

    fn write(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl Display) {
        self.begin();
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        let labels: Vec<String> =
            labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string can't fail.
        let _ = writeln!(self.page, "{}{suffix}{labels} {value}", self.name);
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let Self { name, help, .. } = *self;
        let _ = writeln!(self.page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
}

/// A label's value escapes backslashes, quotation marks and line feeds.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A time that is printed in seconds, to the nanosecond: a float would round it.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.as_secs(), self.0.subsec_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_escapes_backslashes_quotation_marks_and_line_feeds() {
        let mut page = Page::default();
        page.family("lull_test_info", Kind::Gauge, "A test.").sample(&[("a", "x\\y\"z\nµ"), ("b", "")], 1);
        let expected = "# HELP lull_test_info A test.\n# TYPE lull_test_info gauge\nlull_test_info{a=\"x\\\\y\\\"z\\nµ\",b=\"\"} 1\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn a_metric_without_samples_has_no_header_and_one_without_labels_no_braces() {
        let mut page = Page::default();
        let _ = page.family("lull_unused_total", Kind::Counter, "Nothing.");
        page.family("lull_used_total", Kind::Counter, "Something.").sample(&[], 7);
        let expected =
            "# HELP lull_used_total Something.\n# TYPE lull_used_total counter\nlull_used_total 7\n";
        assert_eq!(page.into_text(), expected);
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_in_seconds_and_its_sum_and_count() {
        let bound = |nanos| Some(Duration::from_nanos(nanos));
        let buckets = [(bound(256), 1), (bound(512), 2), (bound(1_073_741_824), 0), (None, 1)];
        let mut page = Page::default();
        page.family("lull_test_seconds", Kind::Histogram, "A test.").histogram(
            &[("worker", "0")],
            buckets,
            Duration::from_nanos(3_000_000_701),
        );
        let page = page.into_text();
        for line in [
            "# TYPE lull_test_seconds histogram",
            "lull_test_seconds_bucket{worker=\"0\",le=\"0.000000256\"} 1",
            "lull_test_seconds_bucket{worker=\"0\",le=\"0.000000512\"} 3",
            "lull_test_seconds_bucket{worker=\"0\",le=\"1.073741824\"} 3",
            "lull_test_seconds_bucket{worker=\"0\",le=\"+Inf\"} 4",
            "lull_test_seconds_sum{worker=\"0\"} 3.000000701",
            "lull_test_seconds_count{worker=\"0\"} 4",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is missing:\n{page}");
        }
    }
}
