#include "base/cuda/fake/streams.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/cuda/fake/capture.h"

namespace memtide::fake_cuda {
namespace {

// Longer than any copy that a test times, on a busy machine and with a sanitizer, too.
constexpr Duration kSlice = std::chrono::milliseconds(25);

// Each process that is at work has a lock on the byte of its pid, which ends with the process.
struct flock LockOf(const Process& process, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = process.pid;
  lock.l_len = 1;
  return lock;
}

// A process is at work from when it queues work until it has waited for all of it. How long the
// work takes is of no account, so that what a test sees does not depend on the machine's speed.
void SetAtWork(Process* process, bool at_work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process->mutex) {
  if (!process->settings.time_slices || process->at_work == at_work) return;
  if (process->at_work_fd < 0) {
    process->at_work_fd = open((process->directory + "/at-work").c_str(),
                               O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  }
  const struct flock lock = LockOf(*process, at_work ? F_WRLCK : F_UNLCK);
  MEMTIDE_CHECK(fcntl(process->at_work_fd, F_OFD_SETLK, &lock) == 0) << process->directory;
  process->at_work = at_work;
}

bool AreOthersAtWork(const Process& process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.mutex) {
  struct flock any = LockOf(process, F_WRLCK);
  any.l_start = any.l_len = 0;
  return process.at_work_fd >= 0 && fcntl(process.at_work_fd, F_OFD_GETLK, &any) == 0 &&
         any.l_type != F_UNLCK;
}

}  // namespace

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

void Stream::Push(Process* process, std::function<void()> work, std::vector<Range> accessed,
                  EndOf end) {
  ++process->pushed;
  SetAtWork(process, true);
  queue_.push_back(
      {Now() + process->delay, std::move(end), std::move(work), nullptr, std::move(accessed)});
  process->changed.SignalAll();
}

void Stream::Push(Process* process, std::shared_ptr<Mark> mark) {
  mark->pushed = process->pushed;
  if (queue_.empty() && !working_) {
    --mark->awaited;  // The stream has nothing to do.
    return;
  }
  queue_.push_back({Instant(), nullptr, nullptr, std::move(mark), {}});
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
    Instant due = queue_.front().due;
    if (queue_.front().end != nullptr) {
      // The time is counted from when the work before should have ended: a late wake-up of this
      // thread does not slow the stream.
      free_at_ = due = queue_.front().end(std::max(due, free_at_));
    }
    AwaitDue(due);
    if (queue_.empty()) return;  // Drop() removed the work.
    const Task task = std::move(queue_.front());
    queue_.pop_front();
    if (task.mark != nullptr) --task.mark->awaited;
    if (task.work != nullptr && process_->sticky == CUDA_SUCCESS) {
      working_ = true;  // A kernel runs without the lock.
      AwaitTimeSlice();
      task.broken ? process_->Break(CUDA_ERROR_ILLEGAL_ADDRESS) : task.work();
      working_ = false;
    }
    process_->changed.SignalAll();
  }
}

void Stream::AwaitTimeSlice() {
  if (!AreOthersAtWork(*process_)) return;
  process_->mutex.Unlock();
  // tidy(sleep): the time that the slice of others takes.
  std::this_thread::sleep_for(kSlice);
  process_->mutex.Lock();
}

void Stream::AwaitDue(Instant due) {
  while (!ending_ && process_->sticky == CUDA_SUCCESS) {
    const Instant now = Now();
    if (now >= due) return;
    process_->changed.WaitFor(&process_->mutex, due - now);
  }
}

Stream* FindStream(Process* process, CUstream stream) {
  const auto found = process->streams.find(stream);
  if (found != process->streams.end()) return found->second.get();
  if (stream != nullptr) return nullptr;
  return process->streams.emplace(stream, std::make_unique<Stream>(process)).first->second.get();
}

EndOf OfKernel(Process* process, const KernelWork& work) {
  Card* const card = process->card.get();
  if (card == nullptr) return nullptr;
  return [card, work](Instant begin) { return begin + card->Kernel(work); };
}

CUresult Await(Process* process, const std::shared_ptr<Mark>& mark) {
  while (mark->awaited > 0 && process->sticky == CUDA_SUCCESS) {
    process->changed.Wait(&process->mutex);
  }
  if (process->pushed == mark->pushed) SetAtWork(process, false);
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
using memtide::fake_cuda::Needs;
using memtide::fake_cuda::Process;
using memtide::fake_cuda::Stream;
using memtide::fake_cuda::TheProcess;

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuStreamCreate", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (stream == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<Stream>(&process);
  *stream = reinterpret_cast<CUstream>(made.get());
  process.streams[*stream] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  std::unique_ptr<Stream> ended;  // Destroyed after the lock is released.
  Process& process = TheProcess();
  Call call(&process, "cuStreamDestroy", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.streams.find(stream);
  if (stream == nullptr || found == process.streams.end()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  ended = std::move(found->second);
  process.streams.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuStreamSynchronize", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  Stream* const found = FindStream(&process, stream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto mark = std::make_shared<Mark>(Mark{1, 0});
  found->Push(&process, mark);
  return Await(&process, mark);
}

CUresult cuCtxSynchronize() {
  Process& process = TheProcess();
  Call call(&process, "cuCtxSynchronize", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (memtide::fake_cuda::InvalidateCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return Await(&process, MarkAll(&process));
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  Process& process = TheProcess();
  Call call(&process, "cuEventCreate", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<Event>();
  *event = reinterpret_cast<CUevent>(made.get());
  process.events[*event] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  Process& process = TheProcess();
  Call call(&process, "cuEventDestroy", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  return process.events.erase(event) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  Process& process = TheProcess();
  Call call(&process, "cuEventRecord", Needs::kContext);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.events.find(event);
  Stream* const on = FindStream(&process, stream);
  if (found == process.events.end() || on == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  found->second->last = std::make_shared<Mark>(Mark{1, 0});
  on->Push(&process, found->second->last);
  return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  Process& process = TheProcess();
  Call call(&process, "cuEventSynchronize");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  const auto found = process.events.find(event);
  if (found == process.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Mark> last = found->second->last;
  return last == nullptr ? CUDA_SUCCESS : Await(&process, last);
}

CUresult cuEventQuery(CUevent event) {
  Process& process = TheProcess();
  Call call(&process, "cuEventQuery");
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (memtide::fake_cuda::InvalidateCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = process.events.find(event);
  if (found == process.events.end()) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Mark>& last = found->second->last;
  return last == nullptr || last->awaited == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

// Drops what is on all devices: no program that uses the fake has work on a second one.
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  std::vector<std::unique_ptr<Stream>> ended;  // Destroyed after the lock is released.
  Process& process = TheProcess();
  Call call(&process, "cuDevicePrimaryCtxReset", Needs::kReset);
  if (call.refusal() != CUDA_SUCCESS) return call.refusal();
  if (!process.IsOrdinal(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (process.HasLost(device)) return CUDA_ERROR_UNKNOWN;
  ended = process.Reset();
  process.contexts[device].is_there = false;
  return CUDA_SUCCESS;
}

}  // extern "C"
