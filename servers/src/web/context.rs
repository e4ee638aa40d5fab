//! What all connections of a server share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use adapters::hyper::ConnectionLimit;
use net::AcceptErrors;

use super::access_log::AccessLog;
use super::config::{Config, Limits};
use super::counters::{Counters, Totals};
use super::error::StartError;
use super::proxy::ProxyRoute;
use super::routing::Routes;
use super::static_files::{Files, Root};

/// A server's state.
#[derive(Debug)]
pub struct ServerContext {
    site: RwLock<Arc<Site>>,
    pub counters: Counters,
    pub connections: ConnectionLimit,
    /// Of each listener.
    accept_errors: Mutex<Vec<AcceptErrors>>,
}

/// What a configuration says of requests. A reload replaces it; connections keep the one that they
/// began with.
#[derive(Debug)]
pub struct Site {
    pub files: Option<Arc<Files>>,
    pub routes: Routes,
    pub stats: Option<String>,
    pub access_log: Option<Arc<AccessLog>>,
    pub limits: Limits,
}

impl ServerContext {
    pub fn new(config: &Config) -> Result<Self, StartError> {
        let site = RwLock::new(Arc::new(Site::new(config, None)?));
        Ok(Self {
            site,
            counters: Counters::new(runtime::workers()),
            connections: ConnectionLimit::new(config.limits.connections),
            accept_errors: Mutex::default(),
        })
    }

    pub fn totals(&self) -> Totals {
        let mut totals = self.counters.totals();
        (totals.refused, totals.closed_idle) = (self.connections.refused(), self.connections.closed());
        totals.accept_errors = self.accept_errors().iter().map(AcceptErrors::total).sum();
        totals
    }

    /// The counters of all listeners.
    pub fn accept_errors(&self) -> MutexGuard<'_, Vec<AcceptErrors>> {
        self.accept_errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn site(&self) -> Arc<Site> {
        Arc::clone(&self.site.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn replace_site(&self, site: Site) {
        let old = std::mem::replace(
            &mut *self.site.write().unwrap_or_else(PoisonError::into_inner),
            Arc::new(site),
        );
        drop(old);
    }
}

impl Site {
    /// `previous`: what is in use, whose log stays open if it is the same.
    pub fn new(config: &Config, previous: Option<&Self>) -> Result<Self, StartError> {
        config.check()?;
        let files = match &config.files {
            Some(files) => Some(Arc::new(Files::new(Root::open(&files.root)?, files))),
            None => None,
        };
        let routes: Result<Vec<_>, _> =
            config.proxy.iter().map(|route| ProxyRoute::new(route).map(Arc::new)).collect();
        let routes = Routes::new(routes?);
        let access_log = match (&config.access_log, previous.and_then(|site| site.access_log.as_ref())) {
            (None, _) => None,
            (Some(path), Some(log)) if log.path() == path => Some(Arc::clone(log)),
            (Some(path), _) => Some(AccessLog::new(path)),
        };
        Ok(Self { files, routes, stats: config.stats.clone(), access_log, limits: config.limits.clone() })
    }

    /// Opens the access log, and starts the tasks that a site in use has. `previous` as in
    /// [`new`](Self::new).
    pub async fn start(&self, previous: Option<&Self>) -> Result<(), StartError> {
        if let Some(log) = &self.access_log {
            let failed = |source| StartError::AccessLog { path: log.path().to_owned(), source };
            log.reopen().await.map_err(failed)?;
            let known = previous.and_then(|site| site.access_log.as_ref());
            if !known.is_some_and(|known| Arc::ptr_eq(known, log)) {
                log.start_writing();
            }
        }
        self.files.iter().for_each(Files::start_sweeps);
        self.routes.iter().for_each(ProxyRoute::start_health_checks);
        Ok(())
    }
}
