# Finds a CUDA 13 compiler and its headers: what DALI_ZARR_NVCC and DALI_ZARR_CUDA_INCLUDE name, else the system's, else
# the packages nvidia-cuda-* of the Python environment.
#
# Sets PythonCUDA_NVCC and PythonCUDA_INCLUDE_DIR.
if(DEFINED ENV{DALI_ZARR_NVCC})
  set(PythonCUDA_NVCC "$ENV{DALI_ZARR_NVCC}")
else()
  find_program(PythonCUDA_NVCC nvcc HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" /usr/local/cuda/bin NO_CACHE)
  if(PythonCUDA_NVCC)
    execute_process(COMMAND "${PythonCUDA_NVCC}" --version OUTPUT_VARIABLE nvcc_version)
    if(NOT nvcc_version MATCHES "release 13\\.")
      message(STATUS "${PythonCUDA_NVCC} isn't of CUDA 13: looking in the Python environment")
      unset(PythonCUDA_NVCC)
    endif()
  endif()
  if(NOT PythonCUDA_NVCC)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
              "import sys, pathlib as p; print(next(str(f) for d in sys.path if (f := p.Path(d, 'nvidia/cu13/bin/nvcc')).exists()))"
      OUTPUT_VARIABLE PythonCUDA_NVCC OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

if(DEFINED ENV{DALI_ZARR_CUDA_INCLUDE})
  set(PythonCUDA_INCLUDE_DIR "$ENV{DALI_ZARR_CUDA_INCLUDE}")
elseif(PythonCUDA_NVCC)
  file(REAL_PATH "${PythonCUDA_NVCC}" nvcc_path)
  get_filename_component(cuda_root "${nvcc_path}/../.." ABSOLUTE)
  find_path(PythonCUDA_INCLUDE_DIR cuda_runtime_api.h PATHS "${cuda_root}/include" NO_CACHE)
endif()

include(FindPackageHandleStandardArgs)
set(wanted PythonCUDA_INCLUDE_DIR)
if(NOT DALI_ZARR_LIBRARY)
  list(PREPEND wanted PythonCUDA_NVCC)
endif()
find_package_handle_standard_args(PythonCUDA REQUIRED_VARS ${wanted}
  REASON_FAILURE_MESSAGE "install CUDA 13, or nvidia-cuda-nvcc, nvidia-cuda-crt, nvidia-nvvm, nvidia-cuda-cccl and nvidia-cuda-runtime (==13.0.*) in the environment of ${Python_EXECUTABLE}")
