//! The counting allocator, installed as a binary installs it. One test, since the count is the process's.

use tare_probe::allocator::{Counting, peak_bytes, reset_peak};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_peak_is_seen_after_it_is_gone_and_forgotten_on_reset() {
    let live = || *peak_bytes().available().expect("the allocator is installed");
    reset_peak();
    let before = live();
    drop(std::hint::black_box(vec![1u8; 32 << 20]));
    let peak = live();
    assert!(peak >= before + (32 << 20), "{before} -> {peak}");
    let mut grows = std::hint::black_box(vec![0u8; 1 << 20]);
    grows.resize(48 << 20, 7);
    assert!(live() >= before + (48 << 20), "a buffer that grew counts with its new length");
    drop(grows);
    reset_peak();
    assert!(live() < before + (1 << 20), "what was freed is no longer counted");
}
