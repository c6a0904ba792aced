#include "base/cuda/fake/streams.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace memtide::fake_cuda {

Stream::Stream(Process* process) : process_(process) {
  // Signal handlers must run in the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Stream::~Stream() {
  {
    MutexLock lock(&process_->mutex);
    ending_ = true;
    process_->changed.SignalAll();
  }
  thread_.join();
}

void Stream::Push(Process* process, std::function<void()> work, std::vector<Range> accessed) {
  queue_.push_back({Now() + process->delay, std::move(work), nullptr, std::move(accessed)});
  process->changed.SignalAll();
}

void Stream::Push(Process* process, std::shared_ptr<Mark> mark) {
  queue_.push_back({Instant(), nullptr, std::move(mark), {}});
  process->changed.SignalAll();
}

void Stream::BreakWorkOn(Process* process, Range range) {
  for (Task& task : queue_) {
    for (const Range& accessed : task.accessed) {
      task.broken |= accessed.address < range.address + range.size &&
                     range.address < accessed.address + accessed.size;
    }
  }
}

void Stream::Drop(Process* process) {
  for (const Task& task : queue_) {
    if (task.mark != nullptr) --task.mark->awaited;
  }
  queue_.clear();
  ending_ = true;
}

void Stream::Run() {
  MutexLock lock(&process_->mutex);
  for (;;) {
    while (queue_.empty() && !ending_) process_->changed.Wait(&process_->mutex);
    if (queue_.empty()) return;
    AwaitDue(queue_.front().due);
    if (queue_.empty()) return;  // Drop() removed the work.
    const Task task = std::move(queue_.front());
    queue_.pop_front();
    if (task.mark != nullptr) --task.mark->awaited;
    if (task.work != nullptr && process_->sticky == cudaSuccess) {
      task.broken ? process_->Break(cudaErrorIllegalAddress) : task.work();
    }
    process_->changed.SignalAll();
  }
}

void Stream::AwaitDue(Instant due) {
  while (!ending_ && process_->sticky == cudaSuccess) {
    const Instant now = Now();
    if (now >= due) return;
    process_->changed.WaitFor(&process_->mutex, due - now);
  }
}

Stream* FindStream(Process* process, cudaStream_t stream) {
  const auto found = process->streams.find(stream);
  if (found != process->streams.end()) return found->second.get();
  if (stream != nullptr) return nullptr;
  return process->streams.emplace(stream, std::make_unique<Stream>(process)).first->second.get();
}

cudaError_t Await(Process* process, const std::shared_ptr<Mark>& mark) {
  while (mark->awaited > 0 && process->sticky == cudaSuccess) {
    process->changed.Wait(&process->mutex);
  }
  return process->sticky;
}

void BreakWorkOn(Process* process, Range range) {
  for (const auto& [key, stream] : process->streams) stream->BreakWorkOn(process, range);
}

std::shared_ptr<Mark> MarkAll(Process* process) {
  auto mark = std::make_shared<Mark>();
  for (const auto& [key, stream] : process->streams) {
    ++mark->awaited;
    stream->Push(process, mark);
  }
  return mark;
}

}  // namespace memtide::fake_cuda

using memtide::fake_cuda::Await;
using memtide::fake_cuda::Call;
using memtide::fake_cuda::Event;
using memtide::fake_cuda::FindStream;
using memtide::fake_cuda::Mark;
using memtide::fake_cuda::MarkAll;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Return;
using memtide::fake_cuda::Stream;
using memtide::fake_cuda::TheProcess;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cudaStreamCreateWithFlags");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  if (stream == nullptr) return Return(cudaErrorInvalidValue);
  auto made = std::make_unique<Stream>(&process);
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  process.streams[*stream] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_ptr<Stream> ended;  // Destroyed after the lock is released.
  Process& process = TheProcess();
  Call call(&process, "cudaStreamDestroy");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = process.streams.find(stream);
  if (stream == nullptr || found == process.streams.end()) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  ended = std::move(found->second);
  process.streams.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Process& process = TheProcess();
  Call call(&process, "cudaStreamSynchronize");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  Stream* const found = FindStream(&process, stream);
  if (found == nullptr) return Return(cudaErrorInvalidResourceHandle);
  const auto mark = std::make_shared<Mark>(Mark{1});
  found->Push(&process, mark);
  return Return(Await(&process, mark));
}

cudaError_t cudaDeviceSynchronize() {
  Process& process = TheProcess();
  Call call(&process, "cudaDeviceSynchronize");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  return Return(Await(&process, MarkAll(&process)));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cudaEventCreateWithFlags");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  if (event == nullptr) return Return(cudaErrorInvalidValue);
  auto made = std::make_unique<Event>();
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  process.events[*event] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Process& process = TheProcess();
  Call call(&process, "cudaEventDestroy");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  return Return(process.events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Process& process = TheProcess();
  Call call(&process, "cudaEventRecord");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = process.events.find(event);
  Stream* const on = FindStream(&process, stream);
  if (found == process.events.end() || on == nullptr) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  found->second->last = std::make_shared<Mark>(Mark{1});
  on->Push(&process, found->second->last);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Process& process = TheProcess();
  Call call(&process, "cudaEventSynchronize");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = process.events.find(event);
  if (found == process.events.end()) return Return(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Mark> last = found->second->last;
  return last == nullptr ? cudaSuccess : Return(Await(&process, last));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Process& process = TheProcess();
  Call call(&process, "cudaEventQuery");
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  const auto found = process.events.find(event);
  if (found == process.events.end()) return Return(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Mark>& last = found->second->last;
  return Return(last == nullptr || last->awaited == 0 ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaDeviceReset() {
  std::vector<std::unique_ptr<Stream>> ended;  // Destroyed after the lock is released.
  Process& process = TheProcess();
  Call call(&process, "cudaDeviceReset", memtide::fake_cuda::Sticky::kIsIgnored);
  if (call.refusal() != cudaSuccess) return Return(call.refusal());
  ended = process.Reset();
  return cudaSuccess;
}

}  // extern "C"
