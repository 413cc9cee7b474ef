//! What tiles compute, on lanes of any kind: for tests on hosts that have none. Slow.

use super::{Operand, Product, ROW_BYTES, ROWS, STEP, TileKernel, Tiles};
use crate::lanes::{Kernel, LANES, Lanes};
use tare_ops::Isa;
use tare_ops::reference::linear::round_bf16;

/// Tiles made of lanes.
#[derive(Clone, Copy, Debug)]
pub struct Emulated<L>(L);

/// A kernel of tiles as one of lanes.
struct OnLanes<L, K>(Emulated<L>, K);

impl<L: Lanes, K: TileKernel> Kernel for OnLanes<L, K> {
    type Output = ();

    #[inline(always)]
    fn run<M: Lanes>(self, _: M) {
        self.1.run(self.0);
    }
}

/// A row of pairs, apart: the first of each, and the second. Numbers below the least normal one are zeros.
type Apart = [[f32; LANES]; 2];

impl<L: Lanes> Tiles for Emulated<L> {
    type L = L;
    const ISA: Isa = L::ISA;

    fn prove() -> Option<Self> {
        L::detect().map(Self)
    }
    #[inline(always)]
    fn lanes(self) -> L {
        self.0
    }
    #[inline(always)]
    fn compiled<K: TileKernel>(self, kernel: K) {
        self.0.vectorize(OnLanes(self, kernel));
    }
    #[inline(always)]
    fn aside<K: TileKernel>(self, kernel: K) {
        self.compiled(kernel);
    }

    #[inline(always)]
    unsafe fn multiply(self, p: &Product, mut between: impl FnMut()) {
        // SAFETY: the caller's promise.
        unsafe { products(self.0, p) };
        (0..p.steps).for_each(|_| between());
    }

    #[inline(always)]
    unsafe fn store_pairs(self, to: *mut u8, even: L::V, odd: L::V) {
        let (mut numbers, to) = ([[0.0; LANES]; 2], to.cast::<u16>());
        // SAFETY: room for two vectors; the caller's promise.
        unsafe {
            self.0.store(numbers[0].as_mut_ptr(), even);
            self.0.store(numbers[1].as_mut_ptr(), odd);
            for i in 0..STEP {
                to.add(i).write_unaligned(bf16(numbers[i % 2][i / 2]));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_row(self, to: *mut u8, first: L::V, second: L::V) {
        let (mut numbers, to) = ([0.0; STEP], to.cast::<u16>());
        // SAFETY: room for two vectors; the caller's promise.
        unsafe {
            self.0.store(numbers.as_mut_ptr(), first);
            self.0.store(numbers.as_mut_ptr().add(LANES), second);
            for (i, x) in numbers.iter().enumerate() {
                to.add(i).write_unaligned(bf16(*x));
            }
        }
    }
    #[inline(always)]
    unsafe fn store_half_row(self, to: *mut u8, v: L::V) {
        let (mut numbers, to) = ([0.0; LANES], to.cast::<u16>());
        // SAFETY: room for a vector; the caller's promise.
        unsafe {
            self.0.store(numbers.as_mut_ptr(), v);
            for (i, x) in numbers.iter().enumerate() {
                to.add(i).write_unaligned(bf16(*x));
            }
        }
    }
}

/// The products of [`Tiles::multiply`], by themselves: they are compiled once, and not for every kernel that asks for them.
///
/// # Safety
/// That of [`Tiles::multiply`].
#[inline(never)]
unsafe fn products<L: Lanes>(l: L, p: &Product) {
    l.vectorize(Products(p));
}

/// As a kernel; made in [`products`] alone, whose caller promises that tiles lie where they say.
struct Products<'a>(&'a Product);

impl Kernel for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let p = self.0;
        for (r, s) in (0..p.tiles.0).flat_map(|r| (0..p.tiles.1).map(move |s| (r, s))) {
            for step in 0..p.steps {
                // SAFETY: the promise to `products`.
                let (a, b) = unsafe { (rows(&p.a, r, step), rows(&p.b, s, step)) };
                for (i, a) in a.iter().enumerate() {
                    let at = p.c.at.wrapping_byte_add(r * p.c.down + s * p.c.right + i * p.c.row);
                    // SAFETY: a row of C.
                    let before = if step == 0 && !p.add { l.splat(0.0) } else { unsafe { l.load(at) } };
                    let mut sums = [l.splat(0.0); 2];
                    for (k, b) in b.iter().enumerate() {
                        for odd in 0..2 {
                            // SAFETY: 16 numbers.
                            let b = unsafe { l.load(b[odd].as_ptr()) };
                            sums[odd] = normal(l, l.fma(l.splat(a[odd][k]), b, sums[odd]));
                        }
                    }
                    let sum = normal(l, l.add(sums[0], sums[1]));
                    // SAFETY: as above.
                    unsafe { l.store(at, normal(l, l.add(normal(l, before), sum))) };
                }
            }
        }
    }
}

/// Lanes below the least normal number as zeros of their sign.
#[inline(always)]
fn normal<L: Lanes>(l: L, v: L::V) -> L::V {
    let (least, zero) = (l.splat(f32::MIN_POSITIVE), l.mul(v, l.splat(0.0)));
    l.if_less(v, least, l.if_less(l.splat(-f32::MIN_POSITIVE), v, zero, v), v)
}

/// The 16 rows of tile `tile` of an operand in a step.
///
/// # Safety
/// They lie there.
#[inline(always)]
unsafe fn rows(from: &Operand, tile: usize, step: usize) -> [Apart; ROWS] {
    let at = from.tile(step).wrapping_add(tile * from.second);
    let mut all = [[[0.0; LANES]; 2]; ROWS];
    for (i, row) in all.iter_mut().enumerate() {
        // SAFETY: the caller's promise: 64 bytes.
        let pairs = unsafe { at.wrapping_add(i * from.row).cast::<[u32; ROW_BYTES / 4]>().read_unaligned() };
        for (k, pair) in pairs.into_iter().enumerate() {
            for (number, bits) in row.iter_mut().zip([pair << 16, pair & 0xffff_0000]) {
                const EXPONENT: u32 = 0x7f80_0000;
                const SIGN: u32 = 0x8000_0000;
                number[k] = f32::from_bits(if bits & EXPONENT == 0 { bits & SIGN } else { bits });
            }
        }
    }
    all
}

/// The bits of `x` rounded to BF16, zeros for what is below the least normal number, as the instructions do it.
#[inline(always)]
fn bf16(x: f32) -> u16 {
    let x = if x.abs() < f32::MIN_POSITIVE { x * 0.0 } else { x };
    (round_bf16(x).to_bits() >> 16) as u16
}
