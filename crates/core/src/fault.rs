//! The shape of every error that a person can cause: where, what was expected, what was found, what to do.

use std::fmt;

/// An error about input. Crates wrap it in enums of their own when callers must tell kinds apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file, tensor, field or parameter at fault.
    pub at: String,
    /// What would have been accepted.
    pub expected: String,
    /// What was there.
    pub found: String,
    /// What the reader can do about it; empty when nothing useful can be said.
    pub remedy: String,
}

impl Fault {
    /// A fault at `at` without a remedy.
    pub fn new(at: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { at: at.into(), expected: expected.into(), found: found.into(), remedy: String::new() }
    }

    /// The same fault with what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The same fault seen from outside: `outer` is put before the place.
    #[must_use]
    pub fn within(mut self, outer: impl fmt::Display) -> Self {
        self.at = format!("{outer}: {}", self.at);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.at, self.expected, self.found)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_place_expectation_finding_and_remedy() {
        let f =
            Fault::new("hidden_size", "a positive integer", "\"x\"").remedy("fix config.json").within("m/config.json");
        assert_eq!(
            f.to_string(),
            "m/config.json: hidden_size: expected a positive integer, found \"x\"; fix config.json"
        );
    }
}
