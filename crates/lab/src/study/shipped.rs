//! The studies inside the binary.

/// Name and TOML, in the order of `tare study --list`.
pub(super) const STUDIES: [(&str, &str); 10] = [
    ("aa-duet", include_str!("../../../../studies/aa-duet.toml")),
    ("aa-balanced", include_str!("../../../../studies/aa-balanced.toml")),
    ("ladder", include_str!("../../../../studies/ladder.toml")),
    ("ladder-l1", include_str!("../../../../studies/ladder-l1.toml")),
    ("eight-bit", include_str!("../../../../studies/eight-bit.toml")),
    ("ladder-cuda-0.6b-bf16", include_str!("../../../../studies/ladder-cuda-0.6b-bf16.toml")),
    ("ladder-cuda-4b-bf16", include_str!("../../../../studies/ladder-cuda-4b-bf16.toml")),
    ("ladder-cuda-4b-bf16-prefill", include_str!("../../../../studies/ladder-cuda-4b-bf16-prefill.toml")),
    ("ladder-cuda-4b-w4", include_str!("../../../../studies/ladder-cuda-4b-w4.toml")),
    ("ladder-cuda-4b-w4-prefill", include_str!("../../../../studies/ladder-cuda-4b-w4-prefill.toml")),
];
