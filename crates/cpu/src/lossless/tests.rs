use super::*;
use crate::lanes::array::Array;
use crate::lanes::{LANES, Lanes};
use crate::panels::Packed;
use crate::pool::Pool;
use tare_core::{Blob, Format};

/// Numbers of many sizes: `spread` exponents, every upper byte with a share of its own.
fn numbers(rows: usize, cols: usize, spread: u32) -> Vec<u16> {
    let number = |i: usize| {
        let hash = (i as u32).wrapping_mul(2_654_435_761) ^ (i as u32 >> 7).wrapping_mul(0x9e37_79b9);
        let exponent = 120 - (hash >> 8 & 255) % spread;
        ((hash >> 31) << 15 | exponent << 7 | hash >> 16 & 127) as u16
    };
    (0..rows * cols).map(number).collect()
}

fn packed(rows: usize, cols: usize, bits: &[u16], workers: usize) -> Packed {
    let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    let weight = Weight::blocks("w", Format::BF16, rows, cols, Blob::from_vec(bytes)).unwrap();
    let packed = Packed::reserve(std::iter::once(&weight)).unwrap().remove(0).unwrap();
    packed.fill(&weight, &mut Pool::new(workers, false).unwrap()).unwrap();
    packed
}

#[test]
fn every_number_comes_back() {
    let mut special = numbers(37, 96, 8);
    // Zeros of both signs, numbers below the least normal one, infinities and what is no number.
    let odd = [0, 0x8000, 1, 0x807f, 0x7f80, 0xff80, 0x7fc1, 0xffff];
    special.iter_mut().step_by(41).zip(odd.iter().cycle()).for_each(|(to, odd)| *to = *odd);
    let cases = [numbers(16, 32, 4), numbers(37, 96, 14), numbers(37, 96, 120), vec![0; 5 * 64], special];
    for ((rows, cols), bits) in [(16, 32), (37, 96), (37, 96), (5, 64), (37, 96)].into_iter().zip(&cases) {
        for workers in [1, 3] {
            let packed = packed(rows, cols, bits, workers);
            let panels = packed.panels();
            for (i, bits) in bits.iter().enumerate() {
                let panel = Panel::of(&panels, i / cols);
                // SAFETY: the panel is filled, and has the number.
                let found = unsafe { panel.number(i / cols % ROWS, i % cols) };
                assert_eq!(found, *bits, "[{rows}, {cols}], row {}, column {}", i / cols, i % cols);
            }
        }
    }
}

#[test]
fn numbers_of_few_sizes_have_no_exceptions_and_others_do() {
    assert_eq!(packed(16, 64, &numbers(16, 64, 13), 1).exceptions().count(), 0, "seven upper bytes of each sign");
    let many = packed(16, 64, &numbers(16, 64, 120), 1).exceptions().count();
    assert!((500..1024).contains(&many), "{many} of 1024 that have 120 upper bytes");
}

/// Lanes make rows of B of a group.
fn joins<L: Lanes>(l: L) {
    let bits = numbers(16, 32, 120);
    let packed = packed(16, 32, &bits, 1);
    let panel = Panel::of(&packed.panels(), 0);
    for group in 0..GROUPS {
        let mut rows = [[0u16; 2 * LANES]; PAIR_ROWS];
        // SAFETY: a group of the panel, and room for its rows.
        unsafe {
            let joined = l.join(panel.table(), panel.unit(0).add(group * GROUP_BYTES));
            rows.iter_mut().zip(joined).for_each(|(row, v)| l.store(row.as_mut_ptr().cast(), v));
        }
        // SAFETY: the panel is filled, and has one unit.
        let exceptions = unsafe { panel.exceptions(0, 1) };
        for (i, found) in rows.as_flattened().iter().enumerate() {
            let (row, column) = (i % 32 / 2, group * COLUMNS + i / 32 * 2 + i % 2);
            let excepted = exceptions.iter().any(|e| (e.row as usize, e.column as usize) == (row, column));
            let expected = if excepted { 0 } else { bits[row * 32 + column] };
            assert_eq!(*found, expected, "row {row}, column {column}");
        }
    }
}

#[test]
fn lower_and_upper_bytes_join_to_rows_of_b() {
    joins(Array::detect().unwrap());
    #[cfg(target_arch = "x86_64")]
    {
        crate::lanes::avx2::Avx2::detect().into_iter().for_each(joins);
        crate::lanes::avx512::Avx512::detect().into_iter().for_each(joins);
    }
    #[cfg(target_arch = "aarch64")]
    crate::lanes::neon::Neon::detect().into_iter().for_each(joins);
}
