# Finds NVIDIA DALI, with headers: what DALI_ZARR_DALI names, else that of the Python environment, without importing it.
#
# Sets DALI_ROOTS (folders of libdali.so) and DALI_VERSIONS (in the same order).
set(DALI_ROOTS "${DALI_ZARR_DALI}")
if(NOT DALI_ROOTS)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.util as u; print(u.find_spec('nvidia.dali').submodule_search_locations[0])"
    OUTPUT_VARIABLE DALI_ROOTS OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(DALI_VERSIONS "")
foreach(root IN LISTS DALI_ROOTS)
  if(EXISTS "${root}/include/dali/pipeline/operator/operator.h" AND EXISTS "${root}/libdali.so")
    file(STRINGS "${root}/__init__.py" version_line REGEX "^__version__ = " LIMIT_COUNT 1)
    string(REGEX REPLACE "^__version__ = ['\"]([^'\"]+)['\"].*" "\\1" version "${version_line}")
    list(APPEND DALI_VERSIONS "${version}")
  else()
    message(STATUS "DALI's headers and libdali.so were not found in ${root}")
    set(DALI_ROOTS "")
    break()
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DALI REQUIRED_VARS DALI_ROOTS DALI_VERSIONS
  REASON_FAILURE_MESSAGE "install nvidia-dali-cuda130==2.4.0 in the environment of ${Python_EXECUTABLE}, or build without the operator: -DDALI_ZARR_WITH_DALI=OFF")
