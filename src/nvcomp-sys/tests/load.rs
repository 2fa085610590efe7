//! Loads the library from the PyPI wheel and calls functions that need no device. If the wheel isn't installed, the
//! test prints so and is skipped.

use nvcomp_sys::sys::nvcompStatus_t;
use std::path::PathBuf;
use std::process::Command;

fn wheel() -> Option<PathBuf> {
    let pythons = std::env::var_os("VIRTUAL_ENV").map(|venv| PathBuf::from(venv).join("bin/python"));
    let code = "import nvidia.libnvcomp as m; print(m.__path__[0])";
    pythons.into_iter().chain(["python3".into()]).find_map(|python: PathBuf| {
        let output = Command::new(python).args(["-c", code]).output().ok()?;
        let dir = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("lib64");
        dir.join(nvcomp_sys::library::SONAME).is_file().then_some(dir)
    })
}

/// A single test, because the library is loaded once per process, and the environment belongs to the process.
#[test]
fn loads_from_the_wheel_without_a_driver() {
    // At first the library isn't found: the error names what was tried and what to install. A later call tries again.
    nvcomp_sys::set_search_dirs(vec!["/nonexistent".into()]);
    if let Err(error) = nvcomp_sys::load() {
        let text = error.to_string();
        assert!(text.contains("/nonexistent/libnvcomp.so.5 (given by the host)"), "{text}");
        assert!(text.contains("the system's loader") && text.contains("nvidia-libnvcomp-cu13==5.3.0.16"), "{text}");
    }
    let Some(dir) = wheel() else {
        println!("skipped: the package nvidia-libnvcomp-cu13 is not installed in this Python");
        return;
    };
    nvcomp_sys::set_search_dirs(vec!["/nonexistent".into(), dir]);
    let library = nvcomp_sys::load().expect("the wheel's library loads");
    assert!(std::ptr::eq(library, nvcomp_sys::load().unwrap()));
    assert_eq!(nvcomp_sys::library::version_parts(library.version).0, 5);

    const MIB: usize = 1 << 20;
    let bytes = library.zstd_temp_size(64, 4 * MIB, 256 * MIB).unwrap();
    assert!((256 * MIB..2048 * MIB).contains(&bytes), "about three times the decoded size, found {bytes}");
    assert!(library.zstd_temp_size(128, 4 * MIB, 512 * MIB).unwrap() > bytes);
    let error = library.zstd_temp_size(1, 1 << 40, 1 << 40).unwrap_err();
    assert_eq!(error, nvcomp_sys::Status(nvcompStatus_t::nvcompErrorChunkSizeTooLarge), "{error}");
}
