// Stream: a CUDA stream of a probe that the default stream does not wait for, and events in it. An
// error ends the process with a message, unless the comment says that it is returned.
#ifndef MEMTIDE_BENCH_GPU_STREAM_H_
#define MEMTIDE_BENCH_GPU_STREAM_H_

#include "bench/gpu/mapped_memory.h"

namespace memtide::bench {

class Stream {
 public:
  // REQUIRES: the calling thread has a current context.
  Stream() { OrDie(Driver().StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
  // Leaves the stream to the context, which may be broken.
  ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  // Waits until the GPU has begun with what is launched next.
  void AwaitTurn() {
    Mark();
    OrDie(Driver().events.Synchronize(mark_), "cuEventSynchronize");
  }
  // Remembers the place in the stream behind all work so far.
  void Mark() {
    if (mark_ == nullptr) {
      OrDie(Driver().events.Create(&mark_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    }
    OrDie(Driver().events.Record(mark_, stream_), "cuEventRecord");
  }
  // Whether work before the mark is not done.
  bool IsBusy() const { return Driver().events.Query(mark_) == CUDA_ERROR_NOT_READY; }
  // Waits for all work, and returns the error that ended it.
  CUresult Finish() const { return Driver().StreamSynchronize(stream_); }

 private:
  CUstream stream_ = nullptr;
  CUevent mark_ = nullptr;
};

}  // namespace memtide::bench

#endif  // MEMTIDE_BENCH_GPU_STREAM_H_
