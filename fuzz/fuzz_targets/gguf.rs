//! GGUF files: header, configuration, vocabulary.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tare_formats::fuzz::gguf(bytes));
