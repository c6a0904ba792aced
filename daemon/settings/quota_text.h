// Quotas as the configuration and administrators write them, and as the engine has them. Pure but
// for the accounts that are asked.
#ifndef MEMTIDE_DAEMON_SETTINGS_QUOTA_TEXT_H_
#define MEMTIDE_DAEMON_SETTINGS_QUOTA_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/engine/interface/quota.h"
#include "daemon/settings/accounts.h"
#include "memtide/v1/quota.pb.h"

namespace memtide {

// INVALID_ARGUMENT: the subject has no known form. NOT_FOUND: there is no such user or group.
absl::StatusOr<Quota> ToQuota(const v1::Quota& proto, const Accounts& accounts);
v1::Quota ToProto(const Quota& quota);
// INVALID_ARGUMENT: Quota has no field of this name that is a limit.
absl::Status ClearLimit(const std::string& field, Limited* most);
bool IsUnlimited(const Limited& most);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SETTINGS_QUOTA_TEXT_H_
