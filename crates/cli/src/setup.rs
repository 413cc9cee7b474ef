//! From arguments to a model, an engine and a tokenizer.

use anyhow::{Context, Result, anyhow};
use std::path::Path;
use tare_core::Fault;
use tare_cpu::{CpuConfig, detect_isa};
use tare_cuda::CudaConfig;
use tare_engine::{Engine, EngineConfig};
use tare_formats::TokenizerSource;
use tare_lab::{On, slow_paths};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;
use tare_probe::{Host, allocator};
use tare_text::{BpeVocab, ChatTemplate, Special, Tokenizer};

use crate::args::{BackendName, HowArgs};
use crate::pull;
use crate::settings::Settings;

/// Tokens of a sequence when nobody says and the model allows more.
const DEFAULT_CONTEXT: usize = 4096;
/// Most worker threads: more than any host has, and few enough that the system can start them all.
const MAX_THREADS: usize = 1024;

/// Opens the model that `name` names: a synthetic one, a path, or something that was pulled.
pub(crate) fn open_model(name: &str, settings: &Settings) -> Result<Model> {
    Ok(Model::open(&model_spec(name, settings)?)?)
}

/// What [`Model::open`] takes for the model that `name` names, in this process and in others.
pub(crate) fn model_spec(name: &str, settings: &Settings) -> Result<String> {
    if name.starts_with("synthetic:") || Path::new(name).exists() {
        return Ok(name.to_string());
    }
    match pull::local(name, &settings.models())? {
        Some(path) => Ok(path.to_string_lossy().into_owned()),
        None => {
            Err(Fault::new("model", "a folder, a .gguf file, a pulled name or synthetic:NAME", format!("`{name}`"))
                .remedy(match pull::resolve(name) {
                    Ok(_) => format!("run `tare pull {name}`"),
                    Err(_) => "check the path; `tare pull --list` shows the names that can be pulled".to_string(),
                })
                .into())
        }
    }
}

/// How an engine is to be run, with every default filled in.
#[derive(Debug, Clone)]
pub(crate) struct How {
    /// Where it runs.
    pub(crate) on: On,
    /// Threads, levels, pinning.
    pub(crate) cpu: CpuConfig,
    /// The plan.
    pub(crate) plan: PlanSpec,
    /// The class.
    pub(crate) class: Class,
    /// Tokens of a sequence.
    pub(crate) context: usize,
}

impl How {
    /// Fills in what `args` leave open for `model`. `wanted` is a context that the command itself needs.
    pub(crate) fn of(args: &HowArgs, model: &Model, wanted: Option<usize>, settings: &Settings) -> Result<Self> {
        let on = on(args, settings);
        let class = on.class(model, args.class.as_deref())?;
        let limit = model.config().max_positions;
        let context = args.context.or(wanted).unwrap_or(DEFAULT_CONTEXT.min(limit));
        within_training(context, model)?;
        Ok(Self {
            on,
            cpu: cpu_config(args)?,
            plan: PlanSpec::find(args.plan.as_deref().unwrap_or(PlanSpec::DEFAULT))?,
            class,
            context,
        })
    }

    /// An engine for one sequence at a time.
    pub(crate) fn engine(&self, model: &Model) -> Result<Engine> {
        self.engine_for(model, 1, 1)
    }

    /// An engine for several sequences at a time. Kernels that are only fallbacks are named to the user.
    pub(crate) fn engine_for(&self, model: &Model, max_sequences: usize, max_queue: usize) -> Result<Engine> {
        let config = EngineConfig {
            plan: self.plan.clone(),
            class: self.class,
            context: self.context,
            kv_tokens: EngineConfig::kv_tokens_for(&self.plan, self.context, max_sequences),
            max_rows: self.on.max_rows(),
            max_sequences,
            max_queue,
        };
        let engine = Engine::new(model, self.on.backend(&self.cpu)?, config)?;
        allocator::trim();
        for slow in slow_paths(&engine) {
            eprintln!("tare: {slow}");
        }
        Ok(engine)
    }
}

/// Refuses a context longer than the model was trained for.
pub(crate) fn within_training(context: usize, model: &Model) -> Result<(), Fault> {
    let limit = model.config().max_positions;
    if context > limit {
        let expected = format!("at most {limit}, which the model was trained for");
        return Err(Fault::new("context", expected, context.to_string()));
    }
    Ok(())
}

/// The device that is asked for.
pub(crate) fn on(args: &HowArgs, settings: &Settings) -> On {
    match args.backend {
        BackendName::Cpu => On::Cpu,
        BackendName::Cuda => On::Cuda(CudaConfig { cache: Some(settings.kernels()), ..CudaConfig::default() }),
    }
}

/// Threads and levels of the CPU backend.
pub(crate) fn cpu_config(args: &HowArgs) -> Result<CpuConfig> {
    let have = detect_isa();
    let isa = match &args.isa {
        None => have,
        Some(name) => {
            let level = have.levels().iter().copied().find(|l| l.name() == name);
            let names: Vec<&str> = have.levels().iter().map(|l| l.name()).collect();
            have.up_to(level.ok_or_else(|| {
                Fault::new("isa", format!("one of {} (this host)", names.join(", ")), format!("`{name}`"))
            })?)
        }
    };
    let threads = match args.threads {
        Some(0) => return Err(Fault::new("threads", "at least 1", "0").into()),
        Some(n) if n > MAX_THREADS => {
            return Err(Fault::new("threads", format!("at most {MAX_THREADS}"), n.to_string()).into());
        }
        Some(n) => n,
        None => Host::read().usable_threads,
    };
    if args.keep_workers && args.backend != BackendName::Cpu {
        let expected = "nothing with --backend cuda: only the processor has workers that may sit out";
        return Err(Fault::new("--keep-workers", expected, "the flag").into());
    }
    Ok(CpuConfig { threads, isa, pin: true, keep_workers: args.keep_workers })
}

/// The model's tokenizer.
pub(crate) fn tokenizer(model: &Model) -> Result<Tokenizer> {
    match model.tokenizer() {
        TokenizerSource::Folder(f) => {
            let path = f.join("tokenizer.json");
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(Tokenizer::from_json(&bytes)?)
        }
        TokenizerSource::Gguf(v) => Ok(Tokenizer::from_vocab(&BpeVocab {
            model: v.model.clone(),
            pre: v.pre.clone(),
            tokens: v.tokens.clone(),
            merges: v.merges.clone(),
            token_types: v.token_types.clone(),
            bos: v.bos,
            eos: v.eos,
            unk: v.unk,
            pad: v.pad,
            add_bos: v.add_bos,
            add_space_prefix: v.add_space_prefix,
        })?),
        TokenizerSource::None => Err(Fault::new("tokenizer", "a tokenizer.json, or a vocabulary in the file", "none")
            .remedy("where the command takes it, give token ids with --ids FILE.json")
            .into()),
    }
}

/// A text as a prompt of its own: special tokens in it stay text, and it begins as the model's texts begin.
pub(crate) fn plain_prompt(text: &str, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let ids = tokenizer.encode(text, Special::Text)?;
    Ok(tokenizer.add_bos().into_iter().chain(ids).collect())
}

/// The model's chat template.
pub(crate) fn chat_template(model: &Model, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let source = model
        .chat_template()
        .ok_or_else(|| anyhow!("this model has no chat template: use --raw to complete text as it is"))?;
    let text = |id: Option<u32>| id.and_then(|i| tokenizer.decode(&[i], false).ok());
    let config = model.config();
    let bos = text(config.bos);
    let eos = text(config.eos.first().copied());
    Ok(ChatTemplate::new(source, bos.as_deref(), eos.as_deref())?)
}

/// Token ids from a JSON file: an array of numbers.
pub(crate) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Fault::new(path.display().to_string(), "a JSON array of token ids", e.to_string()).into())
}

/// The text of an argument; `-` is standard input.
pub(crate) fn text_argument(text: &str) -> Result<String> {
    if text == "-" {
        return std::io::read_to_string(std::io::stdin()).context("cannot read standard input");
    }
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        how: HowArgs,
    }

    #[test]
    fn workers_are_kept_when_somebody_asks() {
        let config = |words: &[&str]| {
            let how = Line::parse_from([&["tare", "--threads", "3"], words].concat()).how;
            cpu_config(&how).map(|c| c.keep_workers).map_err(|e| e.to_string())
        };
        assert_eq!((config(&[]), config(&["--keep-workers"])), (Ok(false), Ok(true)));
        let said = config(&["--keep-workers", "--backend", "cuda"]).unwrap_err();
        assert!(said.contains("nothing with --backend cuda"), "{said}");
        for command in [
            "run -m m",
            "chat -m m",
            "serve -m m",
            "clock -m m",
            "next",
            "replay",
            "study ops",
            "doctor",
            "perplexity -m m x",
        ] {
            let words = ["tare"].into_iter().chain(command.split(' ')).chain(["--keep-workers"]);
            assert!(Cli::try_parse_from(words).is_ok(), "{command}");
        }
    }
}
