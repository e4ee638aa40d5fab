//! The page with the server's counters.

use policies::prometheus_text::{Kind, Page};

use super::context::{ServerContext, Site};
use super::proxy::UpstreamStatus;

impl ServerContext {
    /// The server's own counters, as Prometheus reads them.
    pub fn prometheus(&self, site: &Site) -> String {
        let totals = self.totals();
        let mut page = Page::default();
        let mut responses =
            page.family("web_responses_total", Kind::Counter, "Responses, by the first digit of the status.");
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(totals.responses) {
            responses.sample(&[("status", class)], count);
        }
        let mut counter = |name, help, value: u64| page.family(name, Kind::Counter, help).sample(&[], value);
        counter("web_response_body_bytes_total", "Bytes of response bodies.", totals.bytes);
        counter("web_connections_total", "Connections served.", totals.connections);
        counter("web_connections_refused_total", "Connections closed at once: too many.", totals.refused);
        let help = "Idle connections closed for new ones.";
        counter("web_connections_closed_idle_total", help, totals.closed_idle);
        counter(
            "web_accept_errors_total",
            "Accepts that failed for want of descriptors or memory.",
            totals.accept_errors,
        );
        let dropped = site.access_log.as_ref().map_or(0, |log| log.dropped());
        counter("web_access_log_lines_dropped_total", "Lines lost to a slow or full disk.", dropped);
        upstreams(&mut page, site);
        let open = self.connections.open();
        page.family("web_connections", Kind::Gauge, "Open connections.").sample(&[], open);
        page.into_text()
    }
}

fn upstreams(page: &mut Page, site: &Site) {
    let statuses: Vec<(&str, UpstreamStatus)> = site
        .routes
        .iter()
        .flat_map(|route| route.statuses().into_iter().map(|status| (route.path(), status)))
        .collect();
    let mut family = |name, kind, help, value: fn(&UpstreamStatus) -> u64| {
        let mut family = page.family(name, kind, help);
        for (path, status) in &statuses {
            family.sample(&[("path", path), ("upstream", &status.address)], value(status));
        }
    };
    family("web_upstream_healthy", Kind::Gauge, "1 if requests go to the upstream.", |it| it.healthy.into());
    family("web_upstream_requests_total", Kind::Counter, "Requests sent.", |it| it.requests);
    family("web_upstream_failures_total", Kind::Counter, "Requests without a whole response.", |it| {
        it.failures
    });
    family("web_upstream_connections", Kind::Gauge, "Open connections.", |it| it.open as u64);
    family("web_upstream_idle_connections", Kind::Gauge, "Connections that wait for a request.", |it| {
        it.idle as u64
    });
}
