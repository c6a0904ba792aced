// CudaGate: many use the GPU at once; who restarts it is alone.
//
// A generation counts restarts, so that of those who saw the same failure one restarts and the
// others go on with the result. Thread-safe. No lock is held while somebody is inside.
#ifndef MEMTIDE_DAEMON_DEVICE_CUDA_GATE_H_
#define MEMTIDE_DAEMON_DEVICE_CUDA_GATE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace memtide {

class CudaGate {
 public:
  // Being inside, from construction, which waits while the gate is closed. Not to be nested.
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

  // Closes the gate and waits until nobody is inside. False, and not closed: somebody did so since
  // `generation`, and has finished. REQUIRES: the caller is not inside.
  bool Close(uint64_t generation);
  // REQUIRES: the caller closed it.
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
