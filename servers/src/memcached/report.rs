//! The answers to `stats`, and lines about keys.

use super::VERSION;
use super::clock::Clock;
use super::meta::write_base64;
use super::settings::Protocol;
use super::shared::Shared;
use super::store::{Bits, Header};

/// Tells a section's numbers, name by name; an empty section is the general one. False where there is no
/// such section.
pub fn stats(shared: &Shared, section: &[u8], put: &mut dyn FnMut(&str, &str)) -> bool {
    let mut put = Put(put);
    match section {
        b"" => general(shared, &mut put),
        b"settings" => settings(shared, &mut put),
        b"reset" => shared.stats.reset(),
        b"items" => items(shared, &mut put),
        b"slabs" => slabs(shared, &mut put),
        b"sizes" => put.text("sizes_status", "disabled"),
        b"conns" => connections(shared, &mut put),
        b"policy" => policy(shared, &mut put),
        // Nothing is counted by prefix, so there is nothing to switch on.
        b"detail on" | b"detail off" if shared.settings.dump_allowed => {}
        b"detail dump" if shared.settings.dump_allowed => put.text("detailed", "END\r\n"),
        _ => return false,
    }
    true
}

struct Put<'a>(&'a mut dyn FnMut(&str, &str));

impl Put<'_> {
    fn text(&mut self, name: &str, value: &str) {
        (self.0)(name, value);
    }

    fn number(&mut self, name: &str, value: u64) {
        let mut digits = itoa::Buffer::new();
        (self.0)(name, digits.format(value));
    }
}

/// The kernel's ticks as seconds, the way memcached writes them.
fn seconds(ticks: u64) -> String {
    format!("{:.6}", ticks as f64 / procfs::ticks_per_second() as f64)
}

fn general(shared: &Shared, put: &mut Put<'_>) {
    let (store, totals, contents) = (&shared.store, shared.stats.totals(), shared.store.contents());
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
    put.number("max_connections", shared.settings.connections as u64);
    put.number("curr_connections", shared.open() as u64);
    put.number("total_connections", totals.total_connections);
    put.number("rejected_connections", totals.rejected_connections);
    put.number("connection_structures", shared.open() as u64);
    put.number("cmd_get", totals.get_hits + totals.get_misses);
    put.number("cmd_set", totals.cmd_set);
    put.number("cmd_flush", totals.cmd_flush);
    put.number("cmd_touch", totals.touch_hits + totals.touch_misses);
    put.number("cmd_meta", totals.cmd_meta);
    put.number("get_hits", totals.get_hits);
    put.number("get_misses", totals.get_misses);
    put.number("get_expired", contents.counts.found_expired);
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
    if shared.settings.idle_timeout.is_some() {
        put.number("idle_kicks", totals.idle_kicks);
    }
    if shared.settings.tls.is_some() {
        put.number("ssl_handshake_errors", totals.handshake_errors);
    }
    put.number("bytes_read", totals.bytes_read);
    put.number("bytes_written", totals.bytes_written);
    put.number("limit_maxbytes", store.limit());
    put.number("accepting_conns", u64::from(shared.open() < shared.settings.connections));
    put.number("listen_disabled_num", shared.times_full());
    put.number("time_in_listen_disabled_us", 0);
    put.number("threads", shared.stats.workers() as u64);
    put.number("conn_yields", totals.conn_yields);
    put.number("hash_power_level", contents.items.max(1).ilog2().into());
    put.number("hash_bytes", contents.tables);
    put.number("hash_is_expanding", 0);
    put.number("malloc_fails", 0);
    put.number("bytes", contents.bytes);
    put.number("bytes_memory", contents.memory);
    put.number("curr_items", contents.items);
    put.number("total_items", totals.total_items);
    put.number("slab_global_page_pool", 0);
    put.number("expired_unfetched", contents.counts.expired_unfetched);
    put.number("evicted_unfetched", contents.counts.evicted_unfetched);
    put.number("evicted_active", 0);
    put.number("evictions", contents.counts.evictions);
    put.number("reclaimed", contents.counts.expired);
    put.number("crawler_reclaimed", contents.counts.expired - contents.counts.found_expired);
    put.number("crawler_items_checked", contents.counts.crawled);
    put.number("items_moved", contents.counts.moved);
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn settings(shared: &Shared, put: &mut Put<'_>) {
    let settings = &shared.settings;
    let port = |port: Option<u16>| port.map_or(0, u64::from);
    put.number("maxbytes", shared.store.limit());
    put.number("maxconns", settings.connections as u64);
    put.number("tcpport", port(settings.port));
    put.number("udpport", port(settings.udp_port));
    let listen: Vec<String> = settings.listen.iter().map(|(ip, _)| ip.to_string()).collect();
    put.text("inter", &listen.join(","));
    put.number("verbosity", shared.verbosity().into());
    put.text("evictions", if settings.evict { "on" } else { "off" });
    let path = settings.unix_socket.as_ref().map(|path| path.display().to_string());
    put.text("domain_socket", path.as_deref().unwrap_or("NULL"));
    put.text("umask", &format!("{:o}", settings.unix_mode));
    put.text("shutdown_command", yes(settings.shutdown_allowed));
    put.number("num_threads", shared.stats.workers() as u64);
    put.text("detail_enabled", "no");
    put.number("reqs_per_event", settings.requests_per_turn.into());
    put.text("cas_enabled", "yes");
    put.number("tcp_backlog", u64::from(settings.backlog.unsigned_abs()));
    put.text(
        "binding_protocol",
        match settings.protocol {
            None => "auto-negotiate",
            Some(Protocol::Ascii) => "ascii",
            Some(Protocol::Binary) => "binary",
        },
    );
    put.text("auth_enabled_sasl", yes(settings.sasl));
    let users = settings.users.as_ref().filter(|_| !settings.sasl).map(|path| path.display().to_string());
    put.text("auth_enabled_ascii", users.as_deref().unwrap_or("no"));
    put.number("item_size_max", settings.max_item as u64);
    put.text("maxconns_fast", yes(settings.refuse_at_once));
    put.text("slab_reassign", "no");
    put.number("slab_automove", 0);
    put.text("lru_crawler", "yes");
    put.text("flush_enabled", yes(settings.flush_allowed));
    put.text("dump_enabled", yes(settings.dump_allowed));
    put.text("hash_algorithm", "foldhash");
    put.text("lru_maintainer_thread", "no");
    put.text("lru_segmented", "no");
    put.number("idle_timeout", settings.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    put.text("track_sizes", "no");
    put.text("ssl_enabled", yes(settings.tls.is_some()));
    put.number("client_flags_size", 4);
}

/// All items are of one class.
fn items(shared: &Shared, put: &mut Put<'_>) {
    let contents = shared.store.contents();
    if contents.items == 0 {
        return;
    }
    put.number("items:1:number", contents.items);
    put.number("items:1:age", 0);
    put.number("items:1:mem_requested", contents.bytes);
    put.number("items:1:evicted", contents.counts.evictions);
    put.number("items:1:evicted_nonzero", 0);
    put.number("items:1:evicted_time", 0);
    put.number("items:1:outofmemory", shared.stats.totals().store_no_memory);
    put.number("items:1:tailrepairs", 0);
    put.number("items:1:reclaimed", contents.counts.expired);
    put.number("items:1:expired_unfetched", contents.counts.expired_unfetched);
    put.number("items:1:evicted_unfetched", contents.counts.evicted_unfetched);
}

/// Segments are what comes nearest to pages of a class.
fn slabs(shared: &Shared, put: &mut Put<'_>) {
    let (contents, totals) = (shared.store.contents(), shared.stats.totals());
    if let Some(mean) = contents.bytes.checked_div(contents.items) {
        put.number("1:chunk_size", mean);
        put.number("1:chunks_per_page", shared.store.segment_size() as u64 / mean.max(1));
        put.number("1:total_pages", contents.segments);
        put.number("1:total_chunks", contents.items);
        put.number("1:used_chunks", contents.items);
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
    put.number("active_slabs", u64::from(contents.items > 0));
    put.number("total_malloced", contents.memory);
}

fn connections(shared: &Shared, put: &mut Put<'_>) {
    let now = shared.store.clock().now();
    let listening = shared.listening();
    for (number, address) in listening.iter().enumerate() {
        put.text(&format!("{number}:addr"), address);
        put.text(&format!("{number}:state"), "conn_listening");
    }
    shared.each_connection(|number, connection| {
        let number = number + listening.len();
        put.text(&format!("{number}:addr"), &connection.peer);
        put.text(&format!("{number}:listen_addr"), &connection.local);
        put.text(&format!("{number}:state"), connection.state());
        let since = now.saturating_sub(connection.last_seen());
        put.number(&format!("{number}:secs_since_last_cmd"), since.into());
    });
}

/// A line a worker: what it runs, and how that goes.
fn policy(shared: &Shared, put: &mut Put<'_>) {
    let metrics = runtime::metrics();
    for (report, metrics) in runtime::reports().iter().zip(&metrics) {
        let stats = shared.stats.aligned(report.worker);
        let napi = report.napi.as_ref().map_or(0, |napi| napi.id);
        let mut line = format!(
            "policy={} asked={} driver={} napi={napi} aligned={} misaligned={} without_napi={} running_us={} polling_us={} parked_us={}",
            report.running,
            report.asked,
            report.driver,
            stats.0,
            stats.1,
            stats.2,
            metrics.running().as_micros(),
            metrics.polling().as_micros(),
            metrics.parked().as_micros(),
        );
        if let Some(core) = report.core {
            line.push_str(&format!(" core={core}"));
        }
        put.text(&format!("worker:{}", report.worker), &line);
    }
    match shared.traffic.busy_poll_share() {
        Ok(Some(share)) => put.text("busy_poll_share", &format!("{share:.3}")),
        Ok(None) => put.text("busy_poll_share", "none (no interface)"),
        Err(error) => put.text("busy_poll_share", &format!("none ({error})")),
    }
}

/// A key as `lru_crawler metadump` has it, percent-encoded like memcached's.
pub fn metadump_line(clock: &Clock, key: &[u8], header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(b"key=");
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    let expiry = match header.expiry {
        0 => -1,
        expiry => clock.unix_of(expiry),
    };
    let fetched = if header.bits.has(Bits::FETCHED) { "yes" } else { "no" };
    let rest = format!(
        " exp={expiry} la={} cas={} fetch={fetched} cls=1 size={} flags={}\n",
        clock.unix_of(header.accessed),
        header.cas,
        header.size(),
        header.flags
    );
    out.extend_from_slice(rest.as_bytes());
}

/// A key as `lru_crawler mgdump` has it: a line that could be sent back.
pub fn mgdump_line(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"mg ");
    if key.iter().all(|byte| byte.is_ascii_graphic()) {
        out.extend_from_slice(key);
    } else {
        write_base64(key, out);
        out.extend_from_slice(b" b");
    }
    out.extend_from_slice(b"\r\n");
}

/// A key as `stats cachedump` has it.
pub fn cachedump_line(clock: &Clock, key: &[u8], header: &Header, out: &mut Vec<u8>) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(key);
    let expiry = match header.expiry {
        0 => 0,
        expiry => clock.unix_of(expiry),
    };
    out.extend_from_slice(format!(" [{} b; {expiry} s]\r\n", header.length).as_bytes());
}
