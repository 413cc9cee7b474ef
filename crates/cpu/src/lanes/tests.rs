//! Every operation on every instruction set of this host, against plain Rust.

use super::*;

/// Runs `$what` with the lanes of each instruction set but plain Rust.
macro_rules! on_every_level {
    ($what:expr) => {
        #[cfg(target_arch = "x86_64")]
        {
            avx2::Avx2::detect().into_iter().for_each($what);
            avx512::Avx512::detect().into_iter().for_each($what);
        }
        #[cfg(target_arch = "aarch64")]
        neon::Neon::detect().into_iter().for_each($what);
    };
}

mod softmax;

struct Transpose(Vec<u32>);

impl Kernel for &mut Transpose {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let at = self.0.as_mut_ptr().cast::<f32>();
        // SAFETY: 16 vectors.
        unsafe {
            let mut v = [l.splat(0.0); LANES];
            for (i, v) in v.iter_mut().enumerate() {
                *v = l.load(at.add(LANES * i));
            }
            for (i, v) in l.transposed(&v).into_iter().enumerate() {
                l.store(at.add(LANES * i), v);
            }
        }
    }
}

fn is_transposed<L: Lanes>(l: L) {
    // Bits that are no number must come through too.
    let word = |i: u32| i << 24 | 0x007f_0000 | i;
    let mut t = Transpose((0..256).map(word).collect());
    l.vectorize(&mut t);
    let want: Vec<u32> = (0..256).map(|i| word(i % 16 * 16 + i / 16)).collect();
    assert_eq!(t.0, want, "{}", L::ISA);
}

#[test]
fn lanes_become_vectors() {
    is_transposed(array::Array::detect().unwrap());
    on_every_level!(is_transposed);
}

/// Operands, and what became of them: an operation and its lanes, as bits.
struct Everything {
    /// Any numbers, and such as are none.
    any: [[f32; LANES]; LANES],
    /// Numbers of moderate size, none of them zero.
    plain: [f32; LANES],
    bytes: [u8; 64],
    out: Vec<(&'static str, [u32; LANES])>,
}

impl Everything {
    fn new(seed: u32) -> Self {
        let mix = |i: usize| {
            let x = (i as u32 + 1031 * seed).wrapping_mul(2_654_435_761);
            (x ^ x >> 15).wrapping_mul(2_246_822_519)
        };
        let odd =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)];
        let moderate = |i: usize| (mix(i) >> 8) as f32 / (1 << 20) as f32 - 8.000_001;
        let any = |i: usize| match seed % 3 {
            0 => f32::from_bits(mix(i)),
            1 if mix(i).is_multiple_of(5) => odd[mix(i + 1) as usize % odd.len()],
            _ => moderate(i),
        };
        Self {
            any: std::array::from_fn(|r| std::array::from_fn(|i| any(LANES * r + i))),
            plain: std::array::from_fn(|i| moderate(i + 1000)),
            bytes: std::array::from_fn(|i| (mix(i + 2000) >> 9) as u8),
            out: Vec::new(),
        }
    }

    #[inline(always)]
    fn put<L: Lanes>(&mut self, l: L, name: &'static str, v: L::V) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: room for a vector.
        unsafe { l.store(lanes.as_mut_ptr(), v) };
        // What is no number is alike.
        self.out.push((name, lanes.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })));
    }

    /// All 32 bits of integers.
    #[inline(always)]
    fn put_integers<L: Lanes>(&mut self, l: L, name: &'static str, q: L::Q) {
        self.put(l, name, l.to_f32(l.and(q, 0xffff)));
        self.put(l, name, l.to_f32(l.shr(q, 16)));
    }

    #[inline(always)]
    fn arithmetic<L: Lanes>(&mut self, l: L) {
        let mut v = [l.splat(-0.25); LANES];
        for (v, any) in v.iter_mut().zip(&self.any) {
            // SAFETY: 16 numbers.
            *v = unsafe { l.load(any.as_ptr()) };
        }
        let [a, b, c, ..] = v;
        // SAFETY: 16 numbers.
        let plain = unsafe { l.load(self.plain.as_ptr()) };
        self.put(l, "splat", l.splat(-0.25));
        self.put(l, "add", l.add(a, b));
        self.put(l, "sub", l.sub(a, b));
        self.put(l, "mul", l.mul(a, b));
        self.put(l, "div", l.div(a, b));
        self.put(l, "fma", l.fma(a, b, c));
        self.put(l, "fma of moderate numbers", l.fma(a, plain, b));
        self.put(l, "max", l.max(plain, l.mul(plain, plain)));
        self.put(l, "if_less", l.if_less(a, b, c, plain));
        self.put(l, "if_nan", l.if_nan(a, b, plain));
        // Integers as the low bits of numbers, the way `exp` makes them.
        self.put(l, "add_exponent", l.add_exponent(plain, l.add(plain, l.splat(e::ROUNDER))));
        self.put(l, "exp", exp(l, a));
        self.put(l, "sum", l.splat(l.sum(a)));
        self.put(l, "sum of moderate numbers", l.splat(l.sum(plain)));
        self.put(l, "sum_each", l.sum_each(&v));
        self.put(l, "max_lane", l.splat(l.max_lane(plain)));
        self.put(l, "paired", l.unpaired(l.paired(a)));
    }

    #[inline(always)]
    fn parts<L: Lanes>(&mut self, l: L) {
        for n in 0..LANES {
            let mut stored = [7.0f32; LANES];
            // SAFETY: n numbers, and room for them.
            unsafe {
                let part = l.load_part(self.any[0].as_ptr(), n, -3.0);
                self.put(l, "load_part", part);
                l.store_part(stored.as_mut_ptr(), n, part);
                let stored = l.load(stored.as_ptr());
                self.put(l, "store_part", stored);
            }
        }
    }

    #[inline(always)]
    fn bytes<L: Lanes>(&mut self, l: L) {
        let p = self.bytes.as_ptr();
        // SAFETY: 64 bytes, of which none past the end is read.
        unsafe {
            self.put_integers(l, "bytes", l.bytes(p.add(3)));
            self.put_integers(l, "words", l.words(p));
            self.put(l, "signed_bytes", l.signed_bytes(p.add(5)));
            self.put_integers(l, "nibbles", l.and(l.nibbles(p.add(1)), 15));
            self.put(l, "halves", l.halves(p.add(1)));
            self.put(l, "bf16s", l.bf16s(p.add(1)));
            let (even, odd) = l.two_bf16s(p);
            self.put(l, "two_bf16s", even);
            self.put(l, "two_bf16s", odd);
            self.put(l, "splat_bf16", l.splat_bf16(p.add(1)));
            self.put(l, "splat_half", l.splat_half(p.add(1)));
            let (first, second) = l.splat_two_halves(p.add(3));
            self.put(l, "splat_two_halves", first);
            self.put(l, "splat_two_halves", second);
            let (a, b) = (l.words(p), l.bytes(p));
            for n in [0, 1, 7, 16, 31] {
                self.put_integers(l, "shr", l.shr(a, n));
                self.put_integers(l, "or_shl", l.or_shl(b, a, n));
            }
            let bits = u16::from_le_bytes([self.bytes[0], self.bytes[1]]);
            self.put_integers(l, "add_where", l.add_where(b, bits, 0x1_0010));
            let map = l.map(8.0, l.splat(self.any[0][0]), l.splat(self.any[0][1]));
            self.put(l, "look_up", l.look_up(map, l.nibbles(p)));
            let map = l.map(0.0, l.splat(self.plain[0]), l.splat(self.plain[1]));
            self.put(l, "look_up of paired nibbles", l.unpaired(l.look_up(map, l.paired_nibbles(p))));
        }
        l.prefetch(std::ptr::null());
        l.prefetch(p);
    }
}

impl Kernel for &mut Everything {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        self.arithmetic(l);
        self.parts(l);
        self.bytes(l);
    }
}

fn agrees_with_plain_rust<L: Lanes>(l: L) {
    for seed in 0..300 {
        let (mut got, mut want) = (Everything::new(seed), Everything::new(seed));
        l.vectorize(&mut got);
        array::Array::detect().unwrap().vectorize(&mut want);
        assert_eq!(got.out.len(), want.out.len());
        for (got, want) in got.out.iter().zip(&want.out) {
            assert_eq!(got, want, "{}, seed {seed}", L::ISA);
        }
    }
}

#[test]
fn every_width_gives_the_bits_of_plain_rust() {
    on_every_level!(agrees_with_plain_rust);
}
