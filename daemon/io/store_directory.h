// StoreDirectory: a directory for store files, claimed by one daemon at a time.
//
// Claim accepts a directory that is empty or that holds the marker of an earlier claim
// (".memtide-store": a magic word, its version and the pid of the last owner), and holds a lock on
// the marker until the StoreDirectory is destroyed or the process ends, however it ends. It refuses
// a directory with any other file in it and changes nothing there. Store files have no name, so
// none outlives the daemon; on file systems without unnamed files, MakeFile removes the name at
// once, and the next Claim removes names that a crash left.
//
// Thread safety: MakeFile is thread-safe. Move-only.
#ifndef MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_
#define MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "daemon/io/owned_fd.h"

namespace memtide {

class StoreDirectory {
 public:
  // FAILED_PRECONDITION, naming the reason, if others than this user can write to the directory, or
  // replace it or one above it, it is a symbolic link, it holds foreign files, another daemon has
  // claimed it, or its file system cannot reserve blocks. NOT_FOUND if it does not exist.
  static absl::StatusOr<StoreDirectory> Claim(const std::string& path);

  const std::string& path() const { return path_; }
  // Whether files bypass the page cache (O_DIRECT); not every file system can.
  bool direct() const { return direct_; }
  // The device number (st_dev) of its file system: directories with the same one are on one drive.
  uint64_t drive() const { return drive_; }
  // FAILED_PRECONDITION: the path leads to another directory by now, as under a mount.
  absl::Status CheckPath() const;
  // The bytes that its file system has free for this user.
  Bytes Free() const;

  // An unnamed file of mode 0600 with `size` bytes of blocks reserved. RESOURCE_EXHAUSTED, naming
  // directory and sizes, when the disk is too full; nothing is left behind then.
  absl::StatusOr<OwnedFd> MakeFile(Bytes size) const;
  // Adopts a file that an earlier process made here, once that process's I/O on it has ended.
  // DATA_LOSS if it is not such a file, or not of `size` bytes.
  absl::Status Adopt(int file, Bytes size) const;

 private:
  StoreDirectory(std::string path, OwnedFd directory, OwnedFd marker);
  absl::StatusOr<OwnedFd> OpenUnnamed(int extra_flags) const;
  absl::Status Probe();

  std::string path_;
  OwnedFd directory_;
  OwnedFd marker_;
  bool direct_ = false;
  uint64_t drive_ = 0;
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_IO_STORE_DIRECTORY_H_
