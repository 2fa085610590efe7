//! Names the library, so that programs and the shims of the DALI operator find it by that name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdali_zarr.so");
}
