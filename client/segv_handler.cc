#include "client/segv_handler.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/descriptor.h"
#include "client/fault_loop.h"

namespace memtide::client {
namespace {

struct Watched {
  std::atomic<HostSpace*> space{nullptr};
  std::atomic<int> requests{-1};
  std::atomic<uint64_t> generation{0};  // Of the process that may use it (ForkGeneration).
  std::atomic<int> handlers{0};         // At work on it.
};
Watched watched[WatchedSpace::kMaxSpaces];

Mutex install_mutex;
// What was installed before us. Written before it is published by `previous`; an old one is never
// freed, as a handler may be reading it: there are as many as there are reinstallations.
std::atomic<const struct sigaction*> previous{nullptr};
// The thread whose own fault is in the previous handler now.
std::atomic<pid_t> chaining{0};

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

Access AccessOf(const void* context, Shown shown) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // Of the page fault's error code.
  const greg_t error = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  return (error & kWriteBit) != 0 ? Access::kWrite : Access::kRead;
#else
  // What is mapped for reading can only have been refused a write.
  return shown == Shown::kRead ? Access::kWrite : Access::kRead;
#endif
}

// Returns true when the faulting instruction should be tried again.
bool Answer(HostSpace* space, int requests, const void* address, const void* context) {
  const PlaceId place = space->place(address);
  const Shown shown = space->shown(place);
  switch (shown) {
    case Shown::kShut:
      return false;
    case Shown::kRead: {
      if (AccessOf(context, shown) == Access::kRead) return true;  // Mapped in the meantime.
      const Touch touch{place, Access::kWrite, ThreadId()};
      if (write(requests, &touch, sizeof(touch)) != sizeof(touch)) return errno == EINTR;
      space->WaitWhile(place, shown);
      return true;
    }
    case Shown::kAbsent:
    case Shown::kWrite:
      return true;  // Changed since the fault.
  }
  return false;
}

// The default action, taken by the kernel: of a real fault when its instruction runs again.
void TakeDefaultAction(int signal, const siginfo_t* info) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  const bool sent_by_somebody = info->si_code <= 0;
  if (sent_by_somebody) raise(signal);
}

// Calls the handler that was there before, under the mask that it asked for.
void CallPrevious(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  sigset_t mask = action.sa_mask, before;
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  chaining.store(ThreadId());
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
  // In this order: a signal that the handler raised may have waited for the mask.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  chaining.store(0);
}

void Chain(int signal, siginfo_t* info, void* context) {
  const struct sigaction* action = previous.load();
  const bool sent_by_somebody = info->si_code <= 0;
  // A handler that reports a fault and raises the signal again wants the process to end; it may
  // have put us back in its place for that (Python's faulthandler does).
  const bool raised_again = sent_by_somebody && chaining.load() == ThreadId();
  if (action == nullptr || action->sa_handler == SIG_DFL || raised_again) {
    TakeDefaultAction(signal, info);
  } else if (action->sa_handler == SIG_IGN) {
    if (!sent_by_somebody) TakeDefaultAction(signal, info);  // As the kernel does.
  } else {
    CallPrevious(*action, signal, info, context);
  }
}

void Handle(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool fault = info->si_code > 0;
  for (Watched& entry : watched) {
    if (!fault) break;
    if (entry.space.load() == nullptr) continue;
    entry.handlers.fetch_add(1);  // From here on it stays: looked at again.
    HostSpace* space = entry.space.load();
    if (space != nullptr && entry.generation.load() == ForkGeneration() &&
        space->Contains(info->si_addr)) {
      const bool retry = Answer(space, entry.requests.load(), info->si_addr, context);
      entry.handlers.fetch_sub(1);
      if (!retry) break;
      errno = saved_errno;
      return;
    }
    entry.handlers.fetch_sub(1);
  }
  Chain(signal, info, context);
  errno = saved_errno;
}

}  // namespace

absl::Status InstallSegvHandler() {
  const MutexLock lock(&install_mutex);
  struct sigaction now = {};
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == Handle) return absl::OkStatus();
  // tidy(raw-new): never freed, see `previous`.
  previous.store(new struct sigaction(now));
  struct sigaction action = {};
  action.sa_sigaction = Handle;
  // NODEFER: a handler that waits here does not keep the thread from its own faults, and one that
  // jumps out of its handler (as some runtimes do) leaves no mask behind.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("cannot handle SIGSEGV: ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<WatchedSpace> WatchedSpace::Watch(HostSpace* space, int requests) {
  if (absl::Status status = InstallSegvHandler(); !status.ok()) return status;
  const MutexLock lock(&install_mutex);
  for (int i = 0; i < kMaxSpaces; ++i) {
    if (watched[i].space.load() != nullptr) continue;
    watched[i].requests.store(requests);
    watched[i].generation.store(ForkGeneration());
    watched[i].space.store(space);
    return WatchedSpace(i);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("this process has ", kMaxSpaces, " memtide clients already: close some"));
}

WatchedSpace::WatchedSpace(WatchedSpace&& other) noexcept
    : index_(std::exchange(other.index_, -1)) {}

WatchedSpace::~WatchedSpace() {
  if (index_ < 0) return;
  watched[index_].space.store(nullptr);
  while (watched[index_].handlers.load() > 0) std::this_thread::yield();
}

}  // namespace memtide::client
