# DALI's operator: a library for each version of DALI, beside the engine that it calls.
#
# All symbols of DALI carry its version, so a library fits one version; DALI's builds for different versions of CUDA have the same
# symbols and headers. Nothing of the CUDA runtime is linked.
#
# An operator calls the engine by the bridge of cxx: the library exports its Rust half, and the C++ half is compiled into each operator,
# with cxx's own C++ (src/plugin/src/bridge.rs).
set(operator_sources "${source_root}/src/plugin/shim")
if(DALI_ZARR_LIBRARY AND NOT EXISTS "${bridge}/src/bridge.cc")
  message(FATAL_ERROR "${bridge} was not found: operators need what cargo wrote beside ${DALI_ZARR_LIBRARY}. Name the library where "
                      "cargo built it, or build without the operator: -DDALI_ZARR_WITH_DALI=OFF")
endif()

foreach(dali version IN ZIP_LISTS DALI_ROOTS DALI_VERSIONS)
  set(operator "operator-${version}")
  add_library(${operator} MODULE
    "${operator_sources}/arguments.cc" "${operator_sources}/compat.cc" "${operator_sources}/register.cc"
    "${operator_sources}/schema.cc" "${operator_sources}/zarr_reader.cc" "${bridge}/src/bridge.cc" "${bridge}/src/cxx.cc")
  add_dependencies(${operator} library)
  target_compile_features(${operator} PRIVATE cxx_std_17)
  target_include_directories(${operator} PRIVATE "${bridge}/include")
  target_include_directories(${operator} SYSTEM PRIVATE "${dali}/include" "${PythonCUDA_INCLUDE_DIR}")
  # DALI's wheel is built with the new ABI. Without NDEBUG asserts in its headers abort the process.
  string(REGEX REPLACE "^([0-9]+)\\.([0-9]+).*" "\\1 * 100 + \\2" number "${version}")
  math(EXPR number "${number}")
  target_compile_definitions(${operator} PRIVATE _GLIBCXX_USE_CXX11_ABI=1 NDEBUG DALI_ZARR_DALI=${number})
  # GCC 12 takes DALI's small vectors, inlined, for memory that was not allocated.
  target_compile_options(${operator} PRIVATE -O2 -Wall -Wextra -Wno-free-nonheap-object -fno-strict-aliasing -ffunction-sections)
  # DALI's libraries are found by their names, since `import nvidia.dali` has loaded them; the engine lies beside this library.
  target_link_libraries(${operator} PRIVATE "${library}" "${dali}/libdali.so" "${dali}/libdali_core.so")
  # Most of cxx's C++ is not used: what isn't there asks nothing of the engine.
  target_link_options(${operator} PRIVATE "LINKER:-z,defs" "LINKER:--gc-sections" "LINKER:--version-script=${operator_sources}/exports.map")
  set_target_properties(${operator} PROPERTIES
    PREFIX "" OUTPUT_NAME "libdali_zarr_dali-${version}" CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden LINK_DEPENDS "${operator_sources}/exports.map"
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${operator} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endforeach()
