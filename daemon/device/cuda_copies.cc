// How CudaDevice copies: at once from and to pinned host memory, else through the staging ring.
#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_device.h"
#include "daemon/device/streaming_copy.h"

namespace memtide {
namespace {

constexpr Bytes kSmallestPiece = KiB(64);
constexpr uint64_t kPiecesOfACopy = 16;
constexpr uint64_t kFewestBuffers = 4;
// Memory that one failed call unpins, for CUDA to use.
constexpr Bytes kRelief = MiB(64);

// A CUDA event, destroyed with this object. A failure of that is retried once and then ignored.
class Event {
 public:
  explicit Event(const CudaEvents* cuda) : cuda_(cuda) {}
  ~Event() {
    for (int i = 0; i < 2 && event_ != nullptr; ++i) {
      if (cuda_->Destroy(event_) == CUDA_SUCCESS) return;
    }
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  CUresult Record(CUstream stream) {
    if (event_ == nullptr) {
      // With CU_EVENT_BLOCKING_SYNC the thread sleeps; a spinning one would take a core from
      // training.
      const CUresult made =
          cuda_->Create(&event_, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
      if (made != CUDA_SUCCESS) return made;
    }
    return cuda_->Record(event_, stream);
  }
  CUresult Await() const { return cuda_->Synchronize(event_); }

 private:
  const CudaEvents* const cuda_;
  CUevent event_ = nullptr;
};

// A copy in pieces: piece i goes through buffer i % buffers() of a lane.
class Pieces {
 public:
  // The time to fill the first buffer, or to empty the last, is time in which the copy engine is
  // idle. So a small copy has small pieces, and all of the lane is in flight.
  Pieces(Bytes size, const StagingRing::Lane& lane)
      : size_(size),
        lane_(lane),
        piece_(std::clamp(RoundDown(Bytes(size.count() / kPiecesOfACopy), kSmallestPiece),
                          kSmallestPiece, Bytes(lane.size().count() / kFewestBuffers))) {}

  uint64_t count() const { return (size_.count() + piece_.count() - 1) / piece_.count(); }
  uint64_t buffers() const { return std::min(lane_.size() / piece_, kPiecesOfACopy); }
  char* BufferOf(uint64_t index) const {
    return lane_.memory() + (piece_ * (index % buffers())).count();
  }
  Bytes OffsetOf(uint64_t index) const { return piece_ * index; }
  Bytes SizeOf(uint64_t index) const { return std::min(piece_, size_ - OffsetOf(index)); }

 private:
  const Bytes size_;
  const StagingRing::Lane& lane_;
  const Bytes piece_;
};

// An event for each buffer: when its last piece has left it, or arrived in it.
std::deque<Event> EventsOf(const Pieces& pieces, const CudaEvents* cuda) {
  std::deque<Event> events;
  for (uint64_t i = 0; i < pieces.buffers(); ++i) events.emplace_back(cuda);
  return events;
}

}  // namespace

absl::Status CudaDevice::CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) {
  return OnMemory(memory, offset, size, "copying into", [&](CUdeviceptr at, const What& what) {
    const CudaHostMemory::Use use(&host_, host, size);
    if (!use.pinned() && !ring_->pinned().IsZero()) return StageIn(at, host, size, what);
    return Wait(kIn, what, [&](CUstream stream) {
      return driver_->MemcpyHtoDAsync(at, host, size.count(), stream);
    });
  });
}

absl::Status CudaDevice::CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) {
  Reads reads = Reads::kTogether;
  return OnMemory(memory, offset, size, "copying out of", [&](CUdeviceptr at, const What& what) {
    const absl::Status status = Reading(what, reads, [&]() -> absl::Status {
      const CudaHostMemory::Use use(&host_, host, size);
      if (!use.pinned() && !ring_->pinned().IsZero()) return StageOut(at, host, size, what);
      return Wait(kOut, what, [&](CUstream stream) {
        return driver_->MemcpyDtoHAsync(host, at, size.count(), stream);
      });
    });
    if (IsCudaMemoryError(status)) reads = Reads::kRepeated;
    return status;
  });
}

// Waits inside the gate: the copies that it waits for end, if only because the context is lost.
CudaDevice::BegunRead CudaDevice::BeginReading(Reads reads) {
  const MutexLock lock(&mutex_);
  if (reads == Reads::kRepeated) {
    ++waiting_repeats_;
    while (reads_ > 0) reads_ended_.Wait(&mutex_);
    --waiting_repeats_;
    repeats_ = true;
  } else {
    while (repeats_ || waiting_repeats_ > 0) reads_ended_.Wait(&mutex_);
  }
  const bool is_alone = reads_++ == 0;
  return {++begun_reads_, is_alone};
}

absl::Status CudaDevice::Reading(const What& what, Reads reads,
                                 const std::function<absl::Status()>& read) {
  const BegunRead begun = BeginReading(reads);
  absl::Status status = read();
  const MutexLock lock(&mutex_);
  const bool was_alone = begun.is_alone && begun_reads_ == begun.number;
  if (--reads_ == 0) repeats_ = false;
  reads_ended_.SignalAll();
  if (!IsCudaMemoryError(status)) return status;
  const bool first = failed_context_ != contexts_;
  failed_context_ = contexts_;
  return was_alone && first ? MemoryFailed(what) : status;
}

absl::Status CudaDevice::Zero(DeviceMemory& memory, Bytes offset, Bytes size) {
  return OnMemory(memory, offset, size, "zeroing in", [&](CUdeviceptr at, const What& what) {
    return Wait(kIn, what, [&](CUstream stream) {
      return driver_->MemsetD8Async(at, 0, size.count(), stream);
    });
  });
}

absl::Status CudaDevice::OnMemory(const DeviceMemory& memory, Bytes offset, Bytes size,
                                  absl::string_view verb, const Copy& copy) {
  const CudaMemory& of = MemoryOf(memory);
  {
    const MutexLock lock(&mutex_);
    if (failed_.count(&of) > 0) return MemoryFailed(absl::StrCat(verb, " ", of.Describe()));
  }
  const absl::optional<Bytes> end = CheckedAdd(offset, size);
  MEMTIDE_CHECK(end.has_value() && *end <= of.size())
      << size << " at " << offset << " of " << of.Describe();
  absl::Status gone;  // The memory is lost, not the GPU: no restart.
  const auto attempt = [&]() -> absl::Status {
    // Each attempt asks again: a restart maps the memory at another address.
    const absl::StatusOr<CUdeviceptr> address = of.Address();
    gone = address.status();
    if (!gone.ok()) return absl::OkStatus();
    return copy(*address + offset.count(), absl::StrCat(verb, " ", of.Describe(), ", ",
                                                        FormatBytes(size), " at ", offset.count()));
  };
  absl::Status status = Run(attempt);
  // A copy needs no memory of the GPU, so what it lacks is host memory that CUDA can pin.
  if (status.code() == absl::StatusCode::kResourceExhausted && UnpinSome()) status = Run(attempt);
  if (absl::IsDataLoss(status)) {
    const MutexLock lock(&mutex_);
    failed_.insert(&of);
  }
  return status.ok() ? gone : status;
}

bool CudaDevice::UnpinSome() {
  const CudaGate::Use use(&gate_);
  return UseGpu(facts_.ordinal).ok() && !host_.Release(kRelief).IsZero();
}

absl::Status CudaDevice::Wait(StreamOf stream, const What& what,
                              const std::function<CUresult(CUstream)>& enqueue) {
  const CUstream on = streams_[stream];
  Event event(&driver_->events);
  CUresult result = enqueue(on);
  if (result == CUDA_SUCCESS) result = event.Record(on);
  if (result == CUDA_SUCCESS) result = event.Await();
  return Settle(stream, what, result);
}

absl::Status CudaDevice::Settle(StreamOf stream, const What& what, CUresult result) {
  const absl::Status status = CudaStatus(result, what);
  if (status.ok() || status.code() == absl::StatusCode::kUnavailable) return status;
  // Copies may still be in flight, in memory that the caller will reuse.
  // If even waiting fails, only a reset ends them, and UNAVAILABLE makes Run reset the GPU.
  const absl::Status ended = CudaStatus(driver_->StreamSynchronize(streams_[stream]), what);
  return ended.ok() ? status : absl::UnavailableError(ended.message());
}

absl::Status CudaDevice::StageIn(CUdeviceptr to, const char* from, Bytes size, const What& what) {
  const StagingRing::Lane lane(ring_.get(), StagingRing::kIn);
  const Pieces pieces(size, lane);
  const uint64_t buffers = pieces.buffers();
  const CUstream stream = streams_[kIn];
  std::deque<Event> events = EventsOf(pieces, &driver_->events);
  CUresult result = CUDA_SUCCESS;
  for (uint64_t i = 0; i < pieces.count(); ++i) {
    Event& event = events[i % buffers];
    // The stream is in order, so the piece that had this buffer has arrived before those after it.
    if (i >= buffers) result = event.Await();
    if (result != CUDA_SUCCESS) break;
    const uint64_t offset = pieces.OffsetOf(i).count(), bytes = pieces.SizeOf(i).count();
    // An ordinary copy leaves the buffer in the cache, from where the GPU reads it.
    std::memcpy(pieces.BufferOf(i), from + offset, bytes);
    result = driver_->MemcpyHtoDAsync(to + offset, pieces.BufferOf(i), bytes, stream);
    if (result == CUDA_SUCCESS) result = event.Record(stream);
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS && pieces.count() > 0) {
    result = events[(pieces.count() - 1) % buffers].Await();
  }
  return Settle(kIn, what, result);
}

absl::Status CudaDevice::StageOut(CUdeviceptr from, char* to, Bytes size, const What& what) {
  const StagingRing::Lane lane(ring_.get(), StagingRing::kOut);
  const Pieces pieces(size, lane);
  const uint64_t buffers = pieces.buffers();
  const CUstream stream = streams_[kOut];
  std::deque<Event> events = EventsOf(pieces, &driver_->events);
  CUresult result = CUDA_SUCCESS;
  // Piece i begins when piece i - buffers has left its buffer; the last steps only empty buffers.
  for (uint64_t i = 0; i < pieces.count() + buffers && result == CUDA_SUCCESS; ++i) {
    Event& event = events[i % buffers];
    if (i >= buffers && i - buffers < pieces.count()) {
      const uint64_t before = i - buffers;
      result = event.Await();
      if (result != CUDA_SUCCESS) break;
      StreamCopy(to + pieces.OffsetOf(before).count(), pieces.BufferOf(before),
                 pieces.SizeOf(before));
    }
    if (i >= pieces.count()) continue;
    result = driver_->MemcpyDtoHAsync(pieces.BufferOf(i), from + pieces.OffsetOf(i).count(),
                                      pieces.SizeOf(i).count(), stream);
    if (result == CUDA_SUCCESS) result = event.Record(stream);
  }
  return Settle(kOut, what, result);
}

}  // namespace memtide
