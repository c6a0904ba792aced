// SlotPool: the slots of one job at one tier, and Slot: the ownership of one of them.
//
// Slots are numbered from zero and become usable as memory comes to back them; new numbers are
// taken only when no used one is free, and the one freed last goes first, because its pages are
// warm. Pure and deterministic. Thread-compatible. A Slot returns itself to its pool when it is
// destroyed; the pool must outlive its slots and must not move while they exist.
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
  // Will never hold more than `slots`. None is backed yet.
  explicit SlotPool(uint32_t slots) : size_(slots) {}
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  ~SlotPool() { MEMTIDE_CHECK(used_slots() == 0) << "a slot outlives its pool"; }

  uint32_t size() const { return size_; }
  uint32_t backed_slots() const { return backed_; }
  uint32_t free_slots() const { return static_cast<uint32_t>(freed_.size()) + backed_ - fresh_; }
  uint32_t used_slots() const { return backed_ - free_slots(); }

  // Memory for `slots` more has come. REQUIRES: backed_slots() + slots <= size().
  void Back(uint32_t slots) {
    MEMTIDE_CHECK(slots <= size_ - backed_);
    backed_ += slots;
  }
  // No more memory will come: the pool stays at what is backed.
  void Cap() { size_ = backed_; }

  // Owns nothing when no backed slot is free.
  Slot Take() {
    if (!freed_.empty()) {
      const uint32_t number = freed_.back();
      freed_.pop_back();
      return Slot(this, number);
    }
    if (fresh_ == backed_) return Slot();
    return Slot(this, fresh_++);
  }

 private:
  friend class Slot;
  uint32_t size_;
  uint32_t backed_ = 0;
  uint32_t fresh_ = 0;           // Slots from here on were never taken.
  std::vector<uint32_t> freed_;  // Last freed last.
};

inline void Slot::Free() {
  if (pool_ == nullptr) return;
  pool_->freed_.push_back(number_);
  pool_ = nullptr;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POOL_SLOT_POOL_H_
