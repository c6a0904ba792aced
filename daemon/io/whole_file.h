// Files that are read and replaced whole, and directories that are listed whole. Functions without
// state, which block as the drive does.
#ifndef MEMTIDE_DAEMON_IO_WHOLE_FILE_H_
#define MEMTIDE_DAEMON_IO_WHOLE_FILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"

namespace memtide {

// NOT_FOUND: there is none. DATA_LOSS: it is no regular file, or has more than `most` bytes, or the
// medium fails. Each message names the path.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, Bytes most);

// The names in the directory, without ".", ".." and "lost+found". A list that was read in part is
// an error, DATA_LOSS where the medium fails. `path` is for messages.
absl::StatusOr<std::vector<std::string>> NamesIn(int directory, const std::string& path);
// The same by the path. NOT_FOUND: there is no such directory.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path);

// The file `name` of the directory has `text` on stable storage, or, after an error or a power cut
// during the call, what it had before; after UNKNOWN, either of the two. Only this user can read
// it. A call that is cut short may leave `name` with kNextSuffix, which the next one replaces. The
// other errors are those of WriteError.
absl::Status ReplaceFile(const std::string& directory, const std::string& name,
                         absl::string_view text);
inline constexpr char kNextSuffix[] = ".next";

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_WHOLE_FILE_H_
