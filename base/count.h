// Count: a number of things that exist now, each of which holds a token.
//
// A token raises the count when it is taken and lowers it when it is destroyed or ended. Tokens are
// move-only, so that a count can be lowered neither twice nor in the wrong place, and a token that
// is never destroyed is noticed at the latest when the count goes.
//
// Ownership: a token points at its count, which must outlive it and does not move. A Token is as
// large as a pointer.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_BASE_COUNT_H_
#define MEMTIDE_BASE_COUNT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace memtide {

class Count {
  struct One {
    void operator()(Count* count) const { count->Lower(1); }
  };
  struct Several {
    uint32_t number = 0;
    void operator()(Count* count) const { count->Lower(number); }
  };
  template <typename Number>
  class Holder {
   public:
    Holder() = default;  // Counts nothing.
    explicit operator bool() const { return count_ != nullptr; }
    void End() { count_.reset(); }

   private:
    friend class Count;
    Holder(Count* count, Number number) : count_(count, number) {}
    std::unique_ptr<Count, Number> count_;
  };

 public:
  using Token = Holder<One>;
  using Tokens = Holder<Several>;

  Count() = default;
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;
  ~Count() { MEMTIDE_CHECK(value_ == 0) << value_ << " tokens outlive their count"; }

  [[nodiscard]] Token Take() {
    ++value_;
    return Token(this, One());
  }
  [[nodiscard]] Tokens Take(uint32_t number) {
    value_ += number;
    return Tokens(this, Several{number});
  }
  uint32_t value() const { return value_; }

 private:
  void Lower(uint32_t number) {
    MEMTIDE_CHECK(value_ >= number);
    value_ -= number;
  }

  uint32_t value_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_COUNT_H_
