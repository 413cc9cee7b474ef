//! Which package may depend on which. This table is the architecture; changing it needs a page under docs/adr.

use super::Violation;
use super::tree::Package;

/// Every package of the workspace and the tare packages below it that it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("tare-core", &[]),
    ("tare-formats", &["tare-core"]),
    ("tare-probe", &["tare-core"]),
    ("tare-ops", &["tare-core", "tare-formats"]),
    ("tare-cpu", &["tare-core", "tare-formats", "tare-ops", "tare-probe"]),
    ("tare-emulated", &["tare-cpu", "tare-ops"]),
    ("tare-cuda", &["tare-core", "tare-formats", "tare-ops", "tare-probe"]),
    ("tare-model", &["tare-core", "tare-formats", "tare-ops"]),
    ("tare-text", &["tare-core", "tare-formats"]),
    ("tare-engine", &["tare-core", "tare-formats", "tare-ops", "tare-model"]),
    ("tare-evidence", &["tare-core"]),
    (
        "tare-lab",
        &[
            "tare-core",
            "tare-formats",
            "tare-ops",
            "tare-probe",
            "tare-cpu",
            "tare-cuda",
            "tare-model",
            "tare-text",
            "tare-engine",
            "tare-evidence",
        ],
    ),
    ("tare-server", &["tare-core", "tare-model", "tare-text", "tare-engine"]),
    (
        "tare-cli",
        &[
            "tare-core",
            "tare-formats",
            "tare-probe",
            "tare-ops",
            "tare-cpu",
            "tare-cuda",
            "tare-model",
            "tare-text",
            "tare-engine",
            "tare-evidence",
            "tare-lab",
            "tare-server",
        ],
    ),
    ("tare-testkit", &["tare-core"]),
    ("xtask", &["tare-core"]),
];

/// The concrete backends, one of them for tests alone. Tests of the packages above them use the reference backend of ops.
const BACKENDS: [&str; 3] = ["tare-cpu", "tare-emulated", "tare-cuda"];
/// Packages whose tests must not see a concrete backend either.
const BACKEND_BLIND: [&str; 3] = ["tare-model", "tare-engine", "tare-server"];

const HTTP_CRATES: [&str; 9] =
    ["axum", "tower", "tower-http", "hyper", "hyper-util", "http", "reqwest", "ureq", "tokio"];
const HTTP_PACKAGES: [&str; 3] = ["tare-server", "tare-lab", "tare-cli"];

/// The package that builds the binary is called `tare-cli` or, after its binary, `tare`.
fn layer_name(package: &str) -> &str {
    if package == "tare" { "tare-cli" } else { package }
}

/// Dependencies point downwards: every normal edge between tare packages is in the table. Tests may use more (the
/// testkit, a lower package), never a backend where the package itself must not know one.
pub(crate) fn dependency_edges(packages: &[Package]) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in packages {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer_name(&package.name)) else {
            found.push(Violation {
                rule: "layers",
                at: package.name.clone(),
                found: "this package has no layer".to_string(),
                remedy: "add it to the table in xtask/src/check/layers.rs and say why under docs/adr",
            });
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let of_tare = LAYERS.iter().any(|(layer, _)| *layer == name);
            let blind = BACKENDS.contains(&name) && BACKEND_BLIND.contains(&package.name.as_str());
            let test_edge = dependency.dev && name != "tare-cli" && !blind;
            if of_tare && !allowed.contains(&name) && !test_edge {
                found.push(Violation {
                    rule: "layers",
                    at: package.name.clone(),
                    found: format!("depends on {name}"),
                    remedy: "move the code to the layer where it belongs; packages use only what lies below them",
                });
            }
        }
    }
    found
}

/// Only server, lab and cli know HTTP.
pub(crate) fn http_crates(packages: &[Package]) -> Vec<Violation> {
    let below = packages.iter().filter(|p| p.name != "xtask" && !HTTP_PACKAGES.contains(&layer_name(&p.name)));
    let edges = below.flat_map(|p| p.dependencies.iter().map(move |d| (p, d)));
    edges
        .filter(|(_, d)| !d.dev && HTTP_CRATES.contains(&d.name.as_str()))
        .map(|(package, dependency)| Violation {
            rule: "http",
            at: package.name.clone(),
            found: format!("depends on {}", dependency.name),
            remedy: "HTTP and its runtime belong to server, lab and cli",
        })
        .collect()
}

/// One build for every host: no cargo features at all.
pub(crate) fn cargo_features(packages: &[Package]) -> Vec<Violation> {
    let all = packages.iter().flat_map(|p| p.features.iter().map(move |f| (p, f)));
    all.map(|(package, feature)| Violation {
        rule: "features",
        at: package.name.clone(),
        found: format!("has the cargo feature \"{feature}\""),
        remedy: "compile it always and choose at run time; what a host lacks is a Reading that says why",
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::Dependency;

    fn package(name: &str, normal: &[&str], dev: &[&str]) -> Package {
        let of = |names: &[&str], dev: bool| -> Vec<Dependency> {
            names.iter().map(|name| Dependency { name: name.to_string(), dev }).collect()
        };
        Package { name: name.into(), dependencies: [of(normal, false), of(dev, true)].concat(), features: vec![] }
    }

    #[test]
    fn an_edge_upwards_or_to_a_backend_is_named() {
        for (name, target) in [
            ("tare-model", "tare-cpu"),
            ("tare-engine", "tare-cuda"),
            ("tare-server", "tare-cpu"),
            ("tare-evidence", "tare-ops"),
            ("tare-core", "tare-formats"),
            ("tare-server", "tare-ops"),
            ("tare-lab", "tare-server"),
            ("tare-engine", "tare-testkit"),
        ] {
            let found = dependency_edges(&[package(name, &[target], &[])]);
            assert_eq!(found.len(), 1, "{name} -> {target}");
            assert!(found[0].at == name && found[0].found.contains(target), "{}", found[0]);
        }
    }

    #[test]
    fn allowed_edges_and_edges_of_tests_pass() {
        let good = [
            package("tare-ops", &["tare-core", "serde"], &["tare-testkit", "tare-cpu"]),
            package("tare-cli", &["tare-cpu", "tare-server"], &[]),
            package("tare", &["tare-cpu"], &[]),
            package("tare-engine", &["tare-ops"], &["tare-testkit"]),
        ];
        assert_eq!(dependency_edges(&good), []);
    }

    #[test]
    fn tests_of_blind_packages_see_no_backend_and_nobody_sees_the_cli() {
        assert_eq!(dependency_edges(&[package("tare-engine", &[], &["tare-cpu"])]).len(), 1);
        assert_eq!(dependency_edges(&[package("tare-lab", &[], &["tare-cli"])]).len(), 1);
    }

    #[test]
    fn a_package_without_a_layer_is_named() {
        let found = dependency_edges(&[package("tare-extras", &[], &[])]);
        assert!(found[0].found.contains("no layer"), "{}", found[0]);
    }

    #[test]
    fn http_below_the_server_is_named() {
        let found = http_crates(&[package("tare-engine", &["axum"], &[]), package("tare-server", &["axum"], &[])]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule, found[0].at.as_str()), ("http", "tare-engine"));
    }

    #[test]
    fn any_cargo_feature_is_named() {
        let found = cargo_features(&[Package { features: vec!["avx512".into()], ..package("tare-cpu", &[], &[]) }]);
        assert!(found[0].found.contains("avx512"), "{}", found[0]);
    }
}
