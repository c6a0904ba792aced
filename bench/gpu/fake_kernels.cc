// The kernels of kernels.h, as the CPU plays them for the fake CUDA.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "base/cuda/fake/fake_cuda.h"

namespace memtide::bench {
namespace {

using fake_cuda::PlayedKernel;

uint64_t Number(const void* parameter) { return *static_cast<const uint64_t*>(parameter); }

// Calls `work` again and again for this long. Other threads run between the calls.
template <typename Work>
void Repeat(uint64_t nanoseconds, Work work) {
  const Instant end = Now() + std::chrono::nanoseconds(nanoseconds);
  do {
    work();
    std::this_thread::yield();
  } while (Now() < end);
}

PlayedKernel Read(void** parameters) {
  const uint64_t memory = Number(parameters[0]), words = Number(parameters[1]);
  const uint64_t time = Number(parameters[2]);
  return {{{memory, words * 4, false}}, [words, time](const std::vector<void*>& operands) {
            const auto* const read = static_cast<const volatile uint32_t*>(operands[0]);
            uint64_t place = 0;
            Repeat(time, [&] { static_cast<void>(read[(place += 1048583) % words]); });
          }};
}

PlayedKernel Count(void** parameters) {
  const uint64_t time = Number(parameters[1]);
  return {{{Number(parameters[0]), 4, true}}, [time](const std::vector<void*>& operands) {
            auto* const word = static_cast<volatile uint32_t*>(operands[0]);
            uint32_t count = 0;
            Repeat(time, [&] { *word = ++count; });
          }};
}

PlayedKernel Compute(void** parameters) {
  const uint64_t rounds = Number(parameters[1]);
  return {{{Number(parameters[0]), 4, true}}, [rounds](const std::vector<void*>& operands) {
            float sum = 1;
            for (uint64_t i = 0; i < rounds; ++i) sum = sum * 1.0001F + 0.5F;
            if (sum < 0) *static_cast<float*>(operands[0]) = sum;
          }};
}

const bool defined = [] {
  fake_cuda::DefineKernel("memtide_read", &Read);
  fake_cuda::DefineKernel("memtide_count", &Count);
  fake_cuda::DefineKernel("memtide_compute", &Compute);
  return true;
}();

}  // namespace
}  // namespace memtide::bench
