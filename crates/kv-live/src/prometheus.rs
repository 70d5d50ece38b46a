//! What a server tells Prometheus. `docs/metrics.md` has every name.

use std::fmt;
use std::sync::Arc;

use remanence_metrics::{Page, Source, Unit};

use super::{MemberMetrics, MemberStats, Metrics, Role, StoreStats};
use remanence_kv::view::Mode;

impl Metrics {
    /// The server as a source of metrics, for a [`remanence_metrics::Endpoint`].
    #[must_use]
    pub fn source(&self) -> Source {
        let metrics = self.clone();
        Arc::new(move |page| write(page, &metrics.read()))
    }
}

impl MemberMetrics {
    /// The member as a source of metrics: what it is of its store, and while it is the primary what it serves.
    #[must_use]
    pub fn source(&self) -> Source {
        let metrics = self.clone();
        Arc::new(move |page| {
            member(page, &metrics.read())?;
            // Not under the member's lock: the store's answers take as long as a message does.
            match metrics.store() {
                Some(store) => write(page, &store.read()),
                None => Ok(()),
            }
        })
    }
}

fn member(page: &mut Page<'_>, said: &MemberStats) -> fmt::Result {
    let name = said.members.get(usize::from(said.who)).map_or("", String::as_str);
    page.info(
        "remanence_kv_member",
        "Which member it is.",
        &[("name", name), ("group", &said.group.to_string())],
    )?;
    let is = |role| u64::from(said.role == role);
    let gauges: [(&str, &str, u64); 12] = [
        ("members", "Members of the store.", said.members.len() as u64),
        ("acks", "Members that have a change when it is acknowledged; 0: not made yet.", said.acks.into()),
        ("primary", "1 while it serves clients.", is(Role::Primary)),
        ("follower", "1 while it follows a primary.", is(Role::Follower)),
        (
            "epoch",
            "The epoch's counter: it grows when another member takes over.",
            said.epoch.counter().into(),
        ),
        ("record_first", "The first record of its log.", said.first),
        ("record_next", "The record that its log goes on with.", said.next),
        ("record_applied", "Its image has all records below this one.", said.applied),
        ("complete", "1 if its image is whole.", said.complete.into()),
        ("lost", "Members that it does without, as the primary.", said.lost.len() as u64),
        ("behind", "Members whose images do not follow, as the primary.", said.behind.len() as u64),
        ("stalled_ms", "For how many milliseconds its medium has not answered.", said.stalled),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("remanence_kv_member_{name}"), None, help, value)?;
    }
    let bytes = Some(Unit::Bytes);
    let sent = "What was sent of the image that is rebuilt, as the primary.";
    page.gauge("remanence_kv_member_rebuild_sent", bytes, sent, said.sent)?;
    let of = "That image, whole; 0: nobody is rebuilt.";
    page.gauge("remanence_kv_member_rebuild", bytes, of, said.of)
}

fn write(page: &mut Page<'_>, stats: &StoreStats) -> fmt::Result {
    let (server, usage) = (&stats.server, &stats.usage);
    let mode = if stats.mode == Mode::Durable { "durable" } else { "erda" };
    page.info("remanence_kv", "What it is.", &[("version", env!("CARGO_PKG_VERSION")), ("mode", mode)])?;
    page.gauge(
        "remanence_kv_uptime",
        Some(Unit::Seconds),
        "Since when it serves.",
        stats.uptime as f64 / 1e3,
    )?;
    page.gauge("remanence_kv_boots", None, "How often the store was opened.", u64::from(stats.boot))?;
    page.gauge("remanence_kv_size", Some(Unit::Bytes), "The store.", stats.size)?;
    page.gauge("remanence_kv_region", Some(Unit::Bytes), "A region of its logs.", stats.region_len)?;
    let gauges: [(&str, &str, u64); 11] = [
        ("regions", "Regions.", usage.regions.into()),
        ("regions_free", "Regions that are free.", usage.regions_free.into()),
        ("keys", "Keys that have a value, as far as they are counted.", usage.room.keys),
        ("counted", "1 when all keys are counted, and what they take.", usage.room.counted.into()),
        ("entries", "Entries in use, those of deleted keys included.", usage.entries),
        ("entries_max", "Entries of the table.", usage.entries_max),
        ("unfinished_writes", "Writes under way.", usage.unfinished as u64),
        ("cleaning", "1 while a log is cleaned.", usage.cleaning.into()),
        ("growing", "1 while the table is resized.", usage.growing.into()),
        ("clients", "Clients connected.", stats.clients),
        ("heads_to_clean", "Logs still to be cleaned, as somebody asked for it.", stats.to_clean),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("remanence_kv_{name}"), None, help, value)?;
    }
    let room = &usage.room;
    for (name, help, value) in [
        ("live", "What the values of keys take.", room.live),
        ("garbage", "What nobody can reach, until cleaning comes by.", room.garbage),
        ("free", "What nothing was put into yet.", room.free),
        ("left", "How much more the values of keys may take.", room.left),
    ] {
        page.gauge(&format!("remanence_kv_{name}"), Some(Unit::Bytes), help, value)?;
    }
    for (name, help, value) in [
        ("calls", "Calls answered. One-sided GETs are not among them.", stats.calls),
        ("reservations", "Places handed out for values.", server.reserved),
        ("writes_settled", "Writes seen whole and settled.", server.settled),
        ("writes_given_up", "Writes given up; their keys went back to the version before.", server.given_up),
        ("writes_by_server", "Values and tombstones that the server wrote itself.", server.written),
        (
            "requests_unfinished",
            "Requests that came while a write of the key was under way.",
            server.unfinished,
        ),
        ("regions_freed", "Regions that cleaning set free.", server.regions_freed),
        ("objects_moved", "Objects that cleaning moved.", server.objects_moved),
        ("entries_moved", "Entries displaced, or moved to a larger table.", server.entries_moved),
        ("tables_grown", "Tables replaced by larger ones.", server.grown),
        ("objects_damaged", "Objects found damaged that had been whole.", server.damaged),
        ("objects_repaired", "Of those, put right from a copy of the same version.", server.repaired),
        ("clients_fenced", "Clients that were cut off.", server.fenced),
    ] {
        page.counter(&format!("remanence_kv_{name}"), None, help, value)?;
    }
    Ok(())
}
