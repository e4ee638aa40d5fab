//! Enums whose values have names, as settings, arguments and reports write them.

/// Text that is none of the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// What the text should have named, as `policy`.
    pub kind: &'static str,
    pub given: String,
    pub known: &'static [&'static str],
}

crate::error_text!(
    UnknownName: Self { kind, given, known } => "unknown {kind} {given:?}; write {}", listed(known)
);

/// For a help text: `pin, follow or none`.
pub fn listed(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
    }
}

/// Gives an enum `ALL`, `name`, and [`Display`](std::fmt::Display) and
/// [`FromStr`](std::str::FromStr) by these names.
#[doc(hidden)]
#[macro_export]
macro_rules! names {
    ($type:ident, $kind:literal: $($variant:ident = $name:literal),+) => {
        impl $type {
            /// All of them, in the order of [`NAMES`](Self::NAMES).
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// What [`FromStr`](::std::str::FromStr) accepts, in the order of [`ALL`](Self::ALL).
            pub const NAMES: &[&str] = &[$($name),+];

            /// As settings and reports write it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownName { kind: $kind, given: text.to_owned(), known: Self::NAMES }),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::{Affinity, Policy};

    #[test]
    fn every_name_parses_to_its_value() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
        }
        for affinity in Affinity::ALL {
            assert_eq!(affinity.to_string().parse(), Ok(affinity));
            assert_eq!(serde_json::to_value(affinity).unwrap(), affinity.name());
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let message = "pinned".parse::<Affinity>().unwrap_err().to_string();
        assert_eq!(message, "unknown affinity \"pinned\"; write pin, follow or none");
        assert!(
            "poling".parse::<Policy>().unwrap_err().to_string().contains("kernel-polling or kernel-thread")
        );
    }
}
