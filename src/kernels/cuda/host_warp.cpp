// A warp on the host: 32 coroutines that take turns at each point where the lanes of a warp meet. Only for tests of
// code for warps, and to decode streams without a GPU: it is slow, but exact.
//
// The lanes jump by the compiler's own pair of functions, which GCC has for all processors, and Clang for x86-64 and few
// others. setjmp would save registers that the compiler loads again anyway, and longjmp looks for handlers of cancelled
// threads: both together took half of the time.
#include "host_warp.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>

#include "warp.cuh"

namespace dz {
namespace {

// If this were a power of two, the tops of all stacks would share one set of the processor's cache.
constexpr size_t kStack = 64 * 1024 + 9 * 64;

// Where a lane goes on.
#if defined(__clang__) && !defined(__x86_64__)
typedef jmp_buf Place;
#define DZ_SET(place) _setjmp(place)
#define DZ_JUMP(place) _longjmp(place, 1)
#else
typedef void* Place[5];
#define DZ_SET(place) __builtin_setjmp(place)
#define DZ_JUMP(place) __builtin_longjmp(place, 1)
#endif

struct HostWarp {
  uint32_t lane;              // lane that runs now
  uint32_t round;             // number of finished ballots
  uint32_t ballots[2];        // votes of the current ballot and of the one before
  uint32_t exchange;          // number of finished shuffles
  uint32_t values[2][kWarp];  // values of the current shuffle and of the one before
  uint32_t running;           // lanes that have begun
  uint32_t finished;          // lanes that have ended
  void (*body)(void*, uint32_t);
  void* argument;
  Place at[kWarp];
  ucontext_t caller, start[kWarp];
};

thread_local HostWarp* warp = nullptr;

// A function of its own: the compiler forbids its jump in a function that also sets a place to jump to.
[[noreturn, gnu::noinline]] void go_to(uint32_t lane) {
  warp->lane = lane;
  if (lane < warp->running) DZ_JUMP(warp->at[lane]);
  ++warp->running;
  setcontext(&warp->start[lane]);
  abort();
}

void enter() {
  warp->body(warp->argument, warp->lane);
  ++warp->finished;
  if (warp->lane + 1 == kWarp) {
    setcontext(&warp->caller);
    abort();
  }
  go_to(warp->lane + 1);
}

}  // namespace

// Runs the other lanes until it is this lane's turn again. Not a function: the processor predicts returns wrongly after a
// jump to another stack. finished > 0: a lane has ended while others wait for it, a bug in the code under test.
#define DZ_YIELD()                                                          \
  do {                                                                      \
    if (warp->finished > 0) abort();                                        \
    if (DZ_SET(warp->at[warp->lane]) == 0) go_to((warp->lane + 1) % kWarp); \
  } while (0)

void host_warp_sync() { DZ_YIELD(); }

uint32_t host_warp_ballot(bool mine) {
  uint32_t& votes = warp->ballots[warp->round & 1];
  if (warp->lane == 0) votes = 0;
  votes |= uint32_t(mine) << warp->lane;
  DZ_YIELD();
  // Lane 0 resumes first, so it counts for all lanes.
  if (warp->lane == 0) ++warp->round;
  return warp->ballots[(warp->round - 1) & 1];
}

uint32_t host_warp_shuffle(uint32_t value, uint32_t from) {
  const uint32_t mine = warp->lane;
  warp->values[warp->exchange & 1][mine] = value;
  DZ_YIELD();
  if (mine == 0) ++warp->exchange;
  return warp->values[(warp->exchange - 1) & 1][from % kWarp];
}

void run_host_warp(void (*body)(void*, uint32_t), void* argument) {
  char* const stacks = static_cast<char*>(malloc(kWarp * kStack));
  if (!stacks) abort();
  HostWarp* const state = static_cast<HostWarp*>(calloc(1, sizeof(HostWarp)));
  if (!state) abort();
  state->body = body;
  state->argument = argument;
  for (uint32_t l = 0; l < kWarp; ++l) {
    getcontext(&state->start[l]);
    state->start[l].uc_stack.ss_sp = stacks + l * kStack;
    state->start[l].uc_stack.ss_size = kStack;
    state->start[l].uc_link = nullptr;
    makecontext(&state->start[l], enter, 0);
  }
  warp = state;
  state->running = 1;
  swapcontext(&state->caller, &state->start[0]);
  warp = nullptr;
  free(state);
  free(stacks);
}

}  // namespace dz
