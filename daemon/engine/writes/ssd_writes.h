// SsdWrites: what is written to each drive, for which user, and whose write begins next where
// drives or users have daily budgets.
//
// A write begins when the buckets of its user, of the user's groups and of all drives that it
// touches have tokens for it. Else its chunk waits in the queue of its user. Users have turns by
// bytes: the user that was served least is next. A write that waits for a drive holds up those of
// all users, so that small ones do not pass it for ever, as one that waits for a group's budget
// holds up those of the group. A write that waits for its own user's budget holds up no other user.
//
// Thread safety: thread-compatible. Time is that of the engine.
#ifndef MEMTIDE_DAEMON_ENGINE_WRITES_SSD_WRITES_H_
#define MEMTIDE_DAEMON_ENGINE_WRITES_SSD_WRITES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/ids.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/engine/interface/types.h"
#include "daemon/engine/writes/day_window.h"
#include "daemon/engine/writes/token_bucket.h"

namespace memtide {

// A chunk that is to be written.
struct SsdWrite {
  ChunkIndex chunk;
  JobId job;
  uint32_t uid = 0;
  std::vector<Bytes> parts;           // By drive.
  std::vector<uint32_t> groups = {};  // The user's groups that have a budget.
};

class SsdWrites {
 public:
  SsdWrites(const std::vector<SsdDrive>& drives, Bytes user_per_day);

  size_t drives() const { return drives_.size(); }
  // The budgets by quota, in place of those before, for what is written from now on. A user whom no
  // quota gives one has that of the constructor. REQUIRES: no chunk waits.
  void SetQuotas(const std::vector<Quota>& quotas);
  // The groups among these that have a budget.
  std::vector<uint32_t> WithBudget(const std::vector<uint32_t>& groups) const;

  // True: the budgets have the write, and it must begin. False: the chunk waits until Serve()
  // returns it.
  bool Begin(Instant now, const SsdWrite& write);
  // The write that began then has ended well, and is counted, or has failed: the budgets get it
  // back.
  void End(Instant began, const SsdWrite& write, bool wrote);
  // Whether Begin() would return true.
  bool MayBegin(Instant now, const SsdWrite& write);
  // The chunk waits no longer, and gives back what it was granted.
  void Withdraw(ChunkIndex chunk);
  // Grants tokens to waiting chunks, for each of which Begin() must be tried again. Bounded: more
  // may be granted by the next call.
  std::vector<ChunkIndex> Serve(Instant now);

  bool Waits(ChunkIndex chunk) const { return listed_.count(chunk) > 0; }
  size_t waiting() const { return listed_.size(); }
  std::vector<ChunkIndex> Waiting() const;
  uint32_t WaitingOf(JobId job) const;
  // The drive whose budget the next write waits for.
  absl::optional<uint32_t> AwaitedDrive() const { return awaited_drive_; }
  // The budget that the user's next write waits for. REQUIRES: one waits.
  DailyBudget AwaitedBudget(Instant now, uint32_t uid);

  std::vector<DriveWrites> DriveUse(Instant now);
  std::vector<UserWrites> UserUse(Instant now);
  // The bytes written under the quota in the last 24 hours; of a group without a budget, none.
  Bytes LastDayOf(Instant now, const QuotaUse& use);
  // By drive.
  std::vector<std::vector<PastWrites>> Past(Instant now);
  void CheckInvariants() const;

 private:
  struct Drive {
    TokenBucket bucket;
    Bytes written;
  };
  struct User {
    TokenBucket bucket;
    std::vector<DayWindow> windows;  // By drive.
    std::deque<ChunkIndex> queue;
    uint64_t served = 0;  // Bytes, or as many as others had been served when it began to wait.
  };
  struct Group {
    std::string quota;
    TokenBucket bucket;
    DayWindow window;
  };
  struct Listed {
    SsdWrite write;
    Bytes size;
    bool is_granted = false;
  };

  User& UserOf(Instant now, uint32_t uid);
  DailyBudget BudgetOf(uint32_t uid) const;
  bool HasTokens(Instant now, User& user, const SsdWrite& write, Bytes size);
  // The first group of the write without tokens for it.
  absl::optional<uint32_t> LackingGroup(Instant now, const SsdWrite& write, Bytes size);
  bool IsAwaited(const SsdWrite& write) const;
  // The first drive without tokens for the write.
  absl::optional<uint32_t> LackingDrive(Instant now, const SsdWrite& write);
  void TakeTokens(User& user, const SsdWrite& write, Bytes size);
  void ReturnTokens(User& user, const SsdWrite& write, Bytes size);
  void Enqueue(User& user, const SsdWrite& write, Bytes size);
  // The user whose turn it is, of those whose own budget permits the next write.
  std::map<uint32_t, User>::iterator Next(Instant now);
  void ForgetIdle(Instant now);

  std::vector<Drive> drives_;
  Bytes user_per_day_;
  std::map<uint32_t, Quota> by_user_;
  absl::optional<Quota> default_;
  std::map<uint32_t, Group> groups_;   // By number, of groups with a budget.
  std::set<uint32_t> awaited_groups_;  // Some user's next write waits for their budgets.
  bool were_used_ = false;             // Some drive.
  std::map<uint32_t, User> users_;
  std::map<ChunkIndex, Listed> listed_;
  std::map<JobId, uint32_t> waiting_of_;  // Chunks that are listed.
  absl::optional<uint32_t> awaited_drive_;
  absl::optional<Instant> started_;
  Instant forgot_at_;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_ENGINE_WRITES_SSD_WRITES_H_
