//! The studies inside the binary.

/// Name and TOML, in the order of `tare study --list`.
pub(super) const STUDIES: [(&str, &str); 4] = [
    ("aa-duet", include_str!("../../../../studies/aa-duet.toml")),
    ("aa-balanced", include_str!("../../../../studies/aa-balanced.toml")),
    ("ladder", include_str!("../../../../studies/ladder.toml")),
    ("ladder-l1", include_str!("../../../../studies/ladder-l1.toml")),
];
