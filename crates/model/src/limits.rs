//! How long a context may be: `min(trained, configured, memory)`, each with its source and its arithmetic.

use serde::Serialize;
use tare_core::units::grouped;
use tare_core::{Fault, Reading};

/// What a session may use of a host's memory.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Bytes that weights, cache and everything else may take together.
    pub usable_bytes: Reading<u64>,
    /// Where that number comes from: `MemAvailable`, `--memory`.
    pub source: String,
    /// Bytes of it kept for activations, the allocator and outputs.
    pub reserve_bytes: u64,
}

/// One bound on the context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Term {
    /// `trained`, `configured` or `memory`.
    pub name: &'static str,
    /// Tokens, or why this bound is not known.
    pub tokens: Reading<u64>,
    /// Where it comes from.
    pub source: String,
}

/// The bound that holds, and the three it is the least of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContextLimit {
    /// The least of the known terms.
    pub tokens: u64,
    /// Name of the term that is the least; the first of equals.
    pub bound_by: &'static str,
    /// `min(32,768 trained, 65,536 configured, 304,742 memory) = 32,768 tokens`.
    pub arithmetic: String,
    /// Trained, configured, memory.
    pub terms: Vec<Term>,
}

/// Sizes that the memory term is made of.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of one token in the KV cache.
    pub kv_bytes_per_token: u64,
    /// Positions that the file says the model was made for.
    pub trained: u64,
}

/// `floor((usable - weights - reserve) / kv)` tokens; 0 when weights and reserve leave nothing.
pub fn memory_tokens(usable: u64, weights: u64, reserve: u64, kv_bytes_per_token: u64) -> u64 {
    usable.saturating_sub(weights).saturating_sub(reserve) / kv_bytes_per_token.max(1)
}

/// The limit of a model of these `sizes`. `configured` is what a person asked for.
pub fn context_limit(sizes: Sizes, configured: Option<u64>, memory: &Memory) -> ContextLimit {
    let Sizes { weight_bytes, kv_bytes_per_token, trained } = sizes;
    let fits = |usable| memory_tokens(usable, weight_bytes, memory.reserve_bytes, kv_bytes_per_token);
    let usable = memory.usable_bytes.clone().map(grouped).to_string();
    let terms = vec![
        Term { name: "trained", tokens: Reading::Available(trained), source: "the model's configuration".into() },
        Term {
            name: "configured",
            tokens: configured.map_or_else(|| Reading::unavailable("nobody asked for a limit"), Reading::Available),
            source: "the session's settings".into(),
        },
        Term {
            name: "memory",
            tokens: memory.usable_bytes.clone().map(fits),
            source: format!(
                "floor(({usable} usable by {} - {} weights - {} reserve) / {} bytes a token)",
                memory.source,
                grouped(weight_bytes),
                grouped(memory.reserve_bytes),
                grouped(kv_bytes_per_token),
            ),
        },
    ];
    let known = || terms.iter().filter_map(|t| t.tokens.available().map(|n| (*n, t.name)));
    let (tokens, bound_by) = known().min_by_key(|(n, _)| *n).unwrap_or((trained, "trained"));
    let parts: Vec<String> = known().map(|(n, name)| format!("{} {name}", grouped(n))).collect();
    let arithmetic = format!("min({}) = {} tokens", parts.join(", "), grouped(tokens));
    ContextLimit { tokens, bound_by, arithmetic, terms }
}

impl ContextLimit {
    /// Refuses a request of more tokens than the limit.
    ///
    /// # Errors
    /// Names the bound that is in the way and what lifts it.
    pub fn admit(&self, tokens: u64) -> Result<(), Fault> {
        if tokens <= self.tokens {
            return Ok(());
        }
        let remedy = match self.bound_by {
            "trained" => "ask for a shorter context, or take a model made for a longer one",
            "configured" => "ask for a shorter context, or raise the configured limit",
            _ => "ask for a shorter context, or free memory",
        };
        let expected = format!("at most {} tokens ({})", grouped(self.tokens), self.arithmetic);
        Err(Fault::new("context", expected, grouped(tokens)).remedy(remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    const GIB: f64 = (1u64 << 30) as f64;
    const RESERVE: u64 = 8 << 30;

    fn bytes(gib: f64) -> u64 {
        (gib * GIB) as u64
    }

    /// A published limit for Qwen3 4B on a 64 GB machine is 304,738 tokens, from inputs printed as 51.84, 1.99 and
    /// 8 GiB over 144 KiB. These give 304,742: the weights were rounded for print. See docs/reference/shapes.md.
    #[test]
    fn a_published_limit_follows_from_the_exact_size_of_its_file() {
        let model = Model::open("synthetic:qwen3-4b?format=w4g128").unwrap();
        let kv = 2 * 36 * 8 * 128 * 2;
        let limit = |weights| memory_tokens(bytes(51.84), weights, RESERVE, kv);
        assert_eq!(memory_tokens(bytes(51.84 - 1.99), 0, RESERVE, kv), 304_742, "as printed");
        assert_eq!(limit(bytes(1.99)), 304_742, "as printed");

        let tensors: u64 = model.tensors().unwrap().iter().map(|t| t.bytes as u64).sum();
        assert_eq!(tensors, 2_137_224_192, "1.9904 GiB");
        assert_eq!(limit(tensors), 304_739, "the tensors alone");
        let file = tensors + mlx_header(&model);
        assert_eq!(format!("{:.2}", file as f64 / GIB), "1.99");
        assert_eq!(limit(file), 304_738, "the file of {file} bytes");
        assert_eq!((limit(2_137_247_581), limit(2_137_395_036)), (304_738, 304_738), "any file of this size");
        assert_eq!((limit(2_137_247_580), limit(2_137_395_037)), (304_739, 304_737));
    }

    /// Bytes of the header of a safetensors file with the same tensors, as MLX names them.
    fn mlx_header(model: &Model) -> u64 {
        let (mut header, mut at) = (String::from(r#"{"__metadata__":{"format":"mlx"}"#), 0);
        let mut put = |name: &str, dtype: &str, shape: &[usize], bytes: usize| {
            let shape: Vec<String> = shape.iter().map(usize::to_string).collect();
            let (shape, end) = (shape.join(","), at + bytes);
            header += &format!(r#","{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{at},{end}]}}"#);
            at = end;
        };
        for t in model.tensors().unwrap() {
            if t.role.is_vector() {
                put(&t.name, "BF16", &[t.cols], t.bytes);
                continue;
            }
            let stem = t.name.trim_end_matches(".weight");
            put(&t.name, "U32", &[t.rows, t.cols / 8], t.rows * t.cols / 2);
            for part in ["scales", "biases"] {
                put(&format!("{stem}.{part}"), "BF16", &[t.rows, t.cols / 128], t.rows * t.cols / 64);
            }
        }
        8 + (header.len() as u64 + 1).next_multiple_of(8)
    }

    #[test]
    fn the_least_term_bounds_and_is_named() {
        let sizes = Sizes { weight_bytes: bytes(1.99), kv_bytes_per_token: 147_456, trained: 32_768 };
        let memory = |gib| Memory {
            usable_bytes: Reading::Available(bytes(gib)),
            source: "a test".into(),
            reserve_bytes: RESERVE,
        };
        let limit = context_limit(sizes, Some(65_536), &memory(51.84));
        assert_eq!((limit.tokens, limit.bound_by), (32_768, "trained"));
        assert_eq!(limit.arithmetic, "min(32,768 trained, 65,536 configured, 304,742 memory) = 32,768 tokens");
        assert_eq!(context_limit(sizes, Some(100), &memory(51.84)).bound_by, "configured");
        assert_eq!((context_limit(sizes, None, &memory(9.0))).tokens, 0, "weights and reserve alone do not fit");
        assert!(limit.admit(32_768).is_ok());
        assert!(limit.admit(32_769).unwrap_err().to_string().contains("304,742 memory"));
    }

    #[test]
    fn an_unknown_term_is_said_to_be_unknown_and_does_not_bound() {
        let sizes = Sizes { weight_bytes: 1, kv_bytes_per_token: 1, trained: 512 };
        let memory =
            Memory { usable_bytes: Reading::unavailable("no meter"), source: "a test".into(), reserve_bytes: 0 };
        let limit = context_limit(sizes, None, &memory);
        assert_eq!(limit.tokens, 512);
        assert_eq!(limit.terms[2].tokens, Reading::unavailable("no meter"));
    }
}
