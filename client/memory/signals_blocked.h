// SignalsBlocked: while it lives, the calling thread, and every thread that it starts, has
// asynchronous signals blocked.
//
// The training script's signal handlers (Ctrl-C in Python) must run in the script's threads, not in
// the library's. Synchronous signals (SIGSEGV, SIGBUS and the like) stay unblocked, because the
// kernel kills a process whose blocked signal is raised by a fault. Use within one scope of one
// thread.
#ifndef MEMTIDE_CLIENT_MEMORY_SIGNALS_BLOCKED_H_
#define MEMTIDE_CLIENT_MEMORY_SIGNALS_BLOCKED_H_

#include <signal.h>

namespace memtide::client {

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int synchronous : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
      sigdelset(&blocked, synchronous);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_SIGNALS_BLOCKED_H_
