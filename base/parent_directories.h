// CheckParents: whether another user could put a directory of theirs in the place of one that is
// trusted, by renaming or removing a directory or a symbolic link on its path.
#ifndef MEMTIDE_BASE_PARENT_DIRECTORIES_H_
#define MEMTIDE_BASE_PARENT_DIRECTORIES_H_

#include <string>

#include "absl/status/status.h"

namespace memtide {

// Walks `path` from the root as the kernel does, through symbolic links, too. PERMISSION_DENIED,
// naming the directory and what to do: a directory above the last component is writable by other
// users without the sticky bit; or with it, and what `path` names there is another user's. The
// group of this process, and root's, count as this user. FAILED_PRECONDITION: a component does not
// exist. The last component itself is not checked.
absl::Status CheckParents(const std::string& path);

}  // namespace memtide

#endif  // MEMTIDE_BASE_PARENT_DIRECTORIES_H_
