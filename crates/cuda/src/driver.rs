//! A device behind NVIDIA's driver: one context, one stream, modules kept by digest, captured graphs.

mod maps;

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result, sys};
use tare_core::Fault;
use tare_ops::{Isa, IsaSet, OpError};

use crate::cubins::Cubins;
use crate::device::{Address, Device, Edge, GraphId, KernelId, Launch, Taken, TileMap, Tiled, failed};
use crate::nvrtc::Nvrtc;
use crate::probe::{CudaInfo, Opened, open, say};
use crate::units::Unit;

/// Bytes of pinned memory through which a step's changes travel.
const STAGING_BYTES: usize = 4 << 20;

/// The architecture whose products of warpgroups kernels are written for.
const HOPPER: &str = "sm_90a";
/// Bytes of shared memory that a block gets without being asked whether it may.
const PLAIN_SHARED: u32 = 48 << 10;

/// How a device is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaConfig {
    /// Which device: 0 is the first.
    pub ordinal: usize,
    /// Folder in which compiled kernels are kept from one process to the next; none keeps nothing.
    pub cache: Option<PathBuf>,
    /// Waits after each launch and records nothing, so that an error names its kernel.
    pub stepwise: bool,
}

/// A CUDA device.
pub struct Driver {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    nvrtc: Nvrtc,
    info: CudaInfo,
    /// Whether launches may overlap: programmatic dependent launch, from compute capability 9.0 on.
    overlaps: bool,
    config: CudaConfig,
    modules: BTreeMap<String, sys::CUmodule>,
    kernels: Vec<sys::CUfunction>,
    names: BTreeMap<(String, String), KernelId>,
    graphs: BTreeMap<usize, Recorded>,
    memory: BTreeMap<u64, usize>,
    taken: Taken,
    /// Where the device's clock is read: at the beginning of a step and at its end.
    clock: (sys::CUevent, sys::CUevent),
    staging: *mut u8,
    /// Bytes of `staging` that may still be read by the device.
    staged: usize,
}

enum Recorded {
    Graph(CudaGraph),
    Launches(Vec<Launch>),
}

// SAFETY: handles of the driver may be used from any thread that has bound the context, which every call does first;
// the pinned memory belongs to this value alone.
unsafe impl Send for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("info", &self.info).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens a device.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(config: CudaConfig) -> Result<Self, OpError> {
        let Opened { context, nvrtc, info } = open(config.ordinal).map_err(|why| {
            Fault::new("cuda", "a device that can be used", why).remedy("`tare doctor` shows what this host has")
        })?;
        let (major, _) = context.compute_capability().map_err(|e| failed("cuda: compute capability", say(&e)))?;
        let stream = context.new_stream().map_err(|e| failed("cuda: stream", say(&e)))?;
        // SAFETY: freed in drop, and never while the device reads it.
        let staging = unsafe { result::malloc_host(STAGING_BYTES, 0) };
        let staging = staging.map_err(|e| failed("cuda: pinned memory", say(&e)))?.cast();
        let event = || result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || event().map_err(|e| failed("cuda: event", say(&e)));
        let clock = (event()?, event()?);
        Ok(Self {
            context,
            stream,
            nvrtc,
            info,
            overlaps: major >= 9,
            config,
            modules: BTreeMap::new(),
            kernels: Vec::new(),
            names: BTreeMap::new(),
            graphs: BTreeMap::new(),
            memory: BTreeMap::new(),
            taken: Taken::default(),
            clock,
            staging,
            staged: 0,
        })
    }

    /// What was opened.
    pub fn info(&self) -> &CudaInfo {
        &self.info
    }

    fn bind(&self, call: &str) -> Result<sys::CUstream, OpError> {
        self.context.bind_to_thread().map_err(|e| failed(call, say(&e)))?;
        Ok(self.stream.cu_stream())
    }

    /// Waits for everything; what was staged is free again.
    fn wait(&mut self, call: &str) -> Result<(), OpError> {
        let stream = self.bind(call)?;
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(stream) }.map_err(|e| failed(call, say(&e)))?;
        self.staged = 0;
        Ok(())
    }

    /// The compiler for this device, and where it keeps what it made.
    pub fn cubins(&self) -> Cubins<'_> {
        Cubins { nvrtc: &self.nvrtc, arch: &self.info.arch, folder: self.config.cache.as_deref() }
    }

    fn module(&mut self, unit: &Unit) -> Result<sys::CUmodule, OpError> {
        if let Some(module) = self.modules.get(&unit.name) {
            return Ok(*module);
        }
        let cubin = self.cubins().of(unit)?;
        self.bind(&unit.name)?;
        // SAFETY: a whole cubin, which begins with its own size.
        let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
        let module = module.map_err(|e| failed(&unit.name, say(&e)))?;
        self.modules.insert(unit.name.clone(), module);
        Ok(module)
    }

    fn start(&self, launch: &Launch, stream: sys::CUstream) -> Result<(), OpError> {
        let mut params = [launch.args.as_ptr().cast_mut().cast::<c_void>()];
        let early = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value: early };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0,
            gridDimY: launch.grid.1,
            gridDimZ: 1,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(launch.early && self.overlaps),
        };
        let function = self.kernels[launch.kernel.0];
        if launch.shared > PLAIN_SHARED {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a kernel of a loaded module; the driver refuses what a block cannot have.
            unsafe { result::function::set_function_attribute(function, attribute, launch.shared as i32) }
                .map_err(|e| failed(&launch.key, say(&e)))?;
        }
        // SAFETY: the kernel takes one structure, whose bytes these are: programs are built from the types of `args`. The
        // attribute lives until the call has returned.
        let started = unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), std::ptr::null_mut()).result()
        };
        started.map_err(|e| failed(&launch.key, say(&e)))
    }

    fn capture(&self, launches: &[Launch]) -> Result<CudaGraph, OpError> {
        let at = "recording of a step";
        let stream = self.bind(at)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(|e| failed(at, say(&e)))?;
        let started = launches.iter().try_for_each(|launch| self.start(launch, stream));
        let ended = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        started?;
        let graph = ended.map_err(|e| failed(at, say(&e)))?.ok_or_else(|| failed(at, "nothing was recorded"))?;
        graph.upload().map_err(|e| failed(at, say(&e)))?;
        Ok(graph)
    }
}

impl Device for Driver {
    fn describe(&self) -> String {
        let CudaInfo { name, arch, driver, nvrtc, .. } = &self.info;
        format!("{name} ({arch}, driver for CUDA {driver}, compiler {nvrtc})")
    }

    fn isa(&self) -> IsaSet {
        let hopper = (self.info.arch == HOPPER).then_some(Isa::Hopper);
        IsaSet::new(hopper.into_iter().chain([Isa::Cuda]))
    }

    fn multiprocessors(&self) -> u32 {
        self.info.multiprocessors
    }

    fn alloc(&mut self, what: &str, bytes: usize) -> Result<Address, OpError> {
        self.bind(what)?;
        // SAFETY: freed in `free` or in drop.
        let at = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(|e| match e {
            DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                OpError::OutOfMemory { what: what.to_string(), bytes, device: self.info.name.clone() }
            }
            other => failed(what, say(&other)),
        })?;
        self.memory.insert(at, bytes);
        self.taken.add(bytes);
        Ok(Address(at))
    }

    fn free(&mut self, at: Address) {
        let Some(bytes) = self.memory.remove(&at.0) else { return };
        self.taken.give(bytes);
        // A device that has failed frees its memory with its context.
        if self.wait("free").is_ok() {
            // SAFETY: came from `alloc`, was not freed before, and nothing that runs uses it.
            unsafe { result::free_sync(at.0) }.ok();
        }
    }

    fn fill(&mut self, at: Address, bytes: usize, value: u8) -> Result<(), OpError> {
        let stream = self.bind("fill")?;
        // SAFETY: the backend fills what it allocated.
        unsafe { result::memset_d8_async(at.0, value, bytes, stream) }.map_err(|e| failed("fill", say(&e)))
    }

    fn upload(&mut self, at: Address, bytes: &[u8]) -> Result<(), OpError> {
        let stream = self.bind("upload")?;
        if bytes.len() > STAGING_BYTES {
            // SAFETY: the source lives until the wait below has ended.
            unsafe { result::memcpy_htod_async(at.0, bytes, stream) }.map_err(|e| failed("upload", say(&e)))?;
            return self.wait("upload");
        }
        if self.staged + bytes.len() > STAGING_BYTES {
            self.wait("upload")?;
        }
        // SAFETY: the bytes after `staged` are inside the pinned memory, and the device reads none of them yet.
        let part = unsafe { std::slice::from_raw_parts_mut(self.staging.add(self.staged), bytes.len()) };
        part.copy_from_slice(bytes);
        self.staged = (self.staged + bytes.len()).next_multiple_of(16);
        // SAFETY: pinned memory that is not written again before the next wait.
        unsafe { result::memcpy_htod_async(at.0, part, stream) }.map_err(|e| failed("upload", say(&e)))
    }

    fn download(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), OpError> {
        let stream = self.bind("download")?;
        if self.staged + bytes.len() > STAGING_BYTES {
            // SAFETY: the target lives until the wait below has ended.
            let copied = unsafe { result::memcpy_dtoh_async(bytes, at.0, stream) };
            copied.map_err(|e| failed("download", say(&e)))?;
            return self.wait("the step");
        }
        // SAFETY: the bytes after `staged` are inside the pinned memory, and nothing else uses them.
        let part = unsafe { std::slice::from_raw_parts_mut(self.staging.add(self.staged), bytes.len()) };
        // SAFETY: pinned memory that nobody touches before the wait below has ended.
        let copied = unsafe { result::memcpy_dtoh_async(part, at.0, stream) };
        copied.map_err(|e| failed("download", say(&e)))?;
        self.wait("the step")?;
        bytes.copy_from_slice(part);
        Ok(())
    }

    fn kernel(&mut self, unit: &Unit, name: &str) -> Result<KernelId, OpError> {
        let key = (unit.name.clone(), name.to_string());
        if let Some(id) = self.names.get(&key) {
            return Ok(*id);
        }
        let module = self.module(unit)?;
        let symbol = CString::new(name).map_err(|e| failed(name, e.to_string()))?;
        // SAFETY: modules live until drop.
        let function = unsafe { result::module::get_function(module, symbol) };
        let id = KernelId(self.kernels.len());
        self.kernels.push(function.map_err(|e| failed(name, say(&e)))?);
        self.names.insert(key, id);
        Ok(id)
    }

    fn tile_map(&mut self, matrix: Tiled) -> Result<TileMap, OpError> {
        self.bind("map of a matrix in tiles")?;
        maps::encode(matrix)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), OpError> {
        let stream = self.bind(&launch.key)?;
        self.start(launch, stream)?;
        if self.config.stepwise { self.wait(&launch.key) } else { Ok(()) }
    }

    fn record(&mut self, launches: &[Launch]) -> Result<GraphId, OpError> {
        let id = self.graphs.keys().next_back().map_or(0, |last| last + 1);
        let recorded = match self.config.stepwise || launches.is_empty() {
            true => Recorded::Launches(launches.to_vec()),
            false => Recorded::Graph(self.capture(launches)?),
        };
        self.graphs.insert(id, recorded);
        Ok(GraphId(id))
    }

    fn replay(&mut self, graph: GraphId) -> Result<(), OpError> {
        let launches = match self.graphs.get(&graph.0) {
            Some(Recorded::Graph(graph)) => return graph.launch().map_err(|e| failed("the step", say(&e))),
            Some(Recorded::Launches(launches)) => launches.clone(),
            None => return Err(failed("the step", "there is no such recording")),
        };
        launches.iter().try_for_each(|launch| self.launch(launch))
    }

    fn forget(&mut self, graph: GraphId) {
        if self.wait("forget").is_ok() {
            self.graphs.remove(&graph.0);
        }
    }

    fn tick(&mut self, edge: Edge) -> Result<(), OpError> {
        let stream = self.bind("the clock")?;
        let event = if edge == Edge::Begin { self.clock.0 } else { self.clock.1 };
        // SAFETY: events and stream live as long as this value.
        unsafe { result::event::record(event, stream) }.map_err(|e| failed("the clock", say(&e)))
    }

    fn finish(&mut self) -> Result<(), OpError> {
        self.wait("the end")
    }

    fn ticked_ns(&mut self) -> Result<Option<u64>, OpError> {
        self.bind("the clock")?;
        // SAFETY: both events live as long as this value.
        let ms = unsafe { result::event::elapsed(self.clock.0, self.clock.1) };
        ms.map(|ms| Some(((f64::from(ms) * 1e6) as u64).max(1))).map_err(|e| failed("the clock", say(&e)))
    }

    fn memory(&self) -> Taken {
        self.taken
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.wait("the end").ok();
        self.graphs.clear();
        for module in std::mem::take(&mut self.modules).into_values() {
            // SAFETY: loaded by us, and no kernel of it runs.
            unsafe { result::module::unload(module) }.ok();
        }
        for at in std::mem::take(&mut self.memory).into_keys() {
            // SAFETY: allocated by us and not freed before.
            unsafe { result::free_sync(at) }.ok();
        }
        for event in [self.clock.0, self.clock.1] {
            // SAFETY: created by `open`; the device has been waited for.
            unsafe { result::event::destroy(event) }.ok();
        }
        // SAFETY: pinned by `open`; the device has been waited for.
        unsafe { result::free_host(self.staging.cast()) }.ok();
    }
}
