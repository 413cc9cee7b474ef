//! Writes the JSON schema of a record to the file named on the command line:
//! `cargo run -p tare-evidence --example schema evidence/schema/record-v1.json`.

use std::io::{Error, ErrorKind};

fn main() -> std::io::Result<()> {
    let usage =
        || Error::new(ErrorKind::InvalidInput, "expected the file to write, such as evidence/schema/record-v1.json");
    let path = std::env::args_os().nth(1).ok_or_else(usage)?;
    let text = serde_json::to_string_pretty(&tare_evidence::schema::record_schema())?;
    std::fs::write(path, text + "\n")
}
