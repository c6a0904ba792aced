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
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/signals_blocked.h"

namespace memtide::client {
namespace {

// How long a signalled thread has to end the process before we do.
constexpr int kGraceMilliseconds = 5000;

}  // namespace

absl::StatusOr<std::unique_ptr<FaultLoop>> FaultLoop::Start(HostSpace* space, Answer answer) {
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
  for (int i = 0; i < kThreads; ++i) {
    MEMTIDE_ASSIGN_OR_RETURN(Descriptor epoll, loop->Listen());
    loop->epolls_.push_back(std::move(epoll));
  }
  const SignalsBlocked blocked;
  for (const Descriptor& epoll : loop->epolls_) {
    loop->threads_.emplace_back([loop = loop.get(), fd = epoll.get()] { loop->Run(fd); });
    pthread_setname_np(loop->threads_.back().native_handle(), "memtide-fault");
  }
  return loop;
}

FaultLoop::FaultLoop(HostSpace* space, Answer answer, Descriptor requests_in,
                     Descriptor requests_out, Descriptor stop)
    : space_(space),
      answer_(std::move(answer)),
      requests_in_(std::move(requests_in)),
      requests_out_(std::move(requests_out)),
      stop_(std::move(stop)) {}

FaultLoop::~FaultLoop() {
  stopping_ = true;
  const uint64_t one = 1;
  MEMTIDE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<Descriptor> FaultLoop::Listen() {
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  const auto add = [&](int fd, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (epoll.valid() && add(space_->uffd(), EPOLLIN | EPOLLEXCLUSIVE) &&
      add(requests_out_.get(), EPOLLIN | EPOLLEXCLUSIVE) && add(stop_.get(), EPOLLIN)) {
    return epoll;
  }
  return absl::ResourceExhaustedError(absl::StrCat("epoll: ", strerror(errno)));
}

void FaultLoop::Run(int epoll) {
  while (!stopping_) {
    const absl::optional<Touch> touch = Hear(epoll);
    if (!touch.has_value()) continue;
    {
      const MutexLock lock(&mutex_);
      heard_.push_back(*touch);
    }
    AnswerHeard();
  }
}

absl::optional<Touch> FaultLoop::Hear(int epoll) {
  epoll_event event;
  if (epoll_wait(epoll, &event, 1, -1) <= 0) {
    MEMTIDE_CHECK(errno == EINTR) << strerror(errno);
    return absl::nullopt;
  }
  if (event.data.fd == space_->uffd()) return ReadFault();
  if (event.data.fd == requests_out_.get()) return ReadRequest();
  return absl::nullopt;
}

absl::optional<Touch> FaultLoop::ReadFault() {
  uffd_msg message;
  const ssize_t size = read(space_->uffd(), &message, sizeof(message));
  if (size < 0) {
    MEMTIDE_CHECK(errno == EAGAIN || errno == EINTR) << "userfaultfd: " << strerror(errno);
    return absl::nullopt;
  }
  if (message.event != UFFD_EVENT_PAGEFAULT) return absl::nullopt;
  const auto& fault = message.arg.pagefault;
  Touch touch;
  touch.place = space_->place(reinterpret_cast<void*>(fault.address));
  touch.access = (fault.flags & UFFD_PAGEFAULT_FLAG_WRITE) != 0 ? Access::kWrite : Access::kRead;
  touch.thread = static_cast<pid_t>(fault.feat.ptid);
  return touch;
}

absl::optional<Touch> FaultLoop::ReadRequest() {
  Touch touch;
  // Touches are written whole and read whole: a pipe's page is a multiple of their size.
  if (read(requests_out_.get(), &touch, sizeof(touch)) != sizeof(touch)) return absl::nullopt;
  return touch;
}

void FaultLoop::AnswerHeard() {
  mutex_.Lock();
  if (listening_ > 1) {
    --listening_;
    while (!heard_.empty()) {
      const Touch touch = heard_.front();
      heard_.pop_front();
      mutex_.Unlock();
      AnswerOne(touch);
      mutex_.Lock();
    }
    ++listening_;
  }
  mutex_.Unlock();
}

void FaultLoop::AnswerOne(const Touch& touch) {
  const absl::Status status = answer_(touch);
  if (!status.ok()) EndProcess(touch, space_->address(touch.place), status);
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
