// StateTraffic: what the chunks of states move over one boundary, moment by moment, in an iteration
// that repeats, if the chunk with the farthest next use is always the one that leaves. Where a
// moment uses chunks in host memory, those of the device are written back first, and are gone from
// it where the moment writes. Above the disk, parts write shadow chunks, whose content becomes that
// of their chunks when the iteration ends; a part then has the moment in which it is asked for.
//
// It is Belady's rule ("A study of replacement algorithms", 1966): no other one reads less. The
// plan of the engine also counts what is written back, and transfers take time in it; as a model of
// the engine this is near enough to rank plans by.
//
// Thread safety: thread-safe. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_STATE_TRAFFIC_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_STATE_TRAFFIC_H_

#include <cstdint>
#include <vector>

#include "daemon/replay/access_sequence.h"

namespace memtide {

struct StateTraffic {
  std::vector<uint32_t> reads, writes;  // Chunks, by moment of the iteration.
};

// Which boundary the slots are above. Above the disk, a use in host memory is one like others.
enum class Below : uint8_t { kHost, kDisk };

// REQUIRES: `iteration` has one iteration; slots > 0.
StateTraffic TrafficOf(const AccessSequence& iteration, uint32_t slots, Below below);

// The least reads, in chunks, of the moments from `begin` to before `end`, with no chunk there when
// they begin. Each chunk that is there then saves one at most. Shadow chunks take no room here.
uint64_t LeastReads(const AccessSequence& iteration, size_t begin, size_t end, uint32_t slots,
                    Below below);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_STATE_TRAFFIC_H_
