#include "base/cuda/fake/kernel.h"

#include <algorithm>

namespace memtide::fake_cuda {

std::vector<Range> Kernel::accessed() const {
  std::vector<Range> ranges;
  for (const memtide_fake_operand& operand : operands_) {
    ranges.push_back({reinterpret_cast<uintptr_t>(operand.address), operand.size});
  }
  return ranges;
}

void Kernel::Run(Process* process) const {
  std::vector<memtide_fake_operand> views = operands_;
  for (memtide_fake_operand& operand : views) {
    const auto address = reinterpret_cast<uintptr_t>(operand.address);
    const Access access = operand.written != 0 ? Access::kWrite : Access::kRead;
    if (!process->MayUse(address, operand.size, access)) {
      process->Break(CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
    operand.address = process->View(address);
  }
  if (process->card != nullptr) return;  // Its time has passed.
  process->running.push_back(this);
  process->mutex.Unlock();
  const int failed = kernel_.run(kernel_.context, views.data());
  process->mutex.Lock();
  std::vector<const Kernel*>& running = process->running;
  running.erase(std::find(running.begin(), running.end(), this));
  if (failed != 0) process->Break(CUDA_ERROR_LAUNCH_FAILED);
}

void BreakKernels(Process* process, Range range) {
  const auto uses = [range](const Kernel* kernel) {
    for (const Range& accessed : kernel->accessed()) {
      if (accessed.address < range.address + range.size &&
          range.address < accessed.address + accessed.size) {
        return true;
      }
    }
    return false;
  };
  while (std::any_of(process->running.begin(), process->running.end(), uses)) {
    process->Break(CUDA_ERROR_ILLEGAL_ADDRESS);
    process->changed.Wait(&process->mutex);
  }
}

}  // namespace memtide::fake_cuda
