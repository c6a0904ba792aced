// SlotPool: the slots of one job at one tier, and Slot: the ownership of one of them.
//
// Slots are numbered from 0 and become usable when memory backs them. Take prefers the slot that
// was freed last, because its pages are warm, and uses a new number only if no used one is free.
// TakePlanned takes the slot that a plan names, where mappings cost more than cold pages. A
// pool may be resized below the number of backed slots: the surplus stays usable until the owner
// gives up free slots, one by one. A slot that was given up is backed again in two steps, because
// its memory goes and comes asynchronously: Gone, TakeGone.
//
// A slot in quarantine keeps its owner. When it is freed it waits, and is lent again when its last
// quarantine ends.
//
// Ownership: a Slot returns itself to its pool when it is destroyed. The pool must outlive its
// slots and must not move while they exist.
//
// Thread safety: thread-compatible. Pure and deterministic.
#ifndef MEMTIDE_DAEMON_POOL_SLOT_POOL_H_
#define MEMTIDE_DAEMON_POOL_SLOT_POOL_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/check.h"
#include "base/ids.h"

namespace memtide {

class SlotPool;

// The number of a slot in its pool.
using SlotNumber = Id<struct SlotNumberTag, uint32_t>;

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
  SlotNumber number() const {
    MEMTIDE_CHECK(pool_ != nullptr);
    return number_;
  }
  inline void Free();

 private:
  friend class SlotPool;
  Slot(SlotPool* pool, SlotNumber number) : pool_(pool), number_(number) {}

  SlotPool* pool_ = nullptr;
  SlotNumber number_;
};

class SlotPool {
 public:
  // A pool of at most `slots` slots, none of them backed yet.
  explicit SlotPool(uint32_t slots) : size_(slots) {}
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  ~SlotPool() { MEMTIDE_CHECK(used_slots() == 0) << "a slot outlives its pool"; }

  uint32_t size() const { return size_; }
  // Slots that were ever backed, and those of them that are not backed now.
  uint32_t numbers() const { return numbers_; }
  uint32_t unbacked_slots() const { return gone_slots() + changing_; }
  // The slots without memory whose memory is on its way, out or in.
  uint32_t changing_slots() const { return changing_; }
  // The slots without memory whose memory is not on its way back.
  uint32_t gone_slots() const { return static_cast<uint32_t>(gone_.size()); }
  uint32_t backed_slots() const { return numbers_ - unbacked_slots(); }
  uint32_t free_slots() const { return static_cast<uint32_t>(freed_.size()) + numbers_ - fresh_; }
  uint32_t used_slots() const { return backed_slots() - free_slots() - quarantined_slots(); }
  // Slots without an owner that wait for the end of their quarantine.
  uint32_t quarantined_slots() const { return static_cast<uint32_t>(waiting_.size()); }
  // Backed slots that the pool lacks, or has too many of.
  uint32_t missing_slots() const { return size_ - std::min(size_, backed_slots()); }
  uint32_t surplus_slots() const { return backed_slots() - std::min(size_, backed_slots()); }
  // The numbers of size() slots: those that have memory, or have some on its way, then those that
  // would get some next.
  std::vector<SlotNumber> Numbers() const {
    std::vector<SlotNumber> numbers;
    const std::set<SlotNumber> gone(gone_.begin(), gone_.end());
    for (uint32_t number = 0; number < numbers_; ++number) {
      if (gone.count(SlotNumber(number)) == 0) numbers.emplace_back(number);
    }
    numbers.insert(numbers.end(), gone_.rbegin(), gone_.rend());
    for (uint32_t number = numbers_; numbers.size() < size_; ++number) numbers.emplace_back(number);
    numbers.erase(numbers.begin() + size_, numbers.end());
    return numbers;
  }
  // Free slots that are not part of the surplus.
  uint32_t spare_slots() const { return free_slots() - std::min(free_slots(), surplus_slots()); }

  // Memory backs `slots` new slots.
  void Back(uint32_t slots) { numbers_ += slots; }
  // Memory backs one more slot. Returns its number, preferring a slot without memory.
  // REQUIRES: missing_slots() > 0.
  SlotNumber BackOne() {
    MEMTIDE_CHECK(missing_slots() > 0);
    if (gone_.empty()) return SlotNumber(numbers_++);
    const SlotNumber number = gone_.back();
    gone_.pop_back();
    freed_.push_back(number);
    return number;
  }
  // Gives the slot up: its memory goes. Returns its number, for Gone. REQUIRES: owns a slot of this
  // pool.
  SlotNumber Unback(Slot slot) {
    MEMTIDE_CHECK(slot.pool_ == this);
    slot.pool_ = nullptr;
    ++changing_;
    return slot.number_;
  }
  // The memory of a slot that was given up has been freed, or could not be restored.
  void Gone(SlotNumber number) {
    --changing_;
    gone_.push_back(number);
  }
  // Memory is to come for this one again: then Returned, else Gone. REQUIRES: gone_slots() > 0.
  SlotNumber TakeGone() {
    MEMTIDE_CHECK(!gone_.empty());
    const SlotNumber number = gone_.back();
    gone_.pop_back();
    ++changing_;
    return number;
  }
  void Returned(SlotNumber number) {
    --changing_;
    freed_.push_back(number);
  }
  void Resize(uint32_t slots) { size_ = slots; }
  // No more memory will come: the pool's size becomes the number of backed slots.
  void Cap() { size_ = std::min(size_, backed_slots()); }

  // Something may still write to the slot: it is not lent again before as many EndQuarantine.
  // REQUIRES: the slot has an owner.
  void Quarantine(SlotNumber number) { ++quarantines_[number]; }
  // The same for slots some of which may be free, and are not lent then. REQUIRES: each is backed.
  void QuarantineAll(const std::vector<SlotNumber>& numbers) {
    for (const SlotNumber number : numbers) {
      while (fresh_ <= number.value()) freed_.push_back(SlotNumber(fresh_++));
      Quarantine(number);
    }
    const auto waits = [this](SlotNumber number) { return in_quarantine(number); };
    std::copy_if(freed_.begin(), freed_.end(), std::inserter(waiting_, waiting_.end()), waits);
    freed_.erase(std::remove_if(freed_.begin(), freed_.end(), waits), freed_.end());
  }
  // REQUIRES: the slot is in quarantine.
  void EndQuarantine(SlotNumber number) {
    const auto found = quarantines_.find(number);
    MEMTIDE_CHECK(found != quarantines_.end()) << number;
    if (--found->second > 0) return;
    quarantines_.erase(found);
    if (waiting_.erase(number) > 0) freed_.push_back(number);
  }
  bool in_quarantine(SlotNumber number) const { return quarantines_.count(number) > 0; }

  // Frees the slot, which is lent again after those that are free now.
  // REQUIRES: owns a slot of this pool.
  void FreeLast(Slot slot) {
    MEMTIDE_CHECK(slot.pool_ == this);
    for (; fresh_ < numbers_; ++fresh_) freed_.insert(freed_.begin(), SlotNumber(fresh_));
    const SlotNumber number = slot.number_;
    slot.Free();
    const auto freed = std::find(freed_.begin(), freed_.end(), number);
    if (freed != freed_.end()) std::rotate(freed_.begin(), freed, std::next(freed));
  }

  // Takes this slot if it is free, and otherwise the one for which unwanted_for(number) is most.
  // Owns nothing when no backed slot is free.
  template <typename UnwantedFor>
  Slot TakePlanned(SlotNumber wanted, UnwantedFor unwanted_for) {
    while (fresh_ < numbers_) freed_.push_back(SlotNumber(fresh_++));
    auto found = std::find(freed_.begin(), freed_.end(), wanted);
    if (found == freed_.end()) {
      found = std::max_element(freed_.begin(), freed_.end(), [&](SlotNumber a, SlotNumber b) {
        return unwanted_for(a) < unwanted_for(b);
      });
    }
    if (found == freed_.end()) return Slot();
    const SlotNumber number = *found;
    freed_.erase(found);
    return Slot(this, number);
  }
  // Owns nothing when no backed slot is free.
  Slot Take() {
    if (!freed_.empty()) {
      const SlotNumber number = freed_.back();
      freed_.pop_back();
      return Slot(this, number);
    }
    if (fresh_ == numbers_) return Slot();
    return Slot(this, SlotNumber(fresh_++));
  }

  // Takes exactly these slots, in their order; nullopt if a slot is named twice or is not backed.
  // REQUIRES: no slot of the pool was taken or given up.
  absl::optional<std::vector<Slot>> TakeNumbers(const std::vector<SlotNumber>& numbers) {
    MEMTIDE_CHECK(fresh_ == 0 && unbacked_slots() == 0);
    std::vector<bool> wanted(numbers_);
    uint32_t end = 0;
    for (const SlotNumber number : numbers) {
      if (number.value() >= numbers_ || wanted[number.value()]) return absl::nullopt;
      wanted[number.value()] = true;
      end = std::max(end, number.value() + 1);
    }
    fresh_ = end;
    for (uint32_t number = fresh_; number > 0; --number) {
      if (!wanted[number - 1]) freed_.push_back(SlotNumber(number - 1));
    }
    std::vector<Slot> slots;
    slots.reserve(numbers.size());
    for (const SlotNumber number : numbers) slots.push_back(Slot(this, number));
    return slots;
  }

 private:
  friend class Slot;
  void Put(SlotNumber number) {
    if (in_quarantine(number)) {
      waiting_.insert(number);
    } else {
      freed_.push_back(number);
    }
  }

  uint32_t size_;
  uint32_t numbers_ = 0;           // Slots below are backed, but for those that are gone.
  uint32_t fresh_ = 0;             // Slots from here on were never taken.
  std::vector<SlotNumber> freed_;  // Last freed last.
  std::vector<SlotNumber> gone_;   // Given up, and without memory.
  uint32_t changing_ = 0;          // Given up, and their memory is on its way, out or in.
  std::map<SlotNumber, uint32_t> quarantines_;  // How many each slot has.
  std::set<SlotNumber> waiting_;                // In quarantine, and without an owner.
};

inline void Slot::Free() {
  if (pool_ == nullptr) return;
  pool_->Put(number_);
  pool_ = nullptr;
}

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_POOL_SLOT_POOL_H_
