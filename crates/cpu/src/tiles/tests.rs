use super::emulated::Emulated;
use super::*;
use crate::lanes::array::Array;
use half::bf16;

/// A and B of two tiles each, C of four, all of them where tests like to have them.
#[derive(Clone)]
struct Scene {
    a: Vec<u16>,
    b: Vec<u16>,
    c: Vec<f32>,
    steps: usize,
    add: bool,
    /// Which of A and B pass by, which changes no number.
    passing: (bool, bool),
}

/// Rows of A and C are longer than tiles, so that every distance is another number.
const A_ROW: usize = 3 * ROW_BYTES + 16;
const C_ROW: usize = 2 * ROW_BYTES + 32;

impl Scene {
    /// Numbers of a kind: noise, or what is hard on arithmetic beside it.
    fn new(steps: usize, add: bool, seed: u32) -> Self {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut number = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            match (seed % 4, state >> 28) {
                (1, 0..4) => x * 1e-38,
                (1, 4..6) => x * 1e-20,
                (2, 0..4) => x * 1e30,
                (2, 4..8) => x * 1e-30,
                (3, 0..8) => x.signum() * 1e4,
                _ => x,
            }
        };
        let mut halves = |n: usize| (0..n).map(|_| bf16::from_f32(number()).to_bits()).collect::<Vec<u16>>();
        let a = halves(2 * ROWS * A_ROW / 2);
        let b = halves(2 * steps * TILE_BYTES / 2);
        let c = halves(2 * ROWS * C_ROW / 4);
        let c = c.into_iter().map(|b| bf16::from_bits(b).to_f32() * 1.001).collect();
        Self { a, b, c, steps, add, passing: (seed % 3 == 1, seed % 3 == 2) }
    }

    fn product(&mut self, tiles: (usize, usize)) -> Product {
        let at = self.a.as_ptr().cast();
        Product {
            a: Operand { at, row: A_ROW, step: ROW_BYTES, second: ROWS * A_ROW, passing: self.passing.0 },
            b: Operand { passing: self.passing.1, ..Operand::packed(self.b.as_ptr().cast(), self.steps * TILE_BYTES) },
            c: Sums { at: self.c.as_mut_ptr(), row: C_ROW, down: ROWS * C_ROW, right: ROW_BYTES },
            tiles,
            steps: self.steps,
            add: self.add,
        }
    }

    /// What C must hold after R by S tiles: the sums of the manual, number by number.
    fn want(&self, (r, s): (usize, usize)) -> Vec<f32> {
        let flush = |x: f32| if x.abs() < f32::MIN_POSITIVE { x * 0.0 } else { x };
        let of = |bits: u16| flush(f32::from_bits(u32::from(bits) << 16));
        let mut c = self.c.clone();
        for (i, j) in (0..r * ROWS).flat_map(|i| (0..s * ROWS).map(move |j| (i, j))) {
            let at = i * C_ROW / 4 + j;
            let mut sum = if self.add { flush(c[at]) } else { 0.0 };
            for step in 0..self.steps {
                let mut sums = [0.0f32; 2];
                for k in 0..STEP {
                    let a = of(self.a[i * A_ROW / 2 + step * STEP + k]);
                    let tile = (j / ROWS * self.steps + step) * TILE_BYTES / 2;
                    let b = of(self.b[tile + k / 2 * STEP + 2 * (j % ROWS) + k % 2]);
                    sums[k % 2] = flush(a.mul_add(b, sums[k % 2]));
                }
                sum = flush(sum + flush(sums[0] + sums[1]));
            }
            c[at] = sum;
        }
        c
    }
}

struct Multiply(Product);

impl TileKernel for Multiply {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        let mut called = 0;
        // SAFETY: the tiles of a scene.
        unsafe { t.multiply(&self.0, || called += 1) };
        assert_eq!(called, self.0.steps);
    }
}

fn multiplies_as_the_manual_says<T: Tiles>(t: T, (r, s): (usize, usize)) {
    for seed in 0..16 {
        let (steps, add) = (1 + seed as usize % 3, seed % 5 < 3);
        let mut scene = Scene::new(steps, add, seed);
        let want = scene.want((r, s));
        let product = scene.product((r, s));
        t.compiled(Multiply(product));
        for (i, (got, want)) in scene.c.iter().zip(&want).enumerate() {
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{r} by {s}, seed {seed}: number {i} is {got:e}, not {want:e}");
        }
    }
}

/// Two rows, rounded both ways.
struct Store {
    numbers: [f32; STEP],
    pairs: [u16; STEP],
    row: [u16; STEP],
}

impl TileKernel for &mut Store {
    #[inline(always)]
    fn run<T: Tiles>(self, t: T) {
        let l = t.lanes();
        // SAFETY: 32 numbers, and room for 64 bytes twice.
        unsafe {
            let (first, second) = (l.load(self.numbers.as_ptr()), l.load(self.numbers.as_ptr().add(STEP / 2)));
            t.store_pairs(self.pairs.as_mut_ptr().cast(), first, second);
            t.store_row(self.row.as_mut_ptr().cast(), first, second);
        }
    }
}

fn rounds_to_nearest_even<T: Tiles>(t: T) {
    let mut store = Store { numbers: [0.0; STEP], pairs: [0; STEP], row: [0; STEP] };
    for (i, x) in store.numbers.iter_mut().enumerate() {
        // Ties on both sides of an even number, numbers beside them, large and small ones.
        let bits = 0x3f80_0000 + (i as u32 % 8) * 0x4000 + (i as u32 / 8 % 2);
        *x = f32::from_bits(bits) * [1.0, -1.0, 1e30, 1e-30][i / 8];
    }
    (store.numbers[3], store.numbers[9], store.numbers[20]) = (1e-39, -1e-40, f32::INFINITY);
    t.compiled(&mut store);
    let flush = |x: f32| if x.abs() < f32::MIN_POSITIVE { x * 0.0 } else { x };
    let want: Vec<u16> = store.numbers.iter().map(|x| bf16::from_f32(flush(*x)).to_bits()).collect();
    assert_eq!(store.row.to_vec(), want);
    let pairs: Vec<u16> = (0..STEP).map(|i| want[i / 2 + i % 2 * 16]).collect();
    assert_eq!(store.pairs.to_vec(), pairs);
}

fn is_right<T: Tiles>(t: T) {
    multiplies_as_the_manual_says(t, (1, 1));
    multiplies_as_the_manual_says(t, (1, 2));
    multiplies_as_the_manual_says(t, (2, 1));
    multiplies_as_the_manual_says(t, (2, 2));
    rounds_to_nearest_even(t);
}

#[test]
fn emulated_tiles_are_those_of_the_manual() {
    is_right(Emulated::<Array>::prove().unwrap());
    #[cfg(target_arch = "x86_64")]
    {
        Emulated::<crate::lanes::avx2::Avx2>::prove().into_iter().for_each(is_right);
        Emulated::<crate::lanes::avx512::Avx512>::prove().into_iter().for_each(is_right);
    }
    #[cfg(target_arch = "aarch64")]
    Emulated::<crate::lanes::neon::Neon>::prove().into_iter().for_each(is_right);
}

#[test]
#[ignore = "needs a processor with AMX"]
#[cfg(target_arch = "x86_64")]
fn amx_tiles_are_those_of_the_manual() {
    let t = amx::Amx::prove();
    is_right(t.unwrap_or_else(|| panic!("AMX is {:?}", tare_probe::amx::usable())));
}
