//! A [`Device`] that runs the kernels of this crate on the host: the same text, compiled by the host's C++ compiler.
//!
//! Memory ends at a page that may not be touched, so that reading or writing past it stops the test. Launches run their
//! threads in rising and falling order in turn. A launch that may start early sees nothing of what the launches before it
//! wrote, and may write nothing, until it waits for them. A launch of more threads than its kernel declares is refused, as a
//! device refuses it. Its clock counts launches, each as one nanosecond; one that waits on
//! purpose takes a nanosecond for each cycle that it waits.

mod curtain;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::curtain::{Curtain, draw};
use libloading::Library;
use tare_core::digest::sha256_hex;
use tare_cuda::device::{Address, Device, Edge, GraphId, KernelId, Launch, Taken, TileMap, Tiled, failed};
use tare_cuda::units::Unit;
use tare_ops::{Isa, IsaSet, OpError};

const HOST: &str = concat!(include_str!("host.h"), include_str!("tensor.h"));
/// Bytes of a page, or a multiple of it on every host.
const PAGE: usize = 65_536;
/// Bytes of shared memory that a block may have.
const MOST_SHARED: u32 = 227 << 10;
/// What fresh memory is full of: numbers that spoil every sum.
const FRESH: u8 = 0xa5;

/// Arguments are aligned as kernels may ask.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

type Kernel = unsafe extern "C" fn(*const u8);
type Emulate =
    unsafe extern "C" fn(Kernel, *const u8, *const u32, i32, Option<curtain::Draw>, *mut libc::c_void) -> i32;

/// Cycles that went by in a launch; below 0 when it waited for none.
type Spent = unsafe extern "C" fn() -> i64;

/// A kernel, what runs it, what tells how long it waited, the lock of its unit, and how many threads it declares at most.
type Loaded = (Kernel, Emulate, Spent, &'static Mutex<()>, u32);

/// A compiled unit runs one block at a time and has one copy of what its blocks share: whoever uses it holds its lock.
static LOCKS: Mutex<BTreeMap<String, &'static Mutex<()>>> = Mutex::new(BTreeMap::new());

fn lock_of(unit: &str) -> &'static Mutex<()> {
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    locks.entry(unit.to_string()).or_insert_with(|| Box::leak(Box::new(Mutex::new(()))))
}

fn alone(lock: &'static Mutex<()>) -> MutexGuard<'static, ()> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Emulator {
    libraries: BTreeMap<String, Library>,
    kernels: Vec<Loaded>,
    names: BTreeMap<(String, String), KernelId>,
    graphs: BTreeMap<usize, Vec<Launch>>,
    recorded: usize,
    memory: BTreeMap<u64, Mapping>,
    launched: usize,
    taken: Taken,
    /// Nanoseconds so far.
    clock: u64,
    /// What the clock read at the beginning and at the end.
    read: (u64, u64),
    /// What was written by launches that a launch which starts early may run beside.
    fresh: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    at: *mut libc::c_void,
    bytes: usize,
    asked: usize,
    /// Whether launches write to it: the backend fills what they do.
    working: bool,
}

// SAFETY: the mappings belong to the emulator alone, and libraries may be used from any thread.
unsafe impl Send for Emulator {}

/// The shared library of a unit, compiled unless it was before.
fn library(unit: &Unit) -> Result<PathBuf, String> {
    let text = format!("{HOST}\n#line 1 \"{}\"\n{}", unit.name, unit.text);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stem = sha256_hex(text.as_bytes());
    let library = folder.join(format!("{stem}.so"));
    if library.exists() {
        return Ok(library);
    }
    let (source, part) = (folder.join(format!("{stem}.cpp")), folder.join(format!("{stem}.part")));
    std::fs::write(&source, text).map_err(|e| e.to_string())?;
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-o"]).arg(&part).arg(&source);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        compiler.arg("-mfma");
    }
    let out = compiler.output().map_err(|e| format!("these tests need a C++ compiler named c++: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    std::fs::rename(&part, &library).map_err(|e| e.to_string())?;
    Ok(library)
}

/// The most threads that kernel `name` of `unit` declares for a block; one that a macro writes has the macro's.
pub(crate) fn most_threads(unit: &Unit, name: &str) -> Option<u32> {
    let declared = |name: &str| {
        let beginning = format!("KERNEL({name}, ");
        let all = unit.text.split(beginning.as_str()).skip(1);
        let mut bounds = all.filter_map(|rest| rest.split([',', ')']).nth(1)).map(str::trim);
        // The macro that declares kernels is no kernel.
        bounds.find(|bound| *bound != "...")
    };
    let bound = declared(name).or_else(|| declared("name"))?;
    let definition = format!("#define {bound} ");
    let defined = || unit.text.split(definition.as_str()).nth(1)?.lines().next()?.trim().parse().ok();
    bound.parse().ok().or_else(defined)
}

impl Emulator {
    fn load(&mut self, unit: &Unit) -> Result<&Library, String> {
        if !self.libraries.contains_key(&unit.name) {
            let _alone = alone(lock_of(&unit.name));
            let path = library(unit)?;
            // SAFETY: the library was compiled above, and its initialisers touch nothing of ours.
            let loaded = unsafe { Library::new(path) }.map_err(|e| e.to_string())?;
            self.libraries.insert(unit.name.clone(), loaded);
        }
        self.libraries.get(&unit.name).ok_or_else(|| "not loaded".to_string())
    }

    /// The memory that launches write to.
    fn working(&self) -> Vec<(usize, usize)> {
        self.memory.values().filter(|m| m.working).map(|m| (m.at as usize, m.bytes - PAGE)).collect()
    }
}

impl Device for Emulator {
    fn describe(&self) -> String {
        "this host in the place of a device".into()
    }

    fn isa(&self) -> IsaSet {
        IsaSet::new([Isa::Cuda, Isa::Hopper])
    }

    /// Few, so that blocks have more than one tile to work on, and that small cases reach every tile.
    fn multiprocessors(&self) -> u32 {
        2
    }

    fn alloc(&mut self, what: &str, bytes: usize) -> Result<Address, OpError> {
        let refused = || OpError::OutOfMemory { what: what.into(), bytes, device: "host".into() };
        let used = bytes.max(1).checked_next_multiple_of(PAGE).filter(|n| *n < 1 << 40).ok_or_else(refused)?;
        let whole = used + PAGE;
        let (read, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, whose last page is closed.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), whole, read, private, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(refused());
        }
        // SAFETY: inside the mapping.
        unsafe {
            libc::mprotect(at.byte_add(used), PAGE, libc::PROT_NONE);
            libc::memset(at, i32::from(FRESH), used);
        }
        // Kernels load 16 bytes at most; the end is as near to the closed page as that allows.
        let address = at as u64 + (used - bytes.next_multiple_of(16).min(used)) as u64;
        self.memory.insert(address, Mapping { at, bytes: whole, asked: bytes, working: false });
        self.taken.add(bytes);
        Ok(Address(address))
    }

    fn free(&mut self, at: Address) {
        self.fresh.clear();
        let m = self.memory.remove(&at.0).expect("memory is freed once, and only what was allocated");
        self.taken.give(m.asked);
        // SAFETY: mapped by `alloc`, and not used any more.
        unsafe { libc::munmap(m.at, m.bytes) };
    }

    fn fill(&mut self, at: Address, bytes: usize, value: u8) -> Result<(), OpError> {
        self.fresh.clear();
        if let Some(m) = self.memory.get_mut(&at.0) {
            m.working = true;
        }
        // SAFETY: the backend fills what it allocated; beyond it lies a closed page.
        unsafe { libc::memset(at.0 as *mut libc::c_void, i32::from(value), bytes) };
        Ok(())
    }

    fn upload(&mut self, at: Address, bytes: &[u8]) -> Result<(), OpError> {
        self.fresh.clear();
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.0 as *mut u8, bytes.len()) };
        Ok(())
    }

    fn download(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), OpError> {
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(at.0 as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn kernel(&mut self, unit: &Unit, name: &str) -> Result<KernelId, OpError> {
        let key = (unit.name.clone(), name.to_string());
        if let Some(id) = self.names.get(&key) {
            return Ok(*id);
        }
        let library = self.load(unit).map_err(|e| failed(&unit.name, e))?;
        // SAFETY: the types are those of the kernel macro and of host.h.
        let (kernel, emulate, spent) = unsafe {
            let kernel = library.get::<Kernel>(name.as_bytes()).map_err(|e| failed(name, e.to_string()))?;
            let emulate = library.get::<Emulate>(b"emulate").map_err(|e| failed(name, e.to_string()))?;
            let spent = library.get::<Spent>(b"spent").map_err(|e| failed(name, e.to_string()))?;
            (*kernel, *emulate, *spent)
        };
        let most = most_threads(unit, name).ok_or_else(|| failed(name, "declares no number of threads"))?;
        self.kernels.push((kernel, emulate, spent, lock_of(&unit.name), most));
        let id = KernelId(self.kernels.len() - 1);
        self.names.insert(key, id);
        Ok(id)
    }

    fn tile_map(&mut self, matrix: Tiled) -> Result<TileMap, OpError> {
        let Tiled { at, rows, columns, tile_rows } = matrix;
        assert!(at.0.is_multiple_of(16) && columns.is_multiple_of(64) && tile_rows <= 256, "{matrix:?}");
        let mut map = [0; 16];
        map[..4].copy_from_slice(&[at.0, rows as u64, columns as u64, tile_rows as u64]);
        Ok(map)
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), OpError> {
        let (kernel, emulate, spent, lock, most) = self.kernels[launch.kernel.0];
        if launch.threads > most {
            return Err(failed(&launch.key, format!("{} threads, where its kernel declares {most}", launch.threads)));
        }
        let _alone = alone(lock);
        let shape = [launch.grid.0, launch.grid.1, launch.threads];
        assert!(launch.shared <= MOST_SHARED, "{}: {} bytes of shared memory", launch.key, launch.shared);
        let mut args = vec![Line([0; 64]); launch.args.len().div_ceil(64)];
        for (line, bytes) in args.iter_mut().zip(launch.args.chunks(64)) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        self.launched += 1;
        let backwards = i32::from(self.launched.is_multiple_of(2));
        let working = self.working();
        let before = curtain::copies(&working);
        if !launch.early {
            self.fresh.clear();
        }
        let mut curtain = Curtain::over(&self.fresh, &working);
        let early = launch.early.then_some(draw as curtain::Draw);
        let context = (&raw mut curtain).cast();
        // SAFETY: the kernel reads the one structure that these are the bytes of; the curtain lives until it has ended.
        let ended = unsafe { emulate(kernel, args.as_ptr().cast(), shape.as_ptr(), backwards, early, context) };
        self.fresh.extend(curtain::changes(&working, &before));
        // SAFETY: the lock of the unit is held.
        self.clock += u64::try_from(unsafe { spent() }).unwrap_or(1);
        match ended {
            0 => Ok(()),
            1 => Err(failed(&launch.key, "not every thread reaches a barrier")),
            3 => Err(failed(&launch.key, "starts early and waits for nothing")),
            code => Err(failed(&launch.key, format!("a launch of this shape cannot be emulated ({code})"))),
        }
    }

    fn record(&mut self, launches: &[Launch]) -> Result<GraphId, OpError> {
        self.recorded += 1;
        self.graphs.insert(self.recorded, launches.to_vec());
        Ok(GraphId(self.recorded))
    }

    fn replay(&mut self, graph: GraphId) -> Result<(), OpError> {
        self.fresh.clear();
        let launches = self.graphs.get(&graph.0).expect("a graph that was recorded").clone();
        launches.iter().try_for_each(|l| self.launch(l))
    }

    fn forget(&mut self, graph: GraphId) {
        self.graphs.remove(&graph.0);
    }

    fn tick(&mut self, edge: Edge) -> Result<(), OpError> {
        match edge {
            Edge::Begin => self.read.0 = self.clock,
            Edge::End => self.read.1 = self.clock,
        }
        Ok(())
    }

    fn ticked_ns(&mut self) -> Result<Option<u64>, OpError> {
        Ok(Some(self.read.1 - self.read.0))
    }

    fn memory(&self) -> Taken {
        self.taken
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for m in std::mem::take(&mut self.memory).into_values() {
            debug_assert!(m.asked <= m.bytes);
            // SAFETY: mapped by `alloc`, and not used any more.
            unsafe { libc::munmap(m.at, m.bytes) };
        }
    }
}
