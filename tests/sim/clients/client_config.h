// ClientConfig: one random node with clients that share contents, and what these do. Plain values,
// made from a seed by WithRanks, WithKeptRanks, WithCommonContents and WithQuotas.
#ifndef MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_CONFIG_H_
#define MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_CONFIG_H_

#include <cstdint>
#include <map>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/sim/random.h"

namespace memtide::sim {

// The time to live of a job of kept ranks is longer than any run.
inline constexpr Duration kTimeToLive = std::chrono::hours(1);

enum class ClientOp : uint8_t {
  kComplete,  // The fake node finishes one piece of work.
  kTick,
  kConnect,
  kFetch,
  kWrite,
  kRelease,
  kOffer,
  kPart,
  kEndPart,
  kCommit,
  kEvict,
  kFree,
  kDiscard,
  kDie,
  kClose,
  kHang,
  kHostile,
  kRestart,
  kSetQuotas,
  kEndJob,
  kHostMemory,  // Programs beside the daemon take memory of the machine, or give it back.
  kDuplicate,
};

struct ClientConfig {
  uint64_t seed = 0;
  uint32_t clients = 2, chunks = 3;  // The chunks are those of each client.
  uint32_t device_slots = 0, host_slots = 16, ssd_slots = 0;
  bool hostile = false;     // Clients lie, and use ids that are not theirs.
  bool wrong_ends = false;  // Clients end parts twice at times, or parts that never began.
  uint32_t steps = 400;
  // Percent of the fetches that want to write, of the writes that others may write alike, of the
  // writers that release at once, and of the parts that end without being computed.
  uint32_t write_percent = 50, alike_percent = 80, release_percent = 70, uncomputed_percent = 10;
  uint32_t repeats_percent = 0;  // The offers that the engine is to repeat.
  Limits limits;
  std::map<ClientOp, uint32_t> weights;

  // Only with ranks: they are kept when their sessions end, and the daemon dies at times.
  bool keeps = false;
  // Only with common contents.
  uint32_t contents = 3, fail_region_percent = 0, other_user_percent = 30;
  uint64_t stamps_of_digest = 1;
  bool elastic = false;
  // Only with pipelines: slots that balloons leave to programs, and the percent of the transfers
  // from and to SSD that fail.
  uint32_t host_reserve = 0, fail_disk_percent = 0;
};

// Draws the length of the run, the limits, and the weights that not all seeds have: those of
// `optional` and those with which clients die.
void DrawRun(const std::vector<ClientOp>& optional, Random* random, ClientConfig* config);

EngineOptions ToOptions(const ClientConfig& config);

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_CLIENTS_CLIENT_CONFIG_H_
