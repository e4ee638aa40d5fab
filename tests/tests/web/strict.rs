//! A reader of HTTP/1.1 that shares nothing with the server's (RFC 9112).

/// A request, or its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// How a request is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grammar {
    /// As a proxy has to write it: one way for each thing, and nothing that another reader could
    /// take otherwise.
    Canonical,
    /// With what a recipient may accept, too.
    Permitted,
}

/// What may follow a request on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Request,
    /// Also after trailers: the server reads nothing behind them.
    Nothing,
    /// Nothing, and the request may not have ended: its trailers are not written as the standard
    /// has it.
    Unknown,
}

/// What is at the beginning of some bytes.
#[derive(Debug)]
pub enum Read {
    /// A request, how many bytes it has, and what follows it.
    Whole(Request, usize, Next),
    /// The beginning of one; its head, if that is there.
    Part(Option<Request>),
    /// None, and why. What follows means nothing. The request whose body is wrong, if the head is
    /// right.
    Wrong(&'static str, Option<Request>),
}

impl Request {
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.fields.iter().filter(move |(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

fn is_token(text: &[u8]) -> bool {
    let is_special = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || is_special(byte))
}

/// Where bytes are read from.
struct Bytes<'a> {
    all: &'a [u8],
    position: usize,
    grammar: Grammar,
}

/// Why there is no more: the bytes have ended, or are wrong.
type Stop = Option<&'static str>;

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let taken = self.all.get(self.position..).and_then(|rest| rest.get(..length)).ok_or(None)?;
        self.position += length;
        Ok(taken)
    }

    /// A line without its end. `lf`: a bare LF may end it.
    fn line(&mut self, lf: bool) -> Result<&'a [u8], Stop> {
        let rest = &self.all[self.position..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(None)?;
        self.position += end + 1;
        let line = match rest[..end].strip_suffix(b"\r") {
            Some(line) => line,
            None if lf && self.grammar == Grammar::Permitted => &rest[..end],
            None => return Err(Some("a bare LF")),
        };
        match line.contains(&b'\r') {
            true => Err(Some("a bare CR")),
            false => Ok(line),
        }
    }

    fn fields(&mut self) -> Result<Vec<(String, String)>, Stop> {
        let mut fields = Vec::new();
        loop {
            let line = self.line(true)?;
            if line.is_empty() {
                return Ok(fields);
            }
            let colon = line.iter().position(|byte| *byte == b':').ok_or(Some("a line without a colon"))?;
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            if !is_token(name) {
                return Err(Some("a name that is no token"));
            }
            if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
                return Err(Some("a control character in a value"));
            }
            // Each byte a character.
            let text = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<String>();
            fields.push((text(name).to_ascii_lowercase(), text(value).trim_matches([' ', '\t']).to_owned()));
        }
    }

    fn chunks(&mut self) -> Result<(Vec<u8>, Next), Stop> {
        let mut body = Vec::new();
        loop {
            let line = self.line(false)?;
            let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
            let rest = line[digits..].trim_ascii_start();
            if !(1..=16).contains(&digits) || !(rest.is_empty() || rest[0] == b';') {
                return Err(Some("a chunk without a size"));
            }
            if self.grammar == Grammar::Canonical && digits < line.len() {
                return Err(Some("a chunk with an extension"));
            }
            let size = std::str::from_utf8(&line[..digits]).unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| Some("a size beyond 64 bits"))?;
            if size == 0 {
                return self.trailers().map(|next| (body, next));
            }
            body.extend_from_slice(self.take(size)?);
            if self.take(2)? != b"\r\n" {
                return Err(Some("a chunk that is longer than its size"));
            }
        }
    }
}

impl Bytes<'_> {
    fn trailers(&mut self) -> Result<Next, Stop> {
        if self.all[self.position..].starts_with(b"\r\n") {
            self.position += 2;
            return Ok(Next::Request);
        }
        let begin = self.position;
        let fields = self.fields();
        // From the end of the line before.
        let mut pairs = self.all[begin - 1..self.position].windows(2);
        let has_bare_lf = pairs.any(|two| two[1] == b'\n' && two[0] != b'\r');
        match fields {
            Ok(_) if self.grammar == Grammar::Canonical => Err(Some("trailers")),
            Ok(_) if !has_bare_lf => Ok(Next::Nothing),
            Err(problem) if problem.is_none() || self.grammar == Grammar::Canonical => Err(problem),
            Ok(_) | Err(_) => Ok(Next::Unknown),
        }
    }
}

/// Reads the head. Returns whether the version is 1.1, too.
fn head(bytes: &mut Bytes<'_>) -> Result<(Request, bool), Stop> {
    let mut line = bytes.line(true)?;
    while line.is_empty() && bytes.grammar == Grammar::Permitted {
        line = bytes.line(true)?;
    }
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Err(Some("no request line")) };
    if !is_token(method) || target.is_empty() || target.iter().any(u8::is_ascii_control) {
        return Err(Some("a wrong method or target"));
    }
    let is_1_1 = match (version, bytes.grammar) {
        (b"HTTP/1.1", _) => true,
        (b"HTTP/1.0", Grammar::Permitted) => false,
        _ => return Err(Some("a wrong version")),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields = bytes.fields()?;
    Ok((Request { method: text(method), target: text(target), fields, body: Vec::new() }, is_1_1))
}

/// Reads the body, and returns what follows it.
fn body(bytes: &mut Bytes<'_>, request: &mut Request, is_1_1: bool) -> Result<Next, Stop> {
    let codings: Vec<&str> = request.values("transfer-encoding").collect();
    let mut lengths: Vec<&str> = request.values("content-length").collect();
    if bytes.grammar == Grammar::Permitted {
        lengths.dedup();
    }
    let ((body, next), has_both) = match (&codings[..], &lengths[..]) {
        ([], []) => ((Vec::new(), Next::Request), false),
        ([], [length]) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => {
            let length = length.parse().map_err(|_| Some("a length beyond 64 bits"))?;
            ((bytes.take(length)?.to_vec(), Next::Request), false)
        }
        ([coding], []) if coding.eq_ignore_ascii_case("chunked") => (bytes.chunks()?, false),
        // Transfer-Encoding overrides Content-Length; the sender may be smuggling (RFC 9112,
        // section 6.3).
        ([coding], _) if coding.eq_ignore_ascii_case("chunked") && bytes.grammar == Grammar::Permitted => {
            (bytes.chunks()?, true)
        }
        _ => return Err(Some("no length that is one")),
    };
    let has_codings = !codings.is_empty();
    request.body = body;
    let options = request.values("connection").flat_map(|value| value.split(',')).map(str::trim);
    let options: Vec<String> = options.map(str::to_ascii_lowercase).collect();
    let has = |option: &str| options.iter().any(|it| it == option);
    let closes = has_both || has("close") || !is_1_1 && (!has("keep-alive") || has_codings);
    Ok(if closes && next == Next::Request { Next::Nothing } else { next })
}

/// Reads the first request of `all`, and says what follows it.
pub fn read(all: &[u8], grammar: Grammar) -> Read {
    let mut bytes = Bytes { all, position: 0, grammar };
    let (mut request, is_1_1) = match head(&mut bytes) {
        Ok(head) => head,
        Err(None) => return Read::Part(None),
        Err(Some(problem)) => return Read::Wrong(problem, None),
    };
    let mut hosts = request.values("host");
    if is_1_1 && (hosts.next().is_none() || hosts.next().is_some()) {
        return Read::Wrong("no host, or several", Some(request.clone()));
    }
    drop(hosts);
    let begun = bytes.position;
    match body(&mut bytes, &mut request, is_1_1) {
        Ok(next) => Read::Whole(request, bytes.position, next),
        Err(stop) => {
            // What there is of it, chunks and all.
            request.body = all[begun..].to_vec();
            match stop {
                None => Read::Part(Some(request)),
                Some(problem) => Read::Wrong(problem, Some(request)),
            }
        }
    }
}
