//! Compiles the kernels to one fat binary with nvcc, and their host twin with the C++ compiler.
//!
//! Needs no GPU and no driver, and never downloads anything: where nvcc is missing, the error says how to get it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

mod architectures;

/// What the kernels are compiled for, in the form of CMake's variable CUDAARCHS, which may name others: `90` is machine code and PTX
/// for this architecture, `90-real` only machine code, `90-virtual` only PTX, which the driver compiles for any later one; `native` is
/// machine code for this machine's GPUs.
const ARCHITECTURES: &str = "75;80-real;86-real;89-real;90-real;100-real;120";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for file in fs::read_dir("cuda").expect("the folder cuda lies beside build.rs").flatten() {
        println!("cargo::rerun-if-changed={}", file.path().display());
    }
    // Not PATH: it differs from shell to shell, and a new one would compile everything again.
    for name in ["DALI_ZARR_FATBIN", "DALI_ZARR_NVCC", "CUDA_HOME", "CUDAARCHS", "CXX"] {
        println!("cargo::rerun-if-env-changed={name}");
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
    println!("cargo::rustc-link-lib=m");
    println!("cargo::rustc-check-cfg=cfg(dali_zarr_cuda_12)");
    if let Err(message) = kernels(&out.join("kernels.fatbin")) {
        println!("cargo::error={}", message.replace('\n', " "));
        std::process::exit(1);
    }
}

/// Leaves the kernels in `target`, for the architectures that CUDAARCHS names.
fn kernels(target: &Path) -> Result<(), String> {
    let architectures = match env::var("CUDAARCHS").unwrap_or_default().as_str() {
        "" => ARCHITECTURES.to_owned(),
        "native" => architectures::native(&capabilities())?,
        named => named.to_owned(),
    };
    // A test compares it with the fat binary.
    println!("cargo::rustc-env=DALI_ZARR_ARCHITECTURES={architectures}");
    if let Some(named) = env::var_os("DALI_ZARR_FATBIN") {
        println!("cargo::rustc-cfg=dali_zarr_cuda_12");
        return ready(Path::new(&named), target);
    }
    fat_binary(&architectures, target)
}

/// Takes a fat binary that CUDA 12 compiled already, as `make wheel` does by `cmake/kernels.py`.
fn ready(named: &Path, target: &Path) -> Result<(), String> {
    println!("cargo::rerun-if-changed={}", named.display());
    let taken = fs::copy(named, target);
    taken.map(|_| ()).map_err(|e| format!("DALI_ZARR_FATBIN names {}, which can't be read: {e}", named.display()))
}

/// Compiles `cuda/kernels.cu` to `target`, for the architectures that are named.
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

/// The compute capabilities of this machine's GPUs, one a line; nothing where there is no driver.
fn capabilities() -> String {
    let told = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    told.map_or_else(|_| String::new(), |told| String::from_utf8_lossy(&told.stdout).into_owned())
}

fn advice() -> &'static str {
    "Install CUDA 13.0's compiler, or its PyPI packages into the active Python environment: \
     pip install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' \
     'nvidia-cuda-cccl==13.0.*' 'nvidia-cuda-runtime==13.0.*'; or name an nvcc in DALI_ZARR_NVCC"
}

/// The first nvcc of: DALI_ZARR_NVCC, PATH, CUDA_HOME, /usr/local/cuda, the packages of the active Python.
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

/// Where the active Python keeps its packages: that of VIRTUAL_ENV, else `python3` and `python` of PATH.
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
