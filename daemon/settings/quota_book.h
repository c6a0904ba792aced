// QuotaBook: the quotas that hold: those of the configuration, and in place of them those that
// administrators set while the daemon runs.
//
// The quotas of administrators are kept in the file quotas.textproto of the settings directory, a
// NodeConfig with quotas alone, which is replaced whole: the new file and then its name are on
// stable storage before the change holds. The subjects are kept by number.
//
// Thread-safe. Set and Clear write to the disk, and ask for names: no thread that serves other
// users may wait for them.
#ifndef MEMTIDE_DAEMON_SETTINGS_QUOTA_BOOK_H_
#define MEMTIDE_DAEMON_SETTINGS_QUOTA_BOOK_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/settings/accounts.h"
#include "memtide/v1/quota.pb.h"

namespace memtide {

class QuotaBook {
 public:
  // A change of one quota, for the engine and the administrator.
  struct Change {
    uint64_t number = 0;        // Larger than those of earlier changes.
    std::vector<Quota> quotas;  // All that hold.
    Quota quota;                // The subject's quota. Unlimited: there is none.
    bool outlives_daemon = false;
  };

  // `directory`: empty if nothing is to be kept. `most`: how many quotas there may be.
  QuotaBook(std::vector<Quota> configured, std::string directory, Accounts accounts, size_t most);

  // Reads what was set before. NOT_FOUND: nothing was. Otherwise not OK: the file cannot be read,
  // and the next change replaces it.
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Quota> All() ABSL_LOCKS_EXCLUDED(mutex_);
  // Errors are those of AdminService.SetQuota and ClearQuota; nothing has changed then.
  absl::StatusOr<Change> Set(const v1::SetQuotaRequest& request) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Change> Clear(const std::string& subject) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Subject = std::pair<Quota::Kind, uint32_t>;
  using Quotas = std::map<Subject, Quota>;
  static Subject SubjectOf(const Quota& quota) { return {quota.kind, quota.id}; }

  absl::Status Write(const Quotas& set) const;
  Quotas Merged(const Quotas& set) const;
  // Keeps what is set now.
  absl::StatusOr<Change> Keep(Quotas set, Quota changed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Quotas configured_;  // Constant once constructed.
  const std::string directory_;
  const Accounts accounts_;
  const size_t most_;
  // Held while the file is written: administrators alone wait for it.
  Mutex mutex_;
  Quotas set_ ABSL_GUARDED_BY(mutex_);
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SETTINGS_QUOTA_BOOK_H_
