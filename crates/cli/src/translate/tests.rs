//! The table against the command line that it promises.

use clap::Parser;

use super::convert::{Translation, Verdict, translate};
use super::table::{Becomes, Flag, Takes, To};
use super::{page, tools};
use crate::args::Cli;

fn lines(line: &str) -> Vec<String> {
    translate(line).unwrap().commands
}

/// What our own parser says to the translated commands.
fn complaints(t: &Translation) -> Vec<String> {
    let parse = |words: &Vec<String>| {
        let line = ["tare"].into_iter().chain(words.iter().map(String::as_str));
        Cli::try_parse_from(line).err().map(|e| format!("{}: {e}", words.join(" ")))
    };
    t.arguments.iter().filter_map(parse).collect()
}

#[test]
fn every_example_becomes_a_command_that_the_parser_takes() {
    for tool in tools() {
        let t = translate(tool.example).unwrap();
        assert_eq!((t.tool, t.unknown.len()), (tool.name, 0), "{:?}", t.unknown);
        assert_eq!(t.commands.is_empty(), matches!(tool.becomes, Becomes::Nothing(_)), "{}", tool.name);
        assert_eq!(complaints(&t), Vec::<String>::new(), "{}", tool.name);
    }
}

fn names_model(flag: &Flag) -> bool {
    matches!(flag.to, To::Same("--model") | To::Each(To::Same("--model")))
}

#[test]
fn every_flag_alone_gives_words_that_the_parser_takes() {
    for tool in tools().filter(|t| matches!(t.becomes, Becomes::Tare(_))) {
        for flag in tool.flags {
            let values: Vec<&str> = match &flag.to {
                To::One(choices, _) => choices.iter().map(|(value, _)| *value).chain(["no-such-value"]).collect(),
                To::Unless(values, _) => values.iter().map(|(value, _)| *value).chain(["2"]).collect(),
                To::Each(To::Case) => {
                    vec!["kv-cache:decode:128", "kv-cache:prefill:64", "no-such-rung:decode:1", "odd"]
                }
                _ if flag.names.contains(&"--host") => vec!["127.0.0.1"],
                _ if flag.names.contains(&"--prefill-logits") => vec!["last"],
                _ => vec!["2"],
            };
            for (name, value) in flag.names.iter().flat_map(|n| values.iter().map(move |v| (n, v))) {
                let given = if flag.takes == Takes::Nothing { String::new() } else { format!(" {value}") };
                // A model is required, and given once.
                let required = match tool.flags.iter().find(|f| names_model(f)) {
                    Some(model) if !names_model(flag) => format!(" {} m", model.names[0]),
                    _ => String::new(),
                };
                let start = tool.starts[0].join(" ");
                let t = translate(&format!("{start}{required} {name}{given}")).unwrap();
                assert_eq!(t.unknown, Vec::<String>::new());
                let quantize = tool.name == "llama-quantize";
                let wrong: Vec<String> =
                    complaints(&t).into_iter().filter(|c| !(quantize && c.contains("required"))).collect();
                let lacks_model =
                    |c: &String| c.contains("--model <MODEL>") && c.contains("required") && required.is_empty();
                assert!(wrong.iter().all(lacks_model), "{} {name}: {wrong:?}", tool.name);
            }
        }
    }
}

#[test]
fn the_page_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/coming-from.md");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(written == page(), "docs/coming-from.md is old: tare translate --page > docs/coming-from.md");
}

#[test]
fn llama_bench_becomes_one_command_for_each_value_and_keeps_its_defaults() {
    assert_eq!(
        lines("./build/bin/llama-bench -m m.gguf -p 128,512 -n 64 -t 2"),
        [
            "tare clock --model m.gguf --prompt-tokens 128 --max-tokens 65 --threads 2 --rounds 5",
            "tare clock --model m.gguf --prompt-tokens 512 --max-tokens 65 --threads 2 --rounds 5",
        ]
    );
    assert_eq!(
        lines("llama-bench -m m.gguf -p 0 -n 0 -d 0,4096 -o json"),
        ["tare clock --model m.gguf --prompt-tokens 1 --max-tokens 2 --depths 0,4096 --json --rounds 5"]
    );
}

#[test]
fn a_flag_that_nobody_knows_is_named_with_its_value() {
    let t = translate("llama-bench -m m.gguf --no-such-flag 7 --another stray").unwrap();
    assert_eq!(t.unknown, ["--no-such-flag 7", "--another stray"]);
    let t = translate("llama-quantize a b Q8_0 2 more").unwrap();
    assert_eq!(t.unknown, ["more"]);
}

#[test]
fn what_has_no_counterpart_says_why() {
    let t = translate("MTL_CAPTURE_ENABLED=1 pdm run capture-week2 --phase decode").unwrap();
    assert!(t.commands.is_empty() && t.why_none.is_some());
    assert_eq!(
        lines("llama-quantize --output-tensor-type Q6_K in.gguf out.gguf Q4_0"),
        ["tare quantize --head-format q6_k --model in.gguf --output out.gguf --format q4_0"]
    );
    let t = translate("llama-quantize in.gguf out.gguf Q4_K_M").unwrap();
    let verdict = &t.flags.iter().find(|f| f.flag == "TYPE").unwrap().verdict;
    assert!(matches!(verdict, Verdict::NoCounterpart(why) if why.contains("K-quants")), "{verdict:?}");
    let t = translate("vllm bench latency --model m").unwrap();
    let batch = t.flags.iter().find(|f| f.flag == "--batch-size").unwrap();
    assert!(batch.default && matches!(&batch.verdict, Verdict::NoCounterpart(_)), "their default of 8 is told");
    let e = translate("ollama run qwen3").unwrap_err().to_string();
    assert!(e.contains("llama-bench") && e.contains("ollama run qwen3"), "{e}");
}

#[test]
fn host_and_port_become_one_address() {
    let line = "vllm bench serve --model m --host 10.0.0.2 --port 9000 --random-input-len 8 --random-output-len 4";
    assert_eq!(lines(line), ["tare clock --model m --prompt-tokens 8 --max-tokens 4 --url http://10.0.0.2:9000"]);
    let line = "vllm bench serve --base-url http://h:1 --port 2 --random-input-len 8 --random-output-len 4";
    assert_eq!(lines(line), ["tare clock --url http://h:1 --prompt-tokens 8 --max-tokens 4"]);
}

#[test]
fn results_go_where_theirs_went() {
    let line = "pdm run bench --model q --num-seqs 1 --max-input-len 128 --max-output-len 65 --prefill-logits last \
                --json-output 'my out.json'";
    let expected =
        "tare clock --model q --prompt-tokens 128 --max-tokens 65 --prefill-logits last --json > 'my out.json'";
    assert_eq!(lines(line), [expected]);
}

#[test]
fn no_name_stands_twice_in_a_tool() {
    for tool in tools() {
        let mut names: Vec<_> = tool.flags.iter().flat_map(|f| f.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{}", tool.name);
    }
}

#[test]
fn lists_given_in_ranges_or_in_parts_are_all_of_their_values() {
    let prompts = |flags: &str| {
        let words = translate(&format!("llama-bench -m m.gguf -n 1 -r 1 {flags}")).unwrap().arguments;
        let value = |w: &Vec<String>| w[w.iter().position(|w| w == "--prompt-tokens").unwrap() + 1].clone();
        words.iter().map(value).collect::<Vec<_>>().join(",")
    };
    for (flags, values) in [
        ("-p 128-512+128", "128,256,384,512"),
        ("-p 64-512*2", "64,128,256,512"),
        ("-p 1-3", "1,2,3"),
        ("-p 128 -p 512", "128,512"),
        ("-p 8,16-18 --n-prompt 32", "8,16,17,18,32"),
    ] {
        assert_eq!(prompts(flags), values, "{flags}");
    }
    let depths = lines("llama-bench -m m.gguf -p 1 -n 1 -r 1 -d 0 -d 512-1024+256");
    assert!(depths.len() == 1 && depths[0].contains("--depths 0,512,768,1024"), "{depths:?}");
}

#[test]
fn a_length_that_is_not_understood_is_no_translation() {
    let line = |flags: &str| format!("llama-bench -m m.gguf {flags}");
    for flags in ["-p many", "-p 128,many", "-n 1.5", "-p 1-9+0", "-p 8-64*1", "-p 9-1", "-p 1-99999999", "-d 4-8*1"] {
        let t = translate(&line(flags)).unwrap();
        let not_understood = |v: &Verdict| matches!(v, Verdict::NotUnderstood(_));
        assert!(t.flags.iter().any(|f| not_understood(&f.verdict)), "{flags}: {:?}", t.flags);
    }
}

#[test]
fn their_words_for_no_limit_are_not_numbers_of_ours() {
    for (line, left_out) in [
        ("llama-cli -m m.gguf -p hi -n -1 -s -1 -t -1 -c 0", ["-1", "0"]),
        ("llama-cli -m m.gguf -p hi -n -2", ["-2", "-2"]),
        ("llama-server -m m.gguf -t -1 -c 0 -np -1", ["-1", "0"]),
    ] {
        let t = translate(line).unwrap();
        assert_eq!(complaints(&t), Vec::<String>::new(), "{line}");
        assert!(!t.arguments.iter().flatten().any(|w| left_out.contains(&w.as_str())), "{:?}", t.commands);
        let told = t.flags.iter().filter(|f| f.value.as_deref().is_some_and(|v| left_out.contains(&v)));
        let told: Vec<&Verdict> = told.map(|f| &f.verdict).collect();
        assert!(!told.is_empty() && told.iter().all(|v| matches!(v, Verdict::Always(_))), "{told:?}");
    }
}

#[test]
fn two_rungs_never_become_one_command_without_a_word() {
    for tool in tools() {
        for flag in tool.flags {
            let To::One(choices, _) = &flag.to else { continue };
            let worded: Vec<_> = choices.iter().map(|(_, words)| words).filter(|w| w.contains(&"--plan")).collect();
            let mut different = worded.clone();
            different.sort_unstable();
            different.dedup();
            assert_eq!(worded.len(), different.len(), "{} {:?}", tool.name, flag.names);
        }
    }
}

#[test]
fn a_case_of_a_replay_is_plan_phase_and_tokens_or_no_translation() {
    let replay = |case: &str| translate(&format!("pdm run profile-week2-kernels --model m --case {case}")).unwrap();
    for (case, words) in [
        ("kv-cache:decode:128", "--plan readable-kv-cache --phase decode --depth 128"),
        ("swiglu:prefill:64", "--plan swiglu --phase prefill --prompt-tokens 64"),
    ] {
        let t = replay(case);
        assert!(t.commands[0].contains(words) && complaints(&t).is_empty(), "{case}: {:?}", t.commands);
    }
    let two = replay("kv-cache:decode:1 --case kv-cache:prefill:2");
    assert!(two.commands.len() == 2 && complaints(&two).is_empty(), "{:?}", two.commands);
    for case in ["split-k:decode:1", "kv-cache:train:1", "kv-cache:decode", "kv-cache:decode:x", "odd"] {
        let given = replay(case).flags.into_iter().find(|f| f.flag == "--case").unwrap();
        assert!(matches!(given.verdict, Verdict::NotUnderstood(_)), "{case}: {:?}", given.verdict);
    }
}
