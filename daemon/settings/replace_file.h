// Replaces a small file whole.
#ifndef MEMTIDE_DAEMON_SETTINGS_REPLACE_FILE_H_
#define MEMTIDE_DAEMON_SETTINGS_REPLACE_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace memtide {

// The file `name` of the directory has `text` on stable storage, or, after an error or a power cut
// during the call, what it had before. Only this user can read it. UNAVAILABLE names the system
// call that failed.
absl::Status ReplaceFile(const std::string& directory, const std::string& name,
                         const std::string& text);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SETTINGS_REPLACE_FILE_H_
