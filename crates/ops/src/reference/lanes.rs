//! Sums in 16 lanes: the one reduction order of tare.
//!
//! Element `16 j + l` goes to lane `l`, for `j` ascending. The tail (length mod 16) is one more step in which only the
//! lanes that exist are updated: the others keep their bits. Then lane `i` takes lane `i + half` for half = 8, 4, 2, 1.

/// Lanes of every reduction.
pub const LANES: usize = 16;

/// `sum_i a[i] * b[i]`, each product fused into its lane.
///
/// # Panics
/// When the lengths differ.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product needs vectors of one length");
    let mut acc = [0.0f32; LANES];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for l in 0..LANES {
            acc[l] = a[l].mul_add(b[l], acc[l]);
        }
    }
    for (l, (a, b)) in a_tail.iter().zip(b_tail).enumerate() {
        acc[l] = a.mul_add(*b, acc[l]);
    }
    tree(acc)
}

/// `sum_i a[i]`.
pub fn sum(a: &[f32]) -> f32 {
    let mut acc = [0.0f32; LANES];
    let (whole, tail) = a.as_chunks::<LANES>();
    for a in whole {
        for l in 0..LANES {
            acc[l] += a[l];
        }
    }
    for (l, a) in tail.iter().enumerate() {
        acc[l] += a;
    }
    tree(acc)
}

/// The largest element; negative infinity when there is none. `a` holds no NaN.
///
/// A maximum has the same bits in any order, but for the sign of a zero, which no caller can see.
pub fn max(a: &[f32]) -> f32 {
    a.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
}

/// 16 -> 8 -> 4 -> 2 -> 1, lane `i` plus lane `i + half`.
pub fn tree(mut acc: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
        half /= 2;
    }
    acc[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_sixteen_lanes_then_a_tree() {
        // 1e8 swallows a 1 added to it, and keeps it apart in another lane until the tree joins them.
        let mut a = vec![0.0f32; 33];
        (a[0], a[16], a[32]) = (1e8, 1.0, -1e8);
        assert_eq!(sum(&a), 0.0, "all three in lane 0");
        (a[16], a[17]) = (0.0, 1.0);
        assert_eq!(sum(&a), 1.0, "the tail updates lane 0 only");
        assert_eq!(dot(&a, &[1.0; 33]), sum(&a));
        // The tree adds lane 8 to lane 0 before lane 4: 1e8 + 1 is lost, then -1e8.
        let mut lanes = [0.0; LANES];
        (lanes[0], lanes[8], lanes[4]) = (1e8, 1.0, -1e8);
        assert_eq!(tree(lanes), 0.0);
    }

    #[test]
    fn products_are_fused() {
        let x = 1.0 + f32::EPSILON;
        let rounded = x * x;
        let mut acc = [0.0; 32];
        (acc[0], acc[16]) = (-rounded, x);
        let mut one = [0.0; 32];
        (one[0], one[16]) = (1.0, x);
        assert_eq!(dot(&acc, &one), x.mul_add(x, -rounded));
        assert_ne!(dot(&acc, &one), 0.0);
    }

    #[test]
    fn empty_and_missing() {
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(dot(&[], &[]), 0.0);
        assert_eq!(max(&[]), f32::NEG_INFINITY);
        assert_eq!(max(&[-3.0, -1.0, -2.0]), -1.0);
    }
}
