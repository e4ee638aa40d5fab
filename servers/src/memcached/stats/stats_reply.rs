//! The sections of `stats`.

use runtime::QueueStatus;

use crate::memcached::config::Protocol;
use crate::memcached::context::ServerContext;
use crate::memcached::version::VERSION;

/// Calls `write` with each name and value of a section. The empty section is the general one. Returns false
/// if there is no such section.
pub fn write_section(context: &ServerContext, section: &[u8], write: &mut dyn FnMut(&str, &str)) -> bool {
    let mut put = StatWriter(write);
    match section {
        b"" => general(context, &mut put),
        b"settings" => settings(context, &mut put),
        b"reset" => context.counters.reset(),
        b"items" => items(context, &mut put),
        b"slabs" => slabs(context, &mut put),
        b"sizes" => put.text("sizes_status", "disabled"),
        b"conns" => connections(context, &mut put),
        b"policy" => policy(context, &mut put),
        // Nothing is counted per prefix, so `on` and `off` have no effect.
        b"detail on" | b"detail off" if context.config.dump_allowed => {}
        b"detail dump" if context.config.dump_allowed => put.text("detailed", "END\r\n"),
        _ => return false,
    }
    true
}

struct StatWriter<'a>(&'a mut dyn FnMut(&str, &str));

impl StatWriter<'_> {
    fn text(&mut self, name: &str, value: &str) {
        (self.0)(name, value);
    }

    fn number(&mut self, name: &str, value: u64) {
        let mut digits = itoa::Buffer::new();
        (self.0)(name, digits.format(value));
    }
}

/// Kernel ticks in seconds, in memcached's format.
fn seconds(ticks: u64) -> String {
    format!("{:.6}", ticks as f64 / procfs::ticks_per_second() as f64)
}

fn general(context: &ServerContext, put: &mut StatWriter<'_>) {
    let (store, totals, usage) = (&context.store, context.counters.totals(), context.store.usage());
    let now = store.clock().now();
    put.number("pid", std::process::id().into());
    put.number("uptime", now.into());
    put.number("time", store.clock().unix().unsigned_abs());
    put.text("version", VERSION);
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
    put.number("malloc_fails", 0);
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
    put.number("items_moved", usage.counters.moved);
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn settings(context: &ServerContext, put: &mut StatWriter<'_>) {
    let config = &context.config;
    let port = |port: Option<u16>| port.map_or(0, u64::from);
    put.number("maxbytes", context.store.limit());
    put.number("maxconns", config.max_connections as u64);
    put.number("tcpport", port(config.port));
    put.number("udpport", port(config.udp_port));
    let listen: Vec<String> = config.listen.iter().map(|(ip, _)| ip.to_string()).collect();
    put.text("inter", &listen.join(","));
    put.number("verbosity", context.verbosity().into());
    put.text("evictions", if config.evict { "on" } else { "off" });
    let path = config.unix_socket.as_ref().map(|path| path.display().to_string());
    put.text("domain_socket", path.as_deref().unwrap_or("NULL"));
    put.text("umask", &format!("{:o}", config.unix_mode));
    put.text("shutdown_command", yes_or_no(config.shutdown_allowed));
    put.number("num_threads", context.counters.workers() as u64);
    put.text("detail_enabled", "no");
    put.number("reqs_per_event", config.requests_per_turn.into());
    put.text("cas_enabled", "yes");
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
    put.text("slab_reassign", "no");
    put.number("slab_automove", 0);
    put.text("lru_crawler", "yes");
    put.text("flush_enabled", yes_or_no(config.flush_allowed));
    put.text("dump_enabled", yes_or_no(config.dump_allowed));
    put.text("hash_algorithm", "foldhash");
    put.text("lru_maintainer_thread", "no");
    put.text("lru_segmented", "no");
    put.number("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    put.text("track_sizes", "no");
    put.text("ssl_enabled", yes_or_no(config.tls.is_some()));
    put.number("client_flags_size", 4);
}

/// All items are in slab class 1.
fn items(context: &ServerContext, put: &mut StatWriter<'_>) {
    let usage = context.store.usage();
    if usage.items == 0 {
        return;
    }
    put.number("items:1:number", usage.items);
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
    context.connections.for_each(|number, connection| {
        let number = number + listening.len();
        put.text(&format!("{number}:addr"), &connection.peer);
        put.text(&format!("{number}:listen_addr"), &connection.local);
        put.text(&format!("{number}:state"), connection.state());
        let since = now.saturating_sub(connection.last_request());
        put.number(&format!("{number}:secs_since_last_cmd"), since.into());
    });
}

/// Lull's own section: one line per worker with its policy, driver, alignment and time.
fn policy(context: &ServerContext, put: &mut StatWriter<'_>) {
    let metrics = runtime::metrics();
    for (report, metrics) in runtime::reports().iter().zip(&metrics) {
        let (aligned, misaligned, without_napi) = context.counters.alignment(report.worker);
        let napi = report.napi.as_ref().map_or(0, |napi| napi.id);
        let mut line = format!(
            "policy={} requested={} driver={} napi={napi} aligned={aligned} misaligned={misaligned} without_napi={without_napi} running_us={} polling_us={} parked_us={}",
            report.running,
            report.asked,
            report.driver,
            metrics.running().as_micros(),
            metrics.polling().as_micros(),
            metrics.parked().as_micros(),
        );
        if let Some(core) = report.core {
            line.push_str(&format!(" core={core}"));
        }
        if let Some(queue) = report.queue_status() {
            line.push_str(&queue_fields(&queue));
        }
        put.text(&format!("worker:{}", report.worker), &line);
    }
    put.text("busy_poll_share", &context.busy_poll_share.display());
}

/// How a worker's queue is driven, in words without spaces.
fn queue_fields(queue: &QueueStatus) -> String {
    let QueueStatus { mode, latency_budget_us, grace_time_us, spin_us, why, .. } = queue;
    let mut fields = format!(" mode={mode}");
    if let Some(budget) = latency_budget_us {
        fields.push_str(&format!(" latency_budget_us={budget}"));
    }
    fields.push_str(&format!(" grace_time_us={grace_time_us} spin_us={spin_us} why={}", why.name()));
    if let Some(percent) = why.percent() {
        fields.push_str(&format!(":{percent}%"));
    }
    fields
}

#[cfg(test)]
mod tests {
    use policies::law::{QueueSettings, Reason};

    use super::*;

    #[test]
    fn the_fields_of_a_queue_are_words_without_spaces() {
        let budget: policies::law::LatencyBudget = "20".parse().unwrap();
        let settings = QueueSettings::grace(budget.delay(), Reason::WithinBudget { share: 80 });
        assert_eq!(
            queue_fields(&QueueStatus::new(&settings, Some(budget))),
            " mode=grace latency_budget_us=20 grace_time_us=20 spin_us=0 why=within-budget:80%"
        );
        let fixed = QueueSettings::fixed(policies::law::LatencyBudget::ZERO);
        assert_eq!(
            queue_fields(&QueueStatus::new(&fixed, None)),
            " mode=interrupt-first grace_time_us=20 spin_us=0 why=fixed"
        );
    }
}
