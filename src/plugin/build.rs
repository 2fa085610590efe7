//! Sets the soname of the library, by which programs and operators find it. Writes the C++ half of the bridge to the
//! folder `bridge` next to the library. CMake compiles it into the operators, one for each version of DALI, so cargo
//! needs no DALI.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

const BRIDGE: &str = "src/bridge.rs";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={BRIDGE}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libdali_zarr.so");
    // This call writes the sources. The compiler that it returns is not used.
    let _ = cxx_build::bridge(BRIDGE);
    if let Err(error) = publish() {
        println!("cargo::error=the C++ half of the bridge could not be written: {error}");
        std::process::exit(1);
    }
}

/// Copies the sources that cxx wrote, and cxx's own C++ sources of the same version.
fn publish() -> io::Result<()> {
    let variable =
        |name: &str| env::var_os(name).map(PathBuf::from).ok_or_else(|| io::Error::other(format!("no {name}")));
    let out = variable("OUT_DIR")?;
    // OUT_DIR is PROFILE/build/PACKAGE/out.
    let profile = out.ancestors().nth(3).ok_or_else(|| io::Error::other(format!("{} is too short", out.display())))?;
    let (target, written, header) = (profile.join("bridge"), out.join("cxxbridge"), variable("DEP_CXXBRIDGE1_HEADER")?);
    copy(&header, &target.join("include/cxx.h"))?;
    copy(&header.with_file_name("../src/cxx.cc"), &target.join("src/cxx.cc"))?;
    copy(&written.join("include/dali-zarr/src/bridge.rs.h"), &target.join("include/dali-zarr/src/bridge.rs.h"))?;
    copy(&written.join("sources/dali-zarr/src/bridge.rs.cc"), &target.join("src/bridge.cc"))
}

/// Copies a file only if its content changed, so that CMake needn't compile it again.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let content = fs::read(from).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", from.display())))?;
    if fs::read(to).is_ok_and(|there| there == content) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(to, content)
}
