//! The attributes of the `runtime` crate; use them from there, as `#[runtime::main]` and
//! `#[runtime::test]`.

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, ItemFn, Lit, MetaNameValue, Token, parse_macro_input};

/// Runs an `async fn main` on a runtime.
///
/// Takes `policy = "…"`, `workers = N`, `interface = "…"`, `wait = "…"`, `driver = "…"` and
/// `cores = "…"`, all optional. `RUNTIME_POLICY`, `RUNTIME_WORKERS`, `RUNTIME_INTERFACE`,
/// `RUNTIME_WAIT` and `RUNTIME_DRIVER` in the environment are stronger.
#[proc_macro_attribute]
pub fn main(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Main)
}

/// Runs an `async fn` as a test, on a runtime of its own with one worker unless told otherwise: on
/// each driver that there is, one after the other, unless one is named. A driver that this machine
/// doesn't have is passed over, with a printed reason; with `CI` in the environment that is a failure.
///
/// Takes what `main` takes. `RUNTIME_…` in the environment does not change a test.
#[proc_macro_attribute]
pub fn test(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Test)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Main,
    Test,
}

#[derive(Default)]
struct Arguments(Vec<(String, Lit)>);

const NAMES: [&str; 6] = ["policy", "workers", "interface", "wait", "driver", "cores"];
const POLICIES: [&str; 4] = ["vanilla", "packing", "suppression", "kernel-polling"];
const DRIVERS: [&str; 4] = ["auto", "epoll", "uring", "hybrid"];

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments: Vec<(String, Lit)> = Vec::new();
        for pair in Punctuated::<MetaNameValue, Token![,]>::parse_terminated(input)? {
            let name = pair.path.get_ident().map(ToString::to_string).unwrap_or_default();
            if !NAMES.contains(&name.as_str()) {
                let message = format!("unknown argument; the arguments are: {}", NAMES.join(", "));
                return Err(Error::new(pair.path.span(), message));
            }
            if arguments.iter().any(|(given, _)| *given == name) {
                return Err(Error::new(pair.path.span(), format!("{name} is given twice")));
            }
            let Expr::Lit(ExprLit { lit, .. }) = pair.value else {
                return Err(Error::new(pair.value.span(), "a literal is expected"));
            };
            match (name.as_str(), &lit) {
                ("workers", Lit::Int(number)) if number.base10_parse::<usize>().is_ok_and(|n| n > 0) => {}
                ("workers", _) => return Err(Error::new(lit.span(), "a number from 1 is expected")),
                ("policy", Lit::Str(text)) if !POLICIES.contains(&text.value().as_str()) => {
                    let message = format!("unknown policy; the policies are: {}", POLICIES.join(", "));
                    return Err(Error::new(lit.span(), message));
                }
                ("driver", Lit::Str(text)) if !DRIVERS.contains(&text.value().as_str()) => {
                    let message = format!("unknown driver; the drivers are: {}", DRIVERS.join(", "));
                    return Err(Error::new(lit.span(), message));
                }
                (_, Lit::Str(_)) => {}
                _ => return Err(Error::new(lit.span(), "a string is expected")),
            }
            arguments.push((name, lit));
        }
        Ok(Self(arguments))
    }
}

fn expand(attribute: TokenStream, item: TokenStream, kind: Kind) -> TokenStream {
    let arguments = parse_macro_input!(attribute as Arguments);
    let function = parse_macro_input!(item as ItemFn);
    if function.sig.asyncness.is_none() {
        return Error::new(function.sig.span(), "the function must be async").to_compile_error().into();
    }
    if !function.sig.inputs.is_empty() {
        return Error::new(function.sig.inputs.span(), "the function takes no arguments")
            .to_compile_error()
            .into();
    }
    if kind == Kind::Main && function.sig.ident != "main" {
        return Error::new(function.sig.ident.span(), "this attribute is for fn main")
            .to_compile_error()
            .into();
    }
    let ItemFn { attrs, vis, mut sig, block, .. } = function;
    sig.asyncness = None;
    let settings = arguments.0.iter().map(|(name, value)| {
        let name = syn::Ident::new(name, proc_macro2::Span::call_site());
        let value = match value {
            Lit::Int(_) => quote!(#value),
            _ => quote!(::std::string::String::from(#value)),
        };
        quote!(#name: ::core::option::Option::Some(#value),)
    });
    let attribute = quote!(::runtime::__private::Attribute {
        #(#settings)*
        ..::core::default::Default::default()
    });
    match kind {
        Kind::Main => quote! {
            #(#attrs)*
            #vis #sig {
                ::runtime::__private::start(#attribute).block_on(async move #block)
            }
        },
        Kind::Test => {
            let output = &sig.output;
            quote! {
                #[::core::prelude::v1::test]
                #(#attrs)*
                #vis #sig {
                    ::runtime::__private::on_each_driver(#attribute, |mut runtime| {
                        async fn body() #output #block
                        runtime.block_on(body())
                    })
                }
            }
        }
    }
    .into()
}
