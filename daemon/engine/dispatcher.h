// Dispatcher: has the classes of the engine, and hands each event and signal to the one that
// handles it.
// Engine-internal.
//
// A class calls only those that are declared before it. One that is declared later gets signals
// through the WorkList, which Settle() hands on.
#ifndef MEMTIDE_DAEMON_ENGINE_DISPATCHER_H_
#define MEMTIDE_DAEMON_ENGINE_DISPATCHER_H_

#include <vector>

#include "daemon/engine/audit.h"
#include "daemon/engine/calls/calls.h"
#include "daemon/engine/commits/commits.h"
#include "daemon/engine/core.h"
#include "daemon/engine/inspection/inspection.h"
#include "daemon/engine/jobs/jobs.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/records/records.h"
#include "daemon/engine/requests/requests.h"
#include "daemon/engine/residency/prefetcher.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/residency/scrubber.h"
#include "daemon/engine/residency/victims.h"
#include "daemon/engine/sharing/duplicates.h"
#include "daemon/engine/sharing/offers.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

class Dispatcher {
 public:
  explicit Dispatcher(const EngineOptions& options) : core_(options) {}

  void Handle(Instant now, const Event& event, std::vector<Effect>* effects);
  const Audit& audit() const { return audit_; }

 private:
  // Hands an event or a signal to the class that handles it.
  template <typename OneEvent>
  void Dispatch(const OneEvent& event);
  // Takes the listed work until nothing moves.
  void Settle();
  // The chunk takes its next step.
  void Advance(ChunkIndex index);
  void MakeRoom(const WorkList::RoomCheck& check);
  void HandOnSignals();

  Core core_;
  Memory memory_{core_};
  Victims victims_{core_};
  Residency residency_{core_, memory_, victims_};
  Prefetcher prefetcher_{core_, victims_, residency_};
  Scrubber scrubber_{core_, residency_};
  Calls calls_{core_, memory_, victims_, residency_, prefetcher_};
  Offers offers_{core_, memory_, residency_, calls_};
  Duplicates duplicates_{core_, memory_, residency_, calls_, offers_};
  RankContents rank_contents_{core_, memory_, residency_, calls_, offers_};
  Requests requests_{core_, residency_, prefetcher_, calls_, offers_, duplicates_, rank_contents_};
  Records records_{core_, memory_, residency_};
  Commits commits_{core_, residency_, calls_, offers_, rank_contents_, records_};
  Jobs jobs_{core_,   memory_,        residency_, scrubber_, calls_,
             offers_, rank_contents_, records_,   commits_};
  Inspection inspection_{core_, calls_, offers_};
  Audit audit_{core_, calls_, offers_, jobs_};
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_DISPATCHER_H_
