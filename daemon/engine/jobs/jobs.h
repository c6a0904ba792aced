// Jobs: sessions and jobs, from their beginning to their end, and what a Tick ends.
// Engine-internal.
//
// A session that ends gives up its calls, leases and memory in every other class of the engine; a
// job ends with its last session, unless it lingers.
#ifndef MEMTIDE_DAEMON_ENGINE_JOBS_JOBS_H_
#define MEMTIDE_DAEMON_ENGINE_JOBS_JOBS_H_

#include <map>
#include <vector>

#include "daemon/engine/calls/calls.h"
#include "daemon/engine/commits/commits.h"
#include "daemon/engine/core.h"
#include "daemon/engine/memory/memory.h"
#include "daemon/engine/records/records.h"
#include "daemon/engine/residency/residency.h"
#include "daemon/engine/residency/scrubber.h"
#include "daemon/engine/sharing/offers.h"
#include "daemon/engine/sharing/rank_contents.h"

namespace memtide {

class Jobs {
 public:
  Jobs(Core& core, Memory& memory, Residency& residency, Scrubber& scrubber, Calls& calls,
       Offers& offers, RankContents& contents, Records& records, Commits& commits)
      : core_(core),
        memory_(memory),
        residency_(residency),
        scrubber_(scrubber),
        calls_(calls),
        offers_(offers),
        rank_contents_(contents),
        records_(records),
        commits_(commits) {}

  // Adds the session, or closes it if it may not be added.
  void On(const ClientConnected& event);
  // Ends the session whose process is gone, and then its job, unless that has others or lingers.
  void On(const ClientGone& event);
  void On(const RenewCall& event);
  // The same, in order; a session that has ended is closed with success, as the call may be a
  // repeated one.
  void On(const CloseCall& event);
  // Ends sessions, calls, lingering jobs and waits whose time has passed, and tries again what
  // failed or waits for memory.
  void On(const Tick& event);
  // Lends the slots at the device again that a process which ended might have written to.
  void On(const ClientQuiet& event);
  // Joins or makes the job of the session, at once or when there is memory, or refuses the call.
  void On(const OpenCall& event);
  // Tries the waiting OpenCalls again, each once, and refuses those whose deadline has passed.
  void OpenWaiting();
  // Ends the job and its sessions.
  void On(const EndJobCall& event);
  // Ends the sessions that have memory of a device which is lost.
  void On(const DeviceState& event);
  // Takes no new sessions, or no new work at all, from now on. The latter is answered by
  // AnswerDrained().
  void On(const DrainCall& event);
  bool has_drain_calls() const { return !drain_calls_.empty(); }
  // Answers the DrainCalls if no transfer, waiting call or step part is left.
  void AnswerDrained();
  // Answers the OpenCalls that wait for the job.
  void On(const JobMade& signal);
  void On(const RegionsReplaced& signal);
  // Ends the sessions of the job with the error, and drops copies that they may have written.
  void On(const WrittenUnseen& signal);

  void CheckInvariants() const;

 private:
  // Whether the process has waited for all that it gave the device to do.
  enum class Ending { kOrderly, kAbrupt };
  void EndSession(Session& session, const absl::Status& why, Ending ending);
  // Its process may go on, unlike one whose connection closed: no session joins the job before its
  // host memory has been replaced. If the process may still write, the others of its job end, too.
  void EndLiveSession(Session& session, const absl::Status& why);
  // Whether its process may store to memory that others have once the session has ended.
  // REQUIRES: it has a job.
  bool MayStillWrite(const Session& session) const;
  // Ends all that the job has, whose processes may go on. The job may be gone afterwards.
  void EndSessions(Job& job, const absl::Status& why);
  void ExpireCalls();
  absl::Status CheckOpen(const OpenCall& event) const;
  // RESOURCE_EXHAUSTED: the user has as many jobs as one may have.
  absl::Status CheckJobsOf(uint32_t uid) const;
  absl::Status CheckJoins(const Job& job, const OpenCall& event) const;
  bool IsAwaited(const Job& job) const;
  Job* FindJobToJoin(const OpenCall& event, uint32_t uid);
  // Joins or creates the job, or waits while jobs that end have the memory for it.
  void OpenNowOrLater(Session& session, const OpenCall& event, Instant deadline);
  void JoinNowOrLater(Job& job, Session& session, const OpenCall& event, Instant deadline);
  absl::Status MakeJob(const OpenCall& event, Session& session);
  void AnswerOpen(Job& job, const OpenCall& event);
  void LeaveJob(Session& session);
  void LoseDevice(Job& job, const absl::Status& why);
  void TakePlaceOfRank(Job& job, Session& session);
  void FinishOpening(Job& job);
  void EndJob(Job& job);

  Core& core_;
  Memory& memory_;
  Residency& residency_;
  Scrubber& scrubber_;
  Calls& calls_;
  Offers& offers_;
  RankContents& rank_contents_;
  Records& records_;
  Commits& commits_;

  struct Quarantined {
    Job* job;
    std::vector<SlotNumber> slots;  // At the device.
  };
  std::map<SessionId, Quarantined> quarantines_;  // By sessions that ended, until ClientQuiet.
  std::vector<CallId> drain_calls_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_JOBS_JOBS_H_
