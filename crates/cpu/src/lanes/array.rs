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

/// `f` of every index.
///
/// A loop, because what `std::array` calls between its own functions and `f` is not taken in where the parts of a crate are
/// optimised one by one, as in builds for tests.
#[inline(always)]
pub(crate) fn indexed<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut all = [T::default(); N];
    for (i, one) in all.iter_mut().enumerate() {
        *one = f(i);
    }
    all
}

#[inline(always)]
pub(crate) fn each<A: Copy, B: Copy + Default, const N: usize>(a: [A; N], f: impl Fn(A) -> B) -> [B; N] {
    indexed(|i| f(a[i]))
}

#[inline(always)]
fn pairs<A: Copy, B: Copy + Default>(a: [A; LANES], b: [A; LANES], f: impl Fn(A, A) -> B) -> [B; LANES] {
    indexed(|i| f(a[i], b[i]))
}

/// `a * b + c`, rounded once.
///
/// A processor without the instruction makes a call of it, lane by lane. There products, which are exact in F64, and sums are
/// computed in F64. A sum that is rounded there and then to F32 is wrong only when it lies halfway between two numbers of F32,
/// where the exact one may lie to either side: no other sum changes sides by being rounded. Those are left to the call, and so
/// are the smallest numbers, whose halves lie elsewhere.
///
/// In builds with checks it stands by itself: kernels that take it in are slow to compile.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn fused(a: V, b: V, c: V) -> V {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        return rounded_once(a, b, c);
    }
    let mut sums = [0.0_f64; LANES];
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
    }
    let out = each(sums, |sum| sum as f32);
    let mut doubt = false;
    for (sum, out) in sums.iter().zip(&out) {
        let halfway = sum.to_bits() as u32 & 0x1fff_ffff == 0x1000_0000;
        doubt |= halfway | (out.abs() <= f32::MIN_POSITIVE);
    }
    if doubt { asked(a, b, c) } else { out }
}

#[cold]
#[inline(never)]
fn asked(a: V, b: V, c: V) -> V {
    rounded_once(a, b, c)
}

#[inline(always)]
fn rounded_once(a: V, b: V, c: V) -> V {
    indexed(|i| a[i].mul_add(b[i], c[i]))
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
        fused(a, b, c)
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        pairs(a, b, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn if_less(self, a: V, b: V, yes: V, no: V) -> V {
        indexed(|i| if a[i] < b[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn if_nan(self, a: V, yes: V, no: V) -> V {
        indexed(|i| if a[i].is_nan() { yes[i] } else { no[i] })
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
        indexed(|i| u32::from(b[i / 2] >> (i % 2 * 4)))
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
        indexed(|i| q[i] + if bits >> i & 1 == 1 { value } else { 0 })
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
        indexed(|i| ((q[i] & 15) as f32 - m.center) * m.scale[i] + m.offset[i])
    }
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from a fixed sequence (xorshift).
    fn numbers() -> impl Iterator<Item = u64> {
        std::iter::successors(Some(0x9e37_79b9_7f4a_7c15_u64), |x| {
            let x = x ^ (x << 13);
            let x = x ^ (x >> 7);
            Some(x ^ (x << 17))
        })
    }

    fn agrees(a: f32, b: f32, c: f32) {
        let (want, got) = (a.mul_add(b, c), fused([a; LANES], [b; LANES], [c; LANES])[LANES - 1]);
        let same = want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan();
        assert!(same, "{a:e} * {b:e} + {c:e}: {want:e}, not {got:e}");
    }

    #[test]
    fn a_product_and_a_sum_are_rounded_once() {
        let (least, most) = (f32::from_bits(1), f32::MAX);
        let edges = [0.0, 1.0, 1.0 + f32::EPSILON, f32::MIN_POSITIVE, least, most, f32::INFINITY, f32::NAN];
        let edges: Vec<f32> = edges.into_iter().flat_map(|x| [x, -x]).collect();
        for a in &edges {
            for b in &edges {
                edges.iter().for_each(|c| agrees(*a, *b, *c));
            }
        }
        for x in numbers().step_by(2).take(200_000) {
            let (a, b) = (f32::from_bits(x as u32), f32::from_bits((x >> 32) as u32));
            agrees(a, b, f32::from_bits(x.rotate_left(20) as u32));
            // Of about the size of the product, with few bits: where sums are halfway between two numbers, and cancel.
            let near = a * b * 2f32.powi((x % 61) as i32 - 30);
            agrees(a, b, f32::from_bits(near.to_bits() & 0xffe0_0000));
            let short = |v: f32| f32::from_bits(v.to_bits() & 0xffff_f000);
            agrees(short(a), short(b), f32::from_bits(near.to_bits() & 0xffe0_0000));
        }
    }
}
