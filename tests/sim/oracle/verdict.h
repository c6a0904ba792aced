// Verdict: the first promise that was seen broken in a run. Checks go on recording nothing after
// it: what follows a broken promise proves nothing. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_ORACLE_VERDICT_H_
#define MEMTIDE_TESTS_SIM_ORACLE_VERDICT_H_

#include <string>
#include <utility>

namespace memtide::sim {

class Verdict {
 public:
  void Broken(std::string promise) {
    if (broken_.empty()) broken_ = std::move(promise);
  }
  // Empty: nothing was.
  const std::string& broken() const { return broken_; }
  bool ok() const { return broken_.empty(); }

 private:
  std::string broken_;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_ORACLE_VERDICT_H_
