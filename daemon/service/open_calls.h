// OpenCalls: the gRPC calls that have not ended, and what they hold of the daemon's memory.
//
// A call ends when gRPC has written its reply, or when its connection is gone. The daemon holds the
// replies that a client does not read, so each call is charged to its user until it ends:
// kCallBytes for the call, and its reply.
//
// A user may have as much as is unused of kMaxBytes: alone half of it, and beside any others at
// least kAlwaysLeft. Above that its calls are refused. Refusals, and the replies to calls that were
// waiting, may double it; then the connections that add to it are closed. Few traces are sent at a
// time (kMaxTraces), since one has up to 16 MiB; a client that does not read its own for
// kTracePatience is disconnected when another one asks.
//
// Thread-safe. Must outlive the calls.
#ifndef MEMTIDE_DAEMON_SERVICE_OPEN_CALLS_H_
#define MEMTIDE_DAEMON_SERVICE_OPEN_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace memtide {

class OpenCalls {
 public:
  // A session may have 256 waiting calls, and a user 64 sessions: half of this.
  static constexpr size_t kMaxBytes = size_t{256} << 20;
  static constexpr size_t kCallBytes = 8 << 10;
  static constexpr size_t kAlwaysLeft = 2 << 20;  // More than a listing.
  static constexpr size_t kMaxTraces = 2;
  static constexpr Duration kTracePatience = std::chrono::seconds(10);

  // Where a call comes from. The descriptor is open while the call is: gRPC closes a connection
  // after its last call has ended.
  struct Caller {
    uint32_t uid = 0;
    int fd = -1;
  };

  // A call's charge, until it is destroyed.
  class Charge {
   public:
    Charge() = default;
    ~Charge();
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;
    // The reply has `bytes`, in place of those that were reserved for it. REQUIRES: Begin() was
    // called with this charge.
    void SetReply(size_t bytes);

   private:
    friend class OpenCalls;
    OpenCalls* calls_ = nullptr;  // Null: nothing is charged.
    Caller caller_;
    size_t reply_bytes_ = 0;
  };

  OpenCalls() = default;
  // At most `max_bytes` instead of kMaxBytes, for tests.
  explicit OpenCalls(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Charges a call that has arrived, and `reply_bytes` for its reply: calls that come at once are
  // all taken before the first is answered. RESOURCE_EXHAUSTED: its user has too many; then the
  // call itself is charged, and no reply.
  absl::Status Begin(const Caller& caller, size_t reply_bytes, Charge* charge)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The call will send a trace. RESOURCE_EXHAUSTED: kMaxTraces do. REQUIRES: Begin was called.
  absl::Status BeginTrace(const Charge& charge, Instant now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Trace {
    const Charge* charge = nullptr;
    Instant since;
  };

  void Add(const Caller& caller, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(uint32_t uid, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes that each user may have once all users together have `more` bytes more.
  size_t LimitWith(size_t more) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const Charge& charge) ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t max_bytes_ = kMaxBytes;
  Mutex mutex_;
  size_t all_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, size_t> bytes_by_uid_ ABSL_GUARDED_BY(mutex_);
  std::vector<Trace> traces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_OPEN_CALLS_H_
