//! Whether this host has a CUDA device that tare can use, and why not.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, DriverError, result, sys};
use serde::Serialize;
use tare_core::Reading;

use crate::nvrtc::Nvrtc;

/// The oldest driver whose functions are all that the backend calls.
const OLDEST_DRIVER: i32 = 12_000;
/// The oldest architecture that the kernels are written for: 8.0.
const OLDEST_ARCH: (i32, i32) = (8, 0);

/// A device that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CudaInfo {
    /// `NVIDIA H200`.
    pub name: String,
    /// What kernels are compiled for: `sm_90a`.
    pub arch: String,
    /// Newest CUDA version that the driver knows: `13.0`.
    pub driver: String,
    /// Version of the run-time compiler.
    pub nvrtc: String,
    /// Memory of the device.
    pub memory_bytes: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
}

/// What a device is opened with.
pub(crate) struct Opened {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) nvrtc: Nvrtc,
    pub(crate) info: CudaInfo,
}

/// Device `ordinal`, or why it cannot be used.
pub fn probe(ordinal: usize) -> Reading<CudaInfo> {
    Reading::from(open(ordinal).map(|o| o.info))
}

/// Opens device `ordinal`.
///
/// # Errors
/// Why it cannot be used.
pub(crate) fn open(ordinal: usize) -> Result<Opened, String> {
    // SAFETY: loads and unloads the driver's library, whose initialisers touch nothing of ours. Nothing else of the
    // driver may be called before this has said yes.
    if !unsafe { sys::is_culib_present() } {
        return Err("the library of an NVIDIA driver (libcuda.so.1) is not on the loader's path".into());
    }
    let driver = driver_version()?;
    if driver < OLDEST_DRIVER {
        return Err(format!("the driver knows CUDA {}, and tare needs {}", dotted(driver), dotted(OLDEST_DRIVER)));
    }
    let nvrtc = Nvrtc::find()?;
    let (major, minor) = nvrtc.version();
    if driver / 1000 < major {
        return Err(format!(
            "the driver knows CUDA {} and cannot load what the run-time compiler {major}.{minor} makes",
            dotted(driver)
        ));
    }
    result::init().map_err(|e| say(&e))?;
    let count = result::device::get_count().map_err(|e| say(&e))?;
    if ordinal >= usize::try_from(count).unwrap_or(0) {
        return Err(format!("there is no device {ordinal}: the driver lists {count}"));
    }
    let context = CudaContext::new(ordinal).map_err(|e| say(&e))?;
    // SAFETY: nothing has been allocated, and the backend orders its work on one stream.
    unsafe { context.disable_event_tracking() };
    let arch = context.compute_capability().map_err(|e| say(&e))?;
    if arch < OLDEST_ARCH {
        return Err(format!("the device has compute capability {}.{}, and kernels need 8.0", arch.0, arch.1));
    }
    let multiprocessors =
        context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(|e| say(&e))?;
    let info = CudaInfo {
        name: context.name().map_err(|e| say(&e))?,
        arch: arch_name(arch),
        driver: dotted(driver),
        nvrtc: format!("{major}.{minor}"),
        memory_bytes: context.total_mem().map_err(|e| say(&e))? as u64,
        multiprocessors: multiprocessors as u32,
    };
    Ok(Opened { context, nvrtc, info })
}

/// The target with a device's own instructions where it has some.
fn arch_name((major, minor): (i32, i32)) -> String {
    let own = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

fn driver_version() -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: a pointer to an integer of ours; every driver has this function.
    let code = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    code.result().map_err(|e| say(&e))?;
    Ok(version)
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// An error of the driver in its own words.
pub(crate) fn say(e: &DriverError) -> String {
    let text = |c: Result<&std::ffi::CStr, DriverError>| c.map(|c| c.to_string_lossy().into_owned()).ok();
    let name = text(e.error_name()).unwrap_or_else(|| format!("{:?}", e.0));
    text(e.error_string()).map_or_else(|| name.clone(), |s| format!("{name}: {s}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_device_says_why_and_one_with_a_device_names_it() {
        match probe(0) {
            Reading::Available(info) => assert!(info.arch.starts_with("sm_"), "{info:?}"),
            Reading::Unavailable { why } => assert!(!why.is_empty()),
        }
        assert!(probe(4096).available().is_none(), "no host has so many");
    }

    #[test]
    fn versions_and_targets_are_written_as_people_write_them() {
        assert_eq!((dotted(13_000), dotted(12_080)), ("13.0".into(), "12.8".into()));
        assert_eq!((arch_name((9, 0)), arch_name((8, 6))), ("sm_90a".into(), "sm_86".into()));
    }
}
