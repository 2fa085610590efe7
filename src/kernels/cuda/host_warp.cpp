// A warp on the host: 32 coroutines that take turns at each point where the lanes of a warp meet. Only for tests of
// code for warps, and to decode streams without a GPU: it is slow, but exact.
//
// Fortified longjmp reports a jump to another stack as an error, so it is turned off.
#undef _FORTIFY_SOURCE
#include "host_warp.h"

#include <setjmp.h>
#include <ucontext.h>

#include <cstdlib>

#include "warp.cuh"

namespace dz {
namespace {

constexpr size_t kStack = 64 * 1024;

struct HostWarp {
  uint32_t lane;        // lane that runs now
  uint32_t round;       // number of finished ballots
  uint32_t ballots[2];  // votes of the current ballot and of the one before
  uint32_t exchange;    // number of finished shuffles
  uint32_t values[2][kWarp];  // values of the current shuffle and of the one before
  uint32_t running;     // lanes that have begun
  uint32_t finished;    // lanes that have ended
  void (*body)(void*, uint32_t);
  void* argument;
  jmp_buf at[kWarp];
  ucontext_t caller, start[kWarp];
};

thread_local HostWarp* warp = nullptr;

void enter() {
  warp->body(warp->argument, warp->lane);
  ++warp->finished;
  if (warp->lane + 1 == kWarp) setcontext(&warp->caller);
  const uint32_t next = ++warp->lane;
  if (next < warp->running) _longjmp(warp->at[next], 1);
  ++warp->running;
  setcontext(&warp->start[next]);
}

// Runs the other lanes until it is this lane's turn again.
void yield() {
  const uint32_t mine = warp->lane, next = (mine + 1) % kWarp;
  // A lane has ended while others wait for it: a bug in the code under test.
  if (warp->finished > 0) abort();
  if (_setjmp(warp->at[mine]) != 0) return;
  warp->lane = next;
  if (next < warp->running) _longjmp(warp->at[next], 1);
  ++warp->running;
  setcontext(&warp->start[next]);
}

}  // namespace

void host_warp_sync() { yield(); }

uint32_t host_warp_ballot(bool mine) {
  uint32_t& votes = warp->ballots[warp->round & 1];
  if (warp->lane == 0) votes = 0;
  votes |= uint32_t(mine) << warp->lane;
  yield();
  // Lane 0 resumes first, so it counts for all lanes.
  if (warp->lane == 0) ++warp->round;
  return warp->ballots[(warp->round - 1) & 1];
}

uint32_t host_warp_shuffle(uint32_t value, uint32_t from) {
  const uint32_t mine = warp->lane;
  warp->values[warp->exchange & 1][mine] = value;
  yield();
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
