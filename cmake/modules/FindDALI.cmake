# Finds NVIDIA DALI, with headers, in the Python environment, without importing it.
#
# Sets DALI_ROOT (the folder of libdali.so), DALI_INCLUDE_DIR and DALI_VERSION.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
          "import importlib.util as u; print(u.find_spec('nvidia.dali').submodule_search_locations[0])"
  OUTPUT_VARIABLE DALI_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(DALI_ROOT)
  find_path(DALI_INCLUDE_DIR dali/pipeline/operator/operator.h PATHS "${DALI_ROOT}/include" NO_DEFAULT_PATH NO_CACHE)
  file(STRINGS "${DALI_ROOT}/__init__.py" version_line REGEX "^__version__ = " LIMIT_COUNT 1)
  string(REGEX REPLACE "^__version__ = ['\"]([^'\"]+)['\"].*" "\\1" DALI_VERSION "${version_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DALI REQUIRED_VARS DALI_ROOT DALI_INCLUDE_DIR VERSION_VAR DALI_VERSION
  REASON_FAILURE_MESSAGE "install nvidia-dali-cuda130==2.4.0 in the environment of ${Python_EXECUTABLE}")
