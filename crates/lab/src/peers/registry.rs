//! The list of peers: one entry each.

use tare_core::Fault;

/// Another engine.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What it is called on the command line.
    pub name: &'static str,
    /// The version that is installed, and no other.
    pub version: &'static str,
    /// What it reads and what its figures can honestly be held against.
    pub about: &'static str,
    /// What computes in it: `cpu` or `cuda`, as arms of a study name it.
    pub backend: &'static str,
    /// How it comes here.
    pub recipe: Recipe,
    /// Why it may not be used although there is a shim: nobody has yet seen the shim's ids pass the gate.
    pub withheld: Option<&'static str>,
    /// Why its shim runs one sequence alone; none when it runs several in the same steps.
    pub alone: Option<&'static str>,
    /// Names and texts of the files of its shim.
    pub sources: &'static [(&'static str, &'static str)],
    /// Settings that `tune` tries, each a JSON object; the first are the engine's own defaults. Every engine has the
    /// same number of seconds for all of them together.
    pub candidates: &'static [&'static str],
    /// What its shim does not offer it although the engine, or tare beside it, can have it.
    pub without: &'static [&'static str],
    /// Words of its log, any of which proves that its packed kernels run, or that a device has its weights; empty when its
    /// log names neither.
    pub fast_marks: &'static [&'static str],
    /// Formats that its own tools write a model in, by `convert.py` beside its shim; empty when it reads tare's files alone.
    pub writes: &'static [&'static str],
}

/// How a peer comes to this host.
#[derive(Clone, Copy, Debug)]
pub enum Recipe {
    /// Sources inside a Python source package, built with CMake for this processor and this device.
    CMake {
        /// The sources.
        from: &'static Package,
        /// What CMake is told beside where the sources are.
        options: &'static [&'static str],
    },
    /// Python packages in an environment of their own.
    Python {
        /// The packages, pinned.
        requirements: &'static [&'static str],
    },
    /// A Rust program, built for this processor by cargo.
    Cargo,
    /// Nothing to install: a server that runs somewhere, reached by its address.
    Server,
    /// Not taken in.
    LeftOut {
        /// The reason.
        why: &'static str,
    },
}

/// Sources of an engine inside a Python source package.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// The package, pinned.
    pub requirement: &'static str,
    /// SHA-256 of the package's archive.
    pub sha256: &'static str,
    /// Folder of the engine's sources inside the archive.
    pub folder: &'static str,
    /// What of that folder a build needs: files, folders with all that is in them, and by `FOLDER/*` the files of a folder
    /// without its folders.
    pub needed: &'static [&'static str],
    /// SHA-256 over the names and bytes of what is needed: see [`super::sources::digest`].
    pub needed_sha256: &'static str,
    /// Packages of the build tools, pinned.
    pub tools: &'static [&'static str],
}

/// Where llama.cpp comes from, whatever it is built for.
const LLAMA_CPP: Package = Package {
    requirement: "llama-cpp-python==0.3.36",
    sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    folder: "llama_cpp_python-0.3.36/vendor/llama.cpp",
    needed: &[
        "CMakeLists.txt",
        "LICENSE",
        "cmake",
        "include",
        "src",
        "vendor/CMakeLists.txt",
        "vendor/hash",
        "vendor/miniaudio",
        "vendor/nlohmann",
        "vendor/sheredom",
        "vendor/stb",
        "ggml/CMakeLists.txt",
        "ggml/cmake",
        "ggml/include",
        "ggml/src/*",
        "ggml/src/ggml-cpu",
        "ggml/src/ggml-cuda",
    ],
    needed_sha256: "4278a8eac95f28e9b7e846012178b4ab0b1a022f5ee492f625722e835c80ffa5",
    tools: &["cmake==4.4.5", "ninja==1.13.2", "scikit-build-core==1.1.2"],
};

const LLAMA_CPP_SHIM: &[(&str, &str)] = &[
    ("CMakeLists.txt", include_str!("../../../../peers/llama_cpp/CMakeLists.txt")),
    ("shim.cpp", include_str!("../../../../peers/llama_cpp/shim.cpp")),
];

/// The protocol of the Python shims.
const PROTOCOL_PY: (&str, &str) = ("protocol.py", include_str!("../../../../peers/protocol.py"));

/// No shim pins; OpenVINO pins its workers itself.
const UNPINNED: &str = "threads pinned to processors (tare pins its own)";

/// All of them.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "llama.cpp",
        version: "0.3.36",
        about: "reads the same .gguf file; packed weights meet int8 activations (w4a8, w8a8)",
        backend: "cpu",
        recipe: Recipe::CMake { from: &LLAMA_CPP, options: &[] },
        withheld: None,
        alone: None,
        sources: LLAMA_CPP_SHIM,
        candidates: &[
            "{}",
            r#"{"flash":"off"}"#,
            r#"{"ubatch":128}"#,
            r#"{"repack":false}"#,
            r#"{"poll":100}"#,
            r#"{"threads":"half"}"#,
        ],
        without: &[
            "OpenMP (its own thread pool runs, which can rest)",
            UNPINNED,
            "weights read into memory (what it does not repack stays in the mapped file)",
        ],
        fast_marks: &["REPACK model buffer", "AMX model buffer"],
        writes: &[],
    },
    Entry {
        name: "llama.cpp-cuda",
        version: "0.3.36",
        about: "llama.cpp on an NVIDIA GPU: the same .gguf file; packed weights meet int8 activations (w4a8, w8a8)",
        backend: "cuda",
        recipe: Recipe::CMake { from: &LLAMA_CPP, options: &["-DGGML_CUDA=ON", "-DGGML_CUDA_NCCL=OFF"] },
        withheld: None,
        alone: None,
        sources: LLAMA_CPP_SHIM,
        candidates: &["{}", r#"{"sampling":"device"}"#, r#"{"ubatch":2048}"#, r#"{"threads":"half"}"#],
        without: &["OpenMP (its own thread pool runs, which can rest)", UNPINNED],
        fast_marks: &["CUDA0 model buffer"],
        writes: &[],
    },
    Entry {
        name: "transformers",
        version: "5.5.4",
        about: "reads a Hugging Face folder, BF16 or F32: compare with classes bf16 and f32 of the same folder",
        backend: "cpu",
        recipe: Recipe::Python { requirements: &["torch==2.15.0", "transformers==5.5.4"] },
        withheld: Some("its shim has not been seen to pass the gate yet"),
        alone: Some("its loop feeds one sequence over a cache of its own"),
        sources: &[PROTOCOL_PY, ("shim.py", include_str!("../../../../peers/transformers/shim.py"))],
        candidates: &["{}", r#"{"attention":"eager"}"#, r#"{"inductor":true}"#, r#"{"threads":"half"}"#],
        without: &[UNPINNED],
        fast_marks: &[],
        writes: &[],
    },
    Entry {
        name: "candle",
        version: "0.11.1",
        about: "reads the same .gguf file (Qwen3); activations are rounded to int8 blocks (w4a8, w8a8), KV in F32",
        backend: "cpu",
        recipe: Recipe::Cargo,
        withheld: Some("its shim has not been seen to pass the gate yet"),
        alone: Some("its model keeps the keys and values of one sequence"),
        sources: &[
            ("Cargo.toml", include_str!("../../../../peers/candle/Cargo.toml.in")),
            ("src/main.rs", include_str!("../../../../peers/candle/main.rs")),
        ],
        candidates: &["{}", r#"{"threads":"half"}"#],
        without: &[UNPINNED],
        fast_marks: &[],
        writes: &[],
    },
    Entry {
        name: "openai",
        version: "v1",
        about: "any server of the OpenAI API that takes token ids as the prompt: `tare clock --url`",
        backend: "cpu",
        recipe: Recipe::Server,
        withheld: None,
        alone: Some("it has no shim"),
        sources: &[],
        candidates: &[],
        without: &[],
        fast_marks: &[],
        writes: &[],
    },
    Entry {
        name: "openvino",
        version: "2026.4.1",
        about: "reads what its own tools make of a model (openvino-int4, openvino-int8): tare reads the same packed values \
                beside it",
        backend: "cpu",
        recipe: Recipe::Python {
            requirements: &[
                "openvino==2026.4.1",
                "optimum-intel==2.2.0",
                "nncf==3.4.0",
                "torch==2.15.0",
                "transformers==5.5.4",
                "accelerate==1.15.0",
                "gguf==0.19.0",
            ],
        },
        withheld: None,
        alone: Some("its stateful graph is fed one sequence"),
        sources: &[
            PROTOCOL_PY,
            ("shim.py", include_str!("../../../../peers/openvino/shim.py")),
            ("convert.py", include_str!("../../../../peers/openvino/convert.py")),
        ],
        candidates: &["{}", r#"{"pinning":false}"#, r#"{"hint":"THROUGHPUT"}"#, r#"{"threads":"half"}"#],
        without: &["inference in F32 (another class, in which its decode may be faster)"],
        fast_marks: &["FullyConnected brgemm"],
        writes: &["openvino-int4", "openvino-int8"],
    },
    Entry {
        name: "mistral.rs",
        version: "-",
        about: "a Rust engine on kernels of candle's family",
        backend: "cpu",
        recipe: Recipe::LeftOut { why: "no shim: run its own server and clock it with `tare clock --url`" },
        withheld: None,
        alone: Some("it has no shim"),
        sources: &[],
        candidates: &[],
        without: &[],
        fast_marks: &[],
        writes: &[],
    },
    Entry {
        name: "mlx",
        version: "-",
        about: "an engine for Apple GPUs that also has a CPU build",
        backend: "cpu",
        recipe: Recipe::LeftOut {
            why: "its CPU build links the reference BLAS (2 to 3 GFLOP/s, 0.2 tok/s on a packed 0.6B model): a ratio to \
                  it says nothing",
        },
        withheld: None,
        alone: Some("it has no shim"),
        sources: &[],
        candidates: &[],
        without: &[],
        fast_marks: &[],
        writes: &[],
    },
];

impl Entry {
    /// Whether its shim runs `sequences` in the same steps.
    ///
    /// # Errors
    /// Why it runs one alone.
    pub fn runs_together(&self, sequences: usize) -> Result<(), Fault> {
        match self.alone.filter(|_| sequences > 1) {
            None => Ok(()),
            Some(why) => {
                let expected = format!("an engine that runs {sequences} sequences together");
                Err(Fault::new(format!("peer {}", self.name), expected, format!("one that does not: {why}"))
                    .remedy("leave it out of studies of several sequences, or measure one"))
            }
        }
    }
}

/// The entry called `name`.
///
/// # Errors
/// When there is none.
pub fn entry(name: &str) -> Result<&'static Entry, Fault> {
    ENTRIES.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<&str> = ENTRIES.iter().map(|e| e.name).collect();
        Fault::new("peer", format!("one of {}", names.join(", ")), format!("`{name}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_can_be_found_and_tuned_as_it_says() {
        for e in ENTRIES {
            assert_eq!(entry(e.name).unwrap().version, e.version);
            let shimmed = !matches!(e.recipe, Recipe::Server | Recipe::LeftOut { .. });
            assert_eq!(shimmed, !e.sources.is_empty(), "{}", e.name);
            assert_eq!(shimmed, e.candidates.first() == Some(&"{}"), "{}: defaults are tried first", e.name);
            assert_eq!(shimmed && e.name != "openvino", e.without.contains(&UNPINNED), "{}", e.name);
            assert!(e.runs_together(1).is_ok(), "{}", e.name);
            let said = e.runs_together(8).err().map(|f| f.to_string());
            assert_eq!(said.is_none(), e.name.starts_with("llama.cpp"), "{}: {said:?}", e.name);
            assert!(said.is_none_or(|s| s.contains("8 sequences together") && s.contains("measure one")), "{}", e.name);
            for c in e.candidates {
                assert!(serde_json::from_str::<serde_json::Map<_, _>>(c).is_ok(), "{}: {c}", e.name);
            }
        }
        assert!(entry("llama").unwrap_err().to_string().contains("llama.cpp"));
    }
}
