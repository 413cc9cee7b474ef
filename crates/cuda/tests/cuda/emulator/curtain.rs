//! What a launch that starts early cannot count on: until it waits, all that the launches before it wrote may still be missing.

use libc::c_void;

/// How the emulated device asks for what is hidden (0) or shown (1).
pub(super) type Draw = unsafe extern "C" fn(*mut c_void, i32);

/// What reads as if it had never been written: no numbers, no addresses.
const MISSING: u8 = 0xff;
/// Bytes that are compared at once.
const WORD: usize = 4;

/// Memory that is hidden, and what it holds.
#[derive(Debug)]
pub(super) struct Curtain {
    hidden: Vec<(usize, Vec<u8>)>,
    working: Vec<(usize, usize)>,
}

impl Curtain {
    /// Over what lies in `fresh`; nothing of `working` may be written while it is drawn.
    pub(super) fn over(fresh: &[(usize, usize)], working: &[(usize, usize)]) -> Self {
        Self {
            hidden: copies(fresh).into_iter().zip(fresh).map(|(c, (at, _))| (*at, c)).collect(),
            working: working.to_vec(),
        }
    }

    fn protect(&self, how: libc::c_int) {
        for (at, bytes) in &self.working {
            // SAFETY: whole mappings of the emulator, but for their closed pages.
            unsafe { libc::mprotect(*at as *mut c_void, *bytes, how) };
        }
    }

    /// Before a block begins: memory is as the launch before left it, perhaps changed by blocks of this one.
    fn hide(&mut self) {
        for (at, kept) in &mut self.hidden {
            // SAFETY: inside the working memory, which is open.
            let now = unsafe { std::slice::from_raw_parts_mut(*at as *mut u8, kept.len()) };
            kept.copy_from_slice(now);
            now.fill(MISSING);
        }
        self.protect(libc::PROT_READ);
    }

    fn show(&self) {
        self.protect(libc::PROT_READ | libc::PROT_WRITE);
        // Places may overlap: what was hidden first holds what was there.
        for (at, kept) in self.hidden.iter().rev() {
            // SAFETY: inside the working memory, which was opened above.
            unsafe { std::slice::from_raw_parts_mut(*at as *mut u8, kept.len()) }.copy_from_slice(kept);
        }
    }
}

/// What the emulated device calls.
///
/// # Safety
/// `context` is a [`Curtain`] that nobody else uses.
pub(super) unsafe extern "C" fn draw(context: *mut c_void, shown: i32) {
    // SAFETY: as above.
    let curtain = unsafe { &mut *context.cast::<Curtain>() };
    if shown == 0 { curtain.hide() } else { curtain.show() }
}

/// What lies in these places.
pub(super) fn copies(places: &[(usize, usize)]) -> Vec<Vec<u8>> {
    // SAFETY: places in mappings of the emulator.
    places.iter().map(|(at, bytes)| unsafe { std::slice::from_raw_parts(*at as *const u8, *bytes) }.to_vec()).collect()
}

/// Places whose words are not what they were.
pub(super) fn changes(places: &[(usize, usize)], before: &[Vec<u8>]) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for ((at, bytes), before) in places.iter().zip(before) {
        // SAFETY: as in `copies`.
        let now = unsafe { std::slice::from_raw_parts(*at as *const u8, *bytes) };
        for (line, (new, old)) in now.chunks(64).zip(before.chunks(64)).enumerate().filter(|(_, (new, old))| new != old)
        {
            for (word, (new, old)) in new.chunks(WORD).zip(old.chunks(WORD)).enumerate() {
                let place = at + line * 64 + word * WORD;
                match found.last_mut() {
                    _ if new == old => {}
                    Some((first, length)) if *first + *length == place => *length += new.len(),
                    _ => found.push((place, new.len())),
                }
            }
        }
    }
    found
}
