//! Which route of the proxy a request takes.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::proxy::ProxyRoute;
use super::static_files::is_plain;

/// Where a request goes.
#[derive(Debug)]
pub enum Routing<'a> {
    /// Answered with a file of the root folder.
    Files,
    Proxy(&'a Arc<ProxyRoute>),
    /// Nowhere: the server that it is forwarded to could take its path for another than this one
    /// does.
    Ambiguous,
}

/// Routes by path, the longest first.
#[derive(Debug)]
pub struct Routes(Vec<Arc<ProxyRoute>>);

impl Routes {
    pub fn new(mut routes: Vec<Arc<ProxyRoute>>) -> Self {
        routes.sort_by_key(|route| std::cmp::Reverse(route.path().len()));
        Self(routes)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<ProxyRoute>> {
        self.0.iter()
    }

    /// Finds the route of a URI's path: `/api` takes `/api` and what is below it.
    ///
    /// The path is forwarded as it is. So one is refused that another server could take for one of
    /// another route: servers differ in what they decode before they resolve dots
    /// (`/api/..%2Fadmin`), and in what they cut off at a semicolon (`/api/..;/admin`) or take for
    /// a slash (`\\`).
    pub fn find(&self, path: &str) -> Routing<'_> {
        if self.0.is_empty() {
            return Routing::Files;
        }
        let literal = self.0.iter().find(|route| is_below(path, route.path()));
        if is_plain(path) && !path.contains([';', '\\']) {
            return literal.map_or(Routing::Files, Routing::Proxy);
        }
        let decoded: Vec<u8> = percent_decode_str(path).collect();
        let segments: Vec<&[u8]> = decoded
            .split(|byte| matches!(byte, b'/' | b'\\'))
            .filter_map(|segment| segment.split(|byte| *byte == b';').next())
            .filter(|segment| !segment.is_empty())
            .collect();
        if segments.iter().any(|segment| matches!(&segment[..], b"." | b"..")) {
            return Routing::Ambiguous;
        }
        let meant = self.0.iter().find(|route| {
            let mut segments = segments.iter();
            let mut prefix = route.path().split('/').filter(|segment| !segment.is_empty());
            prefix.all(|name| segments.next().is_some_and(|segment| *segment == name.as_bytes()))
        });
        match (literal, meant) {
            (None, None) => Routing::Files,
            (Some(literal), Some(meant)) if Arc::ptr_eq(literal, meant) => Routing::Proxy(literal),
            _ => Routing::Ambiguous,
        }
    }
}

/// Whether a path is a route's, or below it.
fn is_below(path: &str, route: &str) -> bool {
    let rest = path.strip_prefix(route.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::config::ProxyConfig;

    fn found(path: &str) -> Option<String> {
        let route = |path| Arc::new(ProxyRoute::new(&ProxyConfig::new(path, "http://127.0.0.1:1")).unwrap());
        match Routes::new(["/api", "/api/v2/", "/b"].map(route).into()).find(path) {
            Routing::Files => Some("files".to_owned()),
            Routing::Proxy(route) => Some(route.path().to_owned()),
            Routing::Ambiguous => None,
        }
    }

    #[test]
    fn the_longest_route_takes_whole_segments() {
        for (path, route) in [
            ("/api", "/api"),
            ("/api/", "/api"),
            ("/api/users", "/api"),
            ("/api/v2", "/api/v2/"),
            ("/api/v2/x", "/api/v2/"),
            ("/api/v22", "/api"),
            ("/b/c%2Fd", "/b"),
            ("/b/.well-known", "/b"),
            ("/b/c;d=e/f", "/b"),
            ("/b/..c/d..", "/b"),
            ("/apis", "files"),
            ("/", "files"),
            ("/%61", "files"),
            ("//x", "files"),
        ] {
            assert_eq!(found(path).as_deref(), Some(route), "{path}");
        }
    }

    #[test]
    fn paths_that_could_be_taken_for_others_are_refused() {
        for path in [
            "/api/../admin",
            "/api/%2e%2e/admin",
            "/api/.%2E",
            "/x/../api",
            "/api/./v2",
            "/%61pi/x",
            "//api/x",
            "/api//v2/x",
            "/api/v%32/x",
            "/b/..%2Fapi",
            "/b/%2e%2e%2fadmin",
            "/b/..;/admin",
            "/b/..;x=y/admin",
            "/b/..\\admin",
            "/b/..%5Cadmin",
            "/api;x/y",
            "/api%2Fv2/x",
            "/api\\v2",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
