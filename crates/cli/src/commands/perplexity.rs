//! `tare perplexity`: how surprised a model is by a text.
//!
//! The text is cut into windows that do not overlap; in each, every token but the first is scored from the tokens of
//! its window before it. Reported are the mean negative log-likelihood in nats and its exponential.

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tare_engine::Engine;
use tare_lab::reference::score;

use crate::args::PerplexityArgs;
use crate::settings::Settings;
use crate::setup::{How, open_model, plain_prompt, read_ids, tokenizer};

/// Runs the command.
pub(crate) fn run(args: &PerplexityArgs, settings: &Settings) -> Result<()> {
    let model = open_model(&args.model.model, settings)?;
    let ids = if args.ids {
        read_ids(&args.file)?
    } else {
        let text =
            std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
        plain_prompt(&text, &tokenizer(&model)?)?
    };
    if args.window < 2 {
        bail!("--window: expected at least 2 tokens, since the first of a window is not scored, found {}", args.window);
    }
    let how = How::of(&args.model.how, &model, Some(args.window), settings)?;
    let mut engine = how.engine(&model)?;
    let nll = negative_log_likelihoods(&mut engine, &ids, args.window)?;
    if nll.is_empty() {
        bail!("the text has {} tokens: at least 2 are needed", ids.len());
    }
    let mean = nll.iter().sum::<f64>() / nll.len() as f64;
    if args.json {
        println!(
            "{}",
            json!({ "tokens": nll.len(), "mean_nll": mean, "perplexity": mean.exp(), "window": args.window,
                    "class": how.class.name, "plan": how.plan.name, "nll": nll })
        );
    } else {
        println!(
            "perplexity {:.4} over {} tokens (mean nll {mean:.6}, windows of {}, class {})",
            mean.exp(),
            nll.len(),
            args.window,
            how.class.name
        );
    }
    Ok(())
}

fn negative_log_likelihoods(engine: &mut Engine, ids: &[u32], window: usize) -> Result<Vec<f64>> {
    let bar = ProgressBar::new(ids.len() as u64)
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len} tokens, {eta} left")?);
    let mut nll = Vec::with_capacity(ids.len());
    for part in ids.chunks(window).filter(|p| p.len() > 1) {
        let scores = score(engine, &part[..1], &part[1..])?;
        nll.extend(scores.iter().map(|s| s.log_sum - f64::from(s.logit)));
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(nll)
}
