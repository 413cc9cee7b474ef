//! tiny-llm's pdm scripts and meTile's benchmark drivers.

use super::table::{Becomes, Flag, To, Tool, switch, value};

/// Their checkpoints that tare has as plans. The first two hold dense weights and use no kernel of their own: the nearest are
/// the plans of the same storage with readable kernels.
pub(crate) const PLANS: &[(&str, &[&str])] = &[
    ("kv-cache", &["--plan", "readable-kv-cache"]),
    ("capacity-cache", &["--plan", "readable-capacity-cache"]),
    ("quantized-matvec", &["--plan", "quantized-matvec"]),
    ("simd-matmul", &["--plan", "simd-matmul"]),
    ("rmsnorm", &["--plan", "rmsnorm"]),
    ("rope", &["--plan", "rope"]),
    ("swiglu", &["--plan", "swiglu"]),
    ("tiled-prefill", &["--plan", "tiled-prefill"]),
    ("decode-attention", &["--plan", "decode-attention"]),
    ("selected", &["--plan", "selected"]),
];
/// Why another checkpoint has none.
pub(crate) const NO_PLAN: &str = "no plan of this name (a wrong --plan lists all there are); split-k is a rung that is empty on a processor and on a GPU";
const MODEL: Flag = value(&["--model"], "model; qwen3-0.6b and the like are aliases of both", To::Same("--model"));
const SOLUTION: Flag = value(
    &["--solution"],
    "whose implementation runs",
    To::One(
        &[("tiny_llm", &[]), ("tiny_llm_ref", &[]), ("ref", &[])],
        "another engine is a peer: it runs in one interleaved campaign with tare, never in a run of its own",
    ),
);
const LOADER: Flag = value(
    &["--loader"],
    "which week's model",
    To::One(
        &[("week1", &["--plan", "recompute"]), ("week2", &[]), ("week3", &["--plan", "paged"])],
        "week1, week2 or week3",
    ),
);
const CHECKPOINT: Flag = value(&["--week2-checkpoint"], "rung of the ladder", To::One(PLANS, NO_PLAN));
const LOGITS: Flag =
    value(&["--prefill-logits"], "logits of the last prompt token or of all", To::Same("--prefill-logits"));
const WARM_UP: Flag = value(&["--warmup"], "warm-ups", To::None("one warm-up always runs, and the gate judges it too"));
const JSON: Flag = value(&["--json-output"], "file for the results", To::JsonFile);
const DEVICE: Flag = value(
    &["--device"],
    "where it runs",
    To::One(&[("cpu", &[])], "an NVIDIA GPU is --backend cuda, and backend in a study's arms"),
);
const IN_FILE: &str = "it stands in the study file: tare study FILE runs a changed copy of studies/ladder.toml";
const LEAST: &str = "lengths are exact: the largest counts";

/// The commands of the two.
pub(crate) static TOOLS: &[Tool] = &[
    Tool {
        name: "tiny-llm bench",
        starts: &[&["pdm", "run", "bench"], &["python", "-m", "benches.bench"]],
        becomes: Becomes::Tare(&["clock"]),
        flags: &[
            MODEL,
            SOLUTION,
            LOADER,
            CHECKPOINT,
            value(
                &["--num-seqs"],
                "requests",
                To::One(
                    &[("1", &[])],
                    "tare clock runs one request, or as many as --sequences says; a serving study follows (their default is 16)",
                ),
            ),
            value(&["--min-input-len"], "shortest prompt", To::Always(LEAST)),
            value(&["--max-input-len"], "longest prompt", To::Same("--prompt-tokens")),
            value(&["--min-output-len"], "fewest tokens to write", To::Always(LEAST)),
            value(&["--max-output-len"], "most tokens to write", To::Same("--max-tokens")),
            LOGITS,
            WARM_UP,
            value(&["--seed"], "seed of the prompt's ids", To::Same("--seed")),
            switch(
                &["--batch-decode"],
                "decode requests together",
                To::None("a serving study follows; tare serve batches"),
            ),
            value(
                &["--batch-size"],
                "requests together",
                To::None("a serving study follows; tare serve has --max-sequences"),
            ),
            value(
                &["--prefill-step"],
                "tokens of a chunk",
                To::None("a prefill chunk is 512 rows in tare, 2,048 on a GPU; no flag changes it yet"),
            ),
            switch(
                &["--disable-paged-attention"],
                "gather pages first",
                To::None("no such plan: paged attention reads pages in place"),
            ),
            DEVICE,
            JSON,
        ],
        positional: &[],
        defaults: &[
            ("--num-seqs", "16"),
            ("--max-input-len", "256"),
            ("--max-output-len", "256"),
            ("--prefill-logits", "all"),
        ],
        differs: &[
            "their prompt ids come from Python's random, tare's from its own generator: the same lengths, other ids; --ids \
             FILE takes theirs",
            "their run is one sample; tare clock takes 5 rounds unless -r says otherwise",
            "tare looks at every emitted token before it keeps a time",
            "two commands, one for each engine, are two campaigns: their times are never divided",
        ],
        example: "pdm run bench --solution tiny_llm --loader week2 --week2-checkpoint kv-cache --model qwen3-4b \
                  --num-seqs 1 --min-input-len 128 --max-input-len 128 --min-output-len 65 --max-output-len 65 \
                  --warmup 2 --prefill-logits last",
    },
    Tool {
        name: "tiny-llm progression",
        starts: &[&["pdm", "run", "bench-week2-progression"], &["pdm", "run", "bench-course-progression"]],
        becomes: Becomes::Tare(&["study", "ladder"]),
        flags: &[
            value(
                &["--repeats"],
                "passes over all variants",
                To::None("the study has the rounds that its verdict needs; --rounds N makes a screening of it"),
            ),
            value(&["--variant"], "an arm", To::None(IN_FILE)),
            value(&["--model"], "model", To::None(IN_FILE)),
            value(&["--input-len"], "prompt tokens", To::None(IN_FILE)),
            value(&["--output-len"], "tokens to write", To::None(IN_FILE)),
            value(&["--prefill-logits"], "logits of the last prompt token or of all", To::None(IN_FILE)),
            value(&["--warmup"], "warm-ups", To::None(IN_FILE)),
            value(&["--seed"], "seed of the prompt's ids", To::None(IN_FILE)),
            value(&["--suite"], "course or week2", To::None(IN_FILE)),
            value(
                &["--cooldown-seconds"],
                "pause between samples",
                To::None("the host's quiet is looked at before every round"),
            ),
            switch(&["--offline"], "no downloads", To::Always("a study downloads nothing")),
            SOLUTION,
            DEVICE,
            JSON,
        ],
        positional: &[],
        defaults: &[],
        differs: &[
            "a study is a file: copy studies/ladder.toml, change model, lengths and arms, and run tare study FILE",
            "fewer rounds than planned decide nothing: a duet with one candidate needs 12, and two rounds are one sample",
            "their denominator is MLX; tare's is llama.cpp on the same weights, held as a peer",
            "their table divides medians; tare rules on paired rounds, with an A/A arm and a gate",
            "week1 recomputes everything and has a short study of its own: tare study ladder-l1",
        ],
        example: "pdm run bench-week2-progression --offline --repeats 4 --solution tiny_llm --variant week2-kv-cache \
                  --variant mlx --model qwen3-4b --input-len 128 --output-len 129 --warmup 2 --prefill-logits last \
                  --json-output week2-baseline.json",
    },
    Tool {
        name: "meTile paired regression",
        starts: &[
            &["python", "-m", "benchmarks.regression.paired_regression"],
            &["python", "-m", "benchmarks.regression.regression"],
        ],
        becomes: Becomes::Nothing("it takes source trees: build both, then tare compare OLD/tare NEW/tare"),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "python3 -m benchmarks.regression.paired_regression --baseline-root old --rounds-per-sample 5",
    },
    Tool {
        name: "tiny-llm operator replay",
        starts: &[&["pdm", "run", "profile-week2-kernels"]],
        becomes: Becomes::Tare(&["replay"]),
        flags: &[
            MODEL,
            SOLUTION,
            value(&["--case"], "rung, phase and tokens", To::Each(&To::Case)),
            value(&["--warmup"], "warm-ups", To::Always("every group runs before it is timed")),
            value(&["--iterations"], "timed turns", To::Same("--iterations")),
            JSON,
        ],
        positional: &[],
        defaults: &[("--iterations", "12")],
        differs: &[
            "their activations are random and the wiring is their own; tare replays the calls of the plan that runs, on its \
             buffers, and the dispatch digests of step and replay must be equal",
            "tare holds the sum of the groups against the step on the clock and names the remainder",
        ],
        example: "pdm run profile-week2-kernels --solution tiny_llm --model qwen3-0.6b --case capacity-cache:decode:128 \
                  --warmup 4 --iterations 12 --json-output week2-capacity-cache-decode-128.replay.json",
    },
    Tool {
        name: "tiny-llm serving and chunk studies",
        starts: &[&["pdm", "run", "bench-serving-progression"], &["pdm", "run", "bench-chunked-prefill"]],
        becomes: Becomes::Nothing(
            "tare has no serving study yet: tare serve batches, tare clock --url sees one client",
        ),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "pdm run bench-serving-progression --model qwen3-4b --num-seqs 16 --batch-size 4",
    },
    Tool {
        name: "tiny-llm attention benchmarks",
        starts: &[&["pdm", "run", "bench-long-context-attention"], &["pdm", "run", "bench-week3-attention"]],
        becomes: Becomes::Nothing(
            "tare has no attention-only sweep yet: tare clock --depths shows whole requests at depths",
        ),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "pdm run bench-long-context-attention --json-output out.json",
    },
    Tool {
        name: "tiny-llm capture",
        starts: &[
            &["pdm", "run", "capture-week2"],
            &["pdm", "run", "reduce-week2-gpudebug"],
            &["pdm", "run", "source-costs-week2"],
            &["gpudebug"],
        ],
        becomes: Becomes::Nothing("tare has no capture yet; these read Metal traces, which no host of tare writes"),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "pdm run capture-week2 --solution tiny_llm --model qwen3-0.6b --checkpoint capacity-cache --phase decode",
    },
    Tool {
        name: "tiny-llm build and test",
        starts: &[
            &["pdm", "run", "build-ext"],
            &["pdm", "run", "build-ext-ref"],
            &["pdm", "run", "test"],
            &["pdm", "run", "test-refsol"],
        ],
        becomes: Becomes::Nothing("one binary has every kernel; its tests are cargo xtask test"),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "pdm run test --week 2 --day 2",
    },
    Tool {
        name: "meTile whole-model drivers",
        starts: &[
            &["python", "-m", "benchmarks.mlx.mlx_lm_suite"],
            &["python", "-m", "benchmarks.megakernels.qwen3"],
            &["python", "-m", "benchmarks.megakernels.qwen3_end_to_end"],
            &["python", "-m", "benchmarks.megakernels.qwen3_chunked_prefill"],
            &["python", "-m", "benchmarks.megakernels.qwen3_pd_interleaving"],
        ],
        becomes: Becomes::Nothing(
            "their arms run in turn in one process against MLX; tare's are fresh processes of one campaign, and MLX is no \
             peer on a CPU",
        ),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "MLX_ENABLE_TF32=0 python3 -m benchmarks.megakernels.qwen3_chunked_prefill --model Qwen/Qwen3-0.6B",
    },
    Tool {
        name: "meTile layer and compiler drivers",
        starts: &[
            &["python", "-m", "benchmarks.mlx.matched_representation_matrix"],
            &["python", "-m", "benchmarks.mlx.model_shape_matrix"],
            &["python", "-m", "benchmarks.mlx.shape_sensitivity"],
            &["python", "-m", "benchmarks.compiler.rmsnorm_tiling"],
            &["python", "-m", "benchmarks.compiler.register_rmsnorm"],
            &["python", "-m", "benchmarks.compiler.tensor_memory"],
            &["python", "-m", "benchmarks.compiler.schedule_fusion"],
            &["python", "-m", "benchmarks.compiler.thread_layouts"],
            &["python", "-m", "benchmarks.compiler.staged_gemm"],
        ],
        becomes: Becomes::Nothing(
            "tare has no such layer study yet: they tune a Metal compiler that tare does not have",
        ),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "python3 -m benchmarks.compiler.rmsnorm_tiling tune --baseline-json prior.json",
    },
    Tool {
        name: "meTile pictures",
        starts: &[
            &["python", "-m", "benchmarks.plots.render_chunked_prefill"],
            &["python", "-m", "benchmarks.plots.render_model_speedups"],
        ],
        becomes: Becomes::Nothing("their JSON is not tare's: pictures are drawn from verified records alone"),
        flags: &[],
        positional: &[],
        defaults: &[],
        differs: &[],
        example: "python3 -m benchmarks.plots.render_chunked_prefill results.json --output prefill.png",
    },
];
