//! Against values that were not made by tare.

use crate::rig::{PAGED, PLAIN, Rig, full, prompts, run};

#[test]
fn greedy_ids_and_prompt_logits_are_those_of_the_golden_file() {
    let folder = tare_testkit::goldens().join("models/qwen3-tiny");
    let golden = tare_testkit::json(folder.join("golden.json"));
    let tensors = tare_testkit::Tensors::open(folder.join("golden.safetensors"));
    for rig in [PLAIN, PAGED, Rig { plan: "kv-cache", ..PLAIN }, Rig { plan: "recompute", ..PLAIN }] {
        let mut engine = rig.engine();
        for (i, prompt) in prompts().iter().enumerate() {
            let ended = run(&mut engine, full(prompt, 24));
            let ids: Vec<u32> = serde_json::from_value(golden["greedy"]["bf16"][i]["ids"].clone()).unwrap();
            assert_eq!(ended.answer.tokens, ids, "{} prompt {i}", rig.plan);
            let got: Vec<f32> =
                ended.answer.logits[..prompt.len()].iter().flatten().map(|b| f32::from_bits(*b)).collect();
            let (_, want) = tensors.f32(&format!("bf16.logits.p{i}"));
            tare_testkit::assert_close(&got, &want, 2e-4, 0.0, &format!("{} prompt {i}", rig.plan));
        }
    }
}
