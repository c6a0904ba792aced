// Copies and fills, which streams perform with a delay.
#include <algorithm>
#include <cstring>

#include "base/cuda/fake/process.h"
#include "base/cuda/fake/streams.h"

namespace memtide::fake_cuda {
namespace {

// One side of a copy: CUDA recognizes device memory by its address.
struct Side {
  uintptr_t address = 0;
  bool device = false;
};

Side SideOf(const Process& process, uintptr_t address, size_t size)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  return {address, process.Overlaps(address, size)};
}

// A copy with a rate moves this much at once, as a copy engine moves bytes all the time.
constexpr size_t kCopiedAtOnce = size_t{256} << 10;
// The same where a card is played, in 0.15 ms of its time.
constexpr size_t kPlayedAtOnce = size_t{8} << 20;

// The rate of the copy, by its host memory, which is counted if it is not pinned. Zero: as fast as
// memory allows.
Bytes CountAndRate(Process* process, Side to, Side from, size_t size)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  if (to.device && from.device) return Bytes();
  if (process->IsPinned(to.device ? from.address : to.address, size)) return process->pinned_rate;
  process->pageable_bytes += size;
  return process->pageable_rate;
}

void PushPiece(Process* process, Side to, Side from, size_t size, Stream* stream, EndOf end)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  const auto copy = [=]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
    if ((to.device && !process->MayUse(to.address, size, Access::kWrite)) ||
        (from.device && !process->MayUse(from.address, size, Access::kRead))) {
      process->Break(CUDA_ERROR_ILLEGAL_ADDRESS);
      return;
    }
    if (process->Moves(size)) {
      std::memmove(process->View(to.address), process->View(from.address), size);
    }
  };
  stream->Push(process, copy, {{to.address, size}, {from.address, size}}, std::move(end));
}

// The copy on the card's link, or within its memory.
EndOf Played(Card* card, Side to, Side from, size_t size) {
  return [=](Instant begin) {
    if (to.device && from.device) {
      return begin + card->Kernel({0, 2 * static_cast<double>(size)});
    }
    return card->Copy(to.device ? Way::kIn : Way::kOut, Bytes(size), begin);
  };
}

CUresult Copy(Process* process, Side to, Side from, size_t size, Stream* stream)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Bytes rate = CountAndRate(process, to, from, size);
  Card* const card = process->card.get();
  if (rate.IsZero() && card == nullptr) {
    PushPiece(process, to, from, size, stream, nullptr);
    return CUDA_SUCCESS;
  }
  const size_t at_once = card == nullptr ? kCopiedAtOnce : kPlayedAtOnce;
  for (size_t done = 0; done < size; done += at_once) {
    const size_t piece = std::min(at_once, size - done);
    const Side piece_to = {to.address + done, to.device};
    const Side piece_from = {from.address + done, from.device};
    const auto at_rate = [piece, rate](Instant begin) {
      const std::chrono::duration<double> busy(static_cast<double>(piece) /
                                               static_cast<double>(rate.count()));
      return begin + std::chrono::duration_cast<Duration>(busy);
    };
    PushPiece(process, piece_to, piece_from, piece, stream,
              card == nullptr ? EndOf(at_rate) : Played(card, piece_to, piece_from, piece));
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Access;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::Copy;
using memtide::fake_cuda::FindStream;
using memtide::fake_cuda::Needs;
using memtide::fake_cuda::OfKernel;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Side;
using memtide::fake_cuda::SideOf;
using memtide::fake_cuda::Stream;
using memtide::fake_cuda::TheProcess;

extern "C" {

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuMemcpyAsync", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  return Copy(&process, SideOf(process, to, size), SideOf(process, from, size), size,
              FindStream(&process, stream));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuMemcpyHtoDAsync", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const Side target = SideOf(process, to, size);
  const Side source = SideOf(process, reinterpret_cast<uintptr_t>(from), size);
  if (!target.device || source.device) return CUDA_ERROR_INVALID_VALUE;
  return Copy(&process, target, source, size, FindStream(&process, stream));
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuMemcpyDtoHAsync", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const Side target = SideOf(process, reinterpret_cast<uintptr_t>(to), size);
  const Side source = SideOf(process, from, size);
  if (target.device || !source.device) return CUDA_ERROR_INVALID_VALUE;
  return Copy(&process, target, source, size, FindStream(&process, stream));
}

CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t size, CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuMemsetD8Async", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  Stream* const found = FindStream(&process, stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!process.Overlaps(memory, size)) return CUDA_ERROR_INVALID_VALUE;
  const auto fill = [&process, memory, value, size]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
    if (!process.MayUse(memory, size, Access::kWrite)) {
      process.Break(CUDA_ERROR_ILLEGAL_ADDRESS);
    } else if (process.Moves(size)) {
      std::memset(process.View(memory), value, size);
    }
  };
  found->Push(&process, fill, {{memory, size}}, OfKernel(&process, {0, static_cast<double>(size)}));
  return CUDA_SUCCESS;
}

}  // extern "C"
