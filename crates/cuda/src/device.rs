//! What the backend needs of a device: memory, kernels, and lists of launches that can be replayed.

use tare_ops::{IsaSet, OpError};

use crate::units::Unit;

/// A place in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// Nothing: where an argument is left out.
    pub const NULL: Address = Address(0);

    /// `bytes` further.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A kernel that a device has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId(pub usize);

/// A recorded list of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphId(pub usize);

/// A matrix of BF16 numbers that kernels copy in tiles of 64 columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiled {
    /// [rows, columns]
    pub at: Address,
    /// Rows; a tile that reaches beyond them is filled with zeros.
    pub rows: usize,
    /// Columns, a multiple of 64.
    pub columns: usize,
    /// Rows of a tile, at most 256.
    pub tile_rows: usize,
}

/// What a kernel names a [`Tiled`] by, in the device's own form.
pub type TileMap = [u64; 16];

/// One launch of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Which kernel.
    pub kernel: KernelId,
    /// The key of the call that it belongs to, for messages.
    pub key: String,
    /// Blocks in x and y.
    pub grid: (u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that a block gets beside what its kernel declares.
    pub shared: u32,
    /// Whether it may start before what was launched before it has ended: it waits itself before it reads what that writes.
    pub early: bool,
    /// The bytes of the kernel's one argument.
    pub args: Vec<u8>,
}

/// A device with memory of its own. Everything that is asked of it happens in the order in which it is asked.
pub trait Device: Send {
    /// What it is, for people.
    fn describe(&self) -> String;

    /// Levels that kernels may need of it.
    fn isa(&self) -> IsaSet;

    /// Multiprocessors: how many blocks run side by side, as far as launches are shaped by it.
    fn multiprocessors(&self) -> u32;

    /// Takes memory, aligned to 256 bytes. `what` is for the message when there is none.
    ///
    /// # Errors
    /// When there is not enough.
    fn alloc(&mut self, what: &str, bytes: usize) -> Result<Address, OpError>;

    /// Gives memory back; nothing that was launched before still uses it afterwards.
    fn free(&mut self, at: Address);

    /// Sets every byte.
    ///
    /// # Errors
    /// When the device fails.
    fn fill(&mut self, at: Address, bytes: usize, value: u8) -> Result<(), OpError>;

    /// Copies to the device. `bytes` may change as soon as this returns.
    ///
    /// # Errors
    /// When the device fails.
    fn upload(&mut self, at: Address, bytes: &[u8]) -> Result<(), OpError>;

    /// Waits for what was asked before and copies from the device.
    ///
    /// # Errors
    /// When the device fails, or anything launched before has failed.
    fn download(&mut self, at: Address, bytes: &mut [u8]) -> Result<(), OpError>;

    /// Loads kernel `name` of `unit`, compiling the unit when it is not there yet.
    ///
    /// # Errors
    /// When the unit does not compile.
    fn kernel(&mut self, unit: &Unit, name: &str) -> Result<KernelId, OpError>;

    /// Makes a name for a matrix that is copied in tiles.
    ///
    /// # Errors
    /// When the device copies no tiles, or not these.
    fn tile_map(&mut self, matrix: Tiled) -> Result<TileMap, OpError>;

    /// Runs one kernel.
    ///
    /// # Errors
    /// When the launch is refused.
    fn launch(&mut self, launch: &Launch) -> Result<(), OpError>;

    /// Records launches, so that they can be repeated by one call.
    ///
    /// # Errors
    /// When a launch is refused.
    fn record(&mut self, launches: &[Launch]) -> Result<GraphId, OpError>;

    /// Runs what was recorded.
    ///
    /// # Errors
    /// When the device refuses.
    fn replay(&mut self, graph: GraphId) -> Result<(), OpError>;

    /// Frees a recording.
    fn forget(&mut self, graph: GraphId);

    /// Reads the device's own clock once what was asked before is done: `Edge::Begin` of a step, or its end. A device
    /// without a clock reads nothing.
    ///
    /// # Errors
    /// When the device fails.
    fn tick(&mut self, _edge: Edge) -> Result<(), OpError> {
        Ok(())
    }

    /// Waits for everything that was asked before.
    ///
    /// # Errors
    /// When the device fails, or anything launched before has failed.
    fn finish(&mut self) -> Result<(), OpError> {
        Ok(())
    }

    /// Nanoseconds from the last begin to the last end, after both have been waited for; none without a clock.
    ///
    /// # Errors
    /// When the device fails.
    fn ticked_ns(&mut self) -> Result<Option<u64>, OpError> {
        Ok(None)
    }

    /// Bytes that are taken now, and the most that were taken at once.
    fn memory(&self) -> Taken;
}

/// An end of what a device's clock is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// Before its first launch.
    Begin,
    /// After its last one.
    End,
}

/// Device memory that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes now.
    pub now: u64,
    /// The most at once.
    pub most: u64,
}

impl Taken {
    /// As many bytes more.
    pub fn add(&mut self, bytes: usize) {
        self.now += bytes as u64;
        self.most = self.most.max(self.now);
    }

    /// As many bytes less.
    pub fn give(&mut self, bytes: usize) {
        self.now = self.now.saturating_sub(bytes as u64);
    }
}

/// The error of a device, in its own words.
pub fn failed(kernel: &str, message: impl Into<String>) -> OpError {
    OpError::Device { kernel: kernel.to_string(), message: message.into() }
}
