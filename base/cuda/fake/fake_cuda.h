// A CUDA without a GPU, for tests: linked in place of the runtime, it defines the runtime's
// functions that this project calls, by their own names, and hands out a driver's.
//
// Device memory is files in a directory on tmpfs. Processes that name the same directory share
// its devices, as they share a GPU: memory is free again when every mapping, handle and
// descriptor of it is gone in every process, also by kill -9. Copies are made late, by a thread for
// each stream, and fresh memory is poison, so that a wait or a zeroing that is missing shows. What
// is wrong with real CUDA is refused: mapping part of an allocation, touching memory before access
// is set (SIGSEGV), using CUDA after fork, and so on. After an error that is "sticky" every call
// fails until cudaDeviceReset.
//
// Two settings come from the environment, read at the first call:
//   MEMTIDE_FAKE_CUDA=dir=/dev/shm/x,memory=256MiB,devices=2,name=Fake,driver=old,descriptors=no,
//       legacy_ipc=no,delay_us=200
//     all optional. dir: shared with whoever names it; else one of this process, gone when it ends.
//     memory: of each device [1 GiB]. driver: "old" has no functions to map memory; "none" is
//     missing; "no-uvm" answers as where the module nvidia-uvm is not loaded.
//   MEMTIDE_FAKE_CUDA_FAULTS=cuMemCreate:3=2,cudaMemcpyAsync:5=700
//     the third cuMemCreate of this process fails with 2, and so on. "*" counts all calls.
// CUDA_VISIBLE_DEVICES works as it does with CUDA.
//
// What it does not do: streams that were not made cudaStreamNonBlocking do not wait for the default
// stream, nor it for them. All functions are thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_
#define MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace memtide::fake_cuda {

// What fresh memory, and memory that was freed, is full of.
inline constexpr char kPoison = static_cast<char>(0xDB);

// Lets the n-th call of `name` from now on, counted from 1, fail with `code`. "*": of any function.
void FailCall(const std::string& name, uint64_t n, int code);
// Forgets the faults that have not come to pass.
void ClearFaults();
// How often `name` was called, or, for "*", any function of those that can fail.
uint64_t CallCount(const std::string& name);

// How late copies are made.
void SetDelay(Duration delay);

// What this process holds. Empty after a clean end.
struct Holdings {
  uint64_t handles = 0, reservations = 0, mappings = 0, registrations = 0, streams = 0, events = 0;

  bool empty() const {
    return handles + reservations + mappings + registrations + streams + events == 0;
  }
};
Holdings Held();

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_
