// RemoteDevice over real processes, which serve an emulated device and fail as planned.
#include "daemon/device/remote/remote_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
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
    options.process.patience =
        fault == "hang" ? Duration(std::chrono::seconds(1)) : Duration(std::chrono::seconds(60));
    options.process.warn = [this](const std::string& line) {
      const MutexLock lock(&mutex_);
      log_ += line + "\n";
    };
    options.first_pause = std::chrono::milliseconds(1);
    options.longest_pause = std::chrono::milliseconds(20);
    return options;
  }
  void Open(const std::string& fault, int number = 0) {
    absl::StatusOr<std::unique_ptr<RemoteDevice>> opened =
        RemoteDevice::Open(Options(fault, number));
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    device_->Listen([this](const absl::Status& state) {
      const MutexLock lock(&mutex_);
      states_.push_back(state);
      changed_.SignalAll();
    });
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
      const bool has_result = number > 1 && number < 6;
      EXPECT_TRUE(!has_result || status == why) << status;
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
