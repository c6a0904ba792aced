// faulty_process FAULT NUMBER MARKER: serves an emulated device, for remote_device_test. The
// NUMBERth call of the device (from 1) meets FAULT, unless the file MARKER is there, which is
// then made: a process that is started again has no fault. Faults:
//
//   none
//   die, lost, hang      the process ends by a signal, reports that its device is lost, or does not
//                        answer
//   stop                 the process stops by a signal, and with it all of its threads
//   nonsense             the process's next answers are no answers
//   unopened             opening the device fails, while the number of lives is below NUMBER
//   stop-again           the NUMBERth call ends the process, and the first of the next one stops it
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/remote/device_server.h"
#include "daemon/device/remote/packet.h"

namespace memtide {
namespace {

struct Plan {
  std::string fault;
  uint64_t number = 0;
  std::string marker;
  DeviceReports reports;
};

// Makes the file, which counts lives by its size; returns the size that it had.
uint64_t Mark(const std::string& marker) {
  const int fd = open(marker.c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
  struct stat file;
  MEMTIDE_CHECK(fd >= 0 && fstat(fd, &file) == 0 && write(fd, "x", 1) == 1) << marker;
  close(fd);
  return static_cast<uint64_t>(file.st_size);
}

[[noreturn]] void Hang() {
  for (;;) pause();
}

// Sends an answer that is none on each of the process's sockets.
void SayNonsense() {
  for (int fd = kHelperSocket + 1; fd < 64; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0) SendPacket(fd, {"nonsense", -1}).IgnoreError();
  }
}

class FaultyDeviceInProcess : public Device {
 public:
  explicit FaultyDeviceInProcess(Plan plan) : plan_(std::move(plan)), device_({MiB(64)}) {}

  std::string Describe() const override { return device_.Describe(); }
  std::vector<MemoryKind> kinds() const override { return device_.kinds(); }
  size_t copies_in_flight() const override { return 2; }
  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(const std::string& name, Bytes size,
                                                         MemoryKind kind) override {
    Count();
    return device_.Allocate(name, size, kind);
  }
  void AddHostMemory(char* memory, Bytes size) override { Count(); }
  void RemoveHostMemory(char* memory) override { Count(); }
  absl::Status CopyIn(DeviceMemory& memory, Bytes offset, const char* host, Bytes size) override {
    Count();
    return device_.CopyIn(memory, offset, host, size);
  }
  absl::Status CopyOut(const DeviceMemory& memory, Bytes offset, char* host, Bytes size) override {
    Count();
    return device_.CopyOut(memory, offset, host, size);
  }
  absl::Status Zero(DeviceMemory& memory, Bytes offset, Bytes size) override {
    Count();
    return device_.Zero(memory, offset, size);
  }

 private:
  void Count() {
    if (++calls_ != plan_.number || access(plan_.marker.c_str(), F_OK) == 0) return;
    Mark(plan_.marker);
    if (plan_.fault == "die") kill(getpid(), SIGKILL);
    if (plan_.fault == "lost") plan_.reports.lost(absl::UnavailableError("it fell off the bus"));
    if (plan_.fault == "hang") Hang();
    if (plan_.fault == "stop") raise(SIGSTOP);  // This thread stops before it goes on.
    if (plan_.fault == "nonsense") SayNonsense();
  }

  const Plan plan_;
  EmulatedDevice device_;
  std::atomic<uint64_t> calls_{0};
};

int Main(int argc, char** argv) {
  Plan plan;
  MEMTIDE_CHECK(argc == 4 && absl::SimpleAtoi(argv[2], &plan.number));
  plan.fault = argv[1];
  plan.marker = argv[3];
  ServeDevice([&plan](const DeviceReports& reports) -> absl::StatusOr<std::unique_ptr<Device>> {
    if (plan.fault == "unopened") {
      const uint64_t lives = Mark(plan.marker);
      if (lives > 0 && lives < plan.number) {
        return absl::NotFoundError("there is no device at all");
      }
      if (lives == 0) plan = {"die", 1, absl::StrCat(plan.marker, "-died"), reports};
    }
    if (plan.fault == "stop-again") {
      const uint64_t lives = Mark(plan.marker);
      if (lives == 0) plan = {"die", plan.number, absl::StrCat(plan.marker, "-died"), reports};
      if (lives == 1) plan = {"stop", 1, absl::StrCat(plan.marker, "-stopped"), reports};
    }
    plan.reports = reports;
    return std::unique_ptr<Device>(std::make_unique<FaultyDeviceInProcess>(plan));
  });
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }
