//! What a measurement makes on a backend that others go on using, given back however the measurement ends.

use std::fmt;
use std::ops::Deref;

use tare_ops::{Backend, Executable};

use crate::shared::Shared;
use crate::tap::Tap;

/// Executables or recordings of one measurement. Dropped, it gives them back, the last one first: a twin lives on the buffers
/// of what it was made from. It must not be dropped inside [`Tap::with`].
pub(crate) struct Held<'a, B: Shared, T: Copy = Executable> {
    tap: &'a Tap<B>,
    things: Vec<T>,
    give_back: fn(&Tap<B>, T),
}

impl<'a, B: Shared> Held<'a, B> {
    /// Room for executables.
    pub(crate) fn executables(tap: &'a Tap<B>) -> Self {
        Self::new(tap, |tap, exe| tap.clone().release(exe))
    }
}

impl<'a, B: Shared, T: Copy> Held<'a, B, T> {
    /// Room for what `give_back` gives back.
    pub(crate) fn new(tap: &'a Tap<B>, give_back: fn(&Tap<B>, T)) -> Self {
        Self { tap, things: Vec::new(), give_back }
    }

    /// Holds one more, and gives its name.
    pub(crate) fn keep(&mut self, thing: T) -> T {
        self.things.push(thing);
        thing
    }
}

impl<B: Shared, T: Copy> Deref for Held<'_, B, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.things
    }
}

impl<B: Shared, T: Copy> Drop for Held<'_, B, T> {
    fn drop(&mut self) {
        self.things.iter().rev().for_each(|thing| (self.give_back)(self.tap, *thing));
    }
}

impl<B: Shared, T: Copy + fmt::Debug> fmt::Debug for Held<'_, B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.things).finish()
    }
}

/// The threads of a backend as they are, until it is dropped: nobody begins to sit out, and nobody comes back. It must not be
/// dropped inside [`Tap::with`].
pub(crate) struct Steady<'a, B: Shared> {
    tap: &'a Tap<B>,
    /// One inside of another one changes nothing.
    before: bool,
}

impl<'a, B: Shared> Steady<'a, B> {
    pub(crate) fn of(tap: &'a Tap<B>) -> Self {
        Self { tap, before: tap.with(|backend| backend.hold(true)) }
    }
}

impl<B: Shared> Drop for Steady<'_, B> {
    fn drop(&mut self) {
        let before = self.before;
        self.tap.with(|backend| backend.hold(before));
    }
}
