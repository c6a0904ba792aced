// CudaGate: lets many threads use the GPU at once, or one thread restart it alone.
//
// A generation counts restarts: if several threads see the same failure, one of them restarts the
// GPU and the others continue with its result.
//
// Thread safety: thread-safe. No lock is held while a thread is inside the gate.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_GATE_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_GATE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace memtide {

class CudaGate {
 public:
  // Holds the calling thread inside the gate. The constructor waits while the gate is closed.
  // REQUIRES: the thread is not inside already.
  class Use {
   public:
    explicit Use(CudaGate* gate) : gate_(gate), generation_(gate->Enter()) {}
    ~Use() { gate_->Leave(); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    uint64_t generation() const { return generation_; }

   private:
    CudaGate* const gate_;
    const uint64_t generation_;
  };

  // Closes the gate and waits until no thread is inside. Returns false, without closing it, if
  // another thread has restarted the GPU since `generation`. REQUIRES: the caller is not inside.
  bool Close(uint64_t generation);
  // REQUIRES: the caller closed the gate.
  void Open();

 private:
  uint64_t Enter();
  void Leave();

  Mutex mutex_;
  CondVar changed_;
  uint64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_CUDA_GATE_H_
