use crate::specimen;
use serde_json::Value;
use std::path::Path;
use tare_evidence::{Record, canonical, schema};

#[test]
fn the_committed_schemas_are_the_generated_ones() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/schema");
    for (name, schema) in schema::schemas() {
        let text = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
        assert!(
            serde_json::from_str::<Value>(&text).is_ok_and(|committed| committed == schema),
            "{name} has changed: cargo run -p tare-evidence --example schema evidence/schema"
        );
    }
}

/// The schema lists exactly the fields that a record has, whichever way its gate went.
#[test]
fn the_schema_knows_every_field_of_a_record() {
    let schema = schema::record_schema();
    let known = schema["properties"].as_object().unwrap();
    for record in [specimen::record(), specimen::void_record()] {
        let value = canonical::value_of(&record).unwrap();
        for field in value.as_object().unwrap().keys() {
            assert!(known.contains_key(field), "{field}");
        }
        for field in schema["required"].as_array().unwrap() {
            assert!(value.get(field.as_str().unwrap()).is_some(), "{field}");
        }
    }
}

/// Records written by earlier versions; files are only ever added here.
#[test]
fn old_records_stay_readable_and_valid() {
    let old = [
        (include_str!("../data/record-v1.json"), true),
        (include_str!("../data/record-v1-laboratory.json"), true),
        (include_str!("../data/record-v1-void.json"), false),
        (include_str!("../data/record-v2-laboratory.json"), true),
    ];
    for (text, passed) in old {
        let record = Record::parse(text).unwrap();
        assert_eq!(record.passed(), passed);
        assert!(record.faults().unwrap().is_empty(), "{:?}", record.faults());
    }
}
