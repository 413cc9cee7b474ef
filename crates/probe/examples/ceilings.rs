//! Prints this host, its ceilings and its quietness as JSON: `cargo run --release -p tare-probe --example ceilings`.

use std::time::Duration;
use tare_probe::ceilings::Effort;
use tare_probe::{Ceilings, Host, Quietness};

fn main() {
    let host = Host::read();
    let quiet = Quietness::observe(Duration::from_millis(200));
    let ceilings = Ceilings::measure(&host, &Effort::FULL);
    let all = serde_json::json!({ "host": host, "quietness": quiet, "ceilings": ceilings });
    println!("{}", serde_json::to_string_pretty(&all).expect("these values have no keys that JSON lacks"));
}
