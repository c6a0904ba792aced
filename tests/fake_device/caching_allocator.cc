#include "tests/fake_device/caching_allocator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "base/mutex.h"
#include "tests/fake_device/fake_cuda.h"

namespace memtide::fake_device {
namespace {

constexpr size_t kAlignment = 512;            // As torch's allocator for CUDA has.
constexpr size_t kSegment = size_t{2} << 20;  // The fake CUDA allocates multiples of it.
constexpr int kOutOfMemory = 2;               // CUDA_ERROR_OUT_OF_MEMORY

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

struct Block {
  size_t size;
  bool used;
  bool begins_segment;
};

class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* const data = size == 0 ? nullptr : Take(RoundUp(size, kAlignment));
    return {data, data, &Delete, c10::Device(c10::DeviceType::PrivateUse1, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }

  void copy_data(void* to, const void* from, size_t size) const override {
    const memtide_fake_operand operands[] = {{to, size, 1}, {const_cast<void*>(from), size, 0}};
    const auto copy = [](void*, const memtide_fake_operand* at) {
      std::memcpy(at[0].address, at[1].address, at[0].size);
      return 0;
    };
    Check(TheFakeCuda().launch(operands, 2, {copy, [](void*) {}, nullptr}));
  }

  void Empty() {
    const MutexLock lock(&mutex_);
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const auto next = std::next(block);
      const bool ends = next == blocks_.end() || next->second.begins_segment;
      if (!block->second.used && block->second.begins_segment && ends) {
        reserved_ -= block->second.size;
        Check(TheFakeCuda().free(block->first));
        blocks_.erase(block);
      }
      block = next;
    }
  }

  void SetLimit(size_t bytes) {
    const MutexLock lock(&mutex_);
    limit_ = bytes;
  }

  MemoryUse Used() {
    const MutexLock lock(&mutex_);
    return {allocated_, reserved_, peak_, retries_, shortages_};
  }

 private:
  using Blocks = std::map<char*, Block>;

  static void Delete(void* data);

  void* Take(size_t size) {
    if (void* const data = TryTake(size)) return data;
    Empty();
    void* const data = TryTake(size);
    Count(data != nullptr);
    if (data != nullptr) return data;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ",
                     std::to_string(static_cast<double>(size) / (1 << 20)),
                     " MiB. The fake GPU has no more");
  }

  void Count(bool found) {
    const MutexLock lock(&mutex_);
    ++(found ? retries_ : shortages_);
  }

  // Null: neither the cache nor the device, within the limit, has a block of this size.
  void* TryTake(size_t size) {
    const MutexLock lock(&mutex_);
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (block->second.used || block->second.size < size) continue;
      if (best == blocks_.end() || block->second.size < best->second.size) best = block;
    }
    if (best == blocks_.end()) {
      void* segment = nullptr;
      const size_t whole = RoundUp(size, kSegment);
      if (reserved_ + whole > limit_) return nullptr;
      const int status = TheFakeCuda().malloc(&segment, whole);
      if (status == kOutOfMemory) return nullptr;
      Check(status);
      reserved_ += whole;
      best = blocks_.emplace(static_cast<char*>(segment), Block{whole, false, true}).first;
    }
    if (best->second.size > size) {
      blocks_.emplace(best->first + size, Block{best->second.size - size, false, false});
    }
    best->second.size = size;
    best->second.used = true;
    allocated_ += size;
    peak_ = std::max(peak_, allocated_);
    return best->first;
  }

  void Return(char* data) {
    const MutexLock lock(&mutex_);
    const auto block = blocks_.find(data);
    allocated_ -= block->second.size;
    block->second.used = false;
    Merge(block, std::next(block));
    if (block != blocks_.begin()) Merge(std::prev(block), block);
  }

  void Merge(Blocks::iterator block, Blocks::iterator next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (next == blocks_.end() || next->second.begins_segment) return;
    if (block->second.used || next->second.used) return;
    block->second.size += next->second.size;
    blocks_.erase(next);
  }

  Mutex mutex_;
  Blocks blocks_ ABSL_GUARDED_BY(mutex_);  // By address; they cover the segments.
  size_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t limit_ ABSL_GUARDED_BY(mutex_) =
      std::numeric_limits<size_t>::max();    // The most that reserved_ may be.
  size_t peak_ ABSL_GUARDED_BY(mutex_) = 0;  // The largest allocated_ so far.
  size_t retries_ ABSL_GUARDED_BY(mutex_) = 0, shortages_ ABSL_GUARDED_BY(mutex_) = 0;
};

CachingAllocator& TheCachingAllocator() {
  // tidy(raw-new): of the process; tensors may outlive every other static object.
  static CachingAllocator& allocator = *new CachingAllocator();
  return allocator;
}

void CachingAllocator::Delete(void* data) {
  if (data != nullptr) TheCachingAllocator().Return(static_cast<char*>(data));
}

}  // namespace

c10::Allocator* TheAllocator() { return &TheCachingAllocator(); }
void EmptyCache() { TheCachingAllocator().Empty(); }
void SetLimit(size_t bytes) { TheCachingAllocator().SetLimit(bytes); }
MemoryUse UsedMemory() { return TheCachingAllocator().Used(); }

}  // namespace memtide::fake_device
