//! The checksum file of a folder, in the form that `sha256sum -c` reads.

use std::collections::BTreeMap;
use tare_core::Fault;

/// Its name.
pub const SUMS_FILE: &str = "SHA256SUMS";

/// Checksums by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums(BTreeMap<String, String>);

impl Sums {
    /// Reads lines of 64 hexadecimal digits, two spaces and a name.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let mut sums = BTreeMap::new();
        for (i, line) in text.lines().enumerate() {
            let parts = line.split_once("  ").filter(|(digest, name)| is_digest(digest) && !name.is_empty());
            let at = || format!("{SUMS_FILE}: line {}", i + 1);
            let Some((digest, name)) = parts else {
                return Err(Fault::new(at(), "64 hexadecimal digits, two spaces, a file name", format!("`{line}`")));
            };
            if sums.insert(name.to_string(), digest.to_string()).is_some() {
                return Err(Fault::new(at(), "each file once", format!("`{name}` again")));
            }
        }
        Ok(Self(sums))
    }

    pub(crate) fn insert(&mut self, name: &str, digest: String) {
        self.0.insert(name.into(), digest);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The file, sorted by name.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect()
    }
}

fn is_digest(s: &str) -> bool {
    s.len() == 64 && s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes_and_nothing_else() {
        let mut sums = Sums::default();
        sums.insert("b.json", "0f".repeat(32));
        sums.insert("a.json", "e1".repeat(32));
        assert_eq!(Sums::parse(&sums.text()).unwrap(), sums);
        assert!(sums.text().starts_with(&format!("{}  a.json\n", "e1".repeat(32))));
        let torn = &sums.text()[..80];
        assert!(Sums::parse(torn).unwrap_err().to_string().contains("line 2"));
        assert!(Sums::parse(&sums.text().repeat(2)).is_err());
    }
}
