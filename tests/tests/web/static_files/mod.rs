//! Files below a folder: what is sent of them, and what is not.

mod changes;
mod conditions;
mod encodings;
mod ranges;
mod traversal;
mod whole_files;
