//! A model, a request and made-up ceilings.

use tare_core::Reading;
use tare_cpu::{CpuConfig, detect_isa};
use tare_lab::replay::{Replay, Replaying, Warmth};
use tare_lab::specimen::Phase;
use tare_lab::{ClockedRequest, Lengths, On, Rig};
use tare_model::{Model, PlanSpec};
use tare_ops::Class;
use tare_probe::cache::Cache;
use tare_probe::ceilings::{Ceilings, Readings};
use tare_probe::{Host, Quietness};

/// A model and a request for it.
pub(crate) struct Scene {
    pub(crate) model: Model,
    pub(crate) request: ClockedRequest,
    class: Class,
}

impl Scene {
    pub(crate) fn new(spec: &str, depth: usize) -> Self {
        let model = Model::open(spec).unwrap();
        let lengths = Lengths { depth, prompt_tokens: 20, output_tokens: 4 };
        let request = ClockedRequest::drawn(lengths, model.config().vocab, 1).unwrap();
        // The plain class of the weights: where activations become integers, stages of their own stand before linears, and
        // tests look at the stages of a group one by one.
        let class = On::Cpu.class(&model, None).unwrap().plain();
        Self { model, request, class }
    }

    pub(crate) fn tiny() -> Self {
        Self::new("synthetic:qwen3-tiny?format=w4g128", 0)
    }

    pub(crate) fn rig(&self, plan: &str) -> Rig<'_> {
        Rig {
            model: &self.model,
            on: On::Cpu,
            cpu: CpuConfig { threads: 2, isa: detect_isa(), pin: false, keep_workers: false },
            plan: PlanSpec::find(plan).unwrap(),
            class: self.class,
            sequences: 1,
            context: self.request.total_tokens(),
            max_rows: 32,
            delay: None,
        }
    }

    pub(crate) fn replay(&self, rig: &Rig<'_>, phase: Phase, iterations: usize, warmth: Warmth) -> Replay {
        let (host, ceilings) = (small_host(), made_up());
        let request = &self.request;
        let of = Replaying { rig, request, phase, iterations, warmth, host: &host, ceilings: &ceilings };
        of.run(&mut |_| true).unwrap()
    }
}

/// This host with a last-level cache that a few copies of a tiny model exceed.
pub(crate) fn small_host() -> Host {
    let mut host = Host::read();
    host.cpu.caches.l3 = Reading::Available(Cache { bytes_each: 4 << 20, instances: 1 });
    host
}

/// Ceilings that need no measurement: 10 GB/s and 100 Gflop/s.
pub(crate) fn made_up() -> Ceilings {
    let (bytes, flops) = (Reading::Available(10_000_000_000), Reading::Available(100_000_000_000));
    Ceilings {
        readings: Readings {
            read_1t_bytes_per_s: bytes.clone(),
            read_all_bytes_per_s: bytes,
            fma_f32_1t_flop_per_s: flops.clone(),
            fma_f32_all_flop_per_s: flops.clone(),
            dot_int8_1t_op_per_s: flops.clone(),
            dot_int8_all_op_per_s: flops.clone(),
            tiles_1t_flop_per_s: flops.clone(),
            tiles_all_flop_per_s: flops.clone(),
            tile_registers_all_flop_per_s: flops,
        },
        threads: 2,
        quietness: Quietness::observe(std::time::Duration::ZERO),
        series: Vec::new(),
        spent_ns: 0,
    }
}
