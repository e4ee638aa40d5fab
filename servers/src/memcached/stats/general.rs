//! The general section of `stats`.

use super::stat_writer::StatWriter;
use crate::memcached::context::ServerContext;
use crate::memcached::version::VERSION;

/// Kernel ticks in seconds, in memcached's format.
fn seconds(ticks: u64) -> String {
    format!("{:.6}", ticks as f64 / procfs::ticks_per_second() as f64)
}

/// Writes the general section: every name of memcached 1.6.45, and some of this server.
pub fn write(context: &ServerContext, put: &mut StatWriter<'_>) {
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
