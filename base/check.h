// MEMTIDE_CHECK(condition) << details: ends the process if one of this program's invariants is
// broken.
//
// For mistakes that only this program can make; what the outside world can cause is an
// absl::Status. It is active in every build. (The supported Abseil has no absl/log.)
#ifndef MEMTIDE_BASE_CHECK_H_
#define MEMTIDE_BASE_CHECK_H_

#include <sstream>

namespace memtide::internal {

// Collects the details of one failed check; the destructor prints them to stderr and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();

  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Gives the expression of a failed check the type void, so that both arms of ?: have one type.
struct Voidify {
  void operator&(std::ostream&) {}
};

}  // namespace memtide::internal

#define MEMTIDE_CHECK(condition)            \
  (__builtin_expect(bool(condition), true)) \
      ? (void)0                             \
      : ::memtide::internal::Voidify() &    \
            ::memtide::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // MEMTIDE_BASE_CHECK_H_
