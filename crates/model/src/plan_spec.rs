//! A plan as a person writes it: a small TOML file that names a cache kind and a strategy per operator.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tare_core::Fault;
use tare_ops::{Class, OpName, OpShape};

use crate::classes;
use crate::guard::{self, Guard};
use crate::plans::BUILT_IN;
use crate::strategy::{AUTO, ByRows, Strategy};

/// How a sequence's keys and values are stored from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Not at all: every step runs the whole sequence again.
    Recompute,
    /// In storage that is made anew, one step longer, and copied at every step.
    Concatenate,
    /// In storage allocated once for prompt and output; overflow is refused before anything changes.
    Capacity,
    /// In pages of a bounded pool that all sequences share.
    Paged,
}

/// The six statements that every rung makes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statements {
    /// What stays exactly true of the results.
    pub invariant: String,
    /// The mechanism that could make it faster than the rung below.
    pub why_faster: String,
    /// Where it wins.
    pub wins: String,
    /// Where it loses.
    pub loses: String,
    /// What runs where it does not apply.
    pub fallback: String,
    /// How a benchmark of it could mislead.
    pub misleads: String,
}

/// A plan before it meets a model and a backend. Format, instruction set and layout are the planner's business.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// `capacity-cache`.
    pub name: String,
    /// Its rung on the ladder: `L3`.
    pub rung: String,
    /// How keys and values are stored.
    pub cache: CacheKind,
    /// Tokens of a page; only with `cache = "paged"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_tokens: Option<usize>,
    /// Strategies of operators; one that is not named is `auto`.
    #[serde(default)]
    pub operators: BTreeMap<String, ByRows>,
    /// Whether it promises that an answer depends on its request alone: it refuses classes that add in any order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// Backends on which it is refused, by name, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, String>,
    /// Kernels that measurements chose for some numbers of rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// What it claims.
    pub states: Statements,
}

impl PlanSpec {
    /// The plan taken when nobody asks.
    pub const DEFAULT: &str = "paged";

    /// Names of the plans inside the binary, in the order of the ladder.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// A plan by name, or from a file when `name` ends in `.toml`.
    ///
    /// # Errors
    /// When there is no such plan, or it does not parse (see [`PlanSpec::parse`]).
    pub fn find(name: &str) -> Result<Self, Fault> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(Path::new(name))
                .map_err(|e| Fault::new(name, "a readable plan file", e.to_string()))?;
            return Self::parse(&text).map_err(|f| f.within(name));
        }
        let found = BUILT_IN.iter().find(|(n, _)| *n == name).ok_or_else(|| {
            let names: Vec<&str> = Self::names().collect();
            Fault::new("plan", format!("one of {}, or a .toml file", names.join(", ")), format!("`{name}`"))
        })?;
        Self::parse(found.1).map_err(|f| f.within(name))
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// When a field is missing or unknown, a statement is empty, an operator or strategy is unknown, or the page size
    /// does not suit the cache kind.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let plan: Self =
            toml::from_str(text).map_err(|e| Fault::new("plan", "the fields of a plan", e.to_string().trim_end()))?;
        plan.check()?;
        Ok(plan)
    }

    /// The strategy for calls of `op` of so many rows at the full bucket.
    pub fn strategy(&self, op: OpName, rows: usize) -> &Strategy {
        self.operators.get(op.name()).unwrap_or(&AUTO).of(rows)
    }

    /// Whether the backend of this name runs it in `class`.
    ///
    /// # Errors
    /// Why not, and what to take instead.
    pub fn runs(&self, backend: &str, class: Class) -> Result<(), Fault> {
        let at = || format!("plan {}", self.name);
        if let Some(why) = self.refused.get(backend) {
            let fault = Fault::new(at(), format!("a plan that {backend} runs"), why.trim());
            return Err(fault.remedy(self.states.fallback.trim()));
        }
        match class.depends_on() {
            Some(what) if self.deterministic => {
                let expected = "a class in which an answer depends on its request alone";
                let found = format!("{}, in which it may depend on {what}", class.name);
                let other = classes::deterministic(class, backend);
                Err(Fault::new(at(), expected, found).remedy(format!("take class {}", other.name)))
            }
            _ => Ok(()),
        }
    }

    /// The guard for calls of `op` of this shape that names a kernel which `takes` them, if there is one.
    pub fn guard(&self, op: OpName, shape: &OpShape, takes: impl Fn(&str) -> bool) -> Option<&Guard> {
        self.guards.iter().find(|g| g.is_for(op, shape) && takes(&g.kernel))
    }

    fn check(&self) -> Result<(), Fault> {
        if let Some((backend, _)) = self.refused.iter().find(|(_, why)| why.trim().is_empty()) {
            return Err(Fault::new(format!("refused.{backend}"), "why", "nothing"));
        }
        for (op, strategies) in &self.operators {
            if !OpName::ALL.iter().any(|o| o.name() == op) {
                let names: Vec<&str> = OpName::ALL.iter().map(|o| o.name()).collect();
                return Err(Fault::new("operators", format!("one of {}", names.join(", ")), format!("`{op}`")));
            }
            let foreign = strategies.each().into_iter().find_map(|s| match s {
                Strategy::Prefix(p) if !p.starts_with(&format!("{op}.")) => Some(p),
                _ => None,
            });
            if let Some(p) = foreign {
                return Err(Fault::new(format!("operators.{op}"), format!("a kernel key `{op}.…`"), format!("`{p}`")));
            }
        }
        guard::check(&self.guards)?;
        match (self.cache, self.page_tokens) {
            (CacheKind::Paged, Some(n)) if n > 0 => {}
            (CacheKind::Paged, n) => {
                let found = n.map_or_else(|| "nothing".into(), |n| n.to_string());
                return Err(Fault::new("page_tokens", "a positive number with cache = \"paged\"", found));
            }
            (_, None) => {}
            (kind, Some(n)) => {
                return Err(Fault::new("page_tokens", format!("nothing: cache {kind:?} has no pages"), n.to_string()));
            }
        }
        let s = &self.states;
        let statements = [
            ("invariant", &s.invariant),
            ("why_faster", &s.why_faster),
            ("wins", &s.wins),
            ("loses", &s.loses),
            ("fallback", &s.fallback),
            ("misleads", &s.misleads),
        ];
        match statements.iter().find(|(_, text)| text.trim().is_empty()) {
            Some((name, _)) => Err(Fault::new(format!("states.{name}"), "a sentence", "nothing")),
            None => Ok(()),
        }
    }
}
