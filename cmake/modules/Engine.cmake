# Builds the engine with cargo: the target `library`, and the variables `library` with the path of libdali_zarr.so and `bridge` with
# the folder of what its build script wrote for operators.
#
# Where DALI_ZARR_LIBRARY names one that is built already, nothing is built.
if(DALI_ZARR_LIBRARY)
  set(library "${DALI_ZARR_LIBRARY}")
  get_filename_component(bridge "${library}" DIRECTORY)
  string(APPEND bridge "/bridge")
  add_custom_target(library)
  return()
endif()

if(DEFINED ENV{CARGO_TARGET_DIR})
  get_filename_component(target_dir "$ENV{CARGO_TARGET_DIR}" ABSOLUTE BASE_DIR "${source_root}")
else()
  set(target_dir "${source_root}/target")
endif()
set(library "${target_dir}/${DALI_ZARR_PROFILE}/libdali_zarr.so")
set(bridge "${target_dir}/${DALI_ZARR_PROFILE}/bridge")

# What the environment says goes first, and stays as it is: a changed variable would make cargo build anew.
set(environment "CARGO_TARGET_DIR=${target_dir}")
if(NOT DEFINED ENV{DALI_ZARR_NVCC})
  list(APPEND environment "DALI_ZARR_NVCC=${PythonCUDA_NVCC}")
endif()

# scikit-build-core fills in the compilers that Python was built with. Cargo finds the system's by itself, and would build
# every C library anew each time that it is called in the other way.
if(DEFINED SKBUILD)
  foreach(name CC CXX)
    execute_process(COMMAND "${Python_EXECUTABLE}" -c
                            "import sysconfig as s; print((s.get_config_var('${name}') or ' ').split(' ')[0])"
                    OUTPUT_VARIABLE filled_in OUTPUT_STRIP_TRAILING_WHITESPACE)
    if("$ENV{${name}}" STREQUAL filled_in)
      list(PREPEND environment "--unset=${name}")
    endif()
  endforeach()
endif()

# With what Rust's tests need, so that cargo doesn't build the crates below the tests twice.
if(DALI_ZARR_PROFILE STREQUAL "checked")
  set(features --features testing)
endif()

# Cargo knows best whether anything is to be done, so it is always asked.
add_custom_target(
  library ALL
  COMMAND ${CMAKE_COMMAND} -E env ${environment} "${Cargo_EXECUTABLE}" build --locked --package dali-zarr
          --profile "${DALI_ZARR_PROFILE}" ${features}
  WORKING_DIRECTORY "${source_root}"
  BYPRODUCTS "${library}" "${bridge}/src/bridge.cc" "${bridge}/src/cxx.cc"
  USES_TERMINAL VERBATIM
  COMMENT "Building libdali_zarr.so with cargo")
