//! Products of BF16 tiles, as many as this processor can do: with tiles out of L2, and between registers.

use super::Work;
use crate::amx::InUse;
use std::fmt;

/// Bytes that tiles are read from: too many for L1, few enough for L2.
const BYTES: usize = 512 << 10;
/// Bytes of four tiles: what two by two products read.
const GROUP: usize = 4 << 10;
/// Operations of two by two products of tiles: 16 x 16 sums over 32 columns each, a multiply and an add.
const GROUP_FLOP: u64 = 4 * 2 * 16 * 16 * 32;

/// Numbers of one thread. Random ones: zeros cost less power, and so let some processors run faster.
#[repr(align(64))]
#[derive(Clone)]
#[allow(dead_code, reason = "tile instructions read it, of which the compiler knows nothing")]
struct Line([u16; 32]);

/// The tiles of one thread.
pub(super) struct Tiles {
    lines: Vec<Line>,
}

impl fmt::Debug for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tiles({} bytes)", size_of_val(&*self.lines))
    }
}

impl Tiles {
    /// BF16 numbers from 1/2 to 1, of both signs, from a seed (SplitMix64, Steele et al., 2014).
    pub(super) fn new(seed: u64) -> Self {
        let mut state = seed;
        let mut number = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            0x3f00 | (z >> 48) as u16 & 0x807f
        };
        let lines = (0..BYTES / 64).map(|_| Line(std::array::from_fn(|_| number()))).collect();
        Self { lines }
    }

    /// Operations of one turn.
    pub(super) fn flop_per_turn() -> u64 {
        (BYTES / GROUP) as u64 * GROUP_FLOP
    }

    /// Does `turns` turns of `what`; nothing where this process may not use tiles.
    pub(super) fn run(&self, what: Work, turns: u64) {
        let Some(_in_use) = InUse::begin() else { return };
        for _ in 0..turns {
            turn(&self.lines, what);
        }
    }
}

/// One pass over the tiles, or as many products between registers. Tile registers must be in use.
#[cfg(target_arch = "x86_64")]
fn turn(lines: &[Line], what: Work) {
    use std::arch::asm;
    let (at, groups) = (lines.as_ptr(), size_of_val(lines) / GROUP);
    // SAFETY: the caller has set tile registers up, so the instructions exist; the pass reads the lines alone.
    unsafe {
        if what == Work::TileRegistersFlop {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm4, [{at} + {row}*1]",
                "tileloadd tmm5, [{at} + {row}*1 + 1024]",
                "tileloadd tmm6, [{at} + {row}*1 + 2048]",
                "tileloadd tmm7, [{at} + {row}*1 + 3072]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {n}",
                "jnz 2b",
                at = in(reg) at,
                row = in(reg) size_of::<Line>(),
                n = inout(reg) groups => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        } else {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm6, [{at} + {row}*1 + 2048]",
                "tileloadd tmm4, [{at} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{at} + {row}*1 + 3072]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{at} + {row}*1 + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {at}, 4096",
                "dec {n}",
                "jnz 2b",
                at = inout(reg) at => _,
                row = in(reg) size_of::<Line>(),
                n = inout(reg) groups => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }
}

/// There are no tiles to be used.
#[cfg(not(target_arch = "x86_64"))]
fn turn(_lines: &[Line], _what: Work) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_size_one_half_to_one() {
        let tiles = Tiles::new(7);
        assert_eq!(size_of_val(&*tiles.lines), BYTES);
        let sizes = tiles.lines.iter().flat_map(|l| l.0).map(|b| f32::from_bits(u32::from(b) << 16).abs());
        assert!(sizes.clone().all(|x| (0.5..1.0).contains(&x)));
        let mean = sizes.sum::<f32>() / (BYTES / 2) as f32;
        assert!((0.7..0.8).contains(&mean), "{mean}");
        // Harmless where there are no tiles.
        tiles.run(Work::TileFlop, 1);
        tiles.run(Work::TileRegistersFlop, 1);
    }
}
