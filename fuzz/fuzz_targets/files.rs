#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabricast::fuzz::run("files", bytes));
