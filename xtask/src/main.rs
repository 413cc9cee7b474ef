//! Chores of the tare workspace.
fn main() {}
