//! A request in turns is the request: the same tokens and logits as in one turn, whatever rests in between.

use tare_cpu::{CpuConfig, detect_isa};
use tare_lab::clock::{Baton, Turns, clock};
use tare_lab::runner::{Drawn, Runner};
use tare_lab::{ClockedRequest, EngineRunner, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;

const LENGTHS: Lengths = Lengths { depth: 8, prompt_tokens: 20, output_tokens: 12 };

fn rig<'m>(model: &'m Model, plan: &str) -> Rig<'m> {
    Rig {
        model,
        on: On::Cpu,
        cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
        plan: PlanSpec::find(plan).unwrap(),
        class: Class::by_name("w4a16").unwrap(),
        sequences: 1,
        context: 64,
        max_rows: 16,
        delay: None,
    }
}

fn model() -> Model {
    Model::open("synthetic:qwen3-tiny?format=w4g128").unwrap()
}

#[test]
fn turns_of_any_length_draw_what_one_turn_draws() {
    let model = model();
    let request = ClockedRequest::drawn(LENGTHS, model.config().vocab, 1).unwrap();
    let rig = rig(&model, "paged");
    let whole = clock(&mut rig.engine().unwrap(), &request).unwrap();
    let row = &whole.tokens[0];
    assert_eq!((row.ids.len(), row.logits.len(), whole.decode_ns.len()), (12, 12, 11));
    assert!(whole.untimed.is_empty());
    let mut runner = EngineRunner::new(rig.engine().unwrap());
    let mut run = Turns::begin(&mut runner, std::slice::from_ref(&request)).unwrap();
    for (tokens, baton) in [(4, Baton::Returned), (1, Baton::Kept), (0, Baton::Returned), (6, Baton::Returned)] {
        runner.rest().unwrap();
        run.decode(&mut runner, tokens, baton).unwrap();
    }
    assert_eq!(run.drawn(), 11);
    let turned = run.end(&mut runner).unwrap();
    assert_eq!((&turned.tokens, &turned.rows), (&whole.tokens, &whole.rows));
    assert_eq!(turned.untimed, [0, 5], "the first token of a turn that came back; a turn without tokens has none");
    assert!(turned.decode_ns.iter().all(|&ns| ns > 0));
    assert_eq!(turned.timing().untimed, [0, 5]);
}

#[test]
fn a_request_that_is_ended_early_or_not_begun_has_no_time() {
    let model = model();
    let request = ClockedRequest::drawn(LENGTHS, model.config().vocab, 1).unwrap();
    let mut runner = EngineRunner::new(rig(&model, "paged").engine().unwrap());
    let none = runner.finish().unwrap_err().to_string();
    assert!(none.contains("was not prefilled"), "{none}");
    assert!(runner.decode(1, &mut Drawn::default()).is_err());
    let mut run = Turns::begin(&mut runner, std::slice::from_ref(&request)).unwrap();
    run.decode(&mut runner, 3, Baton::Kept).unwrap();
    let early = run.end(&mut runner).unwrap_err().to_string();
    assert!(early.contains("drew 4 of 12 tokens"), "{early}");
}

#[test]
fn more_tokens_than_the_request_has_are_not_drawn() {
    let model = model();
    let request = ClockedRequest::drawn(LENGTHS, model.config().vocab, 1).unwrap();
    let mut runner = EngineRunner::new(rig(&model, "kv-cache").engine().unwrap());
    let mut run = Turns::begin(&mut runner, std::slice::from_ref(&request)).unwrap();
    let error = run.decode(&mut runner, 12, Baton::Kept).unwrap_err().to_string();
    assert!(error.contains("drew 12 of 12 tokens and ended with Some(Length)"), "{error}");
}
