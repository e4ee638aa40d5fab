//! JSON of journals and status files. Serde would take a third of what a program on the runtime takes
//! to build.

use std::fmt::{self, Write};

/// A JSON value. Its `Debug` is the JSON.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Json {
    /// `null`, `true`, `false` or a number.
    Word(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// What has a form in JSON.
pub(crate) trait InJson: Sized {
    fn to_json(&self) -> Json;

    /// `None` if it has another form.
    fn from_json(json: &Json) -> Option<Self>;

    fn read(text: &[u8]) -> Option<Self> {
        Self::from_json(&Json::parse(text)?)
    }
}

impl Json {
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let mut rest = Rest(std::str::from_utf8(text).ok()?);
        rest.value(DEEPEST).filter(|_| rest.0.trim_ascii_end().is_empty())
    }

    pub(crate) fn object() -> Self {
        Self::Object(Vec::new())
    }

    /// The object with a further field.
    pub(crate) fn with(self, name: &str, value: &impl InJson) -> Self {
        self.and(Self::Object(vec![(name.to_owned(), value.to_json())]))
    }

    /// The object with the fields of another one.
    pub(crate) fn and(mut self, other: Self) -> Self {
        if let (Self::Object(fields), Self::Object(others)) = (&mut self, other) {
            fields.extend(others);
        }
        self
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(fields) = self else { return None };
        fields.iter().find(|(field, _)| field == name).map(|(_, json)| json)
    }

    /// The value of an object's field; of null if there is none.
    pub(crate) fn field<T: InJson>(&self, name: &str) -> Option<T> {
        T::from_json(self.get(name).unwrap_or(&None::<u32>.to_json()))
    }
}

/// A struct as an object of its fields, and of those of a field after `flat`. The field after `skip`
/// is not in it.
macro_rules! json_object {
    ($type:ident { $($field:ident),+ } $(flat $flat:ident)? $(skip $skip:ident)?) => {
        impl $crate::json::InJson for $type {
            fn to_json(&self) -> $crate::json::Json {
                $crate::json::Json::object()$(.and(self.$flat.to_json()))?$(.with(stringify!($field), &self.$field))+
            }

            fn from_json(json: &$crate::json::Json) -> Option<Self> {
                Some(Self {
                    $($field: json.field(stringify!($field))?,)+
                    $($flat: $crate::json::InJson::from_json(json)?,)?
                    $($skip: Default::default(),)?
                })
            }
        }
    };
}

/// An enum as an object, with the variant's name as the field `$tag`.
macro_rules! json_enum {
    ($type:ident, $tag:literal: $($variant:ident = $name:literal { $($field:ident),* }),+) => {
        impl $crate::json::InJson for $type {
            fn to_json(&self) -> $crate::json::Json {
                let object = |name: &str| $crate::json::Json::object().with($tag, &name.to_owned());
                match self {
                    $(Self::$variant { $($field),* } => object($name)$(.with(stringify!($field), $field))*),+
                }
            }

            fn from_json(json: &$crate::json::Json) -> Option<Self> {
                Some(match json.field::<String>($tag)?.as_str() {
                    $($name => Self::$variant { $($field: json.field(stringify!($field))?),* },)+
                    _ => return None,
                })
            }
        }
    };
}

/// Types as their `Display` and `FromStr` have them: as a `Text` or as a `Word`.
macro_rules! json_text {
    ($form:ident: $($type:ty),+) => {$(
        impl $crate::json::InJson for $type {
            fn to_json(&self) -> $crate::json::Json {
                $crate::json::Json::$form(self.to_string())
            }

            fn from_json(json: &$crate::json::Json) -> Option<Self> {
                let $crate::json::Json::$form(text) = json else { return None };
                text.parse().ok()
            }
        }
    )+};
}

pub(crate) use {json_enum, json_object, json_text};

json_text!(Text: String);
json_text!(Word: bool, u8, u16, u32, u64, usize, i32);

impl<T: InJson> InJson for Option<T> {
    fn to_json(&self) -> Json {
        self.as_ref().map_or_else(|| Json::Word("null".to_owned()), T::to_json)
    }

    fn from_json(json: &Json) -> Option<Self> {
        match json {
            Json::Word(word) if word == "null" => Some(None),
            json => T::from_json(json).map(Some),
        }
    }
}

impl<T: InJson> InJson for Vec<T> {
    fn to_json(&self) -> Json {
        Json::List(self.iter().map(T::to_json).collect())
    }

    fn from_json(json: &Json) -> Option<Self> {
        match json {
            Json::List(items) => items.iter().map(T::from_json).collect(),
            // Without the field it is empty.
            Json::Word(word) if word == "null" => Some(Vec::new()),
            _ => None,
        }
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Text(text) => {
                f.write_char('"')?;
                for letter in text.chars() {
                    match letter {
                        '"' | '\\' => write!(f, "\\{letter}")?,
                        '\0'..' ' => write!(f, "\\u{:04x}", u32::from(letter))?,
                        _ => f.write_char(letter)?,
                    }
                }
                f.write_char('"')
            }
            Self::List(items) => f.debug_list().entries(items).finish(),
            Self::Object(fields) => {
                f.debug_map().entries(fields.iter().map(|(name, json)| (name, json))).finish()
            }
        }
    }
}

/// Values within values: a journal has five. Keeps others from overflowing the stack.
const DEEPEST: u32 = 32;

/// What is still to be read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Reads a token, if it is the next one.
    fn take(&mut self, token: char) -> bool {
        let rest = self.0.trim_ascii_start().strip_prefix(token);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn value(&mut self, depth: u32) -> Option<Json> {
        let depth = depth.checked_sub(1)?;
        if self.take('{') {
            let field = |it: &mut Self| {
                let name = it.take('"').then(|| it.text())??;
                Some((name, it.take(':').then(|| it.value(depth))??))
            };
            return self.items('}', field).map(Json::Object);
        }
        if self.take('[') {
            return self.items(']', |it| it.value(depth)).map(Json::List);
        }
        if self.take('"') {
            return self.text().map(Json::Text);
        }
        let text = self.0.trim_ascii_start();
        let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-.".contains(letter));
        let (word, rest) = text.split_at(end.unwrap_or(text.len()));
        self.0 = rest;
        (!word.is_empty()).then(|| Json::Word(word.to_owned()))
    }

    /// What is between brackets, after the first of them.
    fn items<T>(&mut self, end: char, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.take(end) {
            if !items.is_empty() && !self.take(',') {
                return None;
            }
            items.push(item(self)?);
        }
        Some(items)
    }

    /// A string after its first quotation mark.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let (before, rest) = self.0.split_at(self.0.find(['"', '\\'])?);
            text.push_str(before);
            let (mark, rest) = rest.split_at(1);
            self.0 = rest;
            if mark == "\"" {
                return Some(text);
            }
            let (kind, rest) = rest.split_at_checked(1)?;
            self.0 = rest;
            text.push(match kind {
                "n" => '\n',
                "r" => '\r',
                "t" => '\t',
                "b" => '\u{8}',
                "f" => '\u{c}',
                "u" => {
                    let (code, rest) = rest.split_at_checked(4)?;
                    self.0 = rest;
                    char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                }
                other => other.chars().next()?,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let text = r#"{"a": [1, -2.5e3, true, null], "b": {"c": ""}, "d": "\\ \" é \u0007"}"#;
        let json = Json::parse(text.as_bytes()).unwrap();
        assert_eq!(format!("{json:?}"), text);
        assert_eq!(json.field::<String>("d").unwrap(), "\\ \" é \u{7}");
        let spaced = Json::parse(text.replace(": ", " :\n").as_bytes());
        assert_eq!(spaced, Some(json));
    }

    #[test]
    fn other_text_is_none() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "[1",
            "[1 2]",
            "{\"a\" 1}",
            "{\"a\": }",
            "{1: 2}",
            "\"a",
            "\"\\u12",
            "\"\\é",
            "1 2",
            "[,]",
            &deep,
        ] {
            assert_eq!(Json::parse(text.as_bytes()), None, "{text}");
        }
    }
}
