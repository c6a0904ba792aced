// Links: the simulated counterpart of the Mover, whose transfers take virtual time.
//
// It has the Mover's three queues: into the device (which also zeroes memory), out of it, and the
// disk, shared by reads and writes. Each serves one transfer at a time, first come, first served:
// latency, then bytes at the link's bandwidth. Zeroing costs the latency alone. No call blocks, and
// the same calls give the same times.
//
// Thread safety: thread-compatible.
#ifndef MEMTIDE_DAEMON_REPLAY_LINKS_H_
#define MEMTIDE_DAEMON_REPLAY_LINKS_H_

#include <cstdint>
#include <set>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "daemon/engine/interface/effects.h"

namespace memtide {

struct LinkSpeed {
  double bytes_per_second = 4e9;
  Duration latency = std::chrono::microseconds(10);  // Added to each transfer.
};

struct LinkOptions {
  LinkSpeed to_device, from_device;
  LinkSpeed disk_read{2e9, std::chrono::microseconds(100)};
  LinkSpeed disk_write{2e9, std::chrono::microseconds(100)};
};

// Bytes moved, by link.
struct LinkBytes {
  Bytes to_device, from_device, disk_read, disk_written;

  Bytes Total() const { return to_device + from_device + disk_read + disk_written; }
  LinkBytes& operator+=(const LinkBytes& other);
  // REQUIRES: no part of `other` is more.
  LinkBytes& operator-=(const LinkBytes& other);
};

class Links {
 public:
  explicit Links(const LinkOptions& options) : options_(options) {}

  // Queues the transfer. REQUIRES: `now` does not go back.
  void Start(Instant now, const StartTransfer& transfer);
  // When the next transfer is done; nullopt if none is in flight.
  absl::optional<Instant> NextDone() const;
  // Removes and returns the transfer that is done at NextDone(). REQUIRES: NextDone() has a value.
  TransferId TakeDone();

  // Bytes of all transfers that were started.
  const LinkBytes& moved() const { return moved_; }

 private:
  struct Done {
    Instant when;
    TransferId transfer;

    friend bool operator<(const Done& a, const Done& b) {
      return a.when != b.when ? a.when < b.when : a.transfer < b.transfer;
    }
  };

  const LinkOptions options_;
  // When each queue will be empty.
  Instant in_, out_, disk_;
  std::set<Done> under_way_;
  LinkBytes moved_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_LINKS_H_
