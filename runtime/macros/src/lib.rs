//! The attributes of the `runtime` crate; use them from there, as `#[runtime::main]` and
//! `#[runtime::test]`.
//!
//! They need so little of a parser that none is linked: who uses them builds no `syn` for it.

#![forbid(unsafe_code)]

use proc_macro::{Delimiter, Group, Ident, Literal, Span, TokenStream, TokenTree};

#[expect(missing_docs, reason = "documented where `runtime` exports it: examples there run")]
#[proc_macro_attribute]
pub fn main(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Main).unwrap_or_else(Error::into_tokens)
}

#[expect(missing_docs, reason = "documented where `runtime` exports it: examples there run")]
#[proc_macro_attribute]
pub fn test(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Test).unwrap_or_else(Error::into_tokens)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Main,
    Test,
}

struct Error(Span, &'static str);

impl Error {
    fn into_tokens(self) -> TokenStream {
        let message = TokenTree::from(Literal::string(self.1));
        let error = fill("::core::compile_error! { MESSAGE }", &[("MESSAGE", message.into())]);
        error.into_iter().map(|token| spanned(token, self.0)).collect()
    }
}

fn spanned(mut token: TokenTree, span: Span) -> TokenTree {
    if let TokenTree::Group(group) = &token {
        let inside = group.stream().into_iter().map(|token| spanned(token, span)).collect();
        token = Group::new(group.delimiter(), inside).into();
    }
    token.set_span(span);
    token
}

/// The tokens of a template, in which each of these names is replaced.
fn fill(template: &str, parts: &[(&str, TokenStream)]) -> TokenStream {
    fn replace(tokens: TokenStream, parts: &[(&str, TokenStream)]) -> TokenStream {
        let replaced = tokens.into_iter().map(|token| match token {
            TokenTree::Ident(name) => {
                let part = parts.iter().find(|(known, _)| name.to_string() == *known);
                part.map_or_else(|| TokenTree::from(name).into(), |(_, tokens)| tokens.clone())
            }
            TokenTree::Group(group) => {
                TokenTree::from(Group::new(group.delimiter(), replace(group.stream(), parts))).into()
            }
            other => other.into(),
        });
        replaced.collect()
    }
    replace(template.parse().expect("the template is Rust"), parts)
}

/// What tokio's attributes take, and what is said instead.
const OF_TOKIO: [(&str, &str); 3] = [
    ("flavor", "this is tokio's: write workers = N, 1 for one thread"),
    ("worker_threads", "this is tokio's: write workers = N"),
    ("start_paused", "this is tokio's: begin the test with runtime::time::pause()"),
];

/// What an attribute says: an expression of the type `__private::Attribute`, and the crate's path.
struct Arguments {
    attribute: TokenStream,
    krate: TokenStream,
}

impl Arguments {
    /// Whether a setting exists, the compiler checks: each is a field of `__private::Attribute`.
    fn parse(tokens: TokenStream) -> Result<Self, Error> {
        let mut krate = None;
        let mut fields = TokenStream::new();
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            let TokenTree::Ident(name) = token else {
                return Err(Error(token.span(), "the name of a setting is expected"));
            };
            if let Some((_, instead)) = OF_TOKIO.iter().find(|(its, _)| name.to_string() == *its) {
                return Err(Error(name.span(), instead));
            }
            let is_equals = matches!(tokens.next(), Some(TokenTree::Punct(mark)) if mark.as_char() == '=');
            let Some(TokenTree::Literal(value)) = tokens.next().filter(|_| is_equals) else {
                return Err(Error(name.span(), "a literal is expected, as in workers = 2"));
            };
            match tokens.next() {
                None => {}
                Some(TokenTree::Punct(mark)) if mark.as_char() == ',' => {}
                Some(other) => return Err(Error(other.span(), "a comma is expected")),
            }
            if name.to_string() == "crate" {
                krate = Some(path(&value)?);
                continue;
            }
            let field = "NAME: ::core::option::Option::Some(::std::string::ToString::to_string(&VALUE)),";
            let parts = [("NAME", one(name)), ("VALUE", one(value))];
            fields.extend(fill(field, &parts));
        }
        let krate = krate.unwrap_or_else(|| fill("::runtime", &[]));
        let template = "KRATE::__private::Attribute { FIELDS ..::core::default::Default::default() }";
        let attribute = fill(template, &[("KRATE", krate.clone()), ("FIELDS", fields)]);
        Ok(Self { attribute, krate })
    }
}

fn one(token: impl Into<TokenTree>) -> TokenStream {
    token.into().into()
}

/// The path that a string contains.
fn path(literal: &Literal) -> Result<TokenStream, Error> {
    let text = literal.to_string();
    let path = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let path = path.and_then(|path| path.parse().ok());
    path.ok_or(Error(literal.span(), "a string with a path is expected"))
}

/// An `async fn` without arguments.
struct Function {
    /// Its attributes and its visibility.
    before: TokenStream,
    name: Ident,
    /// What it returns, with the arrow.
    output: TokenStream,
    body: TokenTree,
}

impl Function {
    fn parse(item: TokenStream) -> Result<Self, Error> {
        let mut tokens: Vec<TokenTree> = item.into_iter().collect();
        let is = |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(name) if name.to_string() == word);
        let not_async = |span| Error(span, "the function must be async");
        let first = tokens.first().map_or_else(Span::call_site, TokenTree::span);
        let begin = tokens.iter().position(|token| is(token, "fn")).ok_or(not_async(first))?;
        if begin == 0 || !is(&tokens[begin - 1], "async") {
            return Err(not_async(tokens[begin].span()));
        }
        let mut rest = tokens.split_off(begin + 1).into_iter();
        tokens.truncate(begin - 1);
        let (Some(TokenTree::Ident(name)), Some(TokenTree::Group(arguments))) = (rest.next(), rest.next())
        else {
            return Err(Error(first, "the function must not be generic"));
        };
        if !arguments.stream().is_empty() {
            return Err(Error(arguments.span(), "the function takes no arguments"));
        }
        let body = rest
            .next_back()
            .filter(|body| matches!(body, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace));
        let body = body.ok_or(Error(name.span(), "the function has no body"))?;
        Ok(Self { before: tokens.into_iter().collect(), name, output: rest.collect(), body })
    }
}

fn expand(attribute: TokenStream, item: TokenStream, kind: Kind) -> Result<TokenStream, Error> {
    let Arguments { attribute, krate } = Arguments::parse(attribute)?;
    let Function { before, name, output, body } = Function::parse(item)?;
    if kind == Kind::Main && name.to_string() != "main" {
        return Err(Error(name.span(), "this attribute is for fn main"));
    }
    let template = match kind {
        Kind::Main => {
            "BEFORE fn NAME() OUTPUT { KRATE::__private::start(ATTRIBUTE).block_on(async move BODY) }"
        }
        // Items have no hygiene: the test may call a function of its file whose name is the same.
        Kind::Test => {
            "#[::core::prelude::v1::test] BEFORE fn NAME() OUTPUT {
                KRATE::__private::on_each_driver(ATTRIBUTE, |runtime| {
                    async fn __runtime_test_body() OUTPUT BODY
                    runtime.block_on(__runtime_test_body())
                })
            }"
        }
    };
    let parts = [
        ("BEFORE", before),
        ("NAME", one(name)),
        ("OUTPUT", output),
        ("KRATE", krate),
        ("ATTRIBUTE", attribute),
        ("BODY", one(body)),
    ];
    Ok(fill(template, &parts))
}
