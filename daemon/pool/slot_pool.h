// SlotPool: the slots of one job at one tier, and Slot: the ownership of one of them.
//
// Slots are numbered from zero; the lowest-numbered free slots are not preferred: the one freed last
// is handed out first, because its pages are warm. Pure and deterministic. Thread-compatible. A
// Slot returns itself to its pool when it is destroyed; the pool must outlive its slots and must
// not move while they exist.
#ifndef MEMTIDE_DAEMON_POOL_SLOT_POOL_H_
#define MEMTIDE_DAEMON_POOL_SLOT_POOL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace memtide {

class SlotPool;

class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), number_(other.number_) {}
  Slot& operator=(Slot&& other) noexcept {
    if (this != &other) {
      Free();
      pool_ = std::exchange(other.pool_, nullptr);
      number_ = other.number_;
    }
    return *this;
  }
  ~Slot() { Free(); }

  // False: owns nothing.
  explicit operator bool() const { return pool_ != nullptr; }
  // REQUIRES: owns a slot.
  uint32_t number() const {
    MEMTIDE_CHECK(pool_ != nullptr);
    return number_;
  }
  inline void Free();

 private:
  friend class SlotPool;
  Slot(SlotPool* pool, uint32_t number) : pool_(pool), number_(number) {}

  SlotPool* pool_ = nullptr;
  uint32_t number_ = 0;
};

class SlotPool {
 public:
  explicit SlotPool(uint32_t slots) : size_(slots) {
    free_.reserve(slots);
    for (uint32_t number = slots; number > 0; --number) free_.push_back(number - 1);
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  ~SlotPool() { MEMTIDE_CHECK(free_.size() == size_) << "a slot outlives its pool"; }

  uint32_t size() const { return size_; }
  uint32_t free_slots() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t used_slots() const { return size_ - free_slots(); }

  // Owns nothing when no slot is free.
  Slot Take() {
    if (free_.empty()) return Slot();
    const uint32_t number = free_.back();
    free_.pop_back();
    return Slot(this, number);
  }

 private:
  friend class Slot;
  const uint32_t size_;
  std::vector<uint32_t> free_;
};

inline void Slot::Free() {
  if (pool_ == nullptr) return;
  pool_->free_.push_back(number_);
  pool_ = nullptr;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POOL_SLOT_POOL_H_
