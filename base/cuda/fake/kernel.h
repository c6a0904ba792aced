// Kernel: one launch of torch_backend.h, from its queuing until it has run or never will.
#ifndef MEMTIDE_BASE_CUDA_FAKE_KERNEL_H_
#define MEMTIDE_BASE_CUDA_FAKE_KERNEL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"
#include "base/cuda/fake/torch_backend.h"

namespace memtide::fake_cuda {

class Kernel {
 public:
  Kernel(std::vector<memtide_fake_operand> operands, const memtide_fake_kernel& kernel)
      : operands_(std::move(operands)), kernel_(kernel) {}
  ~Kernel() { kernel_.end(kernel_.context); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // The memory that it uses.
  std::vector<Range> accessed() const;
  // Runs it, without the lock, unless an operand may not be used: an illegal access.
  void Run(Process* process) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

 private:
  const std::vector<memtide_fake_operand> operands_;
  const memtide_fake_kernel kernel_;
};

// Called before the range is unmapped, if only for a moment. A kernel that runs on it makes an
// illegal access, and is waited for.
void BreakKernels(Process* process, Range range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_KERNEL_H_
