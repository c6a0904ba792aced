#include "client/cuda/epoch_events.h"

#include <algorithm>

#include "base/status_macros.h"
#include "client/cuda/current_context.h"

namespace memtide::client {
namespace {

// Without CU_EVENT_BLOCKING_SYNC, which would cost an interrupt for each event: most events are
// never waited for.
absl::StatusOr<CUevent> MakeEvent(const CudaEvents& cuda) {
  CUevent event = nullptr;
  MEMTIDE_RETURN_IF_ERROR(
      CudaStatus(cuda.Create(&event, CU_EVENT_DISABLE_TIMING), "making an event"));
  return event;
}

class ContextEvents : public EpochEvents {
 public:
  ContextEvents(const CudaDriver& driver, CUcontext context) : driver_(driver), context_(context) {}
  ~ContextEvents() override {
    const CurrentCudaContext current(driver_, context_);
    for (const CUevent event : events_) {
      if (event != nullptr) driver_.events.Destroy(event);
    }
  }

  absl::Status Make() {
    for (CUevent& event : events_) {
      MEMTIDE_ASSIGN_OR_RETURN(event, MakeEvent(driver_.events));
    }
    return absl::OkStatus();
  }

  absl::Status Record(size_t index) override {
    return CudaStatus(driver_.events.RecordContext(context_, events_[index]),
                      "recording an event for the work of the context");
  }
  CUresult Query(size_t index) override { return driver_.events.Query(events_[index]); }

 private:
  const CudaDriver& driver_;
  const CUcontext context_;
  std::array<CUevent, kCount> events_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<EpochEvents>> MakeContextEvents(const CudaDriver& driver,
                                                               CUcontext context) {
  auto events = std::make_unique<ContextEvents>(driver, context);
  MEMTIDE_RETURN_IF_ERROR(events->Make());
  return std::unique_ptr<EpochEvents>(std::move(events));
}

StreamEvents::StreamEvents(const CudaDriver& driver, CUcontext context)
    : driver_(driver), context_(context) {}

StreamEvents::~StreamEvents() {
  const CurrentCudaContext current(driver_, context_);
  std::array<std::vector<CUevent>, kCount> events;
  {
    const MutexLock lock(&mutex_);
    events.swap(events_);
  }
  for (const std::vector<CUevent>& each : events) {
    for (const CUevent event : each) driver_.events.Destroy(event);
  }
}

bool StreamEvents::Cover(absl::Span<const CUstream> streams) {
  const MutexLock lock(&mutex_);
  std::vector<CUstream> all = covered_;
  for (const CUstream stream : streams) {
    if (std::find(all.begin(), all.end(), stream) == all.end()) all.push_back(stream);
  }
  if (all.size() > kMaxStreams) return false;
  covered_ = std::move(all);
  return true;
}

std::vector<CUstream> StreamEvents::covered() const {
  const MutexLock lock(&mutex_);
  return covered_;
}

absl::StatusOr<std::vector<CUevent>> StreamEvents::Events(size_t index, size_t count) {
  std::vector<CUevent> events;
  {
    const MutexLock lock(&mutex_);
    events = events_[index];
  }
  while (events.size() < count) {
    MEMTIDE_ASSIGN_OR_RETURN(const CUevent event, MakeEvent(driver_.events));
    events.push_back(event);
    const MutexLock lock(&mutex_);
    events_[index].push_back(event);
  }
  return events;
}

absl::Status StreamEvents::Record(size_t index) {
  const CurrentCudaContext current(driver_, context_);
  MEMTIDE_RETURN_IF_ERROR(current.status());
  const std::vector<CUstream> streams = covered();
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CUevent> events, Events(index, streams.size()));
  for (size_t i = 0; i < streams.size(); ++i) {
    MEMTIDE_RETURN_IF_ERROR(CudaStatus(driver_.events.Record(events[i], streams[i]),
                                       "recording an event for the work of a stream"));
  }
  return absl::OkStatus();
}

CUresult StreamEvents::Query(size_t index) {
  std::vector<CUevent> events;
  {
    const MutexLock lock(&mutex_);
    events = events_[index];
  }
  for (const CUevent event : events) {
    const CUresult result = driver_.events.Query(event);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace memtide::client
