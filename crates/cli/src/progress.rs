//! Lines that move while something goes on.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// Between two movements.
const TICK: Duration = Duration::from_millis(120);

/// A line for something without a known length.
pub(crate) fn spinner(message: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.into());
    bar.enable_steady_tick(TICK);
    bar
}

/// A bar of `length` parts in the style of `template`, which moves by itself between them.
///
/// # Errors
/// When the template does not parse.
pub(crate) fn bar(length: u64, template: &str) -> Result<ProgressBar> {
    let bar = ProgressBar::new(length).with_style(ProgressStyle::with_template(template)?);
    bar.enable_steady_tick(TICK);
    Ok(bar)
}
