//! [`Debug`](std::fmt::Debug) for types of which most can't be shown.

/// Shows a type's name, and these values:
/// `opaque_debug!(JoinSet<T>, "JoinSet", [T], |it| "len" = it.len());`.
macro_rules! opaque_debug {
    ($type:ty, $name:literal $(, [$($generics:tt)*])? $(, |$it:ident| $($field:literal = $value:expr),+)?) => {
        impl $(<$($generics)*>)? ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(let $it = self;)?
                f.debug_struct($name)$($(.field($field, &$value))+)?.finish_non_exhaustive()
            }
        }
    };
}
