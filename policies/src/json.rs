//! Implements serde's traits for the types of journals, status files and messages, without
//! `serde_derive`: building that takes a fifth of the time of a program on the runtime.

use serde_core::de::{DeserializeOwned, Error};
use serde_json::Value;

/// Deserializes a field of an object. A missing field counts as `null`.
pub(crate) fn field<T: DeserializeOwned, E: Error>(object: &Value, name: &str) -> Result<T, E> {
    read(object.get(name).unwrap_or(&Value::Null))
        .map_err(|error: E| E::custom(format_args!("{name}: {error}")))
}

pub(crate) fn read<T: DeserializeOwned, E: Error>(value: &Value) -> Result<T, E> {
    T::deserialize(value).map_err(E::custom)
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes a struct as an object. `..field` flattens a field, as `#[serde(flatten)]` does. Fields
/// after `optional` are left out while they have their default.
macro_rules! json_object {
    ($type:ident: $(..$first:ident,)? $($field:ident),+ $(, ..$last:ident)? $(; optional $($optional:ident),+)?) => {
        const _: () = {
            use serde_core::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let mut object = serializer.serialize_map(None)?;
                    $(self.$first.write_fields(&mut object)?;)?
                    $(object.serialize_entry(stringify!($field), &self.$field)?;)+
                    $($(if !$crate::json::is_default(&self.$optional) {
                        object.serialize_entry(stringify!($optional), &self.$optional)?;
                    })+)?
                    $(self.$last.write_fields(&mut object)?;)?
                    object.end()
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let object = serde_json::Value::deserialize(deserializer)?;
                    Ok(Self {
                        $($first: $crate::json::read(&object)?,)?
                        $($field: $crate::json::field(&object, stringify!($field))?,)+
                        $($($optional: $crate::json::field::<Option<_>, _>(&object, stringify!($optional))?
                            .unwrap_or_default(),)+)?
                        $($last: $crate::json::read(&object)?,)?
                    })
                }
            }
        };
    };
}

/// Serializes an enum as an object with the variant's name as `$tag`, as `#[serde(tag)]` does.
macro_rules! json_variants {
    ($type:ident, $tag:literal: $($variant:ident = $name:literal { $($field:ident),* }),+) => {
        const _: () = {
            use serde_core::{Deserialize, Deserializer, Serialize, Serializer, de::Error, ser::SerializeMap};

            impl $type {
                pub(crate) fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
                    match self {
                        $(Self::$variant { $($field),* } => {
                            object.serialize_entry($tag, $name)?;
                            $(object.serialize_entry(stringify!($field), $field)?;)*
                        })+
                    }
                    Ok(())
                }
            }

            impl Serialize for $type {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let mut object = serializer.serialize_map(None)?;
                    self.write_fields(&mut object)?;
                    object.end()
                }
            }

            impl<'de> Deserialize<'de> for $type {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let object = serde_json::Value::deserialize(deserializer)?;
                    match $crate::json::field::<String, _>(&object, $tag)?.as_str() {
                        $($name => Ok(Self::$variant { $($field: $crate::json::field(&object, stringify!($field))?),* }),)+
                        other => Err(Error::custom(format_args!("unknown {} {other:?}", $tag))),
                    }
                }
            }
        };
    };
}

/// Serializes types as strings, by `Display` and `FromStr`.
macro_rules! json_text {
    ($($type:ident),+) => {$(
        impl serde_core::Serialize for $type {
            fn serialize<S: serde_core::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde_core::Deserialize<'de> for $type {
            fn deserialize<D: serde_core::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text: String = serde_core::Deserialize::deserialize(deserializer)?;
                text.parse().map_err(serde_core::de::Error::custom)
            }
        }
    )+};
}

pub(crate) use {json_object, json_text, json_variants};
