//! Tests of the engine from outside. They are one binary, because each test binary links everything again.

mod corpus;
mod module_order;
