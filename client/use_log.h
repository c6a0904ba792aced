// UseLog: what this process uses and when, until the daemon is told: it foresees from that.
//
// Moments are begun by the program; uses are noted as chunks are acquired or touched, each chunk
// once a moment (and once more where it is written after it was read), however often it had to be
// fetched: what is noted must not depend on how well it is served. Only hints: what is lost costs
// speed, nothing else. Thread-compatible.
#ifndef MEMTIDE_CLIENT_USE_LOG_H_
#define MEMTIDE_CLIENT_USE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "client/types.h"

namespace memtide::client {

// As memtide_moment has it.
struct Moment {
  struct Use {
    ChunkId chunk;
    Access access = Access::kRead;
  };
  Phase phase = Phase::kOther;
  std::string name;
  Bytes own_device, own_host;
  std::vector<Use> uses;
  bool continues = false;  // The moment before goes on.
  bool ends_iteration = false;
};

class UseLog {
 public:
  // What one call to the daemon may carry.
  static constexpr size_t kMaxMoments = 2048, kMaxUses = 8192, kMaxEnds = 4;
  // So many moments without a fetch are worth a call of their own, so that the daemon does not fall
  // behind what is used.
  static constexpr size_t kReportAfter = 16;
  static constexpr size_t kMaxNameBytes = 64;

  // From the first of these calls on, uses are noted.
  void Begin(Moment moment);
  void EndIteration();
  void Use(ChunkId chunk, Access access);

  // All that was noted since, in order.
  std::vector<Moment> Take();
  bool WantsReport() const { return moments_.size() > kReportAfter; }

 private:
  Moment* Current();
  void Bound();

  bool begun_ = false;
  std::vector<Moment> moments_;
  size_t uses_ = 0, ends_ = 0;
  uint64_t number_ = 0;  // Of the current moment.
  // By chunk: the moment it was last used in, times two, and whether written.
  std::unordered_map<uint64_t, uint64_t> last_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_USE_LOG_H_
