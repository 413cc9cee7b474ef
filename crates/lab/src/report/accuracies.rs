//! Accuracies as rows: one for each arm of each document.

use tare_evidence::State;
use tare_evidence::accuracy::Accuracy;

use super::gathered::{Stated, told};
use super::page::{paragraph, table};
use crate::accuracy::{HEAD, rows};

/// The section of all accuracies; of a retracted one its state alone.
pub(crate) fn section(all: &[Stated<Accuracy>]) -> String {
    let means = "A text was scored token by token. Divergence is how many nats are lost, in the mean over the text, by who codes \
                 what the model in F32 expects with an arm's distribution instead.";
    let mut html = paragraph("", means);
    for one in all {
        let d = &one.document;
        let state = told(&one.state).unwrap_or_else(|| "valid".to_string());
        let text = &d.body.measured.text;
        let title = format!("{}: {} over {} tokens of {}, {state}", d.id, d.about.title, text.scored(), text.name);
        let shown = !matches!(one.state, State::Retracted { .. });
        html.push_str(&table(&title, &HEAD, &if shown { rows(&d.body) } else { Vec::new() }));
    }
    html
}
