//! What servers answer, in the text protocol.

use crate::error::Error;

/// What a request was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The end of a `get`, after so many values.
    Values(u32),
    /// Done: `STORED`, `DELETED`, `TOUCHED`, `HD`, or a counter's new value.
    Done,
    /// There is no such record: `NOT_FOUND`, `NF`.
    NotFound,
    /// Somebody else has stored it meanwhile: `EXISTS`, `EX`.
    Exists,
    /// It is not as the command wants it: `NOT_STORED`, `NS`.
    NotStored,
    /// Any error line.
    Refused,
}

/// Who is told of what comes; values are of no interest to all.
pub(crate) trait Sink {
    /// A value of so many bytes begins; `unique` is its CAS number, or 0.
    fn value(&mut self, _key: &[u8], _length: usize, _unique: u64) {}
    /// The next bytes of the value.
    fn bytes(&mut self, _bytes: &[u8]) {}
    /// An answer is complete.
    fn answer(&mut self, answer: Answer) -> Result<(), Error>;
}

/// Splits what a server sends into answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// A line that is not whole yet.
    line: Vec<u8>,
    /// Bytes of a value that are still to come.
    value: usize,
    /// Bytes of the line's end after a value that are still to come.
    end: usize,
    /// Values of the answer so far.
    values: u32,
    /// Whether the answer ends with its value.
    meta: bool,
}

/// The longest line that an answer can have: a key, numbers, and room for an error's text.
const LONGEST_LINE: usize = 4096;

const LINE_END: &[u8; 2] = b"\r\n";

impl Answers {
    pub(crate) fn feed(&mut self, mut input: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        while !input.is_empty() {
            if self.value > 0 {
                let now = self.value.min(input.len());
                sink.bytes(&input[..now]);
                self.value -= now;
                input = &input[now..];
                continue;
            }
            if self.end > 0 {
                if input[0] != LINE_END[2 - self.end] {
                    return Err(Error::Protocol("a value is longer than its length".to_owned()));
                }
                self.end -= 1;
                input = &input[1..];
                if self.end == 0 && std::mem::take(&mut self.meta) {
                    sink.answer(Answer::Values(1))?;
                }
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', input) else {
                self.line.extend_from_slice(input);
                if self.line.len() > LONGEST_LINE {
                    return Err(Error::Protocol("an answer has a line that does not end".to_owned()));
                }
                return Ok(());
            };
            let (line, rest) = (&input[..=end], &input[end + 1..]);
            input = rest;
            if self.line.is_empty() {
                self.line(line, sink)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.line(&whole, sink)?;
                whole.clear();
                self.line = whole;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        let unknown = || Error::Protocol(format!("unexpected answer {:?}", String::from_utf8_lossy(line)));
        let Some(text) = line.strip_suffix(LINE_END) else { return Err(unknown()) };
        if let Some(value) = text.strip_prefix(b"VALUE ") {
            // VALUE <key> <flags> <bytes> [<cas unique>]
            let (key, rest) = value.split_at(memchr::memchr(b' ', value).ok_or_else(unknown)?);
            let mut words = rest.split(|&byte| byte == b' ');
            let length = words.nth(2).and_then(number).ok_or_else(unknown)?;
            let unique = words.next().map(|word| number(word).ok_or_else(unknown)).transpose()?;
            return self.begin(key, length, unique.unwrap_or(0), false, sink);
        }
        if let Some(value) = text.strip_prefix(b"VA ") {
            // VA <size> <flags>*, of which k is the key.
            let mut words = value.split(|&byte| byte == b' ');
            let length = words.next().and_then(number).ok_or_else(unknown)?;
            let key = words.find_map(|word| word.strip_prefix(b"k")).unwrap_or_default();
            return self.begin(key, length, 0, true, sink);
        }
        if self.values > 0 && text != b"END" {
            // Values end with END alone, and an error between them would leave it out.
            self.values = 0;
        }
        let starts =
            |word: &[u8]| text == word || text.strip_prefix(word).is_some_and(|rest| rest[0] == b' ');
        let answer = match text {
            b"END" => Answer::Values(std::mem::take(&mut self.values)),
            b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" => Answer::Done,
            b"NOT_FOUND" => Answer::NotFound,
            b"EXISTS" => Answer::Exists,
            b"NOT_STORED" => Answer::NotStored,
            b"ERROR Too many open connections" => {
                return Err(Error::Protocol("the server has too many open connections".to_owned()));
            }
            _ if starts(b"HD") => Answer::Done,
            _ if starts(b"EN") => Answer::Values(0),
            _ if starts(b"NF") => Answer::NotFound,
            _ if starts(b"EX") => Answer::Exists,
            _ if starts(b"NS") => Answer::NotStored,
            _ if starts(b"ERROR") || starts(b"CLIENT_ERROR") || starts(b"SERVER_ERROR") => Answer::Refused,
            _ if number(text).is_some() => Answer::Done,
            _ => return Err(unknown()),
        };
        sink.answer(answer)
    }

    fn begin(
        &mut self,
        key: &[u8],
        length: u64,
        unique: u64,
        meta: bool,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        let length = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize);
        let length = length.ok_or_else(|| Error::Protocol("a value has no possible length".to_owned()))?;
        (self.value, self.end, self.meta) = (length, LINE_END.len(), meta);
        self.values += u32::from(!meta);
        sink.value(key, length, unique);
        Ok(())
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let add = |sum: u64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(*byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[derive(Default)]
    pub(crate) struct Seen {
        pub(crate) answers: Vec<Answer>,
        pub(crate) values: Vec<(Vec<u8>, usize, u64, Vec<u8>)>,
    }

    impl Sink for Seen {
        fn value(&mut self, key: &[u8], length: usize, unique: u64) {
            self.values.push((key.to_vec(), length, unique, Vec::new()));
        }

        fn bytes(&mut self, bytes: &[u8]) {
            self.values.last_mut().unwrap().3.extend_from_slice(bytes);
        }

        fn answer(&mut self, answer: Answer) -> Result<(), Error> {
            self.answers.push(answer);
            Ok(())
        }
    }

    #[test]
    fn answers_and_values_are_found_however_the_bytes_are_cut() {
        let input = b"VALUE k 0 9\r\nEND\r\nEND\r\r\nVALUE j 5 0 77\r\n\r\nEND\r\nEND\r\nSTORED\r\n\
                      SERVER_ERROR no\r\nVA 2 kkey f0\r\nHD\r\nHD\r\nEN\r\nNOT_FOUND\r\nEXISTS\r\n42\r\n";
        for piece in 1..=input.len() {
            let (mut answers, mut seen) = (Answers::default(), Seen::default());
            for part in input.chunks(piece) {
                answers.feed(part, &mut seen).unwrap();
            }
            use Answer::{Done, Exists, NotFound, Refused, Values};
            assert_eq!(
                seen.answers,
                [Values(2), Values(0), Done, Refused, Values(1), Done, Values(0), NotFound, Exists, Done],
                "pieces of {piece}"
            );
            let value =
                |key: &[u8], unique, bytes: &[u8]| (key.to_vec(), bytes.len(), unique, bytes.to_vec());
            let expected = [value(b"k", 0, b"END\r\nEND\r"), value(b"j", 77, b""), value(b"key", 0, b"HD")];
            assert_eq!(seen.values, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_and_not_a_success() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"VALUE k 0\r\n",
            b"VALUE k 0 99999999999999999999\r\n",
            b"VALUE k 0 -1\r\n",
            b"VA x\r\n",
            b"VALUE k 0 1\r\nxx\r\n",
            b"STOREDX\r\n",
            b"STORED\n",
            b"\r\n",
            &[b'x'; 9000],
        ] {
            let result = Answers::default().feed(input, &mut Seen::default());
            assert!(result.is_err(), "{:?}", String::from_utf8_lossy(&input[..input.len().min(40)]));
        }
    }
}
