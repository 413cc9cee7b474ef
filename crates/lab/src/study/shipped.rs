//! The studies inside the binary.

/// Name and TOML, in the order of `tare study --list`.
pub(super) const STUDIES: [(&str, &str); 13] = [
    ("aa-duet", include_str!("../../../../studies/aa-duet.toml")),
    ("aa-balanced", include_str!("../../../../studies/aa-balanced.toml")),
    ("ladder", include_str!("../../../../studies/ladder.toml")),
    ("ladder-l1", include_str!("../../../../studies/ladder-l1.toml")),
    ("ladder-cpu", include_str!("../../../../studies/ladder-cpu.toml")),
    ("deterministic", include_str!("../../../../studies/deterministic.toml")),
    ("deterministic-cuda", include_str!("../../../../studies/deterministic-cuda.toml")),
    ("eight-bit", include_str!("../../../../studies/eight-bit.toml")),
    ("ladder-cuda-0.6b-bf16", include_str!("../../../../studies/ladder-cuda-0.6b-bf16.toml")),
    ("ladder-cuda-4b-bf16", include_str!("../../../../studies/ladder-cuda-4b-bf16.toml")),
    ("ladder-cuda-4b-bf16-prefill", include_str!("../../../../studies/ladder-cuda-4b-bf16-prefill.toml")),
    ("ladder-cuda-4b-w4", include_str!("../../../../studies/ladder-cuda-4b-w4.toml")),
    ("ladder-cuda-4b-w4-prefill", include_str!("../../../../studies/ladder-cuda-4b-w4-prefill.toml")),
];
