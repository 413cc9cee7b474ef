//! Tile registers (Intel AMX): whether this process may use them, and setting them up.

use std::marker::PhantomData;
use std::sync::OnceLock;

use tare_core::Reading;

/// Whether this process may execute tile instructions on BF16 and int8: the processor has them, the system saves the
/// registers, and has given leave. Leave is asked for once and holds for every thread from then on.
pub fn usable() -> &'static Reading<()> {
    static USABLE: OnceLock<Reading<()>> = OnceLock::new();
    USABLE.get_or_init(|| ask().into())
}

#[cfg(not(target_arch = "x86_64"))]
fn ask() -> Result<(), String> {
    Err("only x86 processors have AMX".to_string())
}

#[cfg(target_arch = "x86_64")]
fn ask() -> Result<(), String> {
    let features = raw_cpuid::CpuId::new().get_extended_feature_info();
    if !features.is_some_and(|f| f.has_amx_tile() && f.has_amx_int8() && f.has_amx_bf16()) {
        return Err("the processor, or its hypervisor, shows no AMX with int8 and BF16".to_string());
    }
    if !saves_tiles() {
        return Err("the system does not save tile registers".to_string());
    }
    leave()
}

/// Whether the system saves tile registers: XCR0 bits 17 and 18 (Intel SDM vol. 1 ch. 18).
#[cfg(target_arch = "x86_64")]
fn saves_tiles() -> bool {
    const TILE_STATE: u64 = 0b11 << 17;
    let readable = raw_cpuid::CpuId::new().get_feature_info().is_some_and(|f| f.has_oxsave());
    // SAFETY: the OSXSAVE bit says that XGETBV exists and may be executed in user mode.
    let saved = if readable { unsafe { read_xcr0() } } else { 0 };
    saved & TILE_STATE == TILE_STATE
}

/// The register that says which processor state the system saves.
///
/// # Safety
/// The processor must have XSAVE and the system must have enabled it (CPUID leaf 1, OSXSAVE).
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "xsave")]
unsafe fn read_xcr0() -> u64 {
    // SAFETY: register 0 exists wherever XGETBV does; the caller vouches for XGETBV.
    unsafe { std::arch::x86_64::_xgetbv(0) }
}

/// Asks Linux for the tile-data state by ARCH_REQ_XCOMP_PERM (Documentation/arch/x86/xstate.rst). It is refused where a
/// thread has set up a signal stack that is too small for the state.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn leave() -> Result<(), String> {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: this call takes two numbers and touches no memory of ours; kernels that do not know it return an error.
    let status = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
    if status == 0 {
        return Ok(());
    }
    Err(format!("the system does not give leave to use tile registers: {}", std::io::Error::last_os_error()))
}

/// Elsewhere no leave is needed beyond XCR0.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn leave() -> Result<(), String> {
    Ok(())
}

/// Tile registers 0 to 7 of this thread, set up. They are given back on drop, so that the system need not save them while the
/// thread does other things.
#[derive(Debug)]
pub struct InUse {
    /// The registers are those of one thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl InUse {
    /// Sets each up as a whole tile, 16 rows of 64 bytes; none where this process may not use tiles.
    pub fn begin() -> Option<Self> {
        Self::shaped(&WHOLE)
    }

    /// Sets them up for sums of `rows` rows over `bytes` bytes: registers 0 to 3 for C, of so many rows; 4 and 5 for A, of as
    /// many rows of `bytes` bytes; 6 and 7 for B, of a quarter as many rows as there are bytes.
    ///
    /// None where this process may not use tiles.
    pub fn narrow(rows: u8, bytes: u8) -> Option<Self> {
        let mut shapes = WHOLE;
        shapes.rows[..6].fill(rows);
        shapes.row_bytes[4..6].fill(u16::from(bytes));
        shapes.rows[6..8].fill(bytes / 4);
        Self::shaped(&shapes)
    }

    fn shaped(shapes: &Shapes) -> Option<Self> {
        usable().available()?;
        configure(shapes);
        Some(Self { _of_this_thread: PhantomData })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // SAFETY: there is a value, so the instruction exists. It changes tile registers alone.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("tilerelease", options(nostack, preserves_flags, nomem))
        };
    }
}

/// What `ldtilecfg` reads (Intel SDM vol. 1, 18.2): palette 1, bytes of a row and rows of each register.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const WHOLE: Shapes = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (row_bytes[i], rows[i]) = (64, 16);
        i += 1;
    }
    Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// Shapes the registers. Tiles must be usable.
#[cfg(target_arch = "x86_64")]
fn configure(shapes: &Shapes) {
    // SAFETY: tiles are usable, says the caller; the shapes are 64 bytes of palette 1.
    unsafe {
        std::arch::asm!("ldtilecfg [{}]", in(reg) std::ptr::from_ref(shapes), options(nostack, preserves_flags, readonly));
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn configure(_shapes: &Shapes) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_stays_the_same_and_a_refusal_says_why() {
        assert_eq!(usable(), usable());
        if let Reading::Unavailable { why } = usable() {
            assert!(!why.is_empty());
        }
    }
}
