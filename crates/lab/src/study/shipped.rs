//! The studies inside the binary.

/// Name and TOML, in the order of `tare study --list`.
pub(super) const STUDIES: [(&str, &str); 24] = [
    ("aa-duet", include_str!("../../../../studies/aa-duet.toml")),
    ("aa-balanced", include_str!("../../../../studies/aa-balanced.toml")),
    ("ladder", include_str!("../../../../studies/ladder.toml")),
    ("ladder-l1", include_str!("../../../../studies/ladder-l1.toml")),
    ("ladder-cpu", include_str!("../../../../studies/ladder-cpu.toml")),
    ("deterministic", include_str!("../../../../studies/deterministic.toml")),
    ("deterministic-cuda", include_str!("../../../../studies/deterministic-cuda.toml")),
    ("eight-bit", include_str!("../../../../studies/eight-bit.toml")),
    ("cpu-q4_0", include_str!("../../../../studies/cpu-q4_0.toml")),
    ("cpu-q8_0", include_str!("../../../../studies/cpu-q8_0.toml")),
    ("cpu-bf16", include_str!("../../../../studies/cpu-bf16.toml")),
    ("cpu-prefill-512-bf16", include_str!("../../../../studies/cpu-prefill-512-bf16.toml")),
    ("cpu-prefill-512-q4_0", include_str!("../../../../studies/cpu-prefill-512-q4_0.toml")),
    ("cpu-prefill-128-bf16", include_str!("../../../../studies/cpu-prefill-128-bf16.toml")),
    ("cpu-prefill-128-q4_0", include_str!("../../../../studies/cpu-prefill-128-q4_0.toml")),
    ("cpu-4b-q4_0", include_str!("../../../../studies/cpu-4b-q4_0.toml")),
    ("cpu-8k-q4_0", include_str!("../../../../studies/cpu-8k-q4_0.toml")),
    ("cpu-rows-8-q4_0", include_str!("../../../../studies/cpu-rows-8-q4_0.toml")),
    ("cpu-rows-8-q8_0", include_str!("../../../../studies/cpu-rows-8-q8_0.toml")),
    ("ladder-cuda-0.6b-bf16", include_str!("../../../../studies/ladder-cuda-0.6b-bf16.toml")),
    ("ladder-cuda-4b-bf16", include_str!("../../../../studies/ladder-cuda-4b-bf16.toml")),
    ("ladder-cuda-4b-bf16-prefill", include_str!("../../../../studies/ladder-cuda-4b-bf16-prefill.toml")),
    ("ladder-cuda-4b-w4", include_str!("../../../../studies/ladder-cuda-4b-w4.toml")),
    ("ladder-cuda-4b-w4-prefill", include_str!("../../../../studies/ladder-cuda-4b-w4-prefill.toml")),
];
