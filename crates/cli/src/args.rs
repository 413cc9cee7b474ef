//! The command line as data. What a flag means is written here once; commands read the values.

mod accuracy;
mod decide;
mod explain;
mod files;
mod generate;
mod ledger;
mod measure;
mod model;
mod ops;
mod peers;
mod remote;
mod replay;
mod report;
mod study;
mod translate;

use clap::{Parser, Subcommand};

pub(crate) use accuracy::AccuracyArgs;
pub(crate) use decide::{DecideArgs, VerdictArg};
pub(crate) use explain::{DetokenizeArgs, DoctorArgs, LogitsArgs, PerplexityArgs, TemplateArgs, TokenizeArgs};
pub(crate) use files::{InspectArgs, PullArgs, QuantizeArgs};
pub(crate) use generate::{ChatArgs, RunArgs, ServeArgs};
pub(crate) use ledger::{Change, LedgerCommand, Place, PlanArgs, ReproduceArgs, RuleArg};
pub(crate) use measure::{ClockArgs, MutateArgs, NextArgs, PrefillLogits, WorkArgs};
pub(crate) use model::{BackendName, HowArgs, SampleArgs};
pub(crate) use ops::OpsArgs;
pub(crate) use peers::{CheckArgs, PeersCommand, TuneArgs};
pub(crate) use replay::{PhaseArg, ReplayArgs};
pub(crate) use report::ReportArgs;
pub(crate) use study::{CampaignArgs, CompareArgs, CompareMetric, OtherStudy, StudyArgs};
pub(crate) use translate::TranslateArgs;

/// The model that is measured when nobody names one: nothing to download, the same bytes on every host.
pub(crate) const MEASURED_MODEL: &str = "synthetic:qwen3-0.6b?format=w4g128";

/// Run, chat with, serve and weigh language models.
#[derive(Debug, Parser)]
#[command(
    name = "tare",
    version,
    about = "An LLM inference engine that weighs itself",
    after_help = "EXAMPLES\n  \
        tare next                                   weigh a synthetic 0.6B model and name what to attack (about three minutes)\n  \
        tare pull smollm2-135m                      fetch a small real model (98 MB)\n  \
        tare run -m smollm2-135m \"Why is the sky blue?\"\n  \
        tare chat -m smollm2-135m\n  \
        tare serve -m smollm2-135m                  OpenAI-compatible server on 127.0.0.1:8080\n\n\
        A MODEL is a folder with config.json and safetensors, a .gguf file, the name of a pulled model,\n\
        or synthetic:NAME (qwen3-0.6b, -1.7b, -4b, -8b, -tiny, llama-tiny) with ?format=w4g128&seed=1.\n\n\
        Models, ceilings, reference scores and records are kept in the folder that TARE_HOME names,\n\
        else in tare under XDG_DATA_HOME or ~/.local/share."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Only read the command line: print it with every default filled in, and do nothing
    #[arg(long, global = true)]
    pub(crate) dry_run: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Complete a prompt and print the answer as it is written
    Run(RunArgs),
    /// Talk with a model; /help lists what can be typed
    Chat(ChatArgs),
    /// Serve the OpenAI API over HTTP
    Serve(ServeArgs),
    /// Clock a request: prefill and decode rates, gated by the F32 reference, kept as a record
    Clock(ClockArgs),
    /// Measure the host and a model, and say which group of operators to attack next (about three minutes)
    Next(NextArgs),
    /// Run a study: a campaign of interleaved rounds in fresh processes, with a verdict
    Study(StudyArgs),
    /// Compare two builds of tare: did the newer one lose?
    Compare(CompareArgs),
    /// The process of one arm of a campaign, which campaigns start
    #[command(hide = true)]
    Arm,
    /// Take one step apart: every group of its operators, against its floor and against the step (half a minute)
    Replay(ReplayArgs),
    /// Prove that the gate catches planted faults (about two minutes at 0.6B)
    Mutate(MutateArgs),
    /// Fetch a model
    Pull(PullArgs),
    /// Explain a model: shapes, formats, bytes and operations a token, limits
    Inspect(InspectArgs),
    /// Convert a model to another weight format
    Quantize(QuantizeArgs),
    /// Show the host, its ceilings and the kernels that would run
    Doctor(DoctorArgs),
    /// Write the logits of given token ids to a safetensors file
    Logits(LogitsArgs),
    /// Perplexity of a model on a text
    Perplexity(PerplexityArgs),
    /// What packings, classes and other engines cost in accuracy on a text, against the model in F32
    Accuracy(AccuracyArgs),
    /// Text to token ids
    Tokenize(TokenizeArgs),
    /// Token ids to text
    Detokenize(DetokenizeArgs),
    /// Render a chat template
    Template(TemplateArgs),
    /// Check, list, show, merge and repeat records and documents
    #[command(
        subcommand,
        after_help = "EXAMPLES\n  tare ledger verify evidence --committed     as the repository's own records are checked\n  tare ledger list\n  tare ledger show ID --ledger evidence\n  tare ledger plan --effect 0.03 --power 0.9 --from CAMPAIGN_ID"
    )]
    Ledger(LedgerCommand),
    /// Write down what was decided, on which evidence, and what comes next
    Decide(DecideArgs),
    /// Install, list and tune other engines to compare with
    #[command(subcommand, after_help = "EXAMPLES\n  tare peers list\n  tare peers install llama.cpp")]
    Peers(PeersCommand),
    /// Draw a ledger: one HTML file, from what verification lets pass
    Report(ReportArgs),
    /// Give tare's command for a command line of llama.cpp, mlx-lm, vLLM, tiny-llm or meTile
    Translate(TranslateArgs),
    /// Print shell completions
    #[command(after_help = "EXAMPLES\n  tare completions bash > ~/.local/share/bash-completion/completions/tare")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}
