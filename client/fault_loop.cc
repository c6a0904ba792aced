#include "client/fault_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "client/signals_blocked.h"

namespace memtide::client {
namespace {

constexpr int kTouchesPerRead = 16;
// How long a signalled thread has to end the process before we do.
constexpr int kGraceMilliseconds = 5000;

}  // namespace

absl::StatusOr<std::unique_ptr<FaultLoop>> FaultLoop::Start(AddressSpace* space, Answer answer) {
  int requests[2];
  if (pipe2(requests, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  }
  Descriptor out(requests[0]), in(requests[1]);
  Descriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid() || fcntl(out.get(), F_SETFL, O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  std::unique_ptr<FaultLoop> loop(
      new FaultLoop(space, std::move(answer), std::move(in), std::move(out), std::move(stop)));
  const SignalsBlocked blocked;
  for (int i = 0; i < kThreads; ++i) {
    loop->threads_.emplace_back([loop = loop.get()] { loop->Run(); });
    pthread_setname_np(loop->threads_.back().native_handle(), "memtide-fault");
  }
  return loop;
}

FaultLoop::FaultLoop(AddressSpace* space, Answer answer, Descriptor requests_in,
                     Descriptor requests_out, Descriptor stop)
    : space_(space),
      answer_(std::move(answer)),
      requests_in_(std::move(requests_in)),
      requests_out_(std::move(requests_out)),
      stop_(std::move(stop)) {}

FaultLoop::~FaultLoop() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  const uint64_t one = 1;
  MEMTIDE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  for (std::thread& thread : threads_) thread.join();
}

void FaultLoop::Run() {
  mutex_.Lock();
  while (!stopping_) {
    if (!somebody_waits_) {
      WaitAndHear();
    } else if (heard_.empty()) {
      ++idle_;
      changed_.Wait(&mutex_);
      --idle_;
    } else {
      AnswerOne();
    }
  }
  mutex_.Unlock();
}

// Waits for touches until there is one to answer and an idle thread to take over.
void FaultLoop::WaitAndHear() {
  somebody_waits_ = true;
  do {
    mutex_.Unlock();
    const std::vector<Touch> touches = WaitForTouches();
    mutex_.Lock();
    heard_.insert(heard_.end(), touches.begin(), touches.end());
  } while (!stopping_ && (heard_.empty() || idle_ == 0));
  somebody_waits_ = false;
  // One for each touch but mine, and the one who waits next.
  for (size_t i = 0; i < heard_.size(); ++i) changed_.Signal();
  if (!stopping_) AnswerOne();
}

void FaultLoop::AnswerOne() {
  const Touch touch = heard_.front();
  heard_.pop_front();
  mutex_.Unlock();
  const absl::Status status = answer_(touch);
  if (!status.ok()) EndProcess(touch, space_->address(touch.place), status);
  mutex_.Lock();
}

std::vector<Touch> FaultLoop::WaitForTouches() {
  pollfd polled[] = {
      {space_->uffd(), POLLIN, 0}, {requests_out_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  std::vector<Touch> touches;
  if (poll(polled, 3, -1) < 0) {
    MEMTIDE_CHECK(errno == EINTR) << strerror(errno);
    return touches;
  }
  if (polled[0].revents != 0) ReadFaults(&touches);
  if (polled[1].revents != 0) ReadRequests(&touches);
  return touches;
}

void FaultLoop::ReadFaults(std::vector<Touch>* touches) {
  uffd_msg messages[kTouchesPerRead];
  const ssize_t size = read(space_->uffd(), messages, sizeof(messages));
  if (size < 0) {
    MEMTIDE_CHECK(errno == EAGAIN || errno == EINTR) << "userfaultfd: " << strerror(errno);
    return;
  }
  for (size_t i = 0; i < size / sizeof(uffd_msg); ++i) {
    if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
    const auto& fault = messages[i].arg.pagefault;
    Touch touch;
    touch.place = space_->place(reinterpret_cast<void*>(fault.address));
    touch.access = (fault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0 ? Access::kWrite : Access::kRead;
    touch.thread = static_cast<pid_t>(fault.feat.ptid);
    touches->push_back(touch);
  }
}

void FaultLoop::ReadRequests(std::vector<Touch>* touches) {
  Touch requests[kTouchesPerRead];
  const ssize_t size = read(requests_out_.get(), requests, sizeof(requests));
  // Touches are written whole and read whole: both sizes are multiples, far below a pipe's page.
  if (size > 0) touches->insert(touches->end(), requests, requests + size / sizeof(Touch));
}

void EndProcess(const Touch& touch, const void* address, const absl::Status& why) {
  char where[32];
  snprintf(where, sizeof(where), "%p", address);
  const std::string line = absl::StrCat(
      "memtide: the chunk at ", where, " (place ", touch.place.value(), ") was ",
      touch.access == Access::kWrite ? "written" : "read", " and cannot be had: ", why.ToString(),
      ". The process ends here, for it could only go on with wrong bytes.\n");
  // Nothing more can be done if even stderr is gone.
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  if (touch.thread != 0) {
    syscall(SYS_tgkill, getpid(), touch.thread, SIGBUS);
    poll(nullptr, 0, kGraceMilliseconds);
  }
  abort();
}

}  // namespace memtide::client
