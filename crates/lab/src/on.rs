//! Which device an engine under test runs on.

use std::path::Path;
use tare_core::{Fault, Reading};
use tare_cpu::{CpuBackend, CpuConfig};
use tare_cuda::nvml::{self, DeviceState};
use tare_cuda::{CudaBackend, CudaConfig, Driver};
use tare_model::{Model, ModelError, classes};
use tare_ops::{Backend, Class, OpError};

/// A concrete backend by name. Whoever judges runs on the processor, whatever is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum On {
    /// The processors of this host.
    #[default]
    Cpu,
    /// A CUDA device.
    Cuda(CudaConfig),
}

impl On {
    /// The backend that an arm of a study names. `kernels` is the folder in which a device's kernels are kept.
    ///
    /// # Errors
    /// When there is no backend of that name.
    pub fn named(name: &str, kernels: &Path) -> Result<Self, Fault> {
        match name {
            "cpu" => Ok(On::Cpu),
            "cuda" => Ok(On::Cuda(CudaConfig { cache: Some(kernels.into()), ..CudaConfig::default() })),
            other => Err(Fault::new("backend", "cpu or cuda", format!("`{other}`"))),
        }
    }

    /// Its name, as arms and records have it.
    pub fn name(&self) -> &'static str {
        match self {
            On::Cpu => "cpu",
            On::Cuda(_) => "cuda",
        }
    }

    /// The class that `model` runs in there: the one asked for, else the one of its weights in which an answer depends on
    /// its request alone; on a processor, where they are packed, that with activations in integers of 15 bits by 32.
    ///
    /// # Errors
    /// As [`classes::choose`].
    pub fn class(&self, model: &Model, asked: Option<&str>) -> Result<Class, ModelError> {
        match self {
            On::Cpu => classes::choose(model, asked),
            On::Cuda(_) => classes::choose_for_device(model, asked),
        }
    }

    /// Rows of one prefill chunk: enough that a chunk is bound by arithmetic, few enough that others need not wait long.
    pub fn max_rows(&self) -> usize {
        match self {
            On::Cpu => 512,
            On::Cuda(_) => 2048,
        }
    }

    /// What the device does now, as its driver tells it; none where there is no device.
    pub fn device_state(&self) -> Option<Reading<DeviceState>> {
        match self {
            On::Cpu => None,
            On::Cuda(config) => Some(nvml::state(config.ordinal)),
        }
    }

    /// The backend; `cpu` is how the processors are used when they are asked for.
    ///
    /// # Errors
    /// When the host cannot give it.
    pub fn backend(&self, cpu: &CpuConfig) -> Result<Box<dyn Backend>, OpError> {
        match self {
            On::Cpu => Ok(Box::new(CpuBackend::new(cpu.clone())?)),
            On::Cuda(config) => Ok(Box::new(CudaBackend::new(Driver::open(config.clone())?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_meet_integers_on_a_processor_alone_unless_somebody_asks() {
        let model = Model::open("synthetic:qwen3-tiny?format=q4_0").unwrap();
        for (on, unasked) in [(On::Cpu, "w4a15"), (On::Cuda(CudaConfig::default()), "w4a16")] {
            let of = |asked: Option<&str>| on.class(&model, asked).map(|class| class.name);
            assert_eq!(of(None).unwrap(), unasked);
            for asked in ["w4a15", "w4a16", "w4a16-free", "f32"] {
                assert_eq!(of(Some(asked)).unwrap(), asked, "{on:?}");
            }
            let said = of(Some("w8a16")).unwrap_err().to_string();
            assert!(said.contains(&format!("which takes {unasked}")), "{said}");
        }
    }
}
