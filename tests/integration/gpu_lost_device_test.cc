// Tests a daemon of two GPUs of which one is lost, or whose process dies: it costs what was on it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cuda/fake/importer_process.h"
#include "tests/integration/child_process.h"
#include "tests/integration/gpu_node.h"

namespace memtide::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const SharedFakeCuda shared("memory=64MiB,delay_us=50,devices=2");
constexpr int kChunks = 24;

// A file by which the fake GPUs are controlled (base/cuda/fake/fake_cuda.h).
std::string FileOfFake(const std::string& name) {
  const std::string settings = getenv("MEMTIDE_FAKE_CUDA");
  const size_t begin = settings.find("dir=") + 4;
  return settings.substr(begin, settings.find(',', begin) - begin) + "/" + name;
}

void Reset(int device) {
  std::ofstream(FileOfFake("lost-" + std::to_string(device)), std::ios::app) << "x";
}

// The processes of the daemon that have a GPU.
std::vector<pid_t> DeviceProcesses(pid_t daemon) {
  std::vector<pid_t> found;
  const std::string threads = "/proc/" + std::to_string(daemon) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(threads)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child; children >> child;) {
      std::ifstream file("/proc/" + std::to_string(child) + "/cmdline");
      const std::string command(std::istreambuf_iterator<char>(file), {});
      if (command.find("--gpu-device") != std::string::npos) found.push_back(child);
    }
  }
  return found;
}

// The daemon and its processes cannot be killed while the file "unkillable" is there.
std::vector<std::string> Preload() {
  return {"LD_PRELOAD=" + std::filesystem::absolute(getenv("UNKILLABLE")).string(),
          "UNKILLABLE_WHILE=" + FileOfFake("unkillable"),
          // AddressSanitizer would insist on being the first library.
          std::string("ASAN_OPTIONS=verify_asan_link_order=0:") +
              (getenv("ASAN_OPTIONS") != nullptr ? getenv("ASAN_OPTIONS") : "")};
}

class GpuLostDeviceTest : public testing::Test {
 protected:
  GpuLostDeviceTest() { EXPECT_TRUE(daemon_.WaitUntilReady()) << daemon_.log(); }
  ~GpuLostDeviceTest() override {
    std::filesystem::remove(FileOfFake("gone-0"));
    std::filesystem::remove(FileOfFake("unkillable"));
    daemon_.Signal(SIGTERM);
    EXPECT_EQ(daemon_.Wait(), 0) << daemon_.log();
  }

  std::unique_ptr<ChildProcess> Puppet(const std::string& job, int device) {
    auto puppet = std::make_unique<ChildProcess>(
        "GPU_PUPPET", std::vector<std::string>{sockets_, job, std::to_string(device)});
    EXPECT_EQ(puppet->ReadLine(), "ready");
    return puppet;
  }
  // Fills all chunks, a few at a time, so that most of them leave the GPU.
  static void FillAll(ChildProcess* puppet, int stamp) {
    for (int n = 0; n < kChunks; n += 4) {
      const std::string places = std::to_string(n) + " 4";
      EXPECT_EQ(puppet->Ask("acquire " + places), "ok");
      EXPECT_EQ(puppet->Ask("fill " + places + " " + std::to_string(stamp)), "ok");
      EXPECT_EQ(puppet->Ask("release " + places), "ok");
    }
  }
  static void ExpectAll(ChildProcess* puppet, int stamp) {
    for (int n = 0; n < kChunks; n += 4) {
      const std::string places = std::to_string(n) + " 4";
      EXPECT_EQ(puppet->Ask("read " + places), "ok");
      EXPECT_EQ(puppet->Ask("wrong " + places + " " + std::to_string(stamp)), "0");
      EXPECT_EQ(puppet->Ask("release " + places), "ok");
    }
  }
  // Uses chunks until a call fails, and returns its answer.
  static std::string UseUntilLost(ChildProcess* puppet) {
    for (int n = 0;; n = (n + 4) % kChunks) {
      const std::string places = std::to_string(n) + " 4";
      const std::string answer = puppet->Ask("acquire " + places);
      if (answer != "ok") return answer;
      puppet->Ask("release " + places);
    }
  }
  std::string Warnings() {
    Session session(sockets_);
    v1::InspectNodeResponse node;
    EXPECT_TRUE(session.admin().InspectNode(session.Context().get(), {}, &node).ok());
    std::string text;
    for (const std::string& warning : node.warnings()) text += warning + "\n";
    return text;
  }

  // Runs `lose` while a job works on each GPU, and expects what that should cost.
  template <typename Lose>
  void ExpectALossCostsWhatWasOnTheDevice(const Lose& lose) {
    auto named_job = Puppet("kept", 0);
    ASSERT_EQ(named_job->Ask("allocate " + std::to_string(kChunks)), "ok");
    FillAll(named_job.get(), 1);
    const std::string ids = named_job->Ask("ids 0 " + std::to_string(kChunks));
    auto other_job = Puppet("", 1);
    ASSERT_EQ(other_job->Ask("allocate " + std::to_string(kChunks)), "ok");
    std::atomic<bool> enough{false};
    std::thread load([&] {
      for (int stamp = 1; !enough || stamp < 4; ++stamp) {
        FillAll(other_job.get(), stamp);
        ExpectAll(other_job.get(), stamp);
      }
    });
    lose();
    EXPECT_THAT(UseUntilLost(named_job.get()),
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("GPU 0"), HasSubstr("was lost (")));
    named_job->Kill();
    EXPECT_TRUE(daemon_.WaitForLog("is used again")) << daemon_.log();
    EXPECT_EQ(Warnings().find("was lost"), std::string::npos);

    // A new job has what it needs of the device, and the named one what is on other tiers.
    auto next = Puppet("", 0);
    ASSERT_EQ(next->Ask("allocate " + std::to_string(kChunks)), "ok");
    FillAll(next.get(), 5);
    ExpectAll(next.get(), 5);
    EXPECT_EQ(next->Ask("close"), "ok");
    auto resumed = Puppet("kept", 0);
    ASSERT_EQ(resumed->Ask("attach " + ids), "ok");
    int lost = 0;
    for (int n = 0; n < kChunks; ++n) {
      const std::string one = std::to_string(n) + " 1";
      const std::string read = resumed->Ask("read " + one);
      if (read == "ok") {
        EXPECT_EQ(resumed->Ask("wrong " + one + " 1"), "0");
        EXPECT_EQ(resumed->Ask("release " + one), "ok");
      } else {
        EXPECT_THAT(read, HasSubstr("DATA_LOSS"));
        ++lost;
      }
    }
    EXPECT_LE(lost, static_cast<int>(kGpuSlots));
    FillAll(resumed.get(), 6);
    ExpectAll(resumed.get(), 6);
    enough = true;
    load.join();
  }

  ScratchDirectory directory_;
  const std::string sockets_ = directory_.path() + "/s";
  DaemonProcess daemon_{
      {"--socket-dir=" + sockets_, "--ssd-dir=" + directory_.path() + "/d", "--device=cuda",
       "--device-pool=32MiB", "--host-pool=96MiB", "--ssd-pool=512MiB", "--metrics-address=off"},
      Preload()};
};

TEST_F(GpuLostDeviceTest, AResetCostsWhatWasOnTheDevice) {
  ExpectALossCostsWhatWasOnTheDevice([] { Reset(0); });
}

TEST_F(GpuLostDeviceTest, AProcessThatIsKilledCostsWhatWasOnItsDevice) {
  ExpectALossCostsWhatWasOnTheDevice([this] {
    const std::vector<pid_t> processes = DeviceProcesses(daemon_.pid());
    ASSERT_EQ(processes.size(), 2u);
    for (const pid_t process : processes) {
      std::ifstream file("/proc/" + std::to_string(process) + "/cmdline");
      const std::string command(std::istreambuf_iterator<char>(file), {});
      // So begins the uuid of the first device.
      if (command.find("GPU-fa") != std::string::npos) kill(process, SIGKILL);
    }
  });
}

TEST_F(GpuLostDeviceTest, AGpuThatIsGoneIsSaidToBeUntilItIsBack) {
  {
    auto job = Puppet("", 0);
    ASSERT_EQ(job->Ask("allocate " + std::to_string(kChunks)), "ok");
    std::ofstream(FileOfFake("gone-0")) << "x";
    Reset(0);
    EXPECT_THAT(UseUntilLost(job.get()), HasSubstr("was lost ("));
    job->Kill();
  }
  ASSERT_TRUE(daemon_.WaitForLog("cannot be used yet: ")) << daemon_.log();
  EXPECT_THAT(Warnings(), AllOf(HasSubstr("GPU 0, Fake GPU"), HasSubstr("was lost (")));
  ChildProcess refused("GPU_PUPPET", {sockets_, "", "0"});
  EXPECT_THAT(refused.ReadLine(), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("was lost (")));
  std::filesystem::remove(FileOfFake("gone-0"));
  ASSERT_TRUE(daemon_.WaitForLog("is used again")) << daemon_.log();
  auto job = Puppet("", 0);
  ASSERT_EQ(job->Ask("allocate " + std::to_string(kChunks)), "ok");
  FillAll(job.get(), 1);
  ExpectAll(job.get(), 1);
}

TEST_F(GpuLostDeviceTest, AProcessThatDoesNotEndHoldsUpNoJobOfAnotherDevice) {
  // Jobs that are open at once share the host memory. Memory that the process may still write to is
  // the first job's until the process has ended.
  auto other = Puppet("", 1);
  auto job = Puppet("", 0);
  ASSERT_EQ(job->Ask("allocate " + std::to_string(kChunks)), "ok");
  FillAll(job.get(), 1);
  std::ofstream(FileOfFake("unkillable")) << "x";
  Reset(0);
  EXPECT_THAT(UseUntilLost(job.get()), HasSubstr("was lost ("));
  job->Kill();
  // Memory of the other device, of the host and on SSD is made and freed, and made again.
  for (int stamp = 2; stamp < 4; ++stamp) {
    if (stamp > 2) other = Puppet("", 1);
    ASSERT_EQ(other->Ask("allocate " + std::to_string(kChunks)), "ok");
    FillAll(other.get(), stamp);
    ExpectAll(other.get(), stamp);
    EXPECT_EQ(other->Ask("close"), "ok");
  }
  EXPECT_THAT(Warnings(), HasSubstr("was lost ("));
  // The daemon ends all the same. The process that it leaves has its log open.
  daemon_.Signal(SIGTERM);
  siginfo_t how;
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(daemon_.pid()), &how, WEXITED | WNOWAIT), 0);
}

}  // namespace
}  // namespace memtide::client
