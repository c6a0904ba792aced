// The additional cost of a call because a device is in a process of its own:
// `remote_device_benchmark` prints the time of a small copy by one thread, and by four at once,
// with the device in this process and in another one. It starts itself as the other one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/shared_memory.h"
#include "daemon/device/emulated_device.h"
#include "daemon/device/remote/device_server.h"
#include "daemon/device/remote/remote_device.h"

namespace memtide {
namespace {

constexpr Bytes kCopy = KiB(4);
constexpr int kCalls = 20000;
constexpr char kServe[] = "--serve";

std::unique_ptr<Device> Emulated() {
  return std::make_unique<EmulatedDevice>(EmulatedDeviceOptions());
}

// The microseconds of a call, of `threads` that call at once.
double Measure(Device* device, int threads) {
  const SharedMemory host = *SharedMemory::Create("benchmark", MiB(2));
  device->ShareHostMemory(host.data(), host.size(), host.fd());
  const auto memory = *device->Allocate("benchmark", MiB(2), MemoryKind::kSharedMemory);
  const Instant begun = Now();
  std::vector<std::thread> callers;
  for (int i = 0; i < threads; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) {
        MEMTIDE_CHECK(device->CopyIn(*memory, Bytes(0), host.data(), kCopy).ok());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  const std::chrono::duration<double, std::micro> took = Now() - begun;
  device->UnshareHostMemory(host.data());
  return took.count() / kCalls;
}

int Main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == kServe) {
    ServeDevice(
        [](const DeviceReports&) -> absl::StatusOr<std::unique_ptr<Device>> { return Emulated(); });
  }
  RemoteDeviceOptions options;
  options.process.program = "/proc/self/exe";
  options.process.arguments = {kServe};
  const std::unique_ptr<Device> here = Emulated();
  const auto there = RemoteDevice::Open(options);
  MEMTIDE_CHECK(there.ok()) << there.status();
  for (const int threads : {1, 4}) {
    const double local = Measure(here.get(), threads), remote = Measure(there->get(), threads);
    std::printf("%d at once: %.1f us here, %.1f us in another process: %.1f us more\n", threads,
                local, remote, remote - local);
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) { return memtide::Main(argc, argv); }
