//! The JSON schema of a record, for readers that are not tare.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;
use std::marker::PhantomData;

/// The schema of [`crate::Record`] in its present version; the repository keeps it in `evidence/schema/`.
pub fn record_schema() -> Value {
    schemars::schema_for!(crate::record::Record).to_value()
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
