// ServiceManager: replaces systemd in tests for sd_notify(3) and sd_listen_fds(3). It is a
// descriptor store: it stores the descriptors that the service sends, and passes them to its next
// start. Thread-compatible; it listens in its own thread.
#ifndef MEMTIDE_TESTS_INTEGRATION_SERVICE_MANAGER_H_
#define MEMTIDE_TESTS_INTEGRATION_SERVICE_MANAGER_H_

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tests/integration/daemon_process.h"

namespace memtide {

class ServiceManager {
 public:
  // Listens at a socket in `directory`.
  explicit ServiceManager(const std::string& directory);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Starts the service with all descriptors in the store, and more environment variables.
  std::unique_ptr<DaemonProcess> Start(const std::vector<std::string>& flags,
                                       const std::vector<std::string>& environment = {});
  // The names of the descriptors in the store, after all messages that were sent before the call.
  std::vector<std::string> Names();
  // Closes one descriptor, as a full store does.
  void Lose(const std::string& name);
  // Writes a number into the file of a descriptor, and returns the one that was there.
  uint64_t Overwrite(const std::string& name, uint64_t offset, uint64_t number);
  // Stores a descriptor that the service has not sent.
  void Store(const std::string& name, int fd);
  // Waits until the store has `count` descriptors.
  void AwaitCount(size_t count);

 private:
  void Listen();
  void Hear(const std::string& message, const std::vector<int>& descriptors);
  // Returns when all messages that were sent before have been handled.
  void Sync();

  std::string path_;
  int socket_ = -1;
  Mutex mutex_;
  CondVar notified_;
  std::map<std::string, int> stored_ ABSL_GUARDED_BY(mutex_);
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_sync_ = 0;
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_SERVICE_MANAGER_H_
