// Operations on the backend's tensors as kernels of the fake CUDA: launched now, run later.
#ifndef MEMTIDE_TESTS_FAKE_DEVICE_KERNELS_H_
#define MEMTIDE_TESTS_FAKE_DEVICE_KERNELS_H_

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace memtide::fake_device {

// A boxed kernel of torch's dispatcher, for any operation without views. The results are allocated
// now, by what the operation gives on the meta device, and computed later on the CPU. Where that
// cannot be (the size depends on elements, or a number is returned) it waits, as CUDA does.
void Launch(const c10::OperatorHandle& operation, torch::jit::Stack* stack);

// Copies later, unless one side is in host memory: then it waits, or reads the host's side now.
void Copy(const at::Tensor& target, const at::Tensor& source, bool non_blocking);

// Seeds the generator of all kernels that ask for none. Takes effect in the order of launches.
void Seed(uint64_t seed);
at::Tensor GeneratorState();  // Waits for all kernels.
void SetGeneratorState(const at::Tensor& state);

}  // namespace memtide::fake_device

#endif  // MEMTIDE_TESTS_FAKE_DEVICE_KERNELS_H_
