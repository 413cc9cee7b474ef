//! The plans inside the binary.

/// Name and TOML, in the order of the ladder: first how keys and values are kept, with the host's best kernels and with
/// readable ones; then the rungs, of which each adds one thing to the one above; then what serves.
pub(crate) const BUILT_IN: [(&str, &str); 18] = [
    ("recompute", include_str!("../../../plans/recompute.toml")),
    ("kv-cache", include_str!("../../../plans/kv-cache.toml")),
    ("capacity-cache", include_str!("../../../plans/capacity-cache.toml")),
    ("readable-recompute", include_str!("../../../plans/readable-recompute.toml")),
    ("readable-kv-cache", include_str!("../../../plans/readable-kv-cache.toml")),
    ("readable-capacity-cache", include_str!("../../../plans/readable-capacity-cache.toml")),
    ("quantized-matvec", include_str!("../../../plans/quantized-matvec.toml")),
    ("simd-matmul", include_str!("../../../plans/simd-matmul.toml")),
    ("rmsnorm", include_str!("../../../plans/rmsnorm.toml")),
    ("rope", include_str!("../../../plans/rope.toml")),
    ("swiglu", include_str!("../../../plans/swiglu.toml")),
    ("tiled-prefill", include_str!("../../../plans/tiled-prefill.toml")),
    ("decode-attention", include_str!("../../../plans/decode-attention.toml")),
    ("split-k", include_str!("../../../plans/split-k.toml")),
    ("selected", include_str!("../../../plans/selected.toml")),
    ("paged", include_str!("../../../plans/paged.toml")),
    ("lossless-pack", include_str!("../../../plans/lossless-pack.toml")),
    ("deterministic", include_str!("../../../plans/deterministic.toml")),
];
