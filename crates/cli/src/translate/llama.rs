//! llama.cpp: llama-bench, llama-cli, llama-server, llama-quantize.

use super::table::{Becomes, Flag, To, Tool, switch, value};

const MODEL: Flag = value(&["-m", "--model"], "model file", To::Same("--model"));
const HUB: Flag = value(&["-hf", "-hfr", "--hf-repo"], "hub repository", To::Same("--model"));
const THREADS: Flag = value(
    &["-t", "--threads"],
    "worker threads",
    To::Unless(&[("-1", "tare takes the processors that it may use")], &To::Same("--threads")),
);
const CONTEXT: Flag = value(
    &["-c", "--ctx-size"],
    "most tokens of a sequence",
    To::Unless(&[("0", "tare takes 4096 tokens, or the model's limit where that is lower")], &To::Same("--context")),
);
const BATCH: Flag = value(
    &["-b", "--batch-size"],
    "tokens of a logical batch",
    To::None("a prefill chunk is 512 rows in tare, 2,048 on a GPU; no flag changes it yet"),
);
const MICRO_BATCH: Flag = value(
    &["-ub", "--ubatch-size"],
    "tokens of a physical batch",
    To::None("a prefill chunk is 512 rows in tare, 2,048 on a GPU; no flag changes it yet"),
);
const CACHE_K: Flag = value(&["-ctk", "--cache-type-k"], "format of cached keys", To::None(KV_OF_CLASS));
const CACHE_V: Flag = value(&["-ctv", "--cache-type-v"], "format of cached values", To::None(KV_OF_CLASS));
const KV_OF_CLASS: &str = "the arithmetic class fixes it: F32 in class f32, BF16 in all others";
const LAYERS_ON_GPU: Flag = value(
    &["-ngl", "--gpu-layers", "--n-gpu-layers"],
    "layers on the GPU",
    To::None("a plan runs whole on one backend"),
);
const FLASH: Flag = value(
    &["-fa", "--flash-attn"],
    "fused attention",
    To::None("the plan says which attention runs; `tare doctor --plan` shows it"),
);
const NO_MMAP: Flag = switch(&["--no-mmap"], "read the file instead of mapping it", To::None(MAPPED));
const MAPPED: &str =
    "tare maps a .gguf file; what its kernels read in another order is packed anew when a plan is compiled";
const MLOCK: Flag = switch(
    &["--mlock"],
    "keep the model in memory",
    To::None("tare locks nothing: what is read out of the mapped file may be dropped when memory is short"),
);
const SEED: Flag = value(
    &["-s", "--seed"],
    "seed of the draw",
    To::Unless(&[("-1", "theirs is then random; tare's is 0 unless it is given")], &To::Same("--seed")),
);
const JINJA: Flag =
    switch(&["--jinja"], "the model's own chat template", To::Always("the model's template is the one used"));

/// The commands of llama.cpp.
pub(crate) static TOOLS: &[Tool] = &[
    Tool {
        name: "llama-bench",
        starts: &[&["llama-bench"]],
        becomes: Becomes::Tare(&["clock"]),
        flags: &[
            value(&["-m", "--model"], "model file", To::Each(&To::Same("--model"))),
            HUB,
            value(&["-p", "--n-prompt"], "tokens of the prompt test", To::Each(&To::NotZero("--prompt-tokens"))),
            value(&["-n", "--n-gen"], "tokens of the generation test", To::Each(&To::OneMore("--max-tokens"))),
            value(
                &["-pg"],
                "prompt and generation in one test",
                To::None("that is what every tare clock does: give the two numbers as -p and -n"),
            ),
            value(&["-d", "--n-depth"], "tokens in the cache before the test", To::List("--depths")),
            value(&["-r", "--repetitions"], "repetitions", To::Same("--rounds")),
            value(&["-t", "--threads"], "worker threads", To::Each(&To::Same("--threads"))),
            value(
                &["-o", "--output"],
                "format of the report",
                To::One(
                    &[("json", &["--json"]), ("jsonl", &["--json"]), ("md", &[])],
                    "tare prints text or JSON; every record is kept as JSON in any case",
                ),
            ),
            BATCH,
            MICRO_BATCH,
            CACHE_K,
            CACHE_V,
            LAYERS_ON_GPU,
            FLASH,
            value(&["-mmp", "--mmap"], "map the file", To::One(&[("1", &[])], MAPPED)),
            value(
                &["--delay"],
                "seconds between tests",
                To::None("rounds follow each other; the host's quiet is looked at"),
            ),
            value(&["--prio"], "priority of the process", To::None("start tare under nice or chrt")),
            value(
                &["-C", "--cpu-mask"],
                "processors to run on",
                To::None("start tare under taskset; workers are pinned"),
            ),
            value(&["--cpu-strict"], "one worker to a processor", To::Always("workers are pinned")),
            value(
                &["--poll"],
                "how busily workers wait",
                To::Always("workers spin within a request and park after it"),
            ),
            switch(&["--no-warmup"], "no warm-up", To::None("one warm-up always runs, and the gate judges it too")),
            switch(&["--progress"], "show progress", To::Always("a progress bar is shown on a terminal")),
            switch(&["-v", "--verbose"], "more words", To::None("what a reader must know is in the record's notes")),
        ],
        positional: &[],
        defaults: &[("-p", "512"), ("-n", "128"), ("-r", "5")],
        differs: &[
            "llama-bench draws its own token ids and does not show what was emitted; tare's ids are in the record and the \
             F32 reference judges them before any time is kept",
            "its tg test decodes from an empty context (or from -d); tare decodes after the prompt: add -p 1 for the same \
             context",
            "its figures are mean and standard deviation of rates; tare's are medians with every sample",
            "tare's first output token belongs to prefill, so that 128 decoded tokens are -n 129",
            "an A/B of the two belongs into one campaign with llama.cpp as a peer, not into two runs",
        ],
        example: "llama-bench -m model-Q4_0.gguf -t 2 -p 128,512 -n 64 -r 3",
    },
    Tool {
        name: "llama-cli",
        starts: &[&["llama-cli"], &["llama-completion"]],
        becomes: Becomes::Tare(&["run"]),
        flags: &[
            MODEL,
            HUB,
            THREADS,
            CONTEXT,
            value(&["-p", "--prompt"], "prompt", To::Same("--prompt")),
            value(&["-f", "--file"], "file with the prompt", To::None("pipe it: tare run ... - < FILE")),
            value(
                &["-n", "--predict", "--n-predict"],
                "most tokens to write",
                To::Unless(
                    &[
                        (
                            "-1",
                            "theirs then has no limit; tare writes up to 256 tokens unless --max-tokens says otherwise",
                        ),
                        (
                            "-2",
                            "theirs then fills the context; tare writes up to 256 tokens unless --max-tokens says otherwise",
                        ),
                    ],
                    &To::Same("--max-tokens"),
                ),
            ),
            value(&["-sys", "--system-prompt"], "system message", To::Same("--system")),
            switch(&["-no-cnv", "--no-conversation"], "complete the text as it is", To::Words(&["--raw"])),
            switch(&["-cnv", "--conversation"], "talk", To::None("tare chat")),
            switch(&["-st", "--single-turn"], "one answer, then end", To::Always("tare run answers once")),
            JINJA,
            SEED,
            value(&["--temp", "--temperature"], "temperature", To::Same("--temperature")),
            value(&["--top-k"], "likeliest tokens kept", To::Same("--top-k")),
            value(&["--top-p"], "probability kept", To::Same("--top-p")),
            value(&["--min-p"], "share of the likeliest kept", To::Same("--min-p")),
            value(&["--repeat-penalty"], "penalty of seen tokens", To::Same("--repetition-penalty")),
            value(&["--presence-penalty"], "penalty of written tokens", To::Same("--presence-penalty")),
            value(&["--frequency-penalty"], "penalty by count", To::Same("--frequency-penalty")),
            switch(&["--ignore-eos"], "go on past the end token", To::Words(&["--ignore-eos"])),
            value(&["-r", "--reverse-prompt"], "stop at this text", To::Same("--stop")),
            BATCH,
            MICRO_BATCH,
            CACHE_K,
            CACHE_V,
            LAYERS_ON_GPU,
            FLASH,
            NO_MMAP,
            MLOCK,
        ],
        positional: &[],
        defaults: &[("--temp", "0.8"), ("--top-k", "40"), ("--top-p", "0.95"), ("--min-p", "0.05")],
        differs: &[
            "without a prompt llama-cli talks: that is tare chat",
            "tare run is greedy unless it is told otherwise; llama-cli's sampling is written out above",
            "special tokens spelled in a prompt stay text in tare",
        ],
        example: "llama-cli -m model-Q4_0.gguf -p 'Write a haiku' -n 64 --temp 0.7 -no-cnv",
    },
    Tool {
        name: "llama-server",
        starts: &[&["llama-server"]],
        becomes: Becomes::Tare(&["serve"]),
        flags: &[
            MODEL,
            HUB,
            THREADS,
            CONTEXT,
            value(&["--host"], "address to listen on", To::Same("--host")),
            value(&["--port"], "port", To::Same("--port")),
            value(
                &["-np", "--parallel"],
                "requests decoded together",
                To::Unless(&[("-1", "tare decodes up to 8 together")], &To::Same("--max-sequences")),
            ),
            value(&["-a", "--alias"], "name of the served model", To::Same("--served-name")),
            value(
                &["--api-key"],
                "key that clients must send",
                To::None("tare serve looks at no key yet: put a proxy before it"),
            ),
            switch(
                &["-cb", "--cont-batching"],
                "continuous batching",
                To::Always("requests that run together share a step"),
            ),
            switch(
                &["--metrics"],
                "Prometheus metrics",
                To::None("not built yet; GET /health has the engine's counters"),
            ),
            switch(&["--slots"], "show slots", To::None("GET /health has live pages and running requests")),
            JINJA,
            BATCH,
            MICRO_BATCH,
            CACHE_K,
            CACHE_V,
            LAYERS_ON_GPU,
            FLASH,
            NO_MMAP,
            MLOCK,
        ],
        positional: &[],
        defaults: &[],
        differs: &[
            "-c is the context of one request in tare; llama-server divides it among its slots",
            "sampling defaults are those of the OpenAI API, and each request may say its own; unknown parameters are \
             refused",
        ],
        example: "llama-server -m model-Q4_0.gguf --port 8080 -np 4 -c 4096",
    },
    Tool {
        name: "llama-quantize",
        starts: &[&["llama-quantize"]],
        becomes: Becomes::Tare(&["quantize"]),
        flags: &[
            switch(
                &["--allow-requantize"],
                "quantize what is quantized",
                To::None("tare quantize starts from the values"),
            ),
            switch(
                &["--leave-output-tensor"],
                "keep the head as it is",
                To::None("--head-format names the format that the head has: bf16, f16 or f32"),
            ),
            value(
                &["--output-tensor-type"],
                "format of the head",
                To::One(
                    &[
                        ("q4_0", &["--head-format", "q4_0"]),
                        ("q6_k", &["--head-format", "q6_k"]),
                        ("q8_0", &["--head-format", "q8_0"]),
                        ("bf16", &["--head-format", "bf16"]),
                        ("f16", &["--head-format", "f16"]),
                        ("f32", &["--head-format", "f32"]),
                    ],
                    "of the K-quants tare writes q6_k alone",
                ),
            ),
            value(
                &["--token-embedding-type"],
                "format of the embedding",
                To::None("--head-format where the head is tied to it; else it gets the format of the others"),
            ),
            switch(
                &["--pure"],
                "one format for all tensors",
                To::Always("every matrix gets the one format unless --head-format says otherwise"),
            ),
            value(&["--imatrix"], "importance of weights", To::None("tare's formats are rounded without calibration")),
        ],
        positional: &[
            value(&["IN"], "model to convert", To::Same("--model")),
            value(&["OUT"], "file to write", To::Same("--output")),
            value(
                &["TYPE"],
                "format",
                To::One(
                    &[
                        ("Q4_0", &["--format", "q4_0"]),
                        ("Q6_K", &["--format", "q6_k"]),
                        ("Q8_0", &["--format", "q8_0"]),
                        ("BF16", &["--format", "bf16"]),
                        ("F16", &["--format", "f16"]),
                        ("F32", &["--format", "f32"]),
                    ],
                    "tare reads K-quants and writes q6_k alone: q4_0, q8_0 or an MLX format (w4g64, ..)",
                ),
            ),
            value(&["THREADS"], "threads", To::None("all processors are used")),
        ],
        defaults: &[],
        differs: &[
            "llama-quantize gives the head of a Q4_0 file Q6_K, or Q8_0 where its columns are no multiples of 256, unless it is \
             told --pure; tare does so when it is told --head-format",
            "tare's Q6_K blocks are its own choice of scales and codes, those of Q4_0 and Q8_0 have llama-quantize's bytes",
        ],
        example: "llama-quantize model-BF16.gguf model-Q8_0.gguf Q8_0",
    },
];
