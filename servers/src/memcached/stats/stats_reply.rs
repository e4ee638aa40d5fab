//! The sections of `stats`.

use crate::memcached::VERSION;
use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::tls::ClientCertificates;

/// Lull's own section. It must be [refreshed](super::policy_section::PolicySection::refresh) before
/// it is written.
pub const POLICY: &[u8] = b"policy";

/// Calls `write` with each name and value of a section. The empty section is the general one.
/// Returns false if there is no such section.
pub fn write_section(context: &ServerContext, section: &[u8], write: &mut dyn FnMut(&str, &str)) -> bool {
    let mut put = StatWriter::new(write);
    match section {
        b"" => general(context, &mut put),
        b"settings" => settings(context, &mut put),
        b"reset" => context.counters.reset(),
        b"items" => items(context, &mut put),
        b"slabs" => slabs(context, &mut put),
        // There is none, as in a memcached that was not given any.
        b"extstore" => {}
        b"sizes" => put.text("sizes_status", "disabled"),
        b"conns" => connections(context, &mut put),
        POLICY => {
            let lines = context.policy_section.lines();
            lines.iter().for_each(|(name, value)| put.text(name, value));
        }
        _ => return false,
    }
    true
}

struct StatWriter<'a>(&'a mut dyn FnMut(&str, &str));

impl<'a> StatWriter<'a> {
    fn new(write: &'a mut dyn FnMut(&str, &str)) -> Self {
        Self(write)
    }

    fn text(&mut self, name: &str, value: &str) {
        (self.0)(name, value);
    }

    fn number(&mut self, name: &str, value: u64) {
        let mut digits = itoa::Buffer::new();
        (self.0)(name, digits.format(value));
    }

    /// Names that mean nothing to this server, with memcached's value for what is not there.
    fn neutral(&mut self, names: &[&str], value: &str) {
        names.iter().for_each(|name| self.text(name, value));
    }
}

/// All items are in slab class 1.
fn items(context: &ServerContext, put: &mut StatWriter<'_>) {
    let usage = context.store.usage();
    if usage.items == 0 {
        return;
    }
    put.number("items:1:number", usage.items);
    // Items are not counted by queue.
    put.number("items:1:number_hot", 0);
    put.number("items:1:number_warm", 0);
    put.number("items:1:number_cold", usage.items);
    put.number("items:1:age_hot", 0);
    put.number("items:1:age_warm", 0);
    put.number("items:1:age", 0);
    put.number("items:1:mem_requested", usage.bytes);
    put.number("items:1:evicted", usage.counters.evictions);
    put.number("items:1:evicted_nonzero", 0);
    put.number("items:1:evicted_time", 0);
    put.number("items:1:outofmemory", context.counters.totals().store_no_memory);
    put.number("items:1:tailrepairs", 0);
    put.number("items:1:reclaimed", usage.counters.expired);
    put.number("items:1:expired_unfetched", usage.counters.expired_unfetched);
    put.number("items:1:evicted_unfetched", usage.counters.evicted_unfetched);
    put.number("items:1:evicted_active", 0);
    put.number("items:1:crawler_reclaimed", usage.counters.expired - usage.counters.found_expired);
    put.number("items:1:crawler_items_checked", usage.counters.crawled);
    put.number("items:1:lrutail_reflocked", 0);
    put.number("items:1:moves_to_cold", 0);
    put.number("items:1:moves_to_warm", 0);
    put.number("items:1:moves_within_lru", usage.counters.moved);
    put.number("items:1:direct_reclaims", 0);
    put.number("items:1:hits_to_hot", 0);
    put.number("items:1:hits_to_warm", 0);
    put.number("items:1:hits_to_cold", context.counters.totals().get_hits);
    put.number("items:1:hits_to_temp", 0);
}

/// Segments correspond to the pages of a slab class.
fn slabs(context: &ServerContext, put: &mut StatWriter<'_>) {
    let (usage, totals) = (context.store.usage(), context.counters.totals());
    if let Some(mean) = usage.bytes.checked_div(usage.items) {
        put.number("1:chunk_size", mean);
        put.number("1:chunks_per_page", context.store.segment_size() as u64 / mean.max(1));
        put.number("1:total_pages", usage.segments);
        put.number("1:total_chunks", usage.items);
        put.number("1:used_chunks", usage.items);
        put.number("1:free_chunks", 0);
        put.number("1:free_chunks_end", 0);
        put.number("1:get_hits", totals.get_hits);
        put.number("1:cmd_set", totals.cmd_set);
        put.number("1:delete_hits", totals.delete_hits);
        put.number("1:incr_hits", totals.incr_hits);
        put.number("1:decr_hits", totals.decr_hits);
        put.number("1:cas_hits", totals.cas_hits);
        put.number("1:cas_badval", totals.cas_badval);
        put.number("1:touch_hits", totals.touch_hits);
    }
    put.number("active_slabs", u64::from(usage.items > 0));
    put.number("total_malloced", usage.memory);
}

fn connections(context: &ServerContext, put: &mut StatWriter<'_>) {
    let now = context.store.clock().now();
    let listening = context.listen_addresses();
    for (number, address) in listening.iter().enumerate() {
        put.text(&format!("{number}:addr"), address);
        put.text(&format!("{number}:state"), "conn_listening");
    }
    for (number, connection) in context.connections.all() {
        let number = number + listening.len();
        put.text(&format!("{number}:addr"), &connection.peer);
        put.text(&format!("{number}:listen_addr"), &connection.local);
        put.text(&format!("{number}:state"), connection.state());
        let since = now.saturating_sub(connection.last_request());
        put.number(&format!("{number}:secs_since_last_cmd"), since.into());
    }
}

/// Kernel ticks in seconds, in memcached's format.
fn seconds(ticks: u64) -> String {
    format!("{:.6}", ticks as f64 / procfs::ticks_per_second() as f64)
}

/// Writes the general section: every name of memcached 1.6.45, and some of this server.
fn general(context: &ServerContext, put: &mut StatWriter<'_>) {
    let (store, totals, usage) = (&context.store, context.counters.totals(), context.store.usage());
    let now = store.clock().now();
    put.number("pid", std::process::id().into());
    put.number("uptime", now.into());
    put.number("time", store.clock().unix().unsigned_abs());
    put.text("version", VERSION);
    // memcached names the version of libevent that it runs on. Monitors expect the line.
    put.text("libevent", "none");
    put.number("pointer_size", usize::BITS.into());
    if let Ok(stat) = procfs::process::Process::myself().and_then(|process| process.stat()) {
        put.text("rusage_user", &seconds(stat.utime));
        put.text("rusage_system", &seconds(stat.stime));
    }
    put.number("max_connections", context.config.max_connections as u64);
    put.number("curr_connections", context.connection_limit.open() as u64);
    put.number("total_connections", totals.total_connections);
    put.number("rejected_connections", totals.rejected_connections);
    put.number("connection_structures", context.connection_limit.open() as u64);
    put.number("response_obj_oom", totals.reply_no_memory);
    put.neutral(
        &[
            "response_obj_count",
            "response_obj_bytes",
            "read_buf_count",
            "read_buf_bytes",
            "read_buf_bytes_free",
        ],
        "0",
    );
    put.number("read_buf_oom", totals.read_no_memory);
    put.number("reserved_fds", 0);
    put.number("cmd_get", totals.get_hits + totals.get_misses);
    put.number("cmd_set", totals.cmd_set);
    put.number("cmd_flush", totals.cmd_flush);
    put.number("cmd_touch", totals.touch_hits + totals.touch_misses);
    put.number("cmd_meta", totals.cmd_meta);
    put.number("get_hits", totals.get_hits);
    put.number("get_misses", totals.get_misses);
    put.number("get_expired", usage.counters.found_expired);
    put.number("get_flushed", 0);
    put.number("delete_misses", totals.delete_misses);
    put.number("delete_hits", totals.delete_hits);
    put.number("incr_misses", totals.incr_misses);
    put.number("incr_hits", totals.incr_hits);
    put.number("decr_misses", totals.decr_misses);
    put.number("decr_hits", totals.decr_hits);
    put.number("cas_misses", totals.cas_misses);
    put.number("cas_hits", totals.cas_hits);
    put.number("cas_badval", totals.cas_badval);
    put.number("touch_hits", totals.touch_hits);
    put.number("touch_misses", totals.touch_misses);
    put.number("store_too_large", totals.store_too_large);
    put.number("store_no_memory", totals.store_no_memory);
    put.number("auth_cmds", totals.auth_cmds);
    put.number("auth_errors", totals.auth_errors);
    if context.config.idle_timeout.is_some() {
        put.number("idle_kicks", totals.idle_kicks);
    }
    if context.config.tls.is_some() {
        put.number("ssl_handshake_errors", totals.handshake_errors);
        put.neutral(&["ssl_new_sessions", "ssl_proto_errors", "time_since_server_cert_refresh"], "0");
    }
    put.number("bytes_read", totals.bytes_read);
    put.number("bytes_written", totals.bytes_written);
    put.number("limit_maxbytes", store.limit());
    put.number("accepting_conns", u64::from(!context.connection_limit.is_reached()));
    put.number("listen_disabled_num", context.connection_limit.times_reached());
    put.number("time_in_listen_disabled_us", 0);
    put.number("threads", context.counters.workers() as u64);
    put.number("conn_yields", totals.conn_yields);
    put.number("hash_power_level", usage.items.max(1).ilog2().into());
    put.number("hash_bytes", usage.tables);
    put.number("hash_is_expanding", 0);
    put.neutral(
        &[
            "slab_reassign_rescues",
            "slab_reassign_chunk_rescues",
            "slab_reassign_inline_reclaim",
            "slab_reassign_busy_items",
            "slab_reassign_busy_deletes",
            "slab_reassign_busy_nomem",
        ],
        "0",
    );
    put.text("slab_reassign_last_busy_status", "none");
    put.neutral(
        &[
            "slab_reassign_running",
            "slabs_moved",
            "lru_crawler_running",
            "lru_crawler_starts",
            "lru_maintainer_juggles",
        ],
        "0",
    );
    put.number("malloc_fails", 0);
    put.neutral(
        &[
            "log_worker_dropped",
            "log_worker_written",
            "log_watcher_skipped",
            "log_watcher_sent",
            "log_watchers",
        ],
        "0",
    );
    put.number("bytes", usage.bytes);
    put.number("bytes_memory", usage.memory);
    put.number("curr_items", usage.items);
    put.number("total_items", totals.total_items);
    put.number("slab_global_page_pool", 0);
    put.number("expired_unfetched", usage.counters.expired_unfetched);
    put.number("evicted_unfetched", usage.counters.evicted_unfetched);
    put.number("evicted_active", 0);
    put.number("evictions", usage.counters.evictions);
    put.number("reclaimed", usage.counters.expired);
    put.number("crawler_reclaimed", usage.counters.expired - usage.counters.found_expired);
    put.number("crawler_items_checked", usage.counters.crawled);
    put.neutral(
        &[
            "lrutail_reflocked",
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "lru_bumps_dropped",
            "unexpected_napi_ids",
            "round_robin_fallback",
        ],
        "0",
    );
    put.number("items_moved", usage.counters.moved);
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Writes the section `settings`: every name of memcached 1.6.45. What has no meaning here has the
/// value of memcached without the feature.
fn settings(context: &ServerContext, put: &mut StatWriter<'_>) {
    let config = &context.config;
    // As in memcached, 0 is none and -1 any.
    let port = |port: Option<u16>| match port {
        None => "0".to_owned(),
        Some(0) => "-1".to_owned(),
        Some(port) => port.to_string(),
    };
    put.number("maxbytes", context.store.limit());
    put.number("maxconns", config.max_connections as u64);
    put.text("tcpport", &port(config.port));
    put.text("udpport", &port(config.udp_port));
    let listen: Vec<String> = config.listen.iter().map(|(ip, _)| ip.to_string()).collect();
    put.text("inter", &listen.join(","));
    put.number("verbosity", context.verbosity().into());
    put.number("oldest", 0);
    put.text("evictions", if config.evict { "on" } else { "off" });
    let path = config.unix_socket.as_ref().map(|path| path.display().to_string());
    put.text("domain_socket", path.as_deref().unwrap_or("NULL"));
    put.text("umask", &format!("{:o}", config.unix_mode));
    put.text("shutdown_command", yes_or_no(config.shutdown_allowed));
    put.text("growth_factor", "1.25");
    put.number("chunk_size", 48);
    put.number("num_threads", context.counters.workers() as u64);
    put.number("num_threads_per_udp", u64::from(config.udp_port.is_some()));
    put.text("stat_key_prefix", ":");
    put.text("detail_enabled", "no");
    put.number("reqs_per_event", config.requests_per_turn.into());
    put.text("cas_enabled", yes_or_no(config.cas));
    put.number("tcp_backlog", u64::from(config.backlog.unsigned_abs()));
    put.text(
        "binding_protocol",
        match config.protocol {
            None => "auto-negotiate",
            Some(Protocol::Ascii) => "ascii",
            Some(Protocol::Binary) => "binary",
        },
    );
    put.text("auth_enabled_sasl", yes_or_no(config.sasl));
    let users = config.users_file.as_ref().filter(|_| !config.sasl).map(|path| path.display().to_string());
    put.text("auth_enabled_ascii", users.as_deref().unwrap_or("no"));
    put.number("item_size_max", config.max_item as u64);
    put.text("maxconns_fast", yes_or_no(config.refuse_when_full));
    put.number("hashpower_init", 0);
    put.text("slab_reassign", "no");
    put.number("slab_automove", 0);
    put.text("slab_automove_ratio", "0.80");
    put.number("slab_automove_window", 30);
    put.number("slab_chunk_max", context.store.segment_size() as u64);
    put.text("lru_crawler", yes_or_no(context.lru_crawler.is_enabled()));
    put.neutral(&["lru_crawler_sleep", "lru_crawler_tocrawl", "tail_repair_time"], "0");
    put.text("flush_enabled", yes_or_no(config.flush_allowed));
    put.text("dump_enabled", yes_or_no(config.dump_allowed));
    put.text("hash_algorithm", "foldhash");
    put.text("lru_maintainer_thread", "no");
    put.text("lru_segmented", "no");
    put.neutral(&["hot_lru_pct", "warm_lru_pct"], "0");
    put.neutral(&["hot_max_factor", "warm_max_factor"], "0.00");
    put.text("temp_lru", "no");
    put.number("temporary_ttl", 0);
    put.number("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    put.neutral(&["watcher_logbuf_size", "worker_logbuf_size", "read_buf_mem_limit"], "0");
    put.text("track_sizes", "no");
    put.neutral(&["inline_ascii_response", "drop_privileges"], "no");
    put.text("ssl_enabled", yes_or_no(config.tls.is_some()));
    tls(context, put);
    put.number("num_napi_ids", 0);
    put.text("memory_file", "(null)");
    put.number("client_flags_size", 4);
}

fn tls(context: &ServerContext, put: &mut StatWriter<'_>) {
    let tls = context.config.tls.as_ref();
    let path =
        |path: Option<&std::path::PathBuf>| path.map_or("NULL".to_owned(), |path| path.display().to_string());
    put.text("ssl_chain_cert", &path(tls.map(|tls| &tls.certificates)));
    put.text("ssl_key", &path(tls.map(|tls| &tls.key)));
    let verify = tls.map_or(0, |tls| match tls.client_certificates {
        ClientCertificates::Ignored => 0,
        ClientCertificates::Optional => 1,
        ClientCertificates::Required => 2,
    });
    put.number("ssl_verify_mode", verify);
    // PEM, in OpenSSL's numbers.
    put.number("ssl_keyformat", 1);
    put.text("ssl_ciphers", "NULL");
    put.text("ssl_ca_cert", &path(tls.and_then(|tls| tls.authorities.as_ref())));
    put.number("ssl_wbuf_size", 0);
    put.neutral(&["ssl_session_cache", "ssl_kernel_tls"], "no");
    put.text("ssl_min_version", if tls.is_some_and(|tls| tls.require_tls13) { "tlsv1.3" } else { "tlsv1.2" });
}
