//! Rows of one weight, packed anew run by run.

use crate::codec::dequantize_row;
use crate::quantize::quantize_from;
use tare_core::{DType, Fault, Format, Weight, WeightData};

/// Values in memory at a time (16 MiB of F32).
const RUN: usize = 1 << 22;

/// Order in which rows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they are.
    Same,
    /// Rows of each head of this size from half-split to pair order: row 2i from i, row 2i + 1 from i + E/2.
    Pairs {
        /// E.
        head_size: usize,
    },
}

impl Order {
    /// The row that becomes row `r`.
    fn source(self, r: usize) -> usize {
        match self {
            Order::Same => r,
            Order::Pairs { head_size: e } => r / e * e + (r % e) / 2 + (r % 2) * (e / 2),
        }
    }
}

/// Gives `w` in `format` to `sink`, as weights of some of its rows.
///
/// A vector ([1, cols]) under [`Order::Pairs`] has its elements reordered in place of rows.
pub(super) fn each_run<E: From<Fault>>(
    w: &Weight,
    order: Order,
    (format, scale_dtype): (Format, DType),
    sink: &mut dyn FnMut(&Weight) -> Result<(), E>,
) -> Result<(), E> {
    if w.format() == format && order == Order::Same && matches!(w.data(), WeightData::Blocks(_)) {
        return sink(w);
    }
    let (rows, cols) = (w.rows(), w.cols());
    let step = (RUN / cols.max(1)).clamp(1, rows.max(1));
    let mut values = vec![0.0; step * cols];
    // A vector has its elements where a matrix has its rows.
    let source = |row, col| if rows == 1 { (0, order.source(col)) } else { (order.source(row), col) };
    for start in (0..rows).step_by(step) {
        let n = step.min(rows - start);
        let values = &mut values[..n * cols];
        for (i, row) in values.chunks_exact_mut(cols).enumerate() {
            dequantize_row(w, source(start + i, 0).0, row);
        }
        if rows == 1 && order != Order::Same {
            let read = values.to_vec();
            values.iter_mut().enumerate().for_each(|(i, v)| *v = read[source(0, i).1]);
        }
        let place = |row, col| source(start + row, col);
        sink(&quantize_from(w.name(), (n, cols), values, (format, scale_dtype), &place)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tare_core::Blob;

    #[test]
    fn what_cannot_be_packed_is_named_by_its_place_in_the_file() {
        let bytes = |odd: usize| {
            let value = |i| if i == odd { f32::MAX } else { 0.0 };
            Blob::from_vec((0..8 * 32).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>())
        };
        let order = Order::Pairs { head_size: 4 };
        for (odd, place) in [(0, "[0, 0]"), (6 * 32 + 5, "[6, 5]")] {
            let w = Weight::blocks("w", Format::F32, 8, 32, bytes(odd)).unwrap();
            let e = each_run::<Fault>(&w, order, (Format::Q8_0, DType::F32), &mut |_| Ok(())).unwrap_err();
            assert!(e.to_string().contains(place), "{e}");
        }
        let w = Weight::blocks("w", Format::F32, 1, 8 * 32, bytes(6)).unwrap();
        let e = each_run::<Fault>(&w, order, (Format::F16, DType::F32), &mut |_| Ok(())).unwrap_err();
        assert!(e.to_string().contains("[0, 6]"), "{e}");
    }

    #[test]
    fn pair_order_interleaves_the_halves_of_each_head() {
        let bytes = (0..8).flat_map(|v| (v as f32).to_le_bytes()).collect::<Vec<u8>>();
        let order = Order::Pairs { head_size: 4 };
        for (rows, cols) in [(8, 1), (1, 8)] {
            let w = Weight::blocks("w", Format::F32, rows, cols, Blob::from_vec(bytes.clone())).unwrap();
            let mut got = Vec::new();
            each_run::<Fault>(&w, order, (Format::F32, DType::F32), &mut |part| {
                got.extend(crate::codec::dequantize(part));
                Ok(())
            })
            .unwrap();
            assert_eq!(got, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        }
    }
}
