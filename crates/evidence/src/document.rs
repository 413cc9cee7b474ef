//! Documents of a ledger that are no records of an arm: each is written once, beside the records that it speaks of.
//!
//! `<root>/<host>/<study>/<id>.<kind>.json`. All kinds have one envelope; [`Document::seal`] computes the id,
//! [`Document::faults`] names what does not hold inside, and [`Body::faults_in`] what does not hold against the ledger.

use crate::accuracy::Accuracy;
use crate::campaign::Campaign;
use crate::canonical;
use crate::check;
use crate::decision::Decision;
use crate::opening::Opening;
use crate::provenance::{Provenance, check_folder_name};
use crate::record::{About, record_id};
use crate::replay::Replay;
use crate::sensitivity::Sensitivity;
use crate::shelf::Shelf;
use crate::state::State;
use crate::unique;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use tare_core::Fault;

/// Version of the written form of every kind.
pub const DOCUMENT_VERSION: u32 = 1;

/// The kinds of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A study, before its first sample.
    Opening,
    /// A study, after its last.
    Campaign,
    /// View 2.
    Replay,
    /// What a delay in one group does to the request.
    Sensitivity,
    /// What was decided and why.
    Decision,
    /// What a packing, a class or another engine costs in accuracy on a text.
    Accuracy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Opening, Self::Campaign, Self::Replay, Self::Sensitivity, Self::Decision, Self::Accuracy];

    /// As it stands in a file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Campaign => "campaign",
            Self::Replay => "replay",
            Self::Sensitivity => "sensitivity",
            Self::Decision => "decision",
            Self::Accuracy => "accuracy",
        }
    }
}

impl FromStr for Kind {
    type Err = Fault;
    fn from_str(s: &str) -> Result<Self, Fault> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|k| k.name() == s).ok_or_else(|| Fault::new("kind", names(), format!("`{s}`")))
    }
}

/// What one kind of document says.
pub trait Body: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema {
    /// The kind.
    const KIND: Kind;

    /// Everything that does not hold inside.
    fn faults(&self, about: &About) -> Vec<Fault>;

    /// Everything that does not hold against the records and documents that it names.
    fn faults_in(document: &Document<Self>, shelf: &Shelf) -> Vec<Fault>;
}

/// A document of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document<B> {
    /// Version of the schema that it was written to.
    pub schema_version: u32,
    /// What it is.
    pub kind: Kind,
    /// Moment of creation and the first 16 digits of the canonical digest of everything else in it.
    pub id: String,
    /// Why it was made.
    pub about: About,
    /// On what, by what, from what.
    pub provenance: Provenance,
    /// State at the time of writing; later states are amendments beside it.
    pub state: State,
    /// What it says.
    pub body: B,
}

impl<B: Body> Document<B> {
    /// A complete document: the id is computed, and everything that [`Document::faults`] looks at holds.
    ///
    /// # Errors
    /// The first thing that does not fit together.
    pub fn seal(about: About, provenance: Provenance, body: B) -> Result<Self, Fault> {
        let (schema_version, kind, state) = (DOCUMENT_VERSION, B::KIND, State::Valid);
        let mut document = Self { schema_version, kind, id: String::new(), about, provenance, state, body };
        document.id = record_id(document.about.created_at, &canonical::value_of(&document)?);
        match document.faults()?.into_iter().next() {
            None => Ok(document),
            Some(fault) => Err(fault),
        }
    }

    /// Reads a document of this kind.
    ///
    /// # Errors
    /// When it is no JSON, has a key twice, is of another version or kind, or does not have the shape of the schema.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Ok(Self::parse_with_value(text)?.0)
    }

    fn parse_with_value(text: &str) -> Result<(Self, Value), Fault> {
        let kind = B::KIND.name();
        let fault = |e: serde_json::Error| {
            Fault::new(kind, format!("JSON of {kind} schema {DOCUMENT_VERSION}"), e.to_string())
                .remedy("restore the file as it was written")
        };
        let value = unique::parse(text).map_err(fault)?;
        check::check_version(&value, &[DOCUMENT_VERSION])?;
        Ok((serde_json::from_str(text).map_err(fault)?, value))
    }

    /// Everything that does not hold inside the document.
    ///
    /// # Errors
    /// When it has no JSON form.
    pub fn faults(&self) -> Result<Vec<Fault>, Fault> {
        Ok(self.faults_of(&canonical::value_of(self)?))
    }

    /// As [`Document::faults`], against the JSON of the file.
    fn faults_of(&self, value: &Value) -> Vec<Fault> {
        let mut faults = Vec::new();
        if self.kind != B::KIND {
            faults.push(Fault::new("kind", B::KIND.name(), self.kind.name()));
        }
        let host = &self.provenance.host;
        let class = canonical::digest(value.pointer("/provenance/host/class").unwrap_or(&Value::Null));
        let edited = "the document was edited: restore the file as it was written";
        for (at, computed, written) in [
            ("id", record_id(self.about.created_at, value), &self.id),
            ("provenance.host.class_sha256", class, &host.class_sha256),
        ] {
            if computed != *written {
                let expected = format!("{computed}, computed from the document");
                faults.push(Fault::new(at, expected, written.as_str()).remedy(edited));
            }
        }
        faults.extend(check::state_fault(&self.state));
        faults.extend(check_folder_name("about.study", &self.about.study).err());
        faults.extend(check_folder_name("provenance.host.name", &host.name).err());
        faults.extend(self.body.faults(&self.about));
        faults
    }
}

/// A document of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyDocument {
    /// A study, before its first sample.
    Opening(Box<Document<Opening>>),
    /// A study, after its last.
    Campaign(Box<Document<Campaign>>),
    /// View 2.
    Replay(Box<Document<Replay>>),
    /// What a delay in one group does to the request.
    Sensitivity(Box<Document<Sensitivity>>),
    /// What was decided and why.
    Decision(Box<Document<Decision>>),
    /// What a packing, a class or another engine costs in accuracy on a text.
    Accuracy(Box<Document<Accuracy>>),
}

/// The same expression for whichever kind there is.
macro_rules! each {
    ($any:expr, $document:ident => $then:expr) => {
        match $any {
            AnyDocument::Opening($document) => $then,
            AnyDocument::Campaign($document) => $then,
            AnyDocument::Replay($document) => $then,
            AnyDocument::Sensitivity($document) => $then,
            AnyDocument::Decision($document) => $then,
            AnyDocument::Accuracy($document) => $then,
        }
    };
}

impl AnyDocument {
    /// Reads a document of a kind.
    ///
    /// # Errors
    /// As [`Document::parse`].
    pub fn parse(kind: Kind, text: &str) -> Result<Self, Fault> {
        Ok(Self::parse_checked(kind, text)?.0)
    }

    /// Reads a document, and everything that does not hold inside it.
    pub(crate) fn parse_checked(kind: Kind, text: &str) -> Result<(Self, Vec<Fault>), Fault> {
        fn read<B: Body>(text: &str) -> Result<(Box<Document<B>>, Vec<Fault>), Fault> {
            let (document, value) = Document::<B>::parse_with_value(text)?;
            let faults = document.faults_of(&value);
            Ok((Box::new(document), faults))
        }
        Ok(match kind {
            Kind::Opening => read(text).map(|(d, f)| (Self::Opening(d), f))?,
            Kind::Campaign => read(text).map(|(d, f)| (Self::Campaign(d), f))?,
            Kind::Replay => read(text).map(|(d, f)| (Self::Replay(d), f))?,
            Kind::Sensitivity => read(text).map(|(d, f)| (Self::Sensitivity(d), f))?,
            Kind::Decision => read(text).map(|(d, f)| (Self::Decision(d), f))?,
            Kind::Accuracy => read(text).map(|(d, f)| (Self::Accuracy(d), f))?,
        })
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        each!(self, d => d.kind)
    }

    /// Version of the schema that it was written to.
    pub fn schema_version(&self) -> u32 {
        each!(self, d => d.schema_version)
    }

    /// The id.
    pub fn id(&self) -> &str {
        each!(self, d => &d.id)
    }

    /// Why it was made.
    pub fn about(&self) -> &About {
        each!(self, d => &d.about)
    }

    /// On what, by what, from what.
    pub fn provenance(&self) -> &Provenance {
        each!(self, d => &d.provenance)
    }

    /// State at the time of writing.
    pub fn state(&self) -> &State {
        each!(self, d => &d.state)
    }

    /// The whole as JSON.
    ///
    /// # Errors
    /// When it has no JSON form.
    pub fn value(&self) -> Result<Value, Fault> {
        each!(self, d => canonical::value_of(d))
    }

    /// Everything that does not hold against the records and documents that it names.
    pub fn faults_in(&self, shelf: &Shelf) -> Vec<Fault> {
        each!(self, d => Body::faults_in(d, shelf))
    }
}
