// MEMTIDE_CHECK(condition) << details: ends the process when one of our own invariants is broken.
//
// For mistakes that only this program can make; what the world can cause is an absl::Status.
// Always on. (This Abseil has no absl/log; this is the one piece of it that we need.)
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

// Lowers the type of a failed check's expression to void, so that both arms of ?: agree.
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
