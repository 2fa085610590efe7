// What newer C and C++ libraries have and the headers use, defined here, so that the operator loads where the libraries are those of
// manylinux_2_28: glibc 2.28 and the libstdc++ of GCC 8. All of it stays inside of this library (exports.map).

#include <new>
#include <sstream>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
// Of glibc 2.32. False: reference counts are always atomic.
extern "C" {
char __libc_single_threaded = 0;
}
#endif

namespace std {

// Of GCC 9: the default constructor.
template basic_stringstream<char>::basic_stringstream();

// Of GCC 11.
void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std
