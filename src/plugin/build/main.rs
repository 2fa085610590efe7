//! Compiles the C++ shim of the DALI operator and links it, whole, into the library.
//!
//! Only the shared library gets the shim: the unit tests of this crate need neither DALI nor a C++ compiler to run.

mod locate;

use std::env;
use std::path::PathBuf;

const BRIDGE: &str = "src/bridge.rs";
const SOURCES: [&str; 4] = ["shim/arguments.cc", "shim/register.cc", "shim/schema.cc", "shim/zarr_reader.cc"];
const HEADERS: [&str; 2] = ["shim/translate.h", "shim/zarr_reader.h"];

fn main() {
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdali_zarr.so");
    if env::var_os("CARGO_FEATURE_DALI").is_none() {
        return;
    }
    for file in SOURCES.iter().chain(&HEADERS).chain([&BRIDGE]) {
        println!("cargo:rerun-if-changed={file}");
    }
    let dali = locate::dali().unwrap_or_else(|why| fail(&why));
    let cuda = locate::cuda_include().unwrap_or_else(|why| fail(&why));

    let archive = "dali_zarr_shim";
    cxx_build::bridge(BRIDGE)
        .files(SOURCES)
        .include("shim")
        .std("c++20")
        .flag("-isystem")
        .flag(&dali.include)
        .flag("-isystem")
        .flag(&cuda)
        // DALI's wheel is built with the new ABI. Without NDEBUG asserts in its headers abort the process.
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .define("NDEBUG", None)
        .flag("-fvisibility=hidden")
        .flag("-fno-strict-aliasing")
        .opt_level(2)
        // GCC 12 takes DALI's small vectors, inlined, for memory that was not allocated.
        .flag_if_supported("-Wno-free-nonheap-object")
        .warnings(true)
        .cargo_metadata(false)
        .compile(archive);

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Nothing refers to the code that registers the operator, so the archive must be linked whole.
    for argument in [
        "-Wl,--whole-archive".to_owned(),
        out.join(format!("lib{archive}.a")).display().to_string(),
        "-Wl,--no-whole-archive".to_owned(),
        format!("-L{}", dali.lib.display()),
        // Resolved by soname from the libraries that `import nvidia.dali` has loaded: no rpath.
        "-l:libdali.so".to_owned(),
        "-l:libdali_core.so".to_owned(),
        "-lstdc++".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
}

fn fail(why: &str) -> ! {
    println!("cargo:warning={why}");
    eprintln!("{why}");
    std::process::exit(1)
}
