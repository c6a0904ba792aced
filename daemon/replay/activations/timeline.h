// Timeline: a quick estimate of how long an iteration takes under a candidate plan.
//
// Three things happen at a time: the process computes, the link brings what moments need, and takes
// away what leaves; where there is a disk, it is a fourth. Parts of the optimizer's step are
// computed one after another beside the other moments, and the iteration ends when all are. A
// moment begins when the one before it has ended, what it reads is there, and what leaves does not
// fill the slots set aside for transfers. Bytes read for a moment cannot come earlier than those
// slots allow. States move as in StateTraffic, with the other slots.
//
// Thread safety: thread-compatible. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TIMELINE_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TIMELINE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/candidate.h"
#include "daemon/replay/links.h"
#include "daemon/replay/replay.h"

namespace memtide {

// Parts of a tier's slots: those that transfers keep from states, those that may hold what is read
// ahead, and those that may wait to be written.
struct TransferSlots {
  double aside = 0, read_ahead = 0, waiting = 0;
};
// The engine's slots. Among 72 settings, one near to these chose the fastest patterns for four
// shapes, three budgets and two links: 0.9% slower than the best in the mean.
inline constexpr TransferSlots kEngineSlots{0.125, 0.5, 0.3};
// The slots of a system that knows all transfers ahead: any may hold bytes on their way.
inline constexpr TransferSlots kForeseenSlots{0.0625, 1, 1};

class Timeline {
 public:
  // `options.device_slots`: whether there is a device.
  Timeline(const ActivationModel& model, const ReplayOptions& options,
           const TransferSlots& transfers = kEngineSlots);

  // Seconds; infinity: the budget does not allow the candidate.
  double SecondsOf(const Candidate& candidate);
  // Bytes that cross each boundary. REQUIRES: the budget allows the candidate.
  LinkBytes BytesOf(const Candidate& candidate);

 private:
  // A boundary between tiers, and what crosses it.
  struct Boundary {
    uint32_t slots = 0;                    // Above it, without those set aside for transfers.
    double in_window = 0, out_window = 0;  // Bytes that may be read ahead, and wait to be written.
    double in_bytes_a_second = 0, out_bytes_a_second = 0;
    bool one_at_a_time = false;  // Reads and writes take turns, as on a disk.
  };
  struct Flow {
    std::vector<double> in, out;  // Bytes, by moment.
    // By moment: the number of moments after which, with what leaves in them, it reads.
    std::vector<size_t> after;
  };

  Boundary BoundaryOf(uint32_t slots, bool is_disk) const;
  // The chunks of states that may be above it: shadow chunks are in host memory.
  uint32_t ChunksAbove(const Boundary& boundary) const {
    return boundary.one_at_a_time ? chunks_ : chunks_ - shadows_;
  }
  const Flow& StatesOf(const Boundary& boundary);
  Flow FlowOf(const Candidate& candidate, const Boundary& boundary);
  void SetCompute(const Candidate& candidate);
  double Play(const Flow& flow, const Boundary& boundary);

  const ActivationModel& model_;
  const ReplayOptions options_;
  const TransferSlots transfers_;
  const uint32_t chunks_, shadows_;  // The most chunks of states at once; shadow chunks of these.
  std::map<std::pair<bool, uint32_t>, Flow> states_;  // By boundary and slots.
  std::vector<double> compute_;                       // Seconds, by moment.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_TIMELINE_H_
