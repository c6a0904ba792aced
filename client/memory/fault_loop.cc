#include "client/memory/fault_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/memory/signals_blocked.h"

namespace memtide::client {
namespace {

// After this time without effect of the SIGBUS, EndProcess aborts.
constexpr int kGraceMilliseconds = 5000;

}  // namespace

absl::StatusOr<std::unique_ptr<FaultLoop>> FaultLoop::Start(HostSpace* space, Handler handler) {
  int requests[2];
  if (pipe2(requests, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("pipe: ", strerror(errno)));
  }
  Descriptor out(requests[0]), in(requests[1]);
  Descriptor stop(eventfd(0, EFD_CLOEXEC));
  // Only the read end is non-blocking: threads that lose the race for a request must return to
  // epoll, while the signal handler's write must complete.
  if (!stop.valid() || fcntl(out.get(), F_SETFL, O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", strerror(errno)));
  }
  std::unique_ptr<FaultLoop> loop(
      new FaultLoop(space, std::move(handler), std::move(in), std::move(out), std::move(stop)));
  for (int i = 0; i < kThreads; ++i) {
    MEMTIDE_ASSIGN_OR_RETURN(Descriptor epoll, loop->MakeEpoll());
    loop->epolls_.push_back(std::move(epoll));
  }
  const SignalsBlocked blocked;
  for (const Descriptor& epoll : loop->epolls_) {
    loop->threads_.emplace_back([loop = loop.get(), fd = epoll.get()] { loop->Run(fd); });
    pthread_setname_np(loop->threads_.back().native_handle(), "memtide-fault");
  }
  return loop;
}

FaultLoop::FaultLoop(HostSpace* space, Handler handler, Descriptor request_writer,
                     Descriptor request_reader, Descriptor stop)
    : space_(space),
      handler_(std::move(handler)),
      request_writer_(std::move(request_writer)),
      request_reader_(std::move(request_reader)),
      stop_(std::move(stop)) {}

FaultLoop::~FaultLoop() {
  stopping_ = true;
  // stop_ is never read, so it stays readable and every thread sees it.
  const uint64_t one = 1;
  MEMTIDE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<Descriptor> FaultLoop::MakeEpoll() {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  const auto add = [&](int fd, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  // A fault is for one thread, so the kernel need not wake all; the end is for all of them.
  if (epoll.valid() && add(space_->uffd(), EPOLLIN | EPOLLEXCLUSIVE) &&
      add(request_reader_.get(), EPOLLIN | EPOLLEXCLUSIVE) && add(stop_.get(), EPOLLIN)) {
    return epoll;
  }
  return absl::ResourceExhaustedError(absl::StrCat("epoll: ", strerror(errno)));
}

void FaultLoop::Run(int epoll) {
  while (!stopping_) {
    const absl::optional<PageFault> fault = WaitForFault(epoll);
    if (!fault.has_value()) continue;
    {
      const MutexLock lock(&mutex_);
      pending_.push_back(*fault);
    }
    HandlePending();
  }
}

absl::optional<PageFault> FaultLoop::WaitForFault(int epoll) {
  epoll_event event;
  if (epoll_wait(epoll, &event, 1, -1) <= 0) {
    MEMTIDE_CHECK(errno == EINTR) << strerror(errno);
    return absl::nullopt;
  }
  if (event.data.fd == space_->uffd()) return ReadUserfault();
  if (event.data.fd == request_reader_.get()) return ReadSegvRequest();
  return absl::nullopt;
}

absl::optional<PageFault> FaultLoop::ReadUserfault() {
  uffd_msg message;
  const ssize_t size = read(space_->uffd(), &message, sizeof(message));
  if (size < 0) {
    // EPOLLEXCLUSIVE may wake several threads for one event, which the first of them reads.
    MEMTIDE_CHECK(errno == EAGAIN || errno == EINTR) << "userfaultfd: " << strerror(errno);
    return absl::nullopt;
  }
  // Remap events need no action: reading one lets Unmap return.
  if (message.event != UFFD_EVENT_PAGEFAULT) return absl::nullopt;
  const auto& raw = message.arg.pagefault;
  PageFault fault;
  fault.place = space_->place(reinterpret_cast<void*>(raw.address));
  fault.access = (raw.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0 ? Access::kWrite : Access::kRead;
  fault.thread = static_cast<pid_t>(raw.feat.ptid);
  return fault;
}

absl::optional<PageFault> FaultLoop::ReadSegvRequest() {
  PageFault fault;
  // Writes of up to PIPE_BUF bytes are atomic, so a request is read whole.
  if (read(request_reader_.get(), &fault, sizeof(fault)) != sizeof(fault)) return absl::nullopt;
  return fault;
}

void FaultLoop::HandlePending() {
  mutex_.Lock();
  // The last thread that listens goes back to epoll; a thread that is busy now handles the queue.
  if (listening_ > 1) {
    --listening_;
    while (!pending_.empty()) {
      const PageFault fault = pending_.front();
      pending_.pop_front();
      mutex_.Unlock();
      HandleFault(fault);
      mutex_.Lock();
    }
    ++listening_;
  }
  mutex_.Unlock();
}

void FaultLoop::HandleFault(const PageFault& fault) {
  const absl::Status status = handler_(fault);
  if (!status.ok()) EndProcess(fault, space_->address(fault.place), status);
}

void EndProcess(const PageFault& fault, const void* address, const absl::Status& why) {
  char where[32];
  snprintf(where, sizeof(where), "%p", address);
  const std::string line =
      absl::StrCat("memtide: the chunk at ", where, " (place ", fault.place.value(), ") was ",
                   fault.access == Access::kWrite ? "written" : "read",
                   " and cannot be fetched: ", why.ToString(),
                   ". The process ends here, because it could only continue with wrong bytes.\n");
  // A failed write to stderr is ignored: there is nowhere left to report it.
  static_cast<void>(!write(STDERR_FILENO, line.data(), line.size()));
  // A thread that the kernel did not name cannot be signalled.
  if (fault.thread != 0) {
    // Raise the signal in the faulting thread, whose stack a debugger should show.
    syscall(SYS_tgkill, getpid(), fault.thread, SIGBUS);
    poll(nullptr, 0, kGraceMilliseconds);
  }
  abort();
}

}  // namespace memtide::client
