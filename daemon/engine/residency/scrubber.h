// Scrubber: compares contents at rest on SSD with their sums, one piece after another, in a small
// part of the drives' time. Engine-internal.
#ifndef MEMTIDE_DAEMON_ENGINE_RESIDENCY_SCRUBBER_H_
#define MEMTIDE_DAEMON_ENGINE_RESIDENCY_SCRUBBER_H_

#include "absl/types/optional.h"
#include "base/clock.h"
#include "daemon/engine/core.h"
#include "daemon/engine/residency/residency.h"

namespace memtide {

class Scrubber {
 public:
  Scrubber(Core& core, Residency& residency) : core_(core), residency_(residency) {}

  // Begins with the next piece, if its time has come.
  void ScrubNext();
  void On(const ScrubEnded& ended);

 private:
  absl::optional<ChunkIndex> NextToScrub();
  void StartScrub(ChunkIndex index);

  Core& core_;
  Residency& residency_;

  // The next place to scrub: from `offset` on the chunk that is the member of the job, or, if there
  // is no such content, the next one.
  struct ScrubPlace {
    JobId job;
    Member member;
    Bytes offset;
    absl::optional<Version> failed;  // The last attempt found no right bytes of it there.
  };
  ScrubPlace scrub_;
  absl::optional<TransferId> scrubbing_;  // In flight.
  Instant scrub_began_, next_scrub_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_RESIDENCY_SCRUBBER_H_
