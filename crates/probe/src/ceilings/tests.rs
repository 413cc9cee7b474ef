use super::*;
use crate::cache::Cache;

pub(super) const SMALL: Effort = Effort {
    buffer_bytes_limit: 8 << 20,
    fill_ns_limit: 500_000_000,
    rounds: 5,
    read_series_ns: 0,
    fma_round_ns: 1_000_000,
    quiet_window: Duration::ZERO,
    busy_limit: 1.0,
};

#[test]
fn the_readings_follow_from_the_kept_rounds() {
    let host = Host::read();
    let c = Ceilings::measure(&host, &SMALL);
    assert_eq!(Ceilings::readings_of(&c.series), c.readings);
    let finals: Vec<&Series> = c.series.iter().filter(|s| !s.screening).collect();
    let tiles = amx::usable().available().is_some();
    let dots = Dot::best(&host.features).is_some();
    let kinds = if tiles { 4 } else { 2 + usize::from(dots) };
    assert_eq!(finals.len(), if c.threads > 1 { 2 * kinds } else { kinds });
    let products = &c.readings.tiles_all_flop_per_s;
    assert_eq!(products.available().is_some(), tiles, "{products}");
    let bytes = &c.readings.dot_int8_all_op_per_s;
    assert_eq!(bytes.available().is_some(), tiles || dots, "{bytes}");
    assert!(finals.iter().all(|s| s.ns.len() == SMALL.rounds && s.per_round > 0));
    let read = finals.iter().find(|s| s.what == Work::ReadBytes).unwrap();
    assert!(read.per_round <= SMALL.buffer_bytes_limit);
    // Slower than a disk or faster than any processor's cache would be a unit mixed up, not a slow host.
    let rate = *c.readings.read_1t_bytes_per_s.available().unwrap();
    assert!((10_000_000..10_000_000_000_000).contains(&rate), "{rate}");
    let rate = *c.readings.fma_f32_1t_flop_per_s.available().unwrap();
    assert!((1_000_000..10_000_000_000_000).contains(&rate), "{rate}");
}

#[test]
fn screening_and_short_series_give_no_figure() {
    let one = Series {
        what: Work::ReadBytes,
        threads: 1,
        kernel: "k".into(),
        screening: false,
        per_round: 1000,
        huge_bytes: Reading::unavailable("x"),
        l3_bytes: Reading::unavailable("x"),
        ns: vec![10, 30, 20, 90, 20],
    };
    let screened = Series { screening: true, ns: vec![1; 9], ..one.clone() };
    let r = Ceilings::readings_of(&[screened.clone(), one.clone()]);
    assert_eq!(r.read_1t_bytes_per_s, Reading::Available(50_000_000_000));
    assert_eq!(r.read_all_bytes_per_s, r.read_1t_bytes_per_s);
    assert!(r.fma_f32_1t_flop_per_s.available().is_none());
    assert!(Ceilings::readings_of(&[screened]).read_1t_bytes_per_s.available().is_none());
    let short = Series { ns: vec![1; 4], ..one };
    assert!(Ceilings::readings_of(&[short]).read_1t_bytes_per_s.to_string().contains("4 rounds"));
}

#[test]
fn tiles_of_bytes_have_twice_the_operations_of_those_of_bf16() {
    let of = |what, per_round| Series {
        what,
        threads: 1,
        kernel: "k".into(),
        screening: false,
        per_round,
        huge_bytes: Reading::unavailable("x"),
        l3_bytes: Reading::unavailable("x"),
        ns: vec![100; MIN_ROUNDS],
    };
    let rate = |series: &[Series]| Ceilings::readings_of(series).dot_int8_all_op_per_s;
    assert_eq!(rate(&[of(Work::DotInt8Op, 300)]), Reading::Available(3_000_000_000));
    assert_eq!(rate(&[of(Work::TileFlop, 700), of(Work::DotInt8Op, 300)]), Reading::Available(14_000_000_000));
    assert!(rate(&[of(Work::FmaF32Flop, 300)]).available().is_none());
}

#[test]
fn the_buffer_is_past_the_cache_and_within_memory() {
    let mut host = Host::read();
    host.cpu.caches.l3 = Reading::Available(Cache { bytes_each: 100 << 20, instances: 2 });
    host.memory.available_bytes = Reading::Available(64 << 30);
    host.allowance.memory_limit_bytes = Reading::Available(None);
    assert_eq!(buffer_bytes(&host, &Effort::FULL), 1600 << 20);
    host.memory.available_bytes = Reading::Available(2 << 30);
    assert_eq!(buffer_bytes(&host, &Effort::FULL), 512 << 20);
    host.allowance.memory_limit_bytes = Reading::Available(Some(1 << 30));
    host.allowance.memory_used_bytes = Reading::Available(512 << 20);
    assert_eq!(buffer_bytes(&host, &Effort::FULL), 128 << 20);
    assert_eq!(buffer_bytes(&host, &SMALL), 8 << 20);
}

#[test]
fn what_is_read_again_and_again_does_not_fit_into_the_cache() {
    let mut host = Host::read();
    host.cpu.caches.l3 = Reading::Available(Cache { bytes_each: 100 << 20, instances: 2 });
    host.memory.available_bytes = Reading::Available(64 << 30);
    host.allowance.memory_limit_bytes = Reading::Available(None);
    assert_eq!(past_caches(&host, 1), Ok(800 << 20));
    assert_eq!(past_caches(&host, 3 << 30), Ok(3 << 30), "as many bytes as are streamed");
    host.memory.available_bytes = Reading::Available(2 << 30);
    assert_eq!(past_caches(&host, 1), Ok(512 << 20), "what there is, past twice the cache");
    assert!(past_caches(&host, 600 << 20).is_err(), "fewer bytes than are streamed");
    host.memory.available_bytes = Reading::Available(1 << 30);
    let said = past_caches(&host, 1).unwrap_err();
    assert!(said.contains("200.00 MiB of L3") && said.contains("400.00 MiB") && said.contains("256.00 MiB"), "{said}");
}

#[test]
fn the_median_of_an_even_number_lies_between() {
    assert_eq!(median(&[4, 1, 3, 2]), 2.5);
    assert_eq!(median(&[9]), 9.0);
}
