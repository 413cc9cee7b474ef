//! The families as rows of a table. A new dense family is a row here and a golden test.

use tare_core::Fault;
use tare_formats::ModelConfig;
use tare_formats::config::Arch;

/// Whether a family has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    /// Every model of the family has it.
    Always,
    /// None has it.
    Never,
    /// The configuration says.
    Stated,
}

impl Has {
    fn allows(self, there: bool) -> bool {
        match self {
            Has::Always => there,
            Has::Never => !there,
            Has::Stated => true,
        }
    }
}

/// What sets one family apart. Everything else is the one decoder of [`crate::decoder`].
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The family.
    pub arch: Arch,
    /// RMSNorm of each query and key head before the rotary embedding.
    pub qk_norm: Has,
    /// Biases on the query, key and value projections.
    pub qkv_bias: Has,
    /// Published models, for people.
    pub models: &'static str,
}

/// Every family that the decoder runs.
pub const FAMILIES: [Family; 4] = [
    Family { arch: Arch::Qwen3, qk_norm: Has::Always, qkv_bias: Has::Stated, models: "Qwen3 0.6B to 32B (dense)" },
    Family { arch: Arch::Qwen2, qk_norm: Has::Never, qkv_bias: Has::Always, models: "Qwen2, Qwen2.5" },
    Family { arch: Arch::Llama, qk_norm: Has::Never, qkv_bias: Has::Stated, models: "Llama 2 and 3, SmolLM2" },
    Family { arch: Arch::Mistral, qk_norm: Has::Never, qkv_bias: Has::Never, models: "Mistral without a window" },
];

/// The row of `config`'s family, once the configuration is known to agree with it.
///
/// # Errors
/// When the configuration has a block that the family lacks, or lacks one that it has.
pub fn family(config: &ModelConfig) -> Result<&'static Family, Fault> {
    let name = config.arch.model_type();
    let row = FAMILIES.iter().find(|f| f.arch == config.arch);
    let row = row.ok_or_else(|| Fault::new("architecture", "a family of the table", name))?;
    for (block, has, there) in
        [("QK-norm", row.qk_norm, config.qk_norm), ("bias on query, key and value", row.qkv_bias, config.qkv_bias)]
    {
        if !has.allows(there) {
            let found = if there { "there" } else { "missing" };
            return Err(Fault::new(format!("{name}: {block}"), format!("{has:?}").to_lowercase(), found));
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

    #[test]
    fn a_configuration_must_agree_with_its_family() {
        let mut config = Model::open("synthetic:qwen3-tiny").unwrap().config().clone();
        assert_eq!(family(&config).unwrap().arch, Arch::Qwen3);
        config.qk_norm = false;
        let error = family(&config).unwrap_err().to_string();
        assert_eq!(error, "qwen3: QK-norm: expected always, found missing");
        config.arch = Arch::Mistral;
        config.qkv_bias = true;
        assert!(family(&config).unwrap_err().to_string().contains("bias"));
    }
}
