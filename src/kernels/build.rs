//! Compiles the kernels to one fat binary with nvcc, and the same code for the host with the C++ compiler.
//!
//! Needs no GPU and no driver, and never downloads anything. If nvcc is missing, the error says how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

mod architectures;

/// Default GPU architectures, in the form of CMake's CUDAARCHS. The environment variable CUDAARCHS replaces them.
///
/// `90` means machine code and PTX for architecture 90, `90-real` only machine code, `90-virtual` only PTX. The driver
/// compiles PTX for later architectures. In the environment, `native` means machine code for this machine's GPUs.
const ARCHITECTURES: &str = "75;80-real;86-real;89-real;90-real;100-real;120";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in fs::read_dir("cuda").expect("the folder cuda lies beside build.rs").flatten() {
        println!("cargo::rerun-if-changed={}", file.path().display());
    }
    // PATH isn't listed: it differs between shells, and each change would compile everything again.
    for name in ["DALI_ZARR_FATBIN", "DALI_ZARR_NVCC", "CUDA_HOME", "CUDAARCHS", "CXX"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rustc-link-lib=m");
    println!("cargo::rustc-check-cfg=cfg(dali_zarr_cuda_12)");
    // Clippy runs this anew, for a library that nothing is linked with. That takes a minute less without machine code.
    if env::var("RUSTC_WORKSPACE_WRAPPER").is_ok_and(|wrapper| wrapper.ends_with("clippy-driver")) {
        println!("cargo::rustc-env=DALI_ZARR_ARCHITECTURES=");
        fs::write(out.join("kernels.fatbin"), "").expect("OUT_DIR can be written");
        return;
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .file("cuda/host.cpp")
        .file("cuda/host_warp.cpp")
        .flag("-ffp-contract=off")
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .cpp_link_stdlib(None)
        .compile("dali_zarr_kernels_host");
    if let Err(message) = kernels(&out.join("kernels.fatbin")) {
        println!("cargo::error={}", message.replace('\n', " "));
        std::process::exit(1);
    }
}

/// Writes the fat binary to `target`: a copy of the file that DALI_ZARR_FATBIN names, or else compiled for the
/// architectures of CUDAARCHS.
fn kernels(target: &Path) -> Result<(), String> {
    let architectures = match env::var("CUDAARCHS").unwrap_or_default().as_str() {
        "" => ARCHITECTURES.to_owned(),
        "native" => architectures::native(&capabilities())?,
        named => named.to_owned(),
    };
    // A test compares this list with the entries of the fat binary.
    println!("cargo::rustc-env=DALI_ZARR_ARCHITECTURES={architectures}");
    if let Some(named) = env::var_os("DALI_ZARR_FATBIN") {
        println!("cargo::rustc-cfg=dali_zarr_cuda_12");
        return ready(Path::new(&named), target);
    }
    fat_binary(&architectures, target)
}

/// Copies the finished fat binary `named` to `target`. It was compiled by CUDA 12: `make wheel` runs
/// `cmake/kernels.py`.
fn ready(named: &Path, target: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", named.display());
    let taken = fs::copy(named, target);
    taken.map(|_| ()).map_err(|e| format!("DALI_ZARR_FATBIN names {}, which can't be read: {e}", named.display()))
}

/// Compiles `cuda/kernels.cu` to `target`, for the architectures in `named` (the form of CUDAARCHS).
fn fat_binary(named: &str, target: &Path) -> Result<(), String> {
    let nvcc = find_nvcc()?;
    let mut command = Command::new(&nvcc);
    command.args(["-std=c++17", "-O3", "--fatbin", "--threads=0", "-Xfatbin=-compress-all", "--Werror=all-warnings"]);
    command.arg(format!("-ccbin={}", env::var("CXX").unwrap_or_else(|_| "c++".into())));
    for (arch, kind) in architectures::parsed(named)? {
        command.arg(format!("-gencode=arch=compute_{arch},code={kind}_{arch}"));
    }
    command.arg("-o").arg(target).arg("cuda/kernels.cu");
    let output = command.output().map_err(|e| format!("{} could not be started: {e}", nvcc.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(format!("{} could not compile the kernels ({command:?}): {said}. {}", nvcc.display(), advice()))
}

/// Returns the compute capabilities of this machine's GPUs, one per line; empty if there is no driver.
fn capabilities() -> String {
    let told = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    told.map_or_else(|_| String::new(), |told| String::from_utf8_lossy(&told.stdout).into_owned())
}

fn advice() -> &'static str {
    "Install CUDA 13.0's compiler, or its PyPI packages into the active Python environment: \
     pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \
     'nvidia-cuda-cccl==13.0.*' 'nvidia-cuda-runtime==13.0.*'; or name an nvcc in DALI_ZARR_NVCC"
}

/// Finds nvcc: the file that DALI_ZARR_NVCC names, or else the first one in PATH, CUDA_HOME, /usr/local/cuda and the
/// packages of the active Python.
fn find_nvcc() -> Result<PathBuf, String> {
    if let Some(named) = env::var_os("DALI_ZARR_NVCC") {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!("DALI_ZARR_NVCC names {}, which is no file. {}", named.display(), advice())),
        };
    }
    let mut tried: Vec<PathBuf> = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    tried.extend(env::split_paths(&path).map(|dir| dir.join("nvcc")));
    tried.extend(env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc")));
    tried.push("/usr/local/cuda/bin/nvcc".into());
    tried.extend(site_packages().into_iter().map(|dir| dir.join("nvidia/cu13/bin/nvcc")));
    match tried.iter().find(|nvcc| nvcc.is_file()) {
        Some(nvcc) => Ok(nvcc.clone()),
        None => {
            let mut places = vec!["PATH".to_owned()];
            places.extend(tried.iter().skip(env::split_paths(&path).count()).map(|p| p.display().to_string()));
            Err(format!("the kernels need nvcc, and none was found in {}. {}", places.join(", "), advice()))
        }
    }
}

/// Returns the package folders (sys.path) of the Python in VIRTUAL_ENV, then those of `python3` and `python` in PATH.
fn site_packages() -> Vec<PathBuf> {
    let mut pythons: Vec<PathBuf> = vec!["python3".into(), "python".into()];
    if let Some(venv) = env::var_os("VIRTUAL_ENV") {
        pythons.insert(0, Path::new(&venv).join("bin/python"));
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for python in pythons {
        // sys.path, not site.getsitepackages(): an isolated build environment lists its folders only there.
        let output = Command::new(&python).args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
        let Ok(output) = output else { continue };
        for line in String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.is_empty()) {
            if !found.contains(&PathBuf::from(line)) {
                found.push(line.into());
            }
        }
    }
    found
}
