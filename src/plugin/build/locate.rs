//! Finds DALI's headers and libraries and the CUDA headers: where an environment variable points, else in the
//! site-packages of the Python that is active, else (CUDA) where the system has it. Nothing is downloaded, and
//! `nvidia.dali` isn't imported, since that loads a gigabyte of libraries.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where DALI is.
pub struct Dali {
    /// The folder that holds `dali/`.
    pub include: PathBuf,
    /// The folder that holds `libdali.so`.
    pub lib: PathBuf,
}

/// DALI as it is installed, or a sentence that says what to do.
pub fn dali() -> Result<Dali, String> {
    let (include, lib) = (variable("DALI_ZARR_DALI_INCLUDE"), variable("DALI_ZARR_DALI_LIB"));
    let found = match (include, lib) {
        (Some(include), Some(lib)) => Some(Dali { include, lib }),
        (include, lib) => site_packages()
            .into_iter()
            .map(|site| site.join("nvidia/dali"))
            .find(|root| root.join("libdali.so").exists())
            .map(|root| Dali { include: include.unwrap_or_else(|| root.join("include")), lib: lib.unwrap_or(root) }),
    };
    let dali = found.ok_or(
        "NVIDIA DALI was not found: activate a Python environment with nvidia-dali-cuda130==2.4.0, name its interpreter \
         in DALI_ZARR_PYTHON, set DALI_ZARR_DALI_INCLUDE and DALI_ZARR_DALI_LIB, or build without the operator \
         (--no-default-features)",
    )?;
    let header = dali.include.join("dali/pipeline/operator/operator.h");
    if !header.exists() {
        return Err(format!("DALI's headers were not found: expected {}", header.display()));
    }
    Ok(dali)
}

/// The folder with `cuda_runtime_api.h`, or a sentence that says what to do.
pub fn cuda_include() -> Result<PathBuf, String> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    candidates.extend(variable("DALI_ZARR_CUDA_INCLUDE"));
    for root in ["CUDA_HOME", "CUDA_PATH"] {
        candidates.extend(variable(root).map(|r| r.join("include")));
    }
    candidates.push("/usr/local/cuda/include".into());
    candidates.extend(site_packages().into_iter().map(|site| site.join("nvidia/cu13/include")));
    // Where `make setup` puts them.
    candidates.push(environment().join("cuda/nvidia/cu13/include"));
    candidates.into_iter().find(|c| c.join("cuda_runtime_api.h").exists() && c.join("crt").exists()).ok_or_else(|| {
        "the CUDA headers were not found: install nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl (==13.0.*) \
         in the Python environment, or set CUDA_HOME or DALI_ZARR_CUDA_INCLUDE"
            .to_owned()
    })
}

fn variable(name: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={name}");
    env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The project's own Python environment, if there is one.
fn environment() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default().join("../../.venv")
}

/// The module folders of the Python environments in question, most specific first.
fn site_packages() -> Vec<PathBuf> {
    if let Some(python) = variable("DALI_ZARR_PYTHON") {
        return ask(&python);
    }
    let mut found = Vec::new();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        found.extend(variable(name).map(|root| root.join("bin/python")).iter().flat_map(|python| ask(python)));
    }
    found.extend(ask(&environment().join("bin/python")));
    found.extend(ask(Path::new("python3")));
    found
}

fn ask(python: &Path) -> Vec<PathBuf> {
    // The whole path, since pip builds with its requirements in a folder beside the environment's own.
    let script = "import sys; print(*sys.path, sep='\\n')";
    let Ok(answer) = Command::new(python).args(["-c", script]).output() else { return Vec::new() };
    String::from_utf8_lossy(&answer.stdout).lines().filter(|l| !l.is_empty()).map(PathBuf::from).collect()
}
