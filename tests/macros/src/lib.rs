//! Attributes of tests. The crate `tests` re-exports them.
#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Ident, ItemFn, LitStr, MetaNameValue, ReturnType, Token};

/// Runs a test in a separate process: the test harness starts itself again with this test only.
///
/// Goes below `#[test]` and above `#[serial]`, which then covers all of the test's processes, on a
/// function without a return value. The process has `LULL_TEST_ISOLATED` set, and its arguments
/// select the test, so that it can start itself once more.
///
/// - `drivers = "epoll, uring"`: one process for each driver, one after the other, with the driver
///   in `LULL_TEST_DRIVER` (see `tests::isolated::driver`).
/// - `root`: skips the test where `tests::root` is `None`. Available where the crate `tests` is.
#[proc_macro_attribute]
pub fn isolated(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let options = syn::parse_macro_input!(attribute as Options);
    let mut function = syn::parse_macro_input!(item as ItemFn);
    if !matches!(function.sig.output, ReturnType::Default) || function.sig.asyncness.is_some() {
        let error =
            syn::Error::new_spanned(&function.sig, "an isolated test is not async and returns nothing");
        return error.into_compile_error().into();
    }
    let name = &function.sig.ident;
    let skip = options.root.then(|| quote! { if ::tests::root().is_none() { return; } });
    let drivers = &options.drivers;
    let body = &function.block;
    let isolated = quote! {{
        if ::std::env::var_os("LULL_TEST_ISOLATED").is_none() {
            #skip
            // The path of a test begins with the name of its crate, which the harness leaves out.
            let path = concat!(module_path!(), "::", stringify!(#name));
            let (_, path) = path.split_once("::").expect("a path in a crate");
            let drivers: &[&str] = &[#(#drivers),*];
            for driver in drivers {
                let program = ::std::env::current_exe().expect("the test's own program");
                let mut command = ::std::process::Command::new(program);
                command.args([path, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
                command.env("LULL_TEST_ISOLATED", "1").env("LULL_TEST_DRIVER", driver);
                let output = command.output().expect("the test's own process");
                let text = ::std::string::String::from_utf8_lossy(&output.stdout);
                let errors = ::std::string::String::from_utf8_lossy(&output.stderr);
                print!("{text}");
                eprint!("{errors}");
                assert!(output.status.success(), "{path} failed in its own process {driver}: {}", output.status);
                assert!(text.contains("test result: ok. 1 passed"), "{path} did not run in its own process");
            }
            return;
        }
        #body
    }};
    function.block = syn::parse_quote!(#isolated);
    quote!(#function).into()
}

/// A test on the testbed, which needs root, and is alone: `#[test]`, [`macro@isolated`] with `root`
/// and with the arguments of this attribute, and `#[serial]`.
#[proc_macro_attribute]
pub fn testbed_test(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let options =
        syn::parse_macro_input!(attribute with Punctuated::<MetaNameValue, Token![,]>::parse_terminated);
    let function = syn::parse_macro_input!(item as ItemFn);
    quote!(#[test] #[::tests::isolated(root, #options)] #[::serial_test::serial] #function).into()
}

struct Options {
    root: bool,
    /// One empty name where the test doesn't name drivers.
    drivers: Vec<String>,
}

impl Parse for Options {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let mut options = Self { root: false, drivers: vec![String::new()] };
        while !input.is_empty() {
            let name: Ident = input.parse()?;
            match name.to_string().as_str() {
                "root" => options.root = true,
                "drivers" => {
                    input.parse::<Token![=]>()?;
                    let list: LitStr = input.parse()?;
                    options.drivers = list.value().split(',').map(|name| name.trim().to_owned()).collect();
                }
                _ => return Err(syn::Error::new(name.span(), "expected `root` or `drivers = \"…\"`")),
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(options)
    }
}
