//! Process entry point.

fn main() {}
