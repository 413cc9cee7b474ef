//! NVIDIA's management library, loaded when it is asked: what a device is and does, as its driver tells it.
//!
//! Devices are numbered as the library numbers them, which is by their place on the bus; a process that is shown other
//! devices than the first ones (CUDA_VISIBLE_DEVICES) numbers them otherwise.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;

use libloading::Library;
use serde::{Deserialize, Serialize};
use tare_core::Reading;

/// Names under which the library is looked for.
const NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// Bytes of the longest text, its end included.
const TEXT: usize = 96;
/// The library's words for clocks and sensors.
const SM_CLOCK: c_int = 1;
const MEMORY_CLOCK: c_int = 2;
const DIE: c_int = 0;
const MHZ: u64 = 1_000_000;

/// Why clocks are not at their highest, by the library's bits.
const THROTTLE_REASONS: [(u64, &str); 9] = [
    (0x1, "idle"),
    (0x2, "application clocks"),
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
    (0x100, "display clocks"),
];

/// The library's `nvmlReturn_t`: 0 is success.
type Code = c_int;
type Handle = *mut c_void;

/// What a device does at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceState {
    /// `NVIDIA H200`.
    pub name: Reading<String>,
    /// Version of the driver.
    pub driver: Reading<String>,
    /// Clock of the multiprocessors.
    pub sm_hz: Reading<u64>,
    /// The highest that it can be.
    pub most_sm_hz: Reading<u64>,
    /// Clock of the memory.
    pub memory_hz: Reading<u64>,
    /// Power that it draws.
    pub milliwatts: Reading<u64>,
    /// Power that it may draw.
    pub most_milliwatts: Reading<u64>,
    /// Temperature of the die.
    pub celsius: Reading<u64>,
    /// Why clocks are not at their highest; empty when they are.
    pub throttle_reasons: Reading<Vec<String>>,
    /// Memory that is taken, by whomever.
    pub memory_used_bytes: Reading<u64>,
}

/// What device `ordinal` is called, or why nobody says.
pub fn name(ordinal: usize) -> Reading<String> {
    Reading::from(Nvml::find().and_then(|nvml| nvml.device(ordinal).and_then(|d| nvml.name(d))))
}

/// What device `ordinal` does now, or why nobody says.
pub fn state(ordinal: usize) -> Reading<DeviceState> {
    Reading::from(Nvml::find().and_then(|nvml| nvml.device(ordinal).map(|d| nvml.state(d))))
}

/// The library between its beginning and its end.
struct Nvml {
    library: Library,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvml")
    }
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct MemoryInfo {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

impl Nvml {
    fn find() -> Result<Self, String> {
        let mut last = String::new();
        for name in NAMES {
            // SAFETY: the library's initialisers touch nothing of ours.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    let init = call::<unsafe extern "C" fn() -> Code>(&library, c"nvmlInit_v2")?;
                    // SAFETY: takes nothing; `drop` ends what it begins, and is reached once it has begun.
                    let code = unsafe { init() };
                    expect(&library, code, "nvmlInit_v2")?;
                    return Ok(Self { library });
                }
                Err(e) => last = e.to_string(),
            }
        }
        Err(format!("NVIDIA's management library is not on the loader's path ({}): {last}", NAMES.join(", ")))
    }

    fn device(&self, ordinal: usize) -> Result<Handle, String> {
        let at = c"nvmlDeviceGetHandleByIndex_v2";
        let get = call::<unsafe extern "C" fn(c_uint, *mut Handle) -> Code>(&self.library, at)?;
        let index = c_uint::try_from(ordinal).map_err(|_| format!("there is no device {ordinal}"))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place of ours for the handle.
        let code = unsafe { get(index, &raw mut handle) };
        expect(&self.library, code, "nvmlDeviceGetHandleByIndex_v2")?;
        Ok(handle)
    }

    fn state(&self, device: Handle) -> DeviceState {
        let hz = |mhz: Result<c_uint, String>| Reading::from(mhz.map(|n| u64::from(n) * MHZ));
        let whole = |n: Result<c_uint, String>| Reading::from(n.map(u64::from));
        DeviceState {
            name: Reading::from(self.name(device)),
            driver: Reading::from(self.driver()),
            sm_hz: hz(self.of_kind(c"nvmlDeviceGetClockInfo", device, SM_CLOCK)),
            most_sm_hz: hz(self.of_kind(c"nvmlDeviceGetMaxClockInfo", device, SM_CLOCK)),
            memory_hz: hz(self.of_kind(c"nvmlDeviceGetClockInfo", device, MEMORY_CLOCK)),
            milliwatts: whole(self.value(c"nvmlDeviceGetPowerUsage", device)),
            most_milliwatts: whole(self.value(c"nvmlDeviceGetEnforcedPowerLimit", device)),
            celsius: whole(self.of_kind(c"nvmlDeviceGetTemperature", device, DIE)),
            throttle_reasons: Reading::from(
                self.value::<c_ulonglong>(c"nvmlDeviceGetCurrentClocksThrottleReasons", device).map(reasons),
            ),
            memory_used_bytes: Reading::from(
                self.value::<MemoryInfo>(c"nvmlDeviceGetMemoryInfo", device).map(|m| m.used),
            ),
        }
    }

    fn name(&self, device: Handle) -> Result<String, String> {
        type Get = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Code;
        let get = call::<Get>(&self.library, c"nvmlDeviceGetName")?;
        let mut text = [0u8; TEXT];
        // SAFETY: a live handle, and as many bytes as are said.
        let code = unsafe { get(device, text.as_mut_ptr().cast(), TEXT as c_uint) };
        expect(&self.library, code, "nvmlDeviceGetName")?;
        Ok(until_end(&text))
    }

    fn driver(&self) -> Result<String, String> {
        type Get = unsafe extern "C" fn(*mut c_char, c_uint) -> Code;
        let get = call::<Get>(&self.library, c"nvmlSystemGetDriverVersion")?;
        let mut text = [0u8; TEXT];
        // SAFETY: as many bytes as are said.
        let code = unsafe { get(text.as_mut_ptr().cast(), TEXT as c_uint) };
        expect(&self.library, code, "nvmlSystemGetDriverVersion")?;
        Ok(until_end(&text))
    }

    /// What a function of a device writes: an integer, or [`MemoryInfo`].
    fn value<T: Copy + Default>(&self, function: &CStr, device: Handle) -> Result<T, String> {
        let get = call::<unsafe extern "C" fn(Handle, *mut T) -> Code>(&self.library, function)?;
        let mut value = T::default();
        // SAFETY: a live handle and a place of the type that the function writes.
        let code = unsafe { get(device, &raw mut value) };
        expect(&self.library, code, &function.to_string_lossy())?;
        Ok(value)
    }

    /// What a function of a device and a kind (of clock, of sensor) writes.
    fn of_kind(&self, function: &CStr, device: Handle, kind: c_int) -> Result<c_uint, String> {
        type Get = unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> Code;
        let get = call::<Get>(&self.library, function)?;
        let mut value = 0;
        // SAFETY: a live handle and a place of ours.
        let code = unsafe { get(device, kind, &raw mut value) };
        expect(&self.library, code, &function.to_string_lossy())?;
        Ok(value)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Ok(shutdown) = call::<unsafe extern "C" fn() -> Code>(&self.library, c"nvmlShutdown") {
            // SAFETY: ends what `find` began; nothing of it is used afterwards.
            unsafe { shutdown() };
        }
    }
}

fn call<F: Copy>(library: &Library, name: &CStr) -> Result<F, String> {
    // SAFETY: each caller names the type that NVML's header declares, which has not changed since version 11.
    let found = unsafe { library.get::<F>(name.to_bytes_with_nul()) };
    found.map(|f| *f).map_err(|e| e.to_string())
}

fn expect(library: &Library, code: Code, what: &str) -> Result<(), String> {
    if code == 0 {
        return Ok(());
    }
    let say = call::<unsafe extern "C" fn(Code) -> *const c_char>(library, c"nvmlErrorString");
    // SAFETY: the library answers any code with a text of its own.
    let text = say.map(|say| unsafe { CStr::from_ptr(say(code)) }.to_string_lossy().into_owned());
    Err(format!("{what}: {}", text.unwrap_or_else(|_| format!("code {code}"))))
}

fn until_end(text: &[u8]) -> String {
    CStr::from_bytes_until_nul(text).map_or_else(|_| String::new(), |s| s.to_string_lossy().into_owned())
}

/// The names of the bits that are set; bits without a name are told by their number.
fn reasons(bits: c_ulonglong) -> Vec<String> {
    let known = THROTTLE_REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).to_string());
    let named: u64 = THROTTLE_REASONS.iter().map(|(bit, _)| bit).sum();
    let rest = bits & !named;
    known.chain((rest != 0).then(|| format!("bits {rest:#x}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_library_says_why_and_one_with_it_names_its_device() {
        match (name(0), state(0)) {
            (Reading::Available(name), Reading::Available(state)) => {
                assert_eq!(state.name.available(), Some(&name));
                assert!(state.memory_used_bytes.available().is_some(), "{state:?}");
            }
            (Reading::Unavailable { why }, Reading::Unavailable { .. }) => assert!(!why.is_empty()),
            (name, state) => panic!("{name:?} and {state:?}"),
        }
        assert!(name(usize::MAX).available().is_none(), "no host has so many");
    }

    #[test]
    fn reasons_are_told_by_name_and_unknown_bits_by_number() {
        assert!(reasons(0).is_empty());
        assert_eq!(reasons(0x5), ["idle", "software power cap"]);
        assert_eq!(reasons(0x1000 | 0x40), ["hardware thermal slowdown", "bits 0x1000"]);
    }
}
