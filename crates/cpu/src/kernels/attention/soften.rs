//! The softmax between scores and values, and the division after them.

use crate::lanes::{LANES, Lanes, exp};

/// Turns scores into `exp(s - max)` and gives the largest of them and the sum. s [n], n > 0
///
/// # Safety
/// n scores lie at s.
#[inline(always)]
pub(super) unsafe fn exponentials<L: Lanes>(l: L, s: *mut f32, n: usize) -> (f32, f32) {
    let (whole, part) = (n / LANES * LANES, n % LANES);
    // SAFETY: n scores lie at s.
    unsafe {
        // Not below the least number, so that scores of minus infinity have a distance from it.
        let mut m = l.splat(f32::MIN);
        for j in (0..whole).step_by(LANES) {
            m = l.max(m, l.load(s.add(j)));
        }
        if part > 0 {
            m = l.max(m, l.load_part(s.add(whole), part, f32::MIN));
        }
        let most = l.max_lane(m);
        let m = l.splat(most);
        let mut sum = l.splat(0.0);
        for j in (0..whole).step_by(LANES) {
            let p = exp(l, l.sub(l.load(s.add(j)), m));
            l.store(s.add(j), p);
            sum = l.add(sum, p);
        }
        if part > 0 {
            let at = s.add(whole);
            l.store_part(at, part, exp(l, l.sub(l.load_part(at, part, 0.0), m)));
            // -0 added to a lane changes no bit of it.
            sum = l.add(sum, l.load_part(at, part, -0.0));
        }
        (most, l.sum(sum))
    }
}

/// `out / d`. out [n]
///
/// # Safety
/// n elements lie at out.
#[inline(always)]
pub(super) unsafe fn divide<L: Lanes>(l: L, out: *mut f32, n: usize, d: f32) {
    let (whole, d) = (n / LANES * LANES, l.splat(d));
    // SAFETY: n elements lie at out.
    unsafe {
        for e in (0..whole).step_by(LANES) {
            l.store(out.add(e), l.div(l.load(out.add(e)), d));
        }
        if whole < n {
            let part = n - whole;
            l.store_part(out.add(whole), part, l.div(l.load_part(out.add(whole), part, 0.0), d));
        }
    }
}
