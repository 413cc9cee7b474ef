//! Where a record comes from: host, software, source.

use crate::canonical;
use crate::schema::ReadingShape;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tare_core::{Fault, Reading};

/// Everything needed to say on what, by what and from what a record was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The machine.
    pub host: Host,
    /// The program and its tools.
    pub software: Software,
    /// The source tree that it was built from.
    pub source: Source,
    /// SHA-256 of the binary that ran.
    pub binary_sha256: String,
    /// The whole configuration as it was printed.
    pub config: Value,
}

/// A machine. Its facts are open: a new fact needs no new schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Name of the folder that keeps this host's records: lower-case letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Facts that make two machines the same class: processor, ISA, cores, caches, memory, hypervisor.
    #[schemars(with = "BTreeMap<String, ReadingShape<Value>>")]
    pub class: BTreeMap<String, Reading<Value>>,
    /// Canonical digest of `class`.
    pub class_sha256: String,
    /// Facts of the moment: kernel, governor, frequencies, load, free memory.
    #[schemars(with = "BTreeMap<String, ReadingShape<Value>>")]
    pub state: BTreeMap<String, Reading<Value>>,
}

impl Host {
    /// A host with the digest of its class.
    ///
    /// # Errors
    /// When `name` is no folder name of the ledger or a fact has no JSON form.
    pub fn new(
        name: &str,
        class: BTreeMap<String, Reading<Value>>,
        state: BTreeMap<String, Reading<Value>>,
    ) -> Result<Self, Fault> {
        check_folder_name("host name", name)?;
        let class_sha256 = canonical::digest_of(&class)?;
        Ok(Self { name: name.into(), class, class_sha256, state })
    }
}

/// The program and its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Version of tare.
    pub tare: String,
    /// Version of the compiler.
    #[schemars(with = "ReadingShape<String>")]
    pub rustc: Reading<String>,
    /// Target triple.
    pub target: String,
    /// Build profile, such as `release`.
    pub profile: String,
}

/// The source tree that the binary was built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// SHA-256 over the lines `sha256  path`, sorted by path, of every file under Cargo.toml, Cargo.lock, crates, plans,
    /// gates.toml and .cargo: what the binary is built from.
    #[schemars(with = "ReadingShape<String>")]
    pub tree_sha256: Reading<String>,
    /// The commit checked out.
    #[schemars(with = "ReadingShape<String>")]
    pub commit: Reading<String>,
    /// Whether any file differed from that commit or was unknown to it; a tree that cannot say counts as dirty.
    #[schemars(with = "ReadingShape<bool>")]
    pub dirty: Reading<bool>,
}

impl Source {
    /// Whether the tree is known to be exactly its commit.
    ///
    /// # Errors
    /// What stands against it.
    pub fn check_clean(&self) -> Result<(), Fault> {
        let found = match (&self.dirty, &self.tree_sha256, &self.commit) {
            (Reading::Available(false), Reading::Available(_), Reading::Available(_)) => return Ok(()),
            (Reading::Available(true), _, _) => "a dirty tree".to_string(),
            (dirty, tree, commit) => format!("dirty {dirty}, tree {tree}, commit {commit}"),
        };
        Err(Fault::new("provenance.source", "a clean tree of a known commit", found)
            .remedy("commit the changes, build again and measure again; scratch records may stay dirty"))
    }
}

/// Whether `name` can be a folder of the ledger.
pub(crate) fn check_folder_name(at: &str, name: &str) -> Result<(), Fault> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && !name.starts_with('.') && name != crate::ledger::SCHEMA_FOLDER && name.chars().all(allowed) {
        return Ok(());
    }
    let expected =
        format!("lower-case letters, digits, `.`, `_`, `-`, not hidden, not `{}`", crate::ledger::SCHEMA_FOLDER);
    Err(Fault::new(at, expected, format!("`{name}`")))
}
