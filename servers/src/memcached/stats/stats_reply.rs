//! The sections of `stats`.

use runtime::QueueStatus;

use super::stat_writer::StatWriter;
use super::{general, settings};
use crate::memcached::context::ServerContext;

/// Calls `write` with each name and value of a section. The empty section is the general one. Returns false
/// if there is no such section.
pub fn write_section(context: &ServerContext, section: &[u8], write: &mut dyn FnMut(&str, &str)) -> bool {
    let mut put = StatWriter::new(write);
    match section {
        b"" => general::write(context, &mut put),
        b"settings" => settings::write(context, &mut put),
        b"reset" => {
            context.counters.reset();
            context.prefix_counts.reset();
        }
        b"items" => items(context, &mut put),
        b"slabs" => slabs(context, &mut put),
        b"sizes" => put.text("sizes_status", "disabled"),
        b"conns" => connections(context, &mut put),
        b"policy" => policy(context, &mut put),
        b"detail on" if context.config.dump_allowed => context.prefix_counts.enable(true),
        b"detail off" if context.config.dump_allowed => context.prefix_counts.enable(false),
        _ => return false,
    }
    true
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
    let QueueStatus { mode, latency_budget_us, grace_time_us, poll_interval_us, spin_us, why, .. } = queue;
    let mut fields = format!(" mode={mode}");
    if let Some(budget) = latency_budget_us {
        fields.push_str(&format!(" latency_budget_us={budget}"));
    }
    fields.push_str(&format!(" grace_time_us={grace_time_us}"));
    if *poll_interval_us > 0 {
        fields.push_str(&format!(" poll_interval_us={poll_interval_us}"));
    }
    fields.push_str(&format!(" spin_us={spin_us} why={}", why.name()));
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
        let watchdog = std::time::Duration::from_millis(5);
        let timed = QueueSettings::timed(budget.delay(), watchdog, Reason::Saturated { busy: 95 });
        assert_eq!(
            queue_fields(&QueueStatus::new(&timed, Some(budget))),
            " mode=timed latency_budget_us=20 grace_time_us=5000 poll_interval_us=20 spin_us=0 why=saturated:95%"
        );
        let fixed = QueueSettings::fixed(policies::law::LatencyBudget::ZERO);
        assert_eq!(
            queue_fields(&QueueStatus::new(&fixed, None)),
            " mode=interrupt-first grace_time_us=20 spin_us=0 why=fixed"
        );
    }
}
