// AccessLog: records which chunks this process uses in which moment, until it is sent to the
// daemon, whose access predictor learns from it.
//
// The program begins moments. A use is recorded when a chunk is acquired or faulted in: once per
// chunk and moment, and once more if it is written after it was read. Whether the chunk had to be
// fetched makes no difference, because the record must not depend on how well the program is
// served. Records are hints: losing some costs time, nothing else. Thread-compatible.
#ifndef MEMTIDE_CLIENT_LEASE_ACCESS_LOG_H_
#define MEMTIDE_CLIENT_LEASE_ACCESS_LOG_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "client/rpc/daemon_limits.h"
#include "client/rpc/moment.h"

namespace memtide::client {

class AccessLog {
 public:
  // After this many moments without a fetch, a report of its own is worth its cost: otherwise the
  // daemon's prediction lags behind the program. Where it names chunks ahead, it must know earlier.
  static constexpr size_t kReportAfter = 16, kReportOften = 1;

  // The limits of one call bound the log: moments, uses, and ends of iterations.
  explicit AccessLog(const DaemonLimits& limits) : limits_(limits) {}

  // Uses are recorded from the first Begin or EndIteration on.
  void Begin(Moment moment);
  void EndIteration();
  void Record(ChunkId chunk, Access access);

  // Removes and returns all records, in order.
  std::vector<Moment> Take();
  bool WantsReport() const { return moments_.size() > (often_ ? kReportOften : kReportAfter); }
  // The daemon leases ahead of uses, which it must know early.
  void ReportOften(bool often) { often_ = often; }

 private:
  // The moment that uses are recorded in; continues a moment that was taken.
  Moment* Current();
  // Drops the records if they exceed the limits of one call.
  void Bound();

  const DaemonLimits limits_;
  bool begun_ = false, often_ = false;
  std::vector<Moment> moments_;
  size_t uses_ = 0, ends_ = 0;
  uint64_t number_ = 0;  // The current moment, counted from the start.
  // By chunk id: twice the number of the moment of its last use, plus 1 if that use wrote.
  std::unordered_map<uint64_t, uint64_t> last_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_LEASE_ACCESS_LOG_H_
