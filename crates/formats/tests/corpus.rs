//! Every file of the corpus through every fuzz entry point: what fuzzing found once stays found.

use std::fs;
use std::path::Path;
use tare_formats::fuzz;

#[test]
fn the_corpus_runs_without_a_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let targets: [(&str, fn(&[u8])); 3] =
        [("gguf", fuzz::gguf), ("safetensors", fuzz::safetensors_header), ("config", fuzz::config)];
    for (name, run) in targets {
        let mut files = 0;
        for entry in fs::read_dir(root.join(name)).unwrap() {
            run(&fs::read(entry.unwrap().path()).unwrap());
            files += 1;
        }
        assert!(files > 0, "no corpus for {name}");
    }
}
