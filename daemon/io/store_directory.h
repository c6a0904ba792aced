// StoreDirectory: a directory that this daemon, and no other, keeps store files in.
//
// Claiming takes a directory that is empty, or that carries the marker of an earlier claim
// (".memtide-store": a magic word, its version, and the pid of the last owner), and holds a lock on
// that marker until the object goes or the process ends, however it ends. A directory with anybody
// else's files in it is refused and left as it is. Files have no name, so none outlives the daemon;
// where the file system cannot do that, they lose their name at once, and names left by a crash in
// between are removed by the next claim. Move-only; MakeFile may be called from several threads.
#ifndef MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_
#define MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class StoreDirectory {
 public:
  // FAILED_PRECONDITION, naming what was found, when the directory is not a directory of this user
  // alone (owner, no write permission for others, no symbolic link), holds what is not ours, is in
  // use by another daemon, or its file system cannot reserve blocks. NOT_FOUND when it is missing.
  static absl::StatusOr<StoreDirectory> Claim(const std::string& path);

  const std::string& path() const { return path_; }
  // Whether files bypass the page cache (O_DIRECT); not every file system can.
  bool direct() const { return direct_; }

  // An unnamed file of mode 0600 with `size` bytes of blocks reserved. RESOURCE_EXHAUSTED, naming
  // directory and sizes, when the disk is too full; nothing is left behind then.
  absl::StatusOr<OwnedFd> MakeFile(Bytes size) const;
  // Goes on with a file that a process before us made here, after whatever it had in flight there.
  // DATA_LOSS when it is none, or not of `size` bytes.
  absl::Status Adopt(int file, Bytes size) const;

 private:
  StoreDirectory(std::string path, OwnedFd directory, OwnedFd marker);
  absl::StatusOr<OwnedFd> OpenUnnamed(int extra_flags) const;
  absl::Status Probe();

  std::string path_;
  OwnedFd directory_;
  OwnedFd marker_;
  bool direct_ = false;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_
