# Finds cargo, on the PATH or where rustup puts it.
#
# Sets Cargo_EXECUTABLE and Cargo_VERSION.
find_program(Cargo_EXECUTABLE cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin")
if(Cargo_EXECUTABLE)
  execute_process(COMMAND "${Cargo_EXECUTABLE}" --version OUTPUT_VARIABLE Cargo_VERSION
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX REPLACE "^cargo ([0-9.]+).*" "\\1" Cargo_VERSION "${Cargo_VERSION}")
endif()
mark_as_advanced(Cargo_EXECUTABLE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Cargo REQUIRED_VARS Cargo_EXECUTABLE VERSION_VAR Cargo_VERSION
  REASON_FAILURE_MESSAGE "install Rust")
