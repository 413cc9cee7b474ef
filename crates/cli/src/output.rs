//! Standard output for a reader that may leave: where the macros of the standard library panic, these end the program,
//! quietly after `tare inspect MODEL | head`, with a word when a disk is full.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output.
pub(crate) fn print(text: Arguments<'_>) {
    if let Err(e) = std::io::stdout().write_fmt(text) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("tare: cannot write to standard output: {e}");
        std::process::exit(1);
    }
}

/// As the standard library's, through [`print`].
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}
