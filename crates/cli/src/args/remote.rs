//! Which server is measured, and how it is reached.

use clap::{Args, ValueEnum, ValueHint};
use tare_lab::http_clock::Endpoint;

/// A server that speaks the OpenAI API.
#[derive(Debug, Clone, Args)]
pub(crate) struct RemoteArgs {
    /// Measure the server at this address instead of an engine of our own
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<String>,
    /// Variable of the environment that holds the server's key
    #[arg(long, value_name = "VAR", requires = "url")]
    pub(crate) api_key_env: Option<String>,
    /// How the prompt is put: ids and text to /v1/completions, text to /v1/chat/completions [default: the first that the
    /// server takes]
    #[arg(long, value_enum, value_name = "ENDPOINT", requires = "url")]
    pub(crate) endpoint: Option<EndpointName>,
    /// The same weights here: the F32 reference judges the ids that the server sends
    #[arg(long, value_name = "MODEL", requires = "url")]
    pub(crate) gate_model: Option<String>,
    /// Arithmetic class of the server, whose limits judge it: any of gates.toml; 8-bit activations are w4a8 or w8a8
    /// [default: that of these weights, activations not in integers: f32, bf16, w4a16 or w8a16]
    #[arg(long, value_name = "CLASS", requires = "gate_model")]
    pub(crate) gate_class: Option<String>,
    /// A number that is mixed into the seed where nothing judges, so that no prefix cache has seen the prompts
    /// [default: the time]
    #[arg(long, value_name = "N", requires = "url", conflicts_with = "gate_model")]
    pub(crate) nonce: Option<u64>,
    /// Prompt ids are drawn below this [default: the vocabulary of --gate-model, else 20000]
    #[arg(long, value_name = "N", requires = "url", conflicts_with = "gate_model")]
    pub(crate) vocabulary: Option<usize>,
    /// Seconds of silence after which the server is given up
    #[arg(long, value_name = "S", default_value_t = 120.0, requires = "url", value_parser = seconds)]
    pub(crate) timeout: f64,
}

/// The names of [`Endpoint`]s on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndpointName {
    /// Token ids to /v1/completions
    Completions,
    /// Text to /v1/completions
    CompletionsText,
    /// Text to /v1/chat/completions
    Chat,
}

impl From<EndpointName> for Endpoint {
    fn from(name: EndpointName) -> Self {
        match name {
            EndpointName::Completions => Self::Completions,
            EndpointName::CompletionsText => Self::CompletionsText,
            EndpointName::Chat => Self::Chat,
        }
    }
}

/// A time to wait, from a millisecond to a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.001..=86_400.0).contains(&s) => Ok(s),
        _ => Err("seconds from 0.001 to 86400".to_string()),
    }
}
