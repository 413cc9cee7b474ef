//! Every file of the corpus through every fuzz entry point: what fuzzing found once stays found.

use std::fs;
use std::path::Path;
use tare_formats::fuzz;

#[test]
fn the_corpus_runs_without_a_panic() {
    run("gguf", fuzz::gguf);
    run("safetensors", fuzz::safetensors_header);
    run("config", fuzz::config);
}

fn run(target: &str, entry_point: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!files.is_empty(), "no corpus for {target}");
    for file in files {
        entry_point(&fs::read(file).unwrap());
    }
}
