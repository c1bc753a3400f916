#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| foldlog_tests::fuzz::git_packs(bytes));
