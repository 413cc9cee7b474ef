//! Lanes as an array: plain Rust for every processor.

use super::{Kernel, LANES, Lanes};
use half::{bf16, f16};
use tare_ops::Isa;
use tare_ops::reference::lanes::tree;

/// Plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct Array(());

/// The affine map of a 4-bit quant.
#[derive(Clone, Copy, Debug)]
pub struct Affine {
    center: f32,
    scale: [f32; LANES],
    offset: [f32; LANES],
}

type V = [f32; LANES];
type Q = [u32; LANES];

#[inline(always)]
fn each<A: Copy, B>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    a.map(f)
}

#[inline(always)]
fn pairs<A: Copy, B>(a: [A; LANES], b: [A; LANES], f: impl Fn(A, A) -> B) -> [B; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Array {
    const ISA: Isa = Isa::Portable;
    const WIDE: bool = false;
    type V = V;
    type Q = Q;
    type Map = Affine;

    fn detect() -> Option<Self> {
        Some(Self(()))
    }
    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize, fill: f32) -> V {
        let mut v = [fill; LANES];
        for (i, v) in v.iter_mut().enumerate().take(n) {
            // SAFETY: i < n.
            *v = unsafe { p.add(i).read() };
        }
        v
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, v: V) {
        for (i, v) in v.iter().enumerate().take(n) {
            // SAFETY: i < n.
            unsafe { p.add(i).write(*v) };
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, yes: V, no: V) -> V {
        std::array::from_fn(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn if_nan(self, a: V, yes: V, no: V) -> V {
        std::array::from_fn(|i| if a[i].is_nan() { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn add_exponent(self, y: V, n: V) -> V {
        pairs(y, n, |y, n| f32::from_bits(y.to_bits().wrapping_add(n.to_bits() << 23)))
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        tree(v)
    }
    #[inline(always)]
    fn sum_each(self, v: &[V; LANES]) -> V {
        each(*v, tree)
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        tare_ops::reference::lanes::max(&v)
    }

    #[inline(always)]
    unsafe fn bytes(self, p: *const u8) -> Q {
        // SAFETY: the caller's promise.
        each(unsafe { p.cast::<[u8; LANES]>().read() }, u32::from)
    }
    #[inline(always)]
    unsafe fn words(self, p: *const u8) -> Q {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Q>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn signed_bytes(self, p: *const u8) -> V {
        // SAFETY: the caller's promise.
        each(unsafe { p.cast::<[i8; LANES]>().read() }, f32::from)
    }
    #[inline(always)]
    unsafe fn nibbles(self, p: *const u8) -> Q {
        // SAFETY: the caller's promise.
        let b = unsafe { p.cast::<[u8; LANES / 2]>().read() };
        std::array::from_fn(|i| u32::from(b[i / 2] >> (i % 2 * 4)))
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> V {
        // SAFETY: the caller's promise.
        each(unsafe { p.cast::<[[u8; 2]; LANES]>().read() }, |b| f16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn bf16s(self, p: *const u8) -> V {
        // SAFETY: the caller's promise.
        each(unsafe { p.cast::<[[u8; 2]; LANES]>().read() }, |b| bf16::from_le_bytes(b).to_f32())
    }
    #[inline(always)]
    unsafe fn two_bf16s(self, p: *const u8) -> (V, V) {
        // SAFETY: the caller's promise.
        let pairs = unsafe { p.cast::<[[[u8; 2]; 2]; LANES]>().read() };
        (each(pairs, |b| bf16::from_le_bytes(b[0]).to_f32()), each(pairs, |b| bf16::from_le_bytes(b[1]).to_f32()))
    }
    #[inline(always)]
    unsafe fn splat_half(self, p: *const u8) -> V {
        // SAFETY: the caller's promise.
        [f16::from_le_bytes(unsafe { p.cast::<[u8; 2]>().read() }).to_f32(); LANES]
    }
    #[inline(always)]
    fn shr(self, q: Q, n: u32) -> Q {
        each(q, |q| q >> n)
    }
    #[inline(always)]
    fn and(self, q: Q, mask: u32) -> Q {
        each(q, |q| q & mask)
    }
    #[inline(always)]
    fn or_shl(self, a: Q, b: Q, n: u32) -> Q {
        pairs(a, b, |a, b| a | b << n)
    }
    #[inline(always)]
    fn add_where(self, q: Q, bits: u16, value: u32) -> Q {
        std::array::from_fn(|i| q[i] + if bits >> i & 1 == 1 { value } else { 0 })
    }
    #[inline(always)]
    fn to_f32(self, q: Q) -> V {
        each(q, |q| q as f32)
    }
    #[inline(always)]
    fn map(self, center: f32, scale: V, offset: V) -> Affine {
        Affine { center, scale, offset }
    }
    #[inline(always)]
    fn look_up(self, m: Affine, q: Q) -> V {
        std::array::from_fn(|i| ((q[i] & 15) as f32 - m.center) * m.scale[i] + m.offset[i])
    }
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
}
