#include "daemon/device/cuda_gate.h"

namespace memtide {

uint64_t CudaGate::Enter() {
  MutexLock lock(&mutex_);
  while (closed_) changed_.Wait(&mutex_);
  ++inside_;
  return generation_;
}

void CudaGate::Leave() {
  MutexLock lock(&mutex_);
  if (--inside_ == 0) changed_.SignalAll();
}

bool CudaGate::Close(uint64_t generation) {
  MutexLock lock(&mutex_);
  while (closed_) changed_.Wait(&mutex_);
  // The restart of another thread has answered the same failure.
  if (generation != generation_) return false;
  closed_ = true;
  // A reset destroys the context, so every call that uses it must have returned.
  while (inside_ > 0) changed_.Wait(&mutex_);
  return true;
}

void CudaGate::Open() {
  MutexLock lock(&mutex_);
  closed_ = false;
  // Threads whose calls failed before this restart hold the old generation, and do not restart
  // again.
  ++generation_;
  changed_.SignalAll();
}

}  // namespace memtide
