//! The lines between a campaign and an arm process, one JSON object each, an answer to every question.
//!
//! Two builds of tare may be at the two ends. The first question is always [`Ask::Hello`], whose form never changes; a
//! build that does not know the campaign's version says so, and nothing is measured. A change that either side would
//! misread raises [`VERSION`]. Several sequences are lists where a build that runs one alone reads one, and so refuses them.

use serde::{Deserialize, Serialize};
use tare_core::{Fault, Reading};
use tare_cuda::nvml::DeviceState;
use tare_evidence::gate::GateReport;
use tare_evidence::record::Memory;
use tare_evidence::samples::{RowTokens, Timing};
use tare_ops::Benched;

use crate::build_info::BuildInfo;
use crate::clock::Baton;
use crate::facts::ArmFacts;
use crate::host::Pages;
use crate::study::ArmSpec;
use crate::work::{ClockedRequest, one_or_more};

/// Version of the lines.
pub const VERSION: u32 = 1;

/// What a campaign asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Who are you? Answered in every version.
    Hello {
        /// The campaign's version of the lines.
        protocol: u32,
    },
    /// Make the arm ready: weights packed, plans compiled.
    Load(Box<Load>),
    /// Run the prompt and draw `tokens`, off the record; the gate looks at them all the same.
    WarmUp {
        /// Tokens to draw, the first included.
        tokens: usize,
    },
    /// The timed request's prompt and first token.
    Prefill,
    /// More tokens of it.
    Decode {
        /// How many.
        tokens: usize,
        /// Whether another arm had its turn since.
        returned: bool,
    },
    /// End it and release its storage.
    Finish,
    /// Let the processors go.
    Rest,
    /// Judge what was emitted, and hand over what may leave.
    Judge {
        /// Whether cached keys and values are compared too.
        full: bool,
    },
    /// End the process.
    Quit,
}

/// What an arm is to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The arm. Its `build` is this process.
    pub arm: ArmSpec,
    /// The model, resolved by the campaign: a path or `synthetic:NAME`.
    pub model: String,
    /// The request of each sequence, token by token.
    #[serde(with = "one_or_more")]
    pub request: Vec<ClockedRequest>,
}

/// What an arm answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To [`Ask::Hello`].
    Hello {
        /// The arm's version of the lines.
        protocol: u32,
        /// What it was built from.
        build: BuildInfo,
    },
    /// To [`Ask::Load`].
    Loaded(Box<ArmFacts>),
    /// Done; what it took stays here.
    Done,
    /// To [`Ask::Judge`].
    Judged(Box<Judged>),
    /// It could not be done.
    Failed {
        /// Why.
        why: String,
    },
}

/// A judged request. Times are there exactly when the gate passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// What was checked.
    pub gate: GateReport,
    /// What was emitted, by sequence.
    #[serde(with = "one_or_more")]
    pub tokens: Vec<RowTokens>,
    /// How long it took; none when the gate failed.
    pub timing: Option<Timing>,
    /// Where memory went in this process.
    pub memory: Memory,
    /// Rows that went through the layers and the head, when the engine counts them.
    pub rows: Option<(u64, u64)>,
    /// What the device did right after the request; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Reading<DeviceState>>,
    /// How the engine's memory lay in pages after the request; left out where another engine ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Reading<Pages>>,
    /// How often threads of the engine sat out in this process; left out where another engine ran the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benched: Option<Reading<Benched>>,
}

impl Ask {
    /// The baton of a [`Ask::Decode`].
    pub fn baton(returned: bool) -> Baton {
        if returned { Baton::Returned } else { Baton::Kept }
    }
}

/// One line, without its end.
///
/// # Errors
/// When a value has no JSON form.
pub fn line<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|e| Fault::new("arm protocol", "a value with a JSON form", e.to_string()))
}

/// Reads one line.
///
/// # Errors
/// When it is no line of this version.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|e| {
        let shown: String = text.chars().take(200).collect();
        Fault::new("arm protocol", format!("a line of version {VERSION}"), format!("{e} in `{shown}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_hello_never_changes() {
        assert_eq!(line(&Ask::Hello { protocol: 1 }).unwrap(), r#"{"op":"hello","protocol":1}"#);
        let far: Ask = parse(r#"{"op":"hello","protocol":99}"#).unwrap();
        assert_eq!(far, Ask::Hello { protocol: 99 });
    }

    #[test]
    fn one_sequence_is_written_as_ever_and_several_as_a_list() {
        let lengths = crate::work::Lengths { depth: 0, prompt_tokens: 2, output_tokens: 2 };
        let load = |sequences| Load {
            arm: ArmSpec::default(),
            model: "m".into(),
            request: ClockedRequest::drawn_together(lengths, sequences, 9, 1).unwrap(),
        };
        let written = |sequences| serde_json::to_value(load(sequences)).unwrap()["request"].clone();
        assert!(written(1).is_object() && written(2).is_array());
        for sequences in [1, 2] {
            let ask = Ask::Load(Box::new(load(sequences)));
            assert_eq!(parse::<Ask>(&line(&ask).unwrap()).unwrap(), ask);
        }
    }

    #[test]
    fn lines_are_read_back_and_foreign_ones_are_shown() {
        for ask in [Ask::Decode { tokens: 4, returned: true }, Ask::Rest, Ask::Judge { full: false }, Ask::Quit] {
            let text = line(&ask).unwrap();
            assert!(!text.contains('\n'));
            assert_eq!(parse::<Ask>(&text).unwrap(), ask);
        }
        let said = parse::<Ask>(r#"{"op":"dance"}"#).unwrap_err().to_string();
        assert!(said.contains("version 1") && said.contains("dance"), "{said}");
    }
}
