// Spans: pieces of the address range handed out as DLPack tensors, and those that came back.
//
// DLPack (https://dmlc.github.io/dlpack) is how libraries pass tensors without copying: a struct
// with a deleter, which the last owner calls. Here the deleter only notes that the span is free;
// who gave it out asks for that when it suits. So it may be called from any thread, holds no Python
// lock and works after the interpreter and the client have ended. Thread-safe; a copy is the same
// list.
#ifndef MEMTIDE_CLIENT_DLPACK_H_
#define MEMTIDE_CLIENT_DLPACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/address_space.h"

namespace memtide::client {

struct Span {
  uint64_t address = 0;
  uint64_t size_bytes = 0;
};

class Spans {
 public:
  Spans();

  // A DLManagedTensor (of DLPack 0.x, without a version): the span's bytes, one dimension of uint8.
  // Owned by whoever calls its deleter.
  void* Wrap(const Span& span, const AddressSpace::DlDevice& device) const;
  // Moves up to `capacity` returned spans to `spans`, oldest first; how many.
  size_t TakeReturned(Span* spans, size_t capacity) const;

 private:
  struct Returned;
  struct Tensor;

  std::shared_ptr<Returned> returned_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_DLPACK_H_
