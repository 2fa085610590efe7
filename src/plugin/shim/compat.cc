// Defines symbols that the headers use but older C and C++ libraries lack. So the operator also loads with the
// libraries of manylinux_2_28: glibc 2.28 and the libstdc++ of GCC 8. This library doesn't export these symbols
// (exports.map).

#include <new>
#include <sstream>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
// Since glibc 2.32. Zero: reference counts are always atomic.
extern "C" {
char __libc_single_threaded = 0;
}
#endif

// NOLINTBEGIN(bugprone-std-namespace-modification): these are what later libraries have there.
namespace std {

// Since GCC 9: the default constructor.
template basic_stringstream<char>::basic_stringstream();

// Since GCC 11.
void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
// NOLINTEND(bugprone-std-namespace-modification)
