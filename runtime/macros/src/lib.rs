//! The attributes of the `runtime` crate; use them from there, as `#[runtime::main]` and
//! `#[runtime::test]`.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, ItemFn, Lit, LitStr, MetaNameValue, Path, Token, parse_macro_input};

/// Runs an `async fn main` on a runtime. Prints the error and ends the process with code 1 if the
/// runtime can't be built.
///
/// The arguments are `policy`, `workers`, `interface`, `wait`, `driver`, `cores`, `affinity`,
/// `grace_time`, `latency_budget` and `cpu_budget`, all optional: strings, except `workers`, which
/// is a number. The [table of `Builder`](struct.Builder.html#configuration) lists their values, and
/// the environment variables that override them.
///
/// `crate = "…"` gives the path of the runtime crate if it is not `::runtime`, for example because
/// the dependency is renamed.
///
/// # Examples
/// ```
/// #[runtime::main(policy = "vanilla", workers = 2, wait = "adaptive")]
/// async fn main() {
///     assert_eq!(runtime::workers(), 2);
/// }
/// ```
#[proc_macro_attribute]
pub fn main(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Main)
}

/// Runs an `async fn` as a test, on a runtime with one worker unless `workers` is given.
///
/// The test runs once on each driver, or only on the one that `driver` names. A driver that this
/// machine doesn't have is skipped, and the test's output says why. With `LULL_REQUIRE_ALL` set in
/// the environment, a missing driver fails the test.
///
/// The arguments are those of [`main`](macro@main). The variables `RUNTIME_…` don't change a test.
///
/// # Examples
/// ```
/// #[runtime::test(workers = 2)]
/// async fn another_worker_answers() {
///     assert_eq!(runtime::spawn_on(1, || async { runtime::current_worker() }).await.unwrap(), 1);
/// }
/// ```
#[proc_macro_attribute]
pub fn test(attribute: TokenStream, item: TokenStream) -> TokenStream {
    expand(attribute, item, Kind::Test)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Main,
    Test,
}

/// An attribute's arguments: the fields of `runtime::__private::Attribute`, and the crate's path.
#[derive(Default)]
struct Arguments {
    settings: Vec<(String, Lit)>,
    krate: Option<Path>,
}

const NAMES: [&str; 11] = [
    "policy",
    "workers",
    "interface",
    "wait",
    "driver",
    "cores",
    "affinity",
    "grace_time",
    "latency_budget",
    "cpu_budget",
    "crate",
];
const POLICIES: [&str; 5] = ["vanilla", "packing", "suppression", "kernel-polling", "kernel-thread"];
const DRIVERS: [&str; 3] = ["auto", "epoll", "uring"];
const AFFINITIES: [&str; 3] = ["pin", "follow", "none"];

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::default();
        for pair in Punctuated::<MetaNameValue, Token![,]>::parse_terminated(input)? {
            arguments.add(pair)?;
        }
        Ok(arguments)
    }
}

impl Arguments {
    fn add(&mut self, pair: MetaNameValue) -> syn::Result<()> {
        let name = pair.path.get_ident().map(ToString::to_string).unwrap_or_default();
        if !NAMES.contains(&name.as_str()) {
            let message = format!("unknown argument; the arguments are: {}", NAMES.join(", "));
            return Err(Error::new(pair.path.span(), message));
        }
        let given_twice = match name.as_str() {
            "crate" => self.krate.is_some(),
            _ => self.settings.iter().any(|(given, _)| *given == name),
        };
        if given_twice {
            return Err(Error::new(pair.path.span(), format!("{name} is given twice")));
        }
        let Expr::Lit(ExprLit { lit, .. }) = pair.value else {
            return Err(Error::new(pair.value.span(), "a literal is expected"));
        };
        match (name.as_str(), &lit) {
            ("workers", Lit::Int(number)) if number.base10_parse::<usize>().is_ok_and(|n| n > 0) => {}
            ("workers", _) => return Err(Error::new(lit.span(), "a number from 1 is expected")),
            ("crate", Lit::Str(text)) => {
                self.krate = Some(text.parse::<Path>()?);
                return Ok(());
            }
            ("policy", Lit::Str(text)) => expect_one_of(text, "policy", "policies", &POLICIES)?,
            ("driver", Lit::Str(text)) => expect_one_of(text, "driver", "drivers", &DRIVERS)?,
            ("affinity", Lit::Str(text)) => expect_one_of(text, "affinity", "affinities", &AFFINITIES)?,
            (_, Lit::Str(_)) => {}
            _ => return Err(Error::new(lit.span(), "a string is expected")),
        }
        self.settings.push((name, lit));
        Ok(())
    }
}

fn expect_one_of(text: &LitStr, one: &str, many: &str, known: &[&str]) -> syn::Result<()> {
    if known.contains(&text.value().as_str()) {
        return Ok(());
    }
    Err(Error::new(text.span(), format!("unknown {one}; the {many} are: {}", known.join(", "))))
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
    let krate = arguments.krate.map_or_else(|| quote!(::runtime), |path| quote!(#path));
    let settings = arguments.settings.iter().map(|(name, value)| {
        let name = syn::Ident::new(name, proc_macro2::Span::call_site());
        let value = match value {
            Lit::Int(_) => quote!(#value),
            _ => quote!(::std::string::String::from(#value)),
        };
        quote!(#name: ::core::option::Option::Some(#value),)
    });
    let attribute = quote!(#krate::__private::Attribute {
        #(#settings)*
        ..::core::default::Default::default()
    });
    match kind {
        Kind::Main => quote! {
            #(#attrs)*
            #vis #sig {
                #krate::__private::start(#attribute).block_on(async move #block)
            }
        },
        Kind::Test => {
            let output = &sig.output;
            quote! {
                #[::core::prelude::v1::test]
                #(#attrs)*
                #vis #sig {
                    #krate::__private::on_each_driver(#attribute, |mut runtime| {
                        // Items have no hygiene: the test may call a function of its file whose
                        // name is the same.
                        async fn __runtime_test_body() #output #block
                        runtime.block_on(__runtime_test_body())
                    })
                }
            }
        }
    }
    .into()
}
