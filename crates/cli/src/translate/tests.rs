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
