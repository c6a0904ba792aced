// ServiceManager: what systemd is to memtided in sd_notify(3) and sd_listen_fds(3), for tests,
// which have no systemd: keeps the descriptors that the service gives it, and passes them to its
// next start. Thread-compatible; listens with a thread of its own.
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

  // A start of the service, with the descriptors that earlier ones left.
  std::unique_ptr<DaemonProcess> Start(const std::vector<std::string>& flags);
  // Of the descriptors that it keeps. What was said until now has been heard.
  std::vector<std::string> Names();
  // Loses one, as a full store does.
  void Lose(const std::string& name);
  // Waits until it keeps so many.
  void AwaitCount(size_t count);

 private:
  void Listen();
  void Hear(const std::string& message, const std::vector<int>& descriptors);
  // Returns when what was sent before has been heard.
  void Sync();

  std::string path_;
  int socket_ = -1;
  Mutex mutex_;
  CondVar heard_;
  std::map<std::string, int> kept_ ABSL_GUARDED_BY(mutex_);
  uint64_t synced_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_sync_ = 0;
  std::thread thread_;
};

}  // namespace memtide

#endif  // MEMTIDE_TESTS_INTEGRATION_SERVICE_MANAGER_H_
