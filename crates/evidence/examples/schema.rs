//! Writes the JSON schemas of records and documents into the folder named on the command line:
//! `cargo run -p tare-evidence --example schema evidence/schema`.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let usage = || Error::new(ErrorKind::InvalidInput, "expected the folder to write into, such as evidence/schema");
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or_else(usage)?);
    for (name, schema) in tare_evidence::schema::schemas() {
        std::fs::write(folder.join(name), serde_json::to_string_pretty(&schema)? + "\n")?;
    }
    Ok(())
}
