//! The body of a request to the OpenAI API.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| tare_server::fuzz::chat_request(bytes));
