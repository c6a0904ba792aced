#include "client/memory/dlpack.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "base/mutex.h"

namespace memtide::client {

// The structs of dlpack.h 0.8. Their layout is frozen: later DLPack versions use another struct.
struct DlDataType {
  uint8_t code;  // 1: kDLUInt.
  uint8_t bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  AddressSpace::DlDevice device;
  int32_t dimensions;
  DlDataType type;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor* self);
};
static_assert(sizeof(AddressSpace::DlDevice) == 8 && sizeof(DlTensor) == 48 &&
                  sizeof(DlManagedTensor) == 64,
              "the layout that other libraries read");

struct DlpackSpans::Returned {
  Mutex mutex;
  std::deque<Span> spans ABSL_GUARDED_BY(mutex);
};

struct DlpackSpans::Tensor {
  DlManagedTensor managed = {};
  int64_t size = 0;
  Span span;
  std::shared_ptr<Returned> returned;

  // The list outlives the client if a tensor does, so the deleter never dereferences the client.
  static void Delete(DlManagedTensor* managed) {
    const std::unique_ptr<Tensor> self(static_cast<Tensor*>(managed->context));
    const std::shared_ptr<Returned> returned = self->returned;
    const MutexLock lock(&returned->mutex);
    returned->spans.push_back(self->span);
  }
};

DlpackSpans::DlpackSpans() : returned_(std::make_shared<Returned>()) {}

void* DlpackSpans::Wrap(const Span& span, const AddressSpace::DlDevice& device) const {
  auto tensor = std::make_unique<Tensor>();
  tensor->span = span;
  tensor->size = static_cast<int64_t>(span.size_bytes);
  tensor->returned = returned_;
  DlTensor& view = tensor->managed.tensor;
  view.data = reinterpret_cast<void*>(span.address);
  view.device = device;
  view.dimensions = 1;
  view.type = {1, 8, 1};
  // Its strides stay null, which means a compact tensor.
  view.shape = &tensor->size;
  tensor->managed.context = tensor.get();
  tensor->managed.deleter = &Tensor::Delete;
  return &tensor.release()->managed;
}

size_t DlpackSpans::TakeReturned(Span* spans, size_t capacity) const {
  const MutexLock lock(&returned_->mutex);
  const size_t count = std::min(capacity, returned_->spans.size());
  std::copy_n(returned_->spans.begin(), count, spans);
  returned_->spans.erase(returned_->spans.begin(), returned_->spans.begin() + count);
  return count;
}

}  // namespace memtide::client
