//! Writes names and values of statistics.

/// Passes each name and value on.
pub struct StatWriter<'a>(&'a mut dyn FnMut(&str, &str));

impl<'a> StatWriter<'a> {
    pub fn new(write: &'a mut dyn FnMut(&str, &str)) -> Self {
        Self(write)
    }

    pub fn text(&mut self, name: &str, value: &str) {
        (self.0)(name, value);
    }

    pub fn number(&mut self, name: &str, value: u64) {
        let mut digits = itoa::Buffer::new();
        (self.0)(name, digits.format(value));
    }

    /// Names that mean nothing to this server, with memcached's value for what is not there.
    pub fn neutral(&mut self, names: &[&str], value: &str) {
        names.iter().for_each(|name| self.text(name, value));
    }
}
