// Tests which device a daemon opens, and its errors if it cannot.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class DaemonDeviceTest : public testing::Test {
 protected:
  // Runs a daemon with these flags, ends it by SIGTERM when it is ready, and returns its log.
  std::string Log(const std::vector<std::string>& flags, const std::string& fake, int status,
                  const std::string& faults = "") {
    std::vector<std::string> all = {"--socket-dir=" + scratch_.path() + "/s", "--host-pool=8MiB",
                                    "--no-ssd", "--metrics-address=off"};
    all.insert(all.end(), flags.begin(), flags.end());
    // The daemon and the processes by which it asks its GPU share the devices.
    const ScratchDirectory devices;
    DaemonProcess daemon(all, {"MEMTIDE_FAKE_CUDA=dir=" + devices.path() + "," + fake,
                               "MEMTIDE_FAKE_CUDA_FAULTS=" + faults});
    if (daemon.WaitUntilReady()) daemon.Signal(SIGTERM);
    EXPECT_EQ(daemon.Wait(), status) << daemon.log();
    return daemon.log();
  }

  const ScratchDirectory scratch_;
};

TEST_F(DaemonDeviceTest, TakesAllGpus) {
  const std::string log = Log({}, "memory=100MiB,devices=2", 0);
  EXPECT_THAT(log, HasSubstr("device/0 pool: 60 MiB of GPU 0, Fake GPU, 100 MiB, GPU-fa616b65"));
  EXPECT_THAT(log, HasSubstr("device/1 pool: 60 MiB of GPU 1, Fake GPU, 100 MiB, GPU-fb616b65"));
  EXPECT_THAT(log, Not(HasSubstr("is not used")));
}

TEST_F(DaemonDeviceTest, TakesTheGpusThatAreNamedAndNamesTheOthers) {
  const std::string log =
      Log({"--device=cuda:2,cuda:1", "--device-pool=10MiB"}, "memory=100MiB,devices=3", 0);
  EXPECT_THAT(log, HasSubstr("device/0 pool: 10 MiB of GPU 2"));
  EXPECT_THAT(log, HasSubstr("device/1 pool: 10 MiB of GPU 1"));
  EXPECT_THAT(log, ContainsRegex("GPU 0 \\(Fake GPU, 100 MiB, GPU-fa616b65.*is not used"));
}

TEST_F(DaemonDeviceTest, EmulatesSeveralDevices) {
  const std::string log = Log({"--device=emulated:2", "--device-pool=8MiB"}, "driver=none", 0);
  EXPECT_THAT(log, HasSubstr("device/0 pool: 8 MiB of emulated device"));
  EXPECT_THAT(log, HasSubstr("device/1 pool: 8 MiB of emulated device"));
}

TEST_F(DaemonDeviceTest, SaysWhereMemoryIsLentByLegacyIpc) {
  EXPECT_THAT(Log({"--device=cuda"}, "descriptors=no", 0), HasSubstr("legacy CUDA IPC"));
}

TEST_F(DaemonDeviceTest, DoesNotStartWithoutTheGpuThatAFlagNames) {
  EXPECT_THAT(Log({"--device=cuda"}, "driver=none", 1), HasSubstr("there is no NVIDIA driver"));
  EXPECT_THAT(Log({"--device=cuda"}, "driver=too-old", 1), HasSubstr("needs driver 525"));
  EXPECT_THAT(Log({"--device=cuda:2"}, "", 1), HasSubstr("there is no GPU \"2\""));
  EXPECT_THAT(Log({"--device=cuda", "--device-pool=2GiB"}, "", 2),
              HasSubstr("2 GiB, but only 1 GiB of 1 GiB are free"));
}

TEST_F(DaemonDeviceTest, AGpuForOneProcessIsRefusedWithTheRemedy) {
  const char* const kRemedy = "nvidia-smi -c 0, or run under MPS, or --device none";
  EXPECT_THAT(Log({"--device=cuda"}, "compute_mode=exclusive", 1), HasSubstr(kRemedy));
  EXPECT_THAT(Log({"--device=cuda"}, "compute_mode=prohibited", 1),
              HasSubstr("prohibited, so no process can use it: nvidia-smi -c 0"));
  const std::string without = Log({}, "compute_mode=exclusive", 0);
  EXPECT_THAT(without, HasSubstr("the GPU is not used"));
  EXPECT_THAT(without, HasSubstr(kRemedy));
  const std::string mps = Log({}, "compute_mode=exclusive,mps=yes", 0);
  EXPECT_THAT(mps, HasSubstr("of GPU 0"));
  EXPECT_THAT(mps, HasSubstr("shared through CUDA's MPS"));
}

// CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: the driver's libraries are newer than the module that runs.
TEST_F(DaemonDeviceTest, ADriverThatWasUpdatedUnderTheMachineIsNamedWithTheRemedy) {
  const char* const kMismatch = "cuInit:1=803,cuInit:2=803";
  const char* const kRemedy = "restart the machine after an update";
  EXPECT_THAT(Log({"--device=cuda"}, "", 1, kMismatch), HasSubstr(kRemedy));
  const std::string without = Log({}, "", 0, kMismatch);
  EXPECT_THAT(without, HasSubstr("the GPU is not used"));
  EXPECT_THAT(without, HasSubstr(kRemedy));
}

TEST_F(DaemonDeviceTest, AMigInstanceHasItsOwnName) {
  EXPECT_THAT(Log({"--device=MIG-fb"}, "devices=2,mig=yes", 0),
              HasSubstr("of GPU 0, Fake GPU, 1 GiB, MIG-fb616b65"));
  EXPECT_THAT(Log({"--device=GPU-fb"}, "devices=2,mig=yes", 1),
              HasSubstr("there is no GPU \"GPU-fb\"; there are 0 (Fake GPU, MIG-fa616b65"));
}

TEST_F(DaemonDeviceTest, RunsWithoutAGpuIfNoFlagNamesOne) {
  EXPECT_THAT(Log({}, "driver=none", 0), Not(HasSubstr("GPU")));
  EXPECT_THAT(Log({}, "driver=no-uvm", 0), HasSubstr("the GPU is not used"));
  const std::string emulated = Log({"--device-pool=8MiB"}, "driver=no-uvm", 0);
  EXPECT_THAT(emulated, HasSubstr("a device is emulated instead"));
  EXPECT_THAT(emulated, HasSubstr("device/0 pool: 8 MiB of emulated device"));
}

// Daemons on one GPU of 100 MiB.
class SharedGpuTest : public testing::Test {
 protected:
  SharedGpuTest() {
    // The daemons inherit the end that they read.
    EXPECT_EQ(pipe(lifeline_), 0);
    EXPECT_EQ(fcntl(lifeline_[1], F_SETFD, FD_CLOEXEC), 0);
  }
  ~SharedGpuTest() override {
    close(lifeline_[0]);
    close(lifeline_[1]);
  }

  std::string Sockets(const std::string& name) const { return scratch_.path() + "/" + name; }
  std::unique_ptr<DaemonProcess> Start(const std::vector<std::string>& flags) const {
    std::vector<std::string> all = {"--host-pool=8MiB", "--no-ssd", "--metrics-address=off"};
    all.insert(all.end(), flags.begin(), flags.end());
    return std::make_unique<DaemonProcess>(
        all, std::vector<std::string>{"MEMTIDE_FAKE_CUDA=" + fake_ + ",dir=" + devices_.path()});
  }
  std::unique_ptr<DaemonProcess> Service(const std::string& name) const {
    return Start({"--device-pool=20MiB", "--socket-dir=" + Sockets(name)});
  }
  std::unique_ptr<DaemonProcess> Private(const std::string& name) const {
    return Start({"--device-pool=30MiB", "--socket-dir=" + Sockets(name),
                  "--lifeline-fd=" + std::to_string(lifeline_[0])});
  }

  const ScratchDirectory scratch_, devices_;
  std::string fake_ = "memory=100MiB";
  int lifeline_[2];
};

TEST_F(SharedGpuTest, AServiceHasItsGpuAloneUntilItEndsOrIsKilled) {
  const auto first = Service("a");
  ASSERT_TRUE(first->WaitUntilReady()) << first->log();
  const std::string owner = "pid " + std::to_string(first->pid()) +
                            ", which has 20 MiB of it, with sockets in " + Sockets("a");
  for (const bool service : {true, false}) {
    const auto other = service ? Service("b") : Private("c");
    EXPECT_EQ(other->Wait(), 1);
    EXPECT_THAT(other->log(), HasSubstr("belongs to the service memtided of uid"));
    EXPECT_THAT(other->log(), HasSubstr(owner));
    EXPECT_THAT(other->log(), HasSubstr("`memtide run`"));
  }
  EXPECT_TRUE(Session(Sockets("a")).welcome()) << "the first one was disturbed";
  const auto none = Start({"--device=none", "--socket-dir=" + Sockets("d")});
  EXPECT_TRUE(none->WaitUntilReady()) << none->log();
  first->Signal(SIGKILL);
  first->Wait();
  const auto next = Service("a");
  EXPECT_TRUE(next->WaitUntilReady()) << next->log();
  next->Signal(SIGTERM);
  EXPECT_EQ(next->Wait(), 0) << next->log();
  const auto last = Private("c");
  EXPECT_TRUE(last->WaitUntilReady()) << last->log();
  EXPECT_THAT(last->log(), Not(HasSubstr("shared")));
}

TEST_F(SharedGpuTest, AGpuThatAServiceHasIsLeftOutWhereThereAreOthers) {
  fake_ = "memory=100MiB,devices=2";
  const auto first =
      Start({"--device=cuda:0", "--device-pool=20MiB", "--socket-dir=" + Sockets("a")});
  ASSERT_TRUE(first->WaitUntilReady()) << first->log();
  const auto second = Service("b");
  ASSERT_TRUE(second->WaitUntilReady()) << second->log();
  EXPECT_THAT(second->log(), HasSubstr("a GPU is not used: "));
  EXPECT_THAT(second->log(), HasSubstr("device/0 pool: 20 MiB of GPU 1"));
  EXPECT_THAT(second->log(), Not(HasSubstr("device/1 pool")));
  const auto named =
      Start({"--device=cuda:0,cuda:1", "--device-pool=20MiB", "--socket-dir=" + Sockets("c")});
  EXPECT_EQ(named->Wait(), 1);
  EXPECT_THAT(named->log(), HasSubstr("belongs to the service memtided"));
}

TEST_F(SharedGpuTest, PrivateDaemonsShareAGpuAndWhoStartsLaterIsTold) {
  const auto first = Private("a");
  ASSERT_TRUE(first->WaitUntilReady()) << first->log();
  EXPECT_THAT(first->log(), Not(HasSubstr("shared")));
  const auto second = Private("b");
  ASSERT_TRUE(second->WaitUntilReady()) << second->log();
  EXPECT_THAT(second->log(), HasSubstr("1 private memtided, which has 30 MiB of it"));
  const auto service = Service("c");
  ASSERT_TRUE(service->WaitUntilReady()) << service->log();
  EXPECT_THAT(service->log(), HasSubstr("2 private memtided, which have 60 MiB of it"));
}

}  // namespace
}  // namespace memtide
