//! vLLM: serve, bench latency, bench serve.

use super::table::{Becomes, Flag, To, Tool, switch, value};

const DTYPE: Flag = value(
    &["--dtype"],
    "type of weights and activations",
    To::One(
        &[("auto", &[]), ("bfloat16", &["--class", "bf16"]), ("float32", &["--class", "f32"])],
        "tare has no F16 activations: --class names an arithmetic class that the file's format allows",
    ),
);
const QUANTIZATION: Flag =
    value(&["-q", "--quantization"], "how the file is quantized", To::Always("read from the file"));
const TENSOR_PARALLEL: Flag =
    value(&["-tp", "--tensor-parallel-size"], "GPUs for one model", To::One(&[("1", &[])], "one host, one backend"));
const GPU_MEMORY: Flag = value(
    &["--gpu-memory-utilization"],
    "share of the GPU's memory",
    To::None("the pool of pages is sized by --context and --max-sequences"),
);
const EAGER: Flag = switch(&["--enforce-eager"], "no graphs", To::None("the plan says how a step runs"));
const CONTEXT: Flag = value(&["--max-model-len"], "most tokens of a sequence", To::Same("--context"));
const TRUST: Flag = switch(
    &["--trust-remote-code"],
    "run code that comes with the model",
    To::Always("no code of a model is ever run"),
);
const TOKENIZER: Flag = value(&["--tokenizer"], "another tokenizer", To::None("the model's own is used"));

/// The commands of vLLM.
pub(crate) static TOOLS: &[Tool] = &[
    Tool {
        name: "vllm serve",
        starts: &[&["vllm", "serve"]],
        becomes: Becomes::Tare(&["serve"]),
        flags: &[
            value(&["--model"], "model", To::Same("--model")),
            value(&["--host"], "address to listen on", To::Same("--host")),
            value(&["--port"], "port", To::Same("--port")),
            value(&["--max-num-seqs"], "requests decoded together", To::Same("--max-sequences")),
            value(&["--served-model-name"], "name of the served model", To::Same("--served-name")),
            value(
                &["--api-key"],
                "key that clients must send",
                To::None("tare serve looks at no key yet: put a proxy before it"),
            ),
            value(
                &["--max-num-batched-tokens"],
                "rows of a step",
                To::None("512 rows in tare, 2,048 on a GPU; no flag changes it yet"),
            ),
            switch(&["--enable-prefix-caching"], "keep prefixes between requests", To::None("not built yet")),
            switch(&["--no-enable-prefix-caching"], "keep no prefixes", To::Always("none is kept between requests")),
            switch(
                &["--enable-chunked-prefill"],
                "prompts in chunks",
                To::Always("chunks and decode rows share a step"),
            ),
            value(&["--seed"], "seed", To::None("a seed belongs to a request")),
            CONTEXT,
            DTYPE,
            QUANTIZATION,
            TENSOR_PARALLEL,
            GPU_MEMORY,
            EAGER,
            TRUST,
            TOKENIZER,
        ],
        positional: &[value(&["MODEL"], "model", To::Same("--model"))],
        defaults: &[("--host", "0.0.0.0"), ("--port", "8000")],
        differs: &[
            "vLLM takes sampling defaults from the model's generation_config.json; tare has those of the OpenAI API",
        ],
        example: "vllm serve Qwen/Qwen3-0.6B --port 8000 --max-model-len 4096 --max-num-seqs 8",
    },
    Tool {
        name: "vllm bench latency",
        starts: &[&["vllm", "bench", "latency"]],
        becomes: Becomes::Tare(&["clock"]),
        flags: &[
            value(&["--model"], "model", To::Same("--model")),
            value(&["--input-len"], "prompt tokens", To::Same("--prompt-tokens")),
            value(&["--output-len"], "tokens to write", To::Same("--max-tokens")),
            value(&["--num-iters"], "timed rounds", To::Same("--rounds")),
            value(&["--num-iters-warmup"], "warm-ups", To::None("one warm-up always runs, and the gate judges it too")),
            value(
                &["--batch-size"],
                "requests together",
                To::One(
                    &[("1", &[])],
                    "tare clock runs one request, or as many as --sequences says; their default is 8: give them --batch-size 1",
                ),
            ),
            value(&["--n"], "answers to a prompt", To::One(&[("1", &[])], "one answer to a prompt")),
            switch(&["--use-beam-search"], "beam search", To::None("greedy or sampled")),
            value(&["--output-json"], "file for the results", To::JsonFile),
            value(&["--seed"], "seed", To::Same("--seed")),
            switch(&["--disable-detokenize"], "ids alone", To::Always("the clock never detokenizes")),
            switch(&["--profile"], "take a profile", To::None("not built yet")),
            CONTEXT,
            DTYPE,
            QUANTIZATION,
            TENSOR_PARALLEL,
            GPU_MEMORY,
            EAGER,
            TRUST,
            TOKENIZER,
        ],
        positional: &[],
        defaults: &[("--input-len", "32"), ("--output-len", "128"), ("--num-iters", "30"), ("--batch-size", "8")],
        differs: &[
            "vLLM gives one latency of the whole batch; tare tells set-up, prefill, each token and release apart",
            "vLLM does not look at what was emitted; tare voids the times of wrong tokens",
        ],
        example: "vllm bench latency --model Qwen/Qwen3-0.6B --input-len 128 --output-len 65 --batch-size 1 --num-iters 10",
    },
    Tool {
        name: "vllm bench serve",
        starts: &[&["vllm", "bench", "serve"]],
        becomes: Becomes::Tare(&["clock"]),
        flags: &[
            value(&["--base-url"], "address of the server", To::Same("--url")),
            value(&["--host"], "host of the server", To::Host),
            value(&["--port"], "port of the server", To::Port),
            value(&["--model"], "model", To::Same("--model")),
            value(&["--served-model-name"], "name of the served model", To::None("--model names it")),
            value(
                &["--backend", "--endpoint-type"],
                "which API is spoken",
                To::One(
                    &[
                        ("openai", &["--endpoint", "completions-text"]),
                        ("vllm", &["--endpoint", "completions-text"]),
                        ("openai-chat", &["--endpoint", "chat"]),
                    ],
                    "tare speaks /v1/completions and /v1/chat/completions",
                ),
            ),
            value(&["--endpoint"], "path of the API", To::Always("the path follows from the endpoint")),
            value(
                &["--dataset-name"],
                "where prompts come from",
                To::One(&[("random", &[])], "tare draws ids, or takes them from --ids FILE"),
            ),
            value(&["--random-input-len", "--input-len"], "prompt tokens", To::Same("--prompt-tokens")),
            value(&["--random-output-len", "--output-len"], "tokens to write", To::Same("--max-tokens")),
            value(&["--random-prefix-len"], "tokens that prompts share", To::Same("--depth")),
            value(
                &["--random-range-ratio"],
                "spread of lengths",
                To::One(&[("0", &[]), ("0.0", &[])], "lengths are exact"),
            ),
            value(&["--num-prompts"], "requests", To::Same("--rounds")),
            value(
                &["--max-concurrency"],
                "requests at once",
                To::One(&[("1", &[])], "one request at a time: latency, not load"),
            ),
            value(&["--request-rate"], "arrivals a second", To::None("one request at a time: latency, not load")),
            value(&["--burstiness"], "shape of arrivals", To::None("one request at a time: latency, not load")),
            value(&["--goodput"], "limits a request must keep", To::None("one request at a time: latency, not load")),
            switch(&["--ignore-eos"], "exact lengths", To::Always("asked of every server, and said when it does not")),
            value(&["--seed"], "seed of the prompts", To::Same("--seed")),
            value(
                &["--percentile-metrics", "--metric-percentiles"],
                "which percentiles",
                To::Always("p50, p90, p95, p99 and the largest"),
            ),
            value(&["--num-warmups"], "warm-ups", To::Always("one, which also settles how the server is asked")),
            switch(&["--save-result"], "keep the results", To::Always("a document is kept of every run")),
            value(&["--result-filename"], "file for the results", To::JsonFile),
            value(&["--result-dir"], "folder for the results", To::None("the document's path is printed")),
            TRUST,
            TOKENIZER,
        ],
        positional: &[],
        defaults: &[
            ("--random-input-len", "1024"),
            ("--random-output-len", "128"),
            ("--host", "127.0.0.1"),
            ("--port", "8000"),
        ],
        differs: &[
            "vllm bench serve sends all requests at once unless told otherwise; tare clock --url measures one at a time on a \
             warm connection",
            "the chunk that only names the role never counts as the first token, and TTFT is not among the times between \
             tokens",
            "tokens are counted by the server's usage, not one for each chunk",
        ],
        example: "vllm bench serve --model Qwen/Qwen3-0.6B --host 127.0.0.1 --port 8000 --dataset-name random \
                  --random-input-len 256 --random-output-len 65 --num-prompts 5 --max-concurrency 1",
    },
];
