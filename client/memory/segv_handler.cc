#include "client/memory/segv_handler.h"

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
#include "client/memory/descriptor.h"
#include "client/memory/fault_loop.h"

namespace memtide::client {
namespace {

struct Registration {
  std::atomic<HostSpace*> space{nullptr};
  std::atomic<int> requests{-1};
  std::atomic<uint64_t> generation{0};  // ForkGeneration of the process that registered it.
  std::atomic<int> handlers{0};         // Handlers that are using this entry.
};
Registration registrations[SegvRegistration::kMaxSpaces];

Mutex install_mutex;
// The handler that was installed before this one. A replaced action is never freed, because a
// signal handler may be reading it; there is one per installation.
std::atomic<const struct sigaction*> previous{nullptr};
// The thread that is running the previous handler now; zero: none.
std::atomic<pid_t> chaining{0};

pid_t ThreadId() { return static_cast<pid_t>(syscall(SYS_gettid)); }

Access AccessOf(const void* context, PageState state) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // In the error code of a page fault.
  const greg_t error = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  return (error & kWriteBit) != 0 ? Access::kWrite : Access::kRead;
#else
  // Memory mapped for reading refuses writes only.
  return state == PageState::kRead ? Access::kWrite : Access::kRead;
#endif
}

// Returns whether the faulting instruction should be retried.
bool HandleSpaceFault(HostSpace* space, int requests, const void* address, const void* context) {
  const PlaceId place = space->place(address);
  const PageState state = space->page_state(place);
  switch (state) {
    case PageState::kUnbound:
      return false;
    case PageState::kRead: {
      if (AccessOf(context, state) == Access::kRead)
        return true;  // The place was mapped after the fault.
      const PageFault fault{place, Access::kWrite, ThreadId()};
      // An interrupted write has sent nothing: the instruction is retried and faults again.
      if (write(requests, &fault, sizeof(fault)) != sizeof(fault)) return errno == EINTR;
      space->WaitWhile(place, state);
      return true;
    }
    case PageState::kAbsent:
    case PageState::kWrite:
      return true;  // The state changed after the fault: retry.
  }
  return false;
}

// Restores the default action. A real fault meets it when its instruction runs again; a signal that
// was sent must be raised again.
void TakeDefaultAction(int signal, const siginfo_t* info) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  const bool sent_by_somebody = info->si_code <= 0;
  if (sent_by_somebody) raise(signal);
}

// Calls the previous handler under the signal mask that it requested.
void CallPrevious(const struct sigaction& action, int signal, siginfo_t* info, void* context) {
  sigset_t mask = action.sa_mask, before;
  // The kernel blocks a signal while its handler runs unless SA_NODEFER is set, and the previous
  // handler may rely on that.
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &before);
  chaining.store(ThreadId());
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
  // Restore the mask first: a signal that the handler raised may be pending, and `chaining` must
  // still be set when it is delivered.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  chaining.store(0);
}

void Chain(int signal, siginfo_t* info, void* context) {
  const struct sigaction* action = previous.load();
  const bool sent_by_somebody = info->si_code <= 0;
  // A previous handler that reports the fault, reinstalls this handler and raises the signal again
  // wants the process to end (Python's faulthandler does so). Calling it once more would loop.
  const bool raised_again = sent_by_somebody && chaining.load() == ThreadId();
  if (action == nullptr || action->sa_handler == SIG_DFL || raised_again) {
    TakeDefaultAction(signal, info);
  } else if (action->sa_handler == SIG_IGN) {
    if (!sent_by_somebody) TakeDefaultAction(signal, info);  // Like the kernel: faults kill.
  } else {
    CallPrevious(*action, signal, info, context);
  }
}

void Handle(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // Only faults can be memtide's; a signal that was sent goes to the previous handler.
  const bool fault = info->si_code > 0;
  for (Registration& entry : registrations) {
    if (!fault) break;
    if (entry.space.load() == nullptr) continue;
    // The destructor of a registration waits for this count, so `space` is read again after it.
    entry.handlers.fetch_add(1);
    HostSpace* space = entry.space.load();
    if (space != nullptr && entry.generation.load() == ForkGeneration() &&
        space->Contains(info->si_addr)) {
      const bool retry = HandleSpaceFault(space, entry.requests.load(), info->si_addr, context);
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
  // SA_NODEFER: while the handler waits, the thread can still take its own faults; and a previous
  // handler that jumps out (as some runtimes do) leaves no blocked signal behind.
  // SA_ONSTACK: a stack overflow arrives here, too, and leaves no room on its own stack.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, &action, nullptr) != 0) {
    return absl::InternalError(absl::StrCat("cannot handle SIGSEGV: ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<SegvRegistration> SegvRegistration::Create(HostSpace* space, int requests) {
  if (absl::Status status = InstallSegvHandler(); !status.ok()) return status;
  const MutexLock lock(&install_mutex);
  for (int i = 0; i < kMaxSpaces; ++i) {
    if (registrations[i].space.load() != nullptr) continue;
    registrations[i].requests.store(requests);
    registrations[i].generation.store(ForkGeneration());
    // `space` comes last: a handler that sees it finds the rest of the entry in place.
    registrations[i].space.store(space);
    return SegvRegistration(i);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("this process has ", kMaxSpaces, " memtide clients already: close some"));
}

SegvRegistration::SegvRegistration(SegvRegistration&& other) noexcept
    : index_(std::exchange(other.index_, -1)) {}

SegvRegistration::~SegvRegistration() {
  if (index_ < 0) return;
  registrations[index_].space.store(nullptr);
  // A handler that read `space` before the store may still use it.
  while (registrations[index_].handlers.load() > 0) std::this_thread::yield();
}

}  // namespace memtide::client
