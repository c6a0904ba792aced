// The functions of the fake CUDA (base/cuda/fake/torch_backend.h) in the library that
// MEMTIDE_LIBRARY names, which the client of this process uses too.
#ifndef MEMTIDE_TESTS_FAKE_DEVICE_FAKE_CUDA_H_
#define MEMTIDE_TESTS_FAKE_DEVICE_FAKE_CUDA_H_

#include "base/cuda/fake/torch_backend.h"

namespace memtide::fake_device {

struct FakeCuda {
  decltype(&memtide_fake_launch) launch;
  decltype(&memtide_fake_synchronize) synchronize;
  decltype(&memtide_fake_malloc) malloc;
  decltype(&memtide_fake_free) free;
  decltype(&memtide_fake_memory) memory;
  decltype(&memtide_fake_error) error;
  decltype(&memtide_fake_calls) calls;
};

const FakeCuda& TheFakeCuda();
// Raises torch's error for a status other than 0.
void Check(int status);

}  // namespace memtide::fake_device

#endif  // MEMTIDE_TESTS_FAKE_DEVICE_FAKE_CUDA_H_
