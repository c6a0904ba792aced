// GpuOwners: which daemons have memory of a GPU, so that a service has it alone.
//
// Each daemon has a file, memtide-gpu.UUID.RANDOM, with a v1::GpuOwner. The files are in /dev/shm:
// all users may make files there, and by its sticky bit no user can remove or replace those of
// another. A file counts while a process has a write lock on it (fcntl), which the kernel releases
// even after kill -9. For that lock one must be able to write the file, so that no other user can
// make a daemon that has ended look alive; reading is enough for flock. Two services that start in
// the same moment may both be refused.
//
// Processes see each other here only where they have one /dev/shm: containers have their own.
//
// Thread safety: thread-safe.
#ifndef MEMTIDE_DAEMON_DEVICE_GPU_OWNERS_H_
#define MEMTIDE_DAEMON_DEVICE_GPU_OWNERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "memtide/v1/gpu.pb.h"

namespace memtide {

struct GpuOwners {
  std::vector<v1::GpuOwner> owners;
  std::vector<std::string> problems;  // Files that cannot be used, a line each.
};

// The daemons that have memory of the GPU. Removes files of this user whose daemons have ended.
GpuOwners FindGpuOwners(const std::string& uuid, const std::string& directory = "/dev/shm");

// "the service memtided of uid 0, pid 17, which has 48 GiB of it, with sockets in
// /run/memtide"
std::string Describe(const v1::GpuOwner& owner);

// This daemon's file, which the destructor removes.
class GpuOwnership {
 public:
  // FAILED_PRECONDITION, with what to do: a service has the GPU. `notes` gets a line about private
  // daemons that have memory of it, and one for each problem. A problem never keeps a daemon from
  // starting, as then any user could.
  static absl::StatusOr<std::unique_ptr<GpuOwnership>> Take(
      const std::string& uuid, const v1::GpuOwner& owner, std::vector<std::string>* notes,
      const std::string& directory = "/dev/shm");
  ~GpuOwnership();
  GpuOwnership(const GpuOwnership&) = delete;
  GpuOwnership& operator=(const GpuOwnership&) = delete;

 private:
  GpuOwnership(std::string path, int fd);

  const std::string path_;
  const int fd_;  // Has the lock.
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_DEVICE_GPU_OWNERS_H_
