//! `tare accuracy` and files with a head of their own, through the binary, on a tiny model.

mod home;

use home::Home;
use serde_json::Value;
use tare_core::Format;
use tare_formats::convert::Target;

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_head_in_q6_k_over_layers_in_q4_0_is_told_and_passes_the_gate() {
    let home = Home::new();
    let model = home.path("mixed.gguf");
    let model = text(&model);
    let write = ["quantize", "-m", "synthetic:qwen3-tiny?format=bf16", "--format", "q4_0", "--head-format"];
    let v = home.json(&[&write[..], &["q6_k", "-o", model, "--json"]].concat());
    assert_eq!((&v["format"], &v["head_format"]), (&"q4_0".into(), &"q6_k".into()));
    let v = home.json(&["inspect", model, "--json"]);
    let tensors = |format: &str| {
        let found = v["formats"].as_array().unwrap().iter().find(|f| f["format"] == format);
        found.unwrap_or_else(|| panic!("no {format}: {}", v["formats"]))["tensors"].as_u64().unwrap()
    };
    assert_eq!((tensors("q6_k"), tensors("q4_0"), &v["model"]["format"]), (1, 28, &"q4_0".into()));
    assert_eq!(v["head_format"], "q6_k");

    for class in ["w4a16", "w4a8"] {
        let v = home.json(&[
            "clock",
            "-m",
            model,
            "--class",
            class,
            "-p",
            "9",
            "-n",
            "5",
            "-r",
            "2",
            "--threads",
            "2",
            "--json",
        ]);
        let record: Value = tare_testkit::json(v["record"].as_str().unwrap());
        let arm = &record["arm"];
        let said = (&arm["class"], &arm["file_format"], &arm["head_format"]);
        assert_eq!(said, (&class.into(), &"q4_0".into(), &"q6_k".into()));
        assert!(record["derived"].is_object(), "the gate passed: {}", record["gate"]);
    }

    let other = home.path("other.gguf");
    let said = home.refused(&[&write[..], &["q5_k", "-o", text(&other)]].concat());
    assert!(said.contains("--head-format: expected q4_0, q6_k"), "{said}");
    let mlx =
        ["quantize", "-m", "synthetic:qwen3-tiny", "--format", "w4g64", "--head-format", "q8_0", "-o", text(&other)];
    assert!(home.refused(&mlx).contains("one packing"));
}

#[test]
fn an_accuracy_is_scored_kept_and_verified() {
    let home = Home::new();
    let ids = home.path("ids.json");
    let drawn: Vec<u32> = (0..41u32).map(|i| i * 389 % 1024).collect();
    std::fs::write(&ids, serde_json::json!(drawn).to_string()).unwrap();
    let ledger = home.path("records");
    let model = "synthetic:qwen3-tiny?format=bf16";
    let mut args = vec!["accuracy", "-m", model, "--ids", text(&ids), "--window", "16", "--threads", "2"];
    args.extend(["-o", text(&ledger)]);
    for arm in ["file:f32", "file:bf16", "q4_0+q6_k:w4a16", "q4_0+q6_k:w4a8", "q8_0:w8a16"] {
        args.extend(["--arm", arm]);
    }
    let v = home.json(&[&args[..], &["--json"]].concat());
    let figures = &v["derived"];
    assert_eq!(figures["scored"], 38, "41 tokens in windows of 16, of which the first of each is not scored");
    let kl = |n: usize| figures["arms"][n]["kl_mean"].as_f64().unwrap();
    assert_eq!((kl(0), &figures["arms"][0]["same_best"]), (0.0, &1.0.into()), "the reference against itself");
    assert!(kl(1) > 0.0 && kl(1) < 0.05, "{figures}");
    assert!(kl(2) > kl(4) && kl(3) > kl(4), "four bits stray farther than eight: {figures}");

    home.run(&["ledger", "verify", text(&ledger)]).success();
    let shown = home.run(&["ledger", "show", v["id"].as_str().unwrap(), "--ledger", text(&ledger)]).success();
    let shown = String::from_utf8_lossy(&shown.get_output().stdout).into_owned();
    assert!(shown.contains("| q4_0+q6_k:w4a8 | w4a8 | q4_0 | q6_k |"), "{shown}");
    home.run(&["report", text(&ledger), "-o", text(&home.path("report.html"))]).success();
    let page = std::fs::read_to_string(home.path("report.html")).unwrap();
    assert!(page.contains("q4_0+q6_k:w4a8") && page.contains("costs in accuracy"));

    let said = home.refused(&["accuracy", "-m", model, "--ids", text(&ids), "--arm", "file:w4a8"]);
    assert!(said.contains("arm file:w4a8") || said.contains("w4a8"), "{said}");
    let said = home.refused(&["accuracy", "-m", model, "--ids", text(&ids), "--arm", "q8_0:llama.cpp"]);
    assert!(said.contains("tare peers install llama.cpp"), "{said}");
}

#[test]
fn a_packing_of_another_encoder_is_made_anew() {
    let home = Home::new();
    let ids = home.path("ids.json");
    std::fs::write(&ids, "[1, 2, 3, 4, 5]").unwrap();
    let score = || {
        let args = ["accuracy", "-m", "synthetic:qwen3-tiny?format=bf16", "--window", "5", "--threads", "2", "--json"];
        let (ids, records) = (text(&ids), home.path("records"));
        let more = ["--arm", "q4_0:w4a16", "--ids", ids, "-o", text(&records)];
        home.json(&[&args[..], &more].concat())["derived"].clone()
    };
    let first = score();
    let written = || {
        let folder = std::fs::read_dir(home.path("written")).unwrap();
        folder.map(|e| e.unwrap().path()).collect::<Vec<_>>()
    };
    let file = written().remove(0);
    let older = text(&file).replace(&Target::gguf(Format::Q4_0).version().unwrap(), "000000000000");
    assert_ne!(older, text(&file), "a packing is kept under what tells its encoder");
    std::fs::rename(&file, &older).unwrap();
    std::fs::write(&older, "what an older encoder wrote").unwrap();
    assert_eq!(score(), first);
    assert!(file.exists() && written().len() == 2, "the older one is left alone");
}
