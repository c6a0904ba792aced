// RemoteDevice over real processes, which serve an emulated device and fail as planned.
#include "daemon/device/remote/remote_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/shared_memory.h"
#include "daemon/device/testing/device_contract.h"

namespace memtide {
namespace {

// While it is set no process can be killed, as one cannot that hangs in the driver.
std::atomic<bool> nothing_is_killed{false};

}  // namespace
}  // namespace memtide

// This program's own, in place of the one of the C library.
extern "C" int kill(pid_t process, int signal) noexcept {
  if (memtide::nothing_is_killed && signal == SIGKILL) return 0;
  return static_cast<int>(syscall(SYS_kill, process, signal));
}

namespace memtide {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr Bytes kSize = MiB(2);

class RemoteDeviceTest : public testing::Test {
 protected:
  RemoteDeviceOptions Options(const std::string& fault, int number) {
    RemoteDeviceOptions options;
    options.process.program = getenv("FAULTY_PROCESS");
    std::string marker = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(marker.begin(), marker.end(), '/', '-');
    marker = std::string(getenv("TEST_TMPDIR")) + "/" + marker + std::to_string(++markers_);
    options.process.arguments = {fault, std::to_string(number), marker};
    options.process.patience = std::chrono::seconds(fault == "hang" ? 1 : 60);
    options.process.ending_patience = std::chrono::seconds(1);
    options.process.warn = [this](const std::string& line) {
      const MutexLock lock(&mutex_);
      log_ += line + "\n";
    };
    options.first_pause = std::chrono::milliseconds(1);
    options.longest_pause = std::chrono::milliseconds(20);
    return options;
  }
  void Open(const std::string& fault, int number = 0) { Open(Options(fault, number)); }
  void Open(const RemoteDeviceOptions& options) {
    absl::StatusOr<std::unique_ptr<RemoteDevice>> opened = RemoteDevice::Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    device_->Listen([this](const absl::Status& state) {
      const MutexLock lock(&mutex_);
      states_.push_back(state);
      changed_.SignalAll();
    });
  }
  // Waits until the device was lost.
  void AwaitLoss() {
    const MutexLock lock(&mutex_);
    while (states_.empty()) changed_.Wait(&mutex_);
  }
  // Waits until a process of the device has stopped, and returns its id.
  static pid_t AwaitStopped() {
    siginfo_t info = {};
    while (waitid(P_ALL, 0, &info, WSTOPPED) != 0) {
      EXPECT_EQ(errno, ECHILD);
      // tidy(sleep): a device that is started again has no process to wait for, for a moment.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return info.si_pid;
  }
  // Waits until the device was lost and is usable again.
  void AwaitReturn() {
    const MutexLock lock(&mutex_);
    while (states_.empty() || !states_.back().ok()) changed_.Wait(&mutex_);
  }
  std::vector<absl::Status> States() {
    const MutexLock lock(&mutex_);
    return states_;
  }
  std::string Log() {
    const MutexLock lock(&mutex_);
    return log_;
  }

  // Calls all that a device does, with host memory that is `host`. The first error, if there is
  // one, is returned.
  absl::Status UseAll(const HostBuffer& host) {
    absl::Status first;
    device_->AddHostMemory(host.data(), kSize);
    absl::StatusOr<std::unique_ptr<DeviceMemory>> memory =
        device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
    first.Update(memory.status());
    if (memory.ok()) {
      std::fill(host.data(), host.data() + kSize.count(), 'a');
      first.Update(device_->CopyIn(**memory, Bytes(0), host.data(), kSize));
      std::fill(host.data(), host.data() + kSize.count(), '?');
      first.Update(device_->CopyOut(**memory, Bytes(0), host.data(), kSize));
      if (first.ok()) {
        EXPECT_EQ(host.data()[kSize.count() - 1], 'a');
      }
      first.Update(device_->Zero(**memory, Bytes(0), kSize));
    }
    device_->RemoveHostMemory(host.data());
    return first;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::Status> states_;
  std::string log_;
  int markers_ = 0;
  std::unique_ptr<RemoteDevice> device_;
};

class RemoteDeviceFaultTest : public RemoteDeviceTest,
                              public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Faults, RemoteDeviceFaultTest,
                         testing::Values("die", "lost", "hang", "nonsense"));

TEST_P(RemoteDeviceFaultTest, AProcessThatFailsAtAnyCallIsReplacedAndTheCallSaysWhy) {
  // UseAll makes six calls.
  for (int number = 1; number <= 6; ++number) {
    SCOPED_TRACE(number);
    states_.clear();
    Open(GetParam(), number);
    {
      const HostBuffer host(device_.get(), std::string(kSize.count() - 1, 'x'));
      const absl::Status status = UseAll(host);
      AwaitReturn();
      ASSERT_EQ(States().size(), 2u);
      const absl::Status why = States()[0];
      EXPECT_TRUE(absl::IsUnavailable(why)) << why;
      EXPECT_THAT(std::string(why.message()),
                  AnyOf(HasSubstr("ended by signal 9"), HasSubstr("it fell off the bus"),
                        HasSubstr("no answer in 1000 ms"), HasSubstr("is no ")));
      // Calls that have no result are made good by the next process.
      const bool has_result = number > 1 && number < 6, is_copy = number == 3 || number == 4;
      EXPECT_TRUE(!has_result || absl::IsUnavailable(status)) << status;
      EXPECT_TRUE(!is_copy || status == why) << status;
      EXPECT_EQ(device_->health().losses, 1u);
      EXPECT_TRUE(device_->health().state.ok());
      const absl::Status again = UseAll(host);
      EXPECT_TRUE(again.ok()) << again;
    }
    device_.reset();
  }
}

TEST_F(RemoteDeviceTest, MemoryThatWasLostIsThereAgainWithoutItsBytes) {
  // The calls are AddHost, Allocate, CopyIn and CopyOut.
  Open("die", 4);
  {
    const HostBuffer host(device_.get(), std::string(kSize.count() - 1, 'x'));
    device_->AddHostMemory(host.data(), kSize);
    const auto memory = *device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
    EXPECT_TRUE(device_->CopyIn(*memory, Bytes(0), host.data(), kSize).ok());
    const int before = memory->Export().fd;
    EXPECT_TRUE(absl::IsUnavailable(device_->CopyOut(*memory, Bytes(0), host.data(), kSize)));
    AwaitReturn();
    EXPECT_EQ(memory->Export().fd, before) << "others may be about to duplicate it";
    EXPECT_TRUE(device_->CopyOut(*memory, Bytes(0), host.data(), kSize).ok());
    EXPECT_EQ(std::count(host.data(), host.data() + kSize.count(), '\0'),
              static_cast<int64_t>(kSize.count()));
    BorrowedHere borrowed(memory->Export());
    borrowed.Write(Bytes(5), "new");
    EXPECT_TRUE(device_->CopyOut(*memory, Bytes(0), host.data(), kSize).ok());
    EXPECT_EQ(std::string(host.data() + 5, 3), "new");
    device_->RemoveHostMemory(host.data());
  }
}

TEST_F(RemoteDeviceTest, ADeviceThatCannotBeOpenedAgainIsTriedUntilItCan) {
  Open("unopened", 3);
  const absl::Status lost = device_->Allocate("m", kSize, MemoryKind::kSharedMemory).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  AwaitReturn();
  EXPECT_EQ(States().size(), 2u);
  EXPECT_THAT(Log(), HasSubstr("cannot be used yet: there is no device at all"));
  EXPECT_TRUE(device_->Allocate("m", kSize, MemoryKind::kSharedMemory).ok());
}

TEST_F(RemoteDeviceTest, ADeviceThatNeverOpensIsTheErrorOfOpen) {
  RemoteDeviceOptions options = Options("unopened", 100);
  options.process.arguments[2] = "/dev/null/none";
  EXPECT_TRUE(absl::IsUnavailable(RemoteDevice::Open(options).status()));
  options.process.program = "/no/such/program";
  EXPECT_TRUE(absl::IsUnavailable(RemoteDevice::Open(options).status()));
}

TEST_F(RemoteDeviceTest, ADeviceThatIsLostCanBeDestroyed) {
  Open("unopened", 1 << 30);
  EXPECT_FALSE(device_->Allocate("m", kSize, MemoryKind::kSharedMemory).ok());
  device_.reset();
}

TEST_F(RemoteDeviceTest, CallsInFlightAllReturnWhenTheProcessDies) {
  Open("die", 40);
  {
    const HostBuffer host(device_.get(), std::string(8 * kSize.count() - 1, 'x'));
    const auto memory = *device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 6; ++i) {
      threads.emplace_back([&, i] {
        char* const mine = host.data() + i * kSize.count();
        absl::Status status;
        while (status.ok()) {
          status = i % 2 == 0 ? device_->CopyIn(*memory, Bytes(0), mine, kSize)
                              : device_->CopyOut(*memory, Bytes(0), mine, kSize);
        }
        EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    AwaitReturn();
    EXPECT_EQ(States().size(), 2u);
  }
}

TEST_F(RemoteDeviceTest, OnlyCopiesWaitForTheEndOfAProcessThatHangs) {
  // The calls are AddHost, Allocate, Allocate and CopyIn.
  RemoteDeviceOptions options = Options("stop", 4);
  options.process.patience = std::chrono::seconds(1);
  Open(options);
  {
    const std::string bytes(kSize.count() - 1, 'x');
    const HostBuffer host(device_.get(), bytes);
    device_->AddHostMemory(host.data(), kSize);
    const auto memory = *device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
    auto freed = *device_->Allocate("freed", kSize, MemoryKind::kSharedMemory);
    nothing_is_killed = true;
    std::atomic<bool> has_returned{false};
    absl::Status status;
    std::thread copy([&] {
      status = device_->CopyIn(*memory, Bytes(0), host.data(), kSize);
      has_returned = true;
    });
    const pid_t stopped = AwaitStopped();
    AwaitLoss();
    // The daemon has one thread that does this for all devices.
    freed.reset();
    EXPECT_TRUE(
        absl::IsUnavailable(device_->Allocate("more", kSize, MemoryKind::kSharedMemory).status()));
    {
      const HostBuffer other(device_.get(), bytes);
      device_->AddHostMemory(other.data(), kSize);
      device_->RemoveHostMemory(other.data());
    }
    EXPECT_FALSE(has_returned) << "the process may still read and write the host memory";
    nothing_is_killed = false;
    kill(stopped, SIGKILL);
    copy.join();
    AwaitReturn();
    EXPECT_EQ(status, States()[0]);
    device_->RemoveHostMemory(host.data());
    const absl::Status again = UseAll(host);
    EXPECT_TRUE(again.ok()) << again;
  }
}

TEST_F(RemoteDeviceTest, AProcessThatHangsIsLeftWhenTheDaemonEnds) {
  for (const bool is_known : {false, true}) {
    SCOPED_TRACE(is_known);
    states_.clear();
    // The calls are AddHost, Allocate and CopyIn.
    RemoteDeviceOptions options = Options("stop", 3);
    options.process.patience = std::chrono::seconds(is_known ? 1 : 600);
    Open(options);
    pid_t stopped = -1;
    {
      const HostBuffer host(device_.get(), std::string(kSize.count() - 1, 'x'));
      device_->AddHostMemory(host.data(), kSize);
      const auto memory = *device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
      nothing_is_killed = true;
      std::thread copy([&] {
        EXPECT_TRUE(absl::IsUnavailable(device_->CopyIn(*memory, Bytes(0), host.data(), kSize)));
      });
      stopped = AwaitStopped();
      if (is_known) AwaitLoss();
      device_->Listen(nullptr);
      copy.join();
      device_->RemoveHostMemory(host.data());
    }
    device_.reset();
    EXPECT_EQ(States().size(), is_known ? 1u : 0u);
    nothing_is_killed = false;
    EXPECT_EQ(kill(stopped, SIGKILL), 0) << "it has not ended until here";
    EXPECT_EQ(waitpid(stopped, nullptr, 0), stopped);
  }
}

TEST_F(RemoteDeviceTest, AProcessThatIsStartingHoldsUpNoChangeAndLearnsOfAll) {
  // The calls are AddHost, Allocate, Allocate and Zero; the next process stops at its AddHost.
  Open("stop-again", 4);
  {
    const std::string bytes(kSize.count() - 1, 'x');
    const HostBuffer host(device_.get(), bytes);
    device_->AddHostMemory(host.data(), kSize);
    const auto memory = *device_->Allocate("memory", kSize, MemoryKind::kSharedMemory);
    auto freed = *device_->Allocate("freed", kSize, MemoryKind::kSharedMemory);
    EXPECT_TRUE(absl::IsUnavailable(device_->Zero(*memory, Bytes(0), kSize)));
    const pid_t stopped = AwaitStopped();
    device_->RemoveHostMemory(host.data());
    freed.reset();
    { const HostBuffer brief(device_.get(), bytes); }
    const HostBuffer other(device_.get(), bytes);
    device_->AddHostMemory(other.data(), kSize);
    EXPECT_EQ(States().size(), 1u);
    EXPECT_EQ(kill(stopped, SIGCONT), 0);
    AwaitReturn();
    EXPECT_EQ(States().size(), 2u) << "the process that had stopped is the one";
    EXPECT_TRUE(device_->CopyIn(*memory, Bytes(0), other.data(), kSize).ok());
    device_->RemoveHostMemory(other.data());
    for (const HostBuffer* const each : {&host, &other}) {
      const absl::Status used = UseAll(*each);
      EXPECT_TRUE(used.ok()) << used;
    }
  }
}

DeviceUnderTest WithoutFaults() {
  return DeviceUnderTest([] {
    RemoteDeviceOptions options;
    options.process.program = getenv("FAULTY_PROCESS");
    options.process.arguments = {"none", "0", "none"};
    return *RemoteDevice::Open(options);
  });
}
INSTANTIATE_TEST_SUITE_P(Remote, DeviceContract, testing::Values(WithoutFaults()));

}  // namespace
}  // namespace memtide
