//! mlx-lm: benchmark, generate, server.

use super::table::{Becomes, Flag, To, Tool, switch, value};

const MODEL: Flag = value(&["--model"], "folder or hub repository", To::Same("--model"));
const ADAPTER: Flag = value(&["--adapter-path"], "LoRA adapter", To::None("tare runs no adapters"));
const DRAFT: Flag = value(&["--draft-model"], "model that drafts tokens", To::None("no speculative decoding yet"));
const TRUST: Flag = switch(
    &["--trust-remote-code"],
    "run code that comes with the model",
    To::Always("no code of a model is ever run"),
);
const TEMPLATE: Flag =
    switch(&["--use-default-chat-template"], "the tokenizer's template", To::Always("the model's template is used"));
const CHUNK: Flag = value(
    &["--prefill-step-size"],
    "tokens of a prefill chunk",
    To::None("a prefill chunk is 512 rows in tare, 2,048 on a GPU; no flag changes it yet"),
);

/// The commands of mlx-lm.
pub(crate) static TOOLS: &[Tool] = &[
    Tool {
        name: "mlx_lm.benchmark",
        starts: &[
            &["mlx_lm.benchmark"],
            &["python", "-m", "mlx_lm.benchmark"],
            &["python", "-m", "mlx_lm", "benchmark"],
        ],
        becomes: Becomes::Tare(&["clock"]),
        flags: &[
            MODEL,
            value(&["-p", "--prompt-tokens"], "prompt tokens", To::Same("--prompt-tokens")),
            value(&["-g", "--generation-tokens"], "tokens to write", To::Same("--max-tokens")),
            value(&["-n", "--num-trials"], "trials", To::Same("--rounds")),
            value(
                &["-b", "--batch-size"],
                "requests together",
                To::One(
                    &[("1", &[])],
                    "tare clock runs one request, or as many as --sequences says; tare serve batches",
                ),
            ),
            switch(&["--pipeline"], "spread layers over machines", To::None("one host, one backend")),
            CHUNK,
            TRUST,
        ],
        positional: &[],
        defaults: &[("-p", "512"), ("-g", "1024"), ("-n", "5")],
        differs: &[
            "mlx_lm.benchmark prints means without samples; every sample of tare is in the record",
            "both draw random ids; tare's are gated by the F32 reference",
            "MLX decodes ahead of the host; tare's clock stops when each id is on the host",
        ],
        example: "mlx_lm.benchmark --model qwen3-0.6b -p 2048 -g 128 -n 5",
    },
    Tool {
        name: "mlx_lm.generate",
        starts: &[&["mlx_lm.generate"], &["python", "-m", "mlx_lm.generate"], &["python", "-m", "mlx_lm", "generate"]],
        becomes: Becomes::Tare(&["run"]),
        flags: &[
            MODEL,
            value(&["-p", "--prompt"], "prompt; - reads standard input", To::Same("--prompt")),
            value(&["-m", "--max-tokens"], "most tokens to write", To::Same("--max-tokens")),
            value(&["--system-prompt"], "system message", To::Same("--system")),
            value(&["--temp"], "temperature", To::Same("--temperature")),
            value(&["--top-p"], "probability kept", To::Same("--top-p")),
            value(&["--top-k"], "likeliest tokens kept", To::Same("--top-k")),
            value(&["--min-p"], "share of the likeliest kept", To::Same("--min-p")),
            value(&["--seed"], "seed of the draw", To::Same("--seed")),
            switch(&["--ignore-chat-template"], "complete the text as it is", To::Words(&["--raw"])),
            TEMPLATE,
            value(&["--verbose"], "print rates", To::Always("rates go to standard error")),
            value(
                &["--max-kv-size"],
                "rotate the cache at this size",
                To::None("a cache is never cut: --context refuses what does not fit"),
            ),
            value(
                &["--kv-bits"],
                "bits of cached keys and values",
                To::None("the arithmetic class fixes it: F32 or BF16"),
            ),
            value(&["--prompt-cache-file"], "cache of an earlier run", To::None("no cache is kept between runs yet")),
            value(&["--extra-eos-token"], "further end tokens", To::None("--stop takes their text")),
            ADAPTER,
            DRAFT,
            TRUST,
        ],
        positional: &[],
        defaults: &[("-m", "100")],
        differs: &["tare run writes at most 256 tokens by itself; mlx_lm.generate's 100 is written out"],
        example: "mlx_lm.generate --model qwen3-0.6b --prompt 'Why is the sky blue?' --max-tokens 100 --temp 0.7",
    },
    Tool {
        name: "mlx_lm.server",
        starts: &[&["mlx_lm.server"], &["python", "-m", "mlx_lm.server"], &["python", "-m", "mlx_lm", "server"]],
        becomes: Becomes::Tare(&["serve"]),
        flags: &[
            MODEL,
            value(&["--host"], "address to listen on", To::Same("--host")),
            value(&["--port"], "port", To::Same("--port")),
            value(&["--decode-concurrency"], "requests decoded together", To::Same("--max-sequences")),
            value(
                &["--prompt-concurrency"],
                "prompts prefilled together",
                To::Always("chunks and decode rows share a step"),
            ),
            value(
                &["--max-tokens"],
                "tokens when a request names none",
                To::None("the API's default: what the context holds"),
            ),
            value(
                &["--temp"],
                "temperature when a request names none",
                To::None("the API's default is 1; requests say their own"),
            ),
            value(&["--log-level"], "how much is logged", To::None("requests and errors are logged to standard error")),
            CHUNK,
            TEMPLATE,
            ADAPTER,
            DRAFT,
            TRUST,
        ],
        positional: &[],
        defaults: &[],
        differs: &["mlx_lm.server loads the model that a request names; tare serve has one, and another name is a 404"],
        example: "mlx_lm.server --model qwen3-0.6b --port 8080",
    },
];
