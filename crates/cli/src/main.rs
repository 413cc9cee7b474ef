//! The `tare` command.
fn main() {}
