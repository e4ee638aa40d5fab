//! Files that were compressed beforehand (`app.js.br` beside `app.js`).

use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;

/// A content coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Brotli,
    Zstandard,
    Gzip,
}

/// In order of preference, by what they save.
pub const ENCODINGS: [Encoding; 3] = [Encoding::Brotli, Encoding::Zstandard, Encoding::Gzip];

impl Encoding {
    /// As headers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// What the file's name ends in.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Brotli => ".br",
            Self::Zstandard => ".zst",
            Self::Gzip => ".gz",
        }
    }
}

/// The encoding that a client likes best (RFC 9110, section 12.5.3), of those for which `available`
/// is true. `None`: none of them, so the file as it is.
pub fn preferred(headers: &HeaderMap, available: impl Fn(Encoding) -> bool) -> Option<Encoding> {
    // A client that sends none may want any, but many can't decode.
    let mut weights = [None; ENCODINGS.len()];
    let mut any = 0;
    let mut identity = 0;
    for value in headers.get_all(ACCEPT_ENCODING) {
        for element in value.to_str().unwrap_or_default().split(',') {
            let (name, parameters) = element.split_once(';').unwrap_or((element, ""));
            let weight = weight(parameters);
            let name = name.trim();
            if name == "*" {
                any = weight;
            } else if name.eq_ignore_ascii_case("identity") {
                identity = weight;
            }
            let named = |encoding: &Encoding| {
                let alias = *encoding == Encoding::Gzip && name.eq_ignore_ascii_case("x-gzip");
                name.eq_ignore_ascii_case(encoding.name()) || alias
            };
            if let Some(index) = ENCODINGS.iter().position(named) {
                weights[index] = Some(weight);
            }
        }
    }
    let mut best = None;
    for (encoding, weight) in ENCODINGS.into_iter().zip(weights) {
        let weight = weight.unwrap_or(any);
        if weight > best.map_or(0, |(_, weight)| weight) && weight >= identity && available(encoding) {
            best = Some((encoding, weight));
        }
    }
    best.map(|(encoding, _)| encoding)
}

/// The `q` parameter in thousandths; 1,000 without one, 0 if it is malformed.
fn weight(parameters: &str) -> u16 {
    let quality = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let thousandths = |value: &str| value.parse::<f32>().ok().filter(|quality| (0.0..=1.0).contains(quality));
    quality.map_or(1000, |value| thousandths(value).map_or(0, |quality| (quality * 1000.0) as u16))
}
