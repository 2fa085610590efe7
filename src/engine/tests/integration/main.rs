//! Tests of the engine from outside. One binary, because each links everything again.

mod corpus;
mod module_order;
