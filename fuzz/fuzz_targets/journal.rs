//! Journals of policies, as the next process finds them: any bytes are read or refused, and what is
//! read is the same when it is written and read again. The input's first line is the file's name,
//! the second the boot's id.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(3, |byte| *byte == b'\n').map(|part| (part, str::from_utf8(part)));
    let (Some((_, Ok(name))), Some((_, Ok(boot)))) = (parts.next(), parts.next()) else { return };
    let text = parts.next().map_or(&b""[..], |(text, _)| text);
    policies::fuzzing::read_journal(name, text, boot);
});
