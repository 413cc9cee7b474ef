//! Other tools' command lines in tare's words.
//!
//! [`tools`] is the one table: `tare translate` reads a command by it, and docs/coming-from.md is printed from it.

mod convert;
mod llama;
mod mlx;
mod page;
mod seeds;
mod table;
mod vllm;
mod words;

#[cfg(test)]
mod tests;

pub(crate) use convert::{Translation, Verdict, translate};
pub(crate) use page::page;

use table::Tool;

/// Every command that can be translated.
fn tools() -> impl Iterator<Item = &'static Tool> {
    [llama::TOOLS, mlx::TOOLS, vllm::TOOLS, seeds::TOOLS].into_iter().flatten()
}
