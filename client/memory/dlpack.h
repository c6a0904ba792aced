// DlpackSpans: hands out spans of the address range as DLPack tensors, and collects returned ones.
//
// DLPack (https://dmlc.github.io/dlpack) is how libraries pass tensors without a copy: a struct
// with a deleter, which the last owner calls. The deleter here only appends the span to a list,
// which TakeReturned empties. So it may run in any thread, needs no Python lock, and works after
// the interpreter and the client have ended. Copies of a DlpackSpans share one list. Thread-safe.
#ifndef MEMTIDE_CLIENT_MEMORY_DLPACK_H_
#define MEMTIDE_CLIENT_MEMORY_DLPACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "client/memory/address_space.h"

namespace memtide::client {

// `size_bytes` bytes at `address`.
struct Span {
  uint64_t address = 0;
  uint64_t size_bytes = 0;
};

class DlpackSpans {
 public:
  DlpackSpans();

  // Returns a DLManagedTensor (DLPack 0.x, the struct without a version) over the span's bytes:
  // uint8, one dimension. The caller owns it and must have its deleter called exactly once.
  void* Wrap(const Span& span, const AddressSpace::DlDevice& device) const;
  // Moves up to `capacity` returned spans to `spans`, oldest first, and returns their number.
  size_t TakeReturned(Span* spans, size_t capacity) const;

 private:
  struct Returned;
  struct Tensor;

  std::shared_ptr<Returned> returned_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_MEMORY_DLPACK_H_
