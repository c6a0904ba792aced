// Measures cuCtxRecordEvent: the client unmaps after an event that covers all work of the context.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/gpu/kernels.h"
#include "bench/gpu/mapped_memory.h"
#include "bench/gpu/probes.h"
#include "bench/gpu/report.h"
#include "bench/gpu/stream.h"

namespace memtide::bench {
namespace {

constexpr size_t kMemory = 2 << 20;

class Fence {
 public:
  Fence() {
    OrDie(Driver().CtxGetCurrent(&context_), "cuCtxGetCurrent");
    OrDie(Driver().events.Create(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  }
  void Record() const {
    OrDie(Driver().events.RecordContext(context_, event_), "cuCtxRecordEvent");
  }

 private:
  CUcontext context_ = nullptr;
  CUevent event_ = nullptr;
};

// The microseconds of kernels in two streams, with or without a fence after each launch.
double Run(const Stream (&streams)[2], const Kernels& kernels, const MappedMemory& memory,
           const Fence* fence) {
  const auto time = std::chrono::milliseconds(Scaled(2, 1));
  const Instant start = Now();
  for (int i = 0; i < Scaled(20, 2); ++i) {
    for (const Stream& stream : streams) {
      kernels.Count(stream.get(), memory.data(), time);
      if (fence != nullptr) fence->Record();
    }
  }
  for (const Stream& stream : streams) OrDie(stream.Finish(), "running kernels");
  return MicrosecondsSince(start);
}

}  // namespace

void ProbeFences() {
  if (Driver().events.RecordContext == nullptr) {
    Answer("an event can hold all work of a context (cuCtxRecordEvent)", "no: older driver");
    return;
  }
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kMemory);
  memory.Map();
  const Fence fence;
  const auto median = [&fence] {
    return MedianMicroseconds(Scaled(101, 5), [&fence] { fence.Record(); });
  };
  std::vector<std::unique_ptr<Stream>> streams;
  for (const size_t count : {1, 16, 64}) {
    while (streams.size() < count) streams.push_back(std::make_unique<Stream>());
    Figure(absl::StrCat("an event of all work of ", count, " idle streams"), median(), "us");
    for (const auto& stream : streams) {
      kernels.Count(stream->get(), memory.data(), std::chrono::milliseconds(Scaled(20, 1)));
    }
    Figure(absl::StrCat("an event of all work of ", count, " busy streams"), median(), "us");
    for (const auto& stream : streams) OrDie(stream->Finish(), "running kernels");
  }
}

// In a process of its own: streams that a context has had before would count, too.
void ProbeFencedStreams() {
  if (Driver().events.RecordContext == nullptr) return;  // ProbeFences says so.
  const Kernels kernels;
  MappedMemory memory = MappedMemory::Create(kMemory);
  memory.Map();
  const Fence fence;
  const Stream streams[2];
  Run(streams, kernels, memory, nullptr);
  const double apart = Run(streams, kernels, memory, nullptr);
  Ratio("kernels of two streams: their time without such events, to that with one after each",
        apart / Run(streams, kernels, memory, &fence), 0.9);
}

}  // namespace memtide::bench
