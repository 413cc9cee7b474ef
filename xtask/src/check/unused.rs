//! Third-party crates that the workspace names and nobody uses.

use super::Violation;
use super::tree::Package;
use anyhow::{Context, Result};

/// Every entry of `[workspace.dependencies]` without a path is a dependency of some package.
pub(crate) fn workspace_dependencies(root_manifest: &str, packages: &[Package]) -> Result<Vec<Violation>> {
    let manifest: toml::Table = root_manifest.parse().context("Cargo.toml of the workspace")?;
    let listed = manifest.get("workspace").and_then(|w| w.get("dependencies")).and_then(toml::Value::as_table);
    let third_party = listed.into_iter().flatten().filter(|(_, entry)| entry.get("path").is_none());
    let unused = third_party.filter(|(name, _)| {
        let uses = |p: &Package| p.dependencies.iter().any(|d| d.name == **name);
        !packages.iter().any(uses)
    });
    Ok(unused
        .map(|(name, _)| Violation {
            rule: "unused",
            at: "Cargo.toml".to_string(),
            found: format!("no package uses {name}"),
            remedy: "remove the line from [workspace.dependencies]",
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::Dependency;

    #[test]
    fn an_unused_crate_is_named_and_paths_are_not_asked() {
        let manifest = "[workspace.dependencies]\nserde = \"1\"\nleft = { version = \"2\" }\nx = { path = \"x\" }\n";
        let user = Package {
            name: "a".into(),
            dependencies: vec![Dependency { name: "serde".into(), dev: true }],
            features: vec![],
        };
        let found = workspace_dependencies(manifest, &[user]).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].found.contains("left"), "{}", found[0]);
    }
}
