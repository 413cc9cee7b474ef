//! Whether a record would be judged the same here and now. It is a hint for a reader and is never written.

use crate::document::DOCUMENT_VERSION;
use crate::provenance::Provenance;
use crate::record::{Record, SCHEMA_VERSION};

/// The host and the program of the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Canonical digest of the class of this host.
    pub host_class_sha256: String,
    /// Version of the gate's thresholds.
    pub thresholds_version: String,
}

impl Present {
    /// What has moved on since a record was written: its host, the limits of its gate, its schema.
    pub fn reopens(&self, record: &Record) -> Vec<String> {
        let report = record.gate();
        let mut why = self.other_host(&record.provenance);
        if report.thresholds_version != self.thresholds_version {
            why.push(format!("gate limits {}, now {}", report.thresholds_version, self.thresholds_version));
        }
        if record.schema_version != SCHEMA_VERSION {
            why.push(format!("schema {}, now {SCHEMA_VERSION}", record.schema_version));
        }
        why
    }

    /// As [`Present::reopens`], of a document.
    pub fn reopens_document(&self, provenance: &Provenance, schema_version: u32) -> Vec<String> {
        let mut why = self.other_host(provenance);
        if schema_version != DOCUMENT_VERSION {
            why.push(format!("schema {schema_version}, now {DOCUMENT_VERSION}"));
        }
        why
    }

    fn other_host(&self, provenance: &Provenance) -> Vec<String> {
        let same = provenance.host.class_sha256 == self.host_class_sha256;
        if same { Vec::new() } else { vec![format!("another host class: {}", provenance.host.name)] }
    }
}
