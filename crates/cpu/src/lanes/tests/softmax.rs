//! What attention needs of lanes: rough powers, turns and comparisons, on every instruction set of this host as in plain Rust.

use super::super::*;

/// Vectors of arguments; what becomes of them.
struct Powers(Vec<f32>);

impl Kernel for &mut Powers {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for x in self.0.chunks_exact_mut(LANES) {
            // SAFETY: a vector.
            unsafe { l.store(x.as_mut_ptr(), rough_exp2(l, l.load(x.as_ptr()))) };
        }
    }
}

/// Noise over the exponents, and what lies at their ends.
fn exponents() -> Vec<f32> {
    let edges = [
        [0.0, -0.0, 1.0, -1.0, -126.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY],
        [-1e-30, 1e-30, 127.0, 127.999_99, 128.0, -126.000_01, f32::MAX, f32::MIN],
    ];
    let noise = (0..16_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 65_536.0 - 127.0);
    edges.into_iter().flatten().chain(noise).collect()
}

#[test]
fn rough_powers_are_near_and_at_their_ends_right() {
    let mut got = Powers(exponents());
    array::Array::detect().unwrap().vectorize(&mut got);
    assert!(got.0[5].is_nan());
    for (x, y) in exponents().into_iter().zip(got.0).filter(|(x, _)| !x.is_nan()) {
        let want = match x {
            x if x < -126.0 => 0.0,
            x if x >= 128.0 => f64::INFINITY,
            x => f64::from(x).exp2(),
        };
        let off = if f64::from(y) == want { 0.0 } else { (f64::from(y) / want - 1.0).abs() };
        assert!(off < 3e-6, "2^{x} is {y:e}, which is {off:e} off");
    }
}

/// Bits of vectors, all those of what is no number the same.
fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

struct Moved {
    a: Vec<f32>,
    turns: Vec<u32>,
    less: Vec<bool>,
}

impl Kernel for &mut Moved {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for x in self.a.chunks_exact(2 * LANES) {
            let mut turns = [0.0; 2 * LANES];
            // SAFETY: two vectors.
            unsafe {
                let (a, b) = (l.load(x.as_ptr()), l.load(x.as_ptr().add(LANES)));
                let (low, high) = l.in_turn(a, b);
                l.store(turns.as_mut_ptr(), low);
                l.store(turns.as_mut_ptr().add(LANES), high);
                self.less.push(l.any_less(a, b));
            }
            self.turns.extend(bits(&turns));
        }
    }
}

fn agrees<L: Lanes>(l: L) {
    let array = array::Array::detect().unwrap();
    let (mut want, mut got) = (Powers(exponents()), Powers(exponents()));
    array.vectorize(&mut want);
    l.vectorize(&mut got);
    for ((x, got), want) in exponents().iter().zip(bits(&got.0)).zip(bits(&want.0)) {
        assert!(got == want, "{}: 2^{x:?} is {:?} and not {:?}", L::ISA, f32::from_bits(got), f32::from_bits(want));
    }
    // Pairs of vectors of which the second is larger nowhere, in one lane, and everywhere; and what is no number.
    let pair = |i: usize| {
        let of = move |b: bool, lane: usize| match (b, i) {
            (true, 0..16) if lane == i => 2.0,
            (true, 16) => lane as f32 + 0.5,
            (true, 17) => f32::NAN,
            (true, 18) => lane as f32 - 1.0,
            _ if i < 16 => 1.0,
            _ => lane as f32,
        };
        [false, true].into_iter().flat_map(move |b| (0..LANES).map(move |lane| of(b, lane)))
    };
    let a: Vec<f32> = (0..19).flat_map(pair).collect();
    let new = || Moved { a: a.clone(), turns: Vec::new(), less: Vec::new() };
    let (mut want, mut got) = (new(), new());
    array.vectorize(&mut want);
    l.vectorize(&mut got);
    assert_eq!((&got.turns, &got.less), (&want.turns, &want.less), "{}", L::ISA);
    assert_eq!(got.less, (0..19).map(|i| i < 17).collect::<Vec<_>>());
    assert_eq!(got.turns[..4], [1.0f32, 2.0, 1.0, 1.0].map(f32::to_bits));
}

#[test]
fn every_level_does_what_an_array_does() {
    agrees(array::Array::detect().unwrap());
    on_every_level!(agrees);
}
