//! The JSON schemas of records and documents, for readers that are not tare.

use crate::accuracy::Accuracy;
use crate::campaign::Campaign;
use crate::decision::Decision;
use crate::document::{DOCUMENT_VERSION, Document, Kind};
use crate::opening::Opening;
use crate::record::SCHEMA_VERSION;
use crate::replay::Replay;
use crate::sensitivity::Sensitivity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;
use std::marker::PhantomData;

/// The schema of [`crate::Record`] in its present version; the repository keeps it in `evidence/schema/`.
pub fn record_schema() -> Value {
    schemars::schema_for!(crate::record::Record).to_value()
}

/// The schema of a document of one kind.
pub fn document_schema(kind: Kind) -> Value {
    match kind {
        Kind::Opening => schemars::schema_for!(Document<Opening>),
        Kind::Campaign => schemars::schema_for!(Document<Campaign>),
        Kind::Replay => schemars::schema_for!(Document<Replay>),
        Kind::Sensitivity => schemars::schema_for!(Document<Sensitivity>),
        Kind::Decision => schemars::schema_for!(Document<Decision>),
        Kind::Accuracy => schemars::schema_for!(Document<Accuracy>),
    }
    .to_value()
}

/// Every schema in its present version, by the name of its file in `evidence/schema/`.
pub fn schemas() -> Vec<(String, Value)> {
    let record = (format!("record-v{SCHEMA_VERSION}.json"), record_schema());
    let documents = Kind::ALL.map(|k| (format!("{}-v{DOCUMENT_VERSION}.json", k.name()), document_schema(k)));
    std::iter::once(record).chain(documents).collect()
}

/// Lends [`tare_core::Reading`] its schema: the value, or `{"unavailable": "why"}`.
pub(crate) struct ReadingShape<T>(PhantomData<T>);

impl<T: JsonSchema> JsonSchema for ReadingShape<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Reading_{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let value = generator.subschema_for::<T>();
        json_schema!({
            "anyOf": [
                value,
                {
                    "type": "object",
                    "description": "There is no value, and this is why.",
                    "properties": { "unavailable": { "type": "string" } },
                    "required": ["unavailable"],
                    "additionalProperties": false
                }
            ]
        })
    }
}
