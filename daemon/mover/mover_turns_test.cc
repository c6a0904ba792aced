// No job makes another one wait for more than one piece of its own work: in each test one job has
// queued much, another one little after it, and a third holds the thread until both have.
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/numa.h"
#include "daemon/io/fd_store.h"
#include "daemon/mover/mover.h"
#include "daemon/mover/testing/mover_fixture.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr JobId kMuch{1}, kLittle{2}, kHolder{3};
constexpr RegionId kSmall{7};

// Near which steps have one thread.
class OneCpuDevice : public FaultyDevice {
 public:
  explicit OneCpuDevice(Device* device) : FaultyDevice(device) {
    cpu_set_t allowed;
    EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    while (!CPU_ISSET(cpu_, &allowed)) ++cpu_;
  }
  NumaPlacement placement() const override { return {absl::nullopt, {cpu_}}; }

 private:
  int cpu_ = 0;
};

class MoverTurnsTest : public MoverFixture {
 protected:
  ~MoverTurnsTest() override { mover_.reset(); }  // It uses one_cpu_.

  // Device memory that the memory thread makes when device_ is released.
  void HoldMemory() {
    device_.Hold(0);
    MakeRegion held{kDevice, {Tier::kDevice}, 0, kSlot, kSlot};
    held.job = kHolder;
    mover_->Start(held);
    device_.AwaitHeld(0);
  }
  void MakeSmall() {
    MakeRegion small{kSmall, {Tier::kHost}, 0, kSlot, kSlot};
    small.job = kLittle;
    mover_->Start(small);
  }
  void MakeLarge() {
    MakeRegion large{kHost, {Tier::kHost}, 0, MiB(192), MiB(192)};
    large.job = kMuch;
    mover_->Start(large);
  }
  void ExpectOrder(const std::string& first, const std::string& second) {
    ASSERT_EQ(inbox_.Await(first), absl::OkStatus());
    ASSERT_EQ(inbox_.Await(second), absl::OkStatus());
    EXPECT_LT(inbox_.PlaceOf(first), inbox_.PlaceOf(second)) << first << " before " << second;
  }

  // A mover with one step thread. It ends no step of kHolder before `go` is set.
  void UseOneStepThread() {
    one_cpu_ = std::make_unique<OneCpuDevice>(&device_);
    mover_ = std::make_unique<Mover>(std::vector<Device*>{one_cpu_.get()}, disk_.get(),
                                     [this](Event event) {
                                       const auto* step = std::get_if<StepDone>(&event);
                                       const bool held = step != nullptr && step->step == kHeld;
                                       inbox_.Post(std::move(event));
                                       if (held) go_.get_future().wait();
                                     });
    MakeAll();
  }
  std::string Step(StepId id, JobId job, size_t copies) {
    CopyWork work;
    work.copies.assign(copies, {{0, 0}, {1, 0}, kSlot.count()});
    StartStep step{
        id, {{kHost, Bytes(0)}, {kHost, kSlot}}, kSlot, std::make_shared<const CopyWork>(work)};
    step.job = job;
    mover_->Start(step);
    return "step " + std::to_string(id.value());
  }

  static constexpr StepId kHeld{1};
  std::promise<void> go_;
  std::unique_ptr<OneCpuDevice> one_cpu_;
};

TEST_F(MoverTurnsTest, ARegionIsMadeInPieces) {
  HoldMemory();
  MakeLarge();
  MakeSmall();
  device_.Release();
  ExpectOrder("region 7", "region 1");
}

TEST_F(MoverTurnsTest, ASlotIsFilledInPieces) {
  MakeLarge();
  ASSERT_EQ(inbox_.Await("region 1"), absl::OkStatus());
  mover_->Start(ReleaseSlot{{kHost, Bytes(0)}, MiB(192), kMuch});
  ASSERT_EQ(inbox_.Await("emptied 0"), absl::OkStatus());
  HoldMemory();
  mover_->Start(PopulateSlot{{kHost, Bytes(0)}, MiB(192), kMuch});
  MakeSmall();
  device_.Release();
  ExpectOrder("region 7", "filled 0");
}

TEST_F(MoverTurnsTest, SlotsAndRegionsOfOneJobDoNotPrecedeThoseOfAnother) {
  MakeAll();
  device_.Hold(1);
  MakeRegion held{RegionId(9), {Tier::kDevice}, 0, kSlot, kSlot};
  held.job = kHolder;
  mover_->Start(held);
  device_.AwaitHeld(1);
  mover_->Start(ReleaseSlot{{kHost, Bytes(0)}, kSlot, kMuch});
  mover_->Start(ReleaseSlot{{kHost, kSlot}, kSlot, kMuch});
  mover_->Start(DropRegion{kDevice, kMuch});
  MakeSmall();
  device_.Release();
  ExpectOrder("region 7", "emptied 1");
  ExpectOrder("region 7", "no region 2");
}

TEST_F(MoverTurnsTest, CopiesToAndFromADeviceGoInTurn) {
  MakeAll();
  for (const auto& [kind, held] :
       std::map<Kind, int>{{Kind::kHostToDevice, 1}, {Kind::kDeviceToHost, 6}}) {
    device_.Hold(held);
    Begin(kind, 0, 0, kHolder);
    device_.AwaitHeld(held);
    Begin(kind, 1, 1, kMuch);
    const std::string second = Begin(kind, 2, 2, kMuch);
    const std::string last = Begin(kind, 3, 3, kMuch);
    const std::string other = Begin(kind, 4, 4, kLittle);
    device_.Release();
    ExpectOrder(other, second);
    ASSERT_EQ(inbox_.Await(last), absl::OkStatus());
  }
}

TEST_F(MoverTurnsTest, StepsRunInPieces) {
  UseOneStepThread();
  const std::string held = Step(kHeld, kHolder, 1);
  ASSERT_EQ(inbox_.Await(held), absl::OkStatus());
  const std::string much = Step(StepId(2), kMuch, 96);
  const std::string little = Step(StepId(3), kLittle, 1);
  go_.set_value();
  ExpectOrder(little, much);
}

TEST_F(MoverTurnsTest, ContentsAreWorkedOnInPieces) {
  UseOneStepThread();
  const std::string held = Step(kHeld, kHolder, 1);
  ASSERT_EQ(inbox_.Await(held), absl::OkStatus());
  StartStep hashes{StepId(2), {{kHost, Bytes(0)}, {kHost, kSlot}}, kSlot};
  hashes.contents = std::make_shared<const ContentWork>(ContentWork{{0, 1}, {{0, 1}}, {{0, 1}}});
  hashes.job = kMuch;
  mover_->Start(hashes);
  const std::string little = Step(StepId(3), kLittle, 1);
  go_.set_value();
  ExpectOrder(little, "step 2");
}

TEST_F(MoverTurnsTest, AMoverThatEndsDoesNotFinishSteps) {
  UseOneStepThread();
  const std::string step = Step(StepId(2), kMuch, 8192);  // 16 GiB.
  mover_.reset();
  EXPECT_FALSE(inbox_.PlaceOf(step).has_value());
}

// A service manager that answers when the test takes its messages.
class ServiceManager {
 public:
  ServiceManager() {
    // An abstract address: the path of a test's folder may be too long for a socket.
    const std::string name = "memtide-mover-turns-" + std::to_string(getpid());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const size_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(size)),
              0);
    setenv("NOTIFY_SOCKET", ("@" + name).c_str(), 1);
  }
  ~ServiceManager() {
    unsetenv("NOTIFY_SOCKET");
    close(socket_);
  }

  // Takes one message and closes the descriptor with it.
  std::string Take() {
    char text[256];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec data{text, sizeof(text)};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t size = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
    EXPECT_GT(size, 0);
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_type != SCM_RIGHTS) continue;
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part), sizeof(fd));
      close(fd);
    }
    return std::string(text, std::max<ssize_t>(size, 0));
  }

 private:
  int socket_ = -1;
};

TEST_F(MoverTurnsTest, MemoryIsMadeWhileTheServiceManagerIsAwaited) {
  ServiceManager manager;
  if (!HasFdStore()) GTEST_SKIP() << "built without libsystemd";
  MakeRegion persistent{kHost, {Tier::kHost}, 0, kSlot, kSlot};
  persistent.persistent = true;
  persistent.job = kMuch;
  mover_->Start(persistent);
  mover_->Start(MakeStore{kStore, kSlot, /*persistent=*/true, kMuch});
  MakeSmall();
  mover_->Start(MakeStore{StoreId(8), kSlot, /*persistent=*/false, kLittle});
  ASSERT_EQ(inbox_.Await("region 7"), absl::OkStatus());
  ASSERT_EQ(inbox_.Await("store 8"), absl::OkStatus());
  EXPECT_FALSE(inbox_.PlaceOf("region 1").has_value());
  EXPECT_FALSE(inbox_.PlaceOf("store 1").has_value());
  for (int descriptor = 0; descriptor < 2; ++descriptor) {
    EXPECT_EQ(manager.Take().rfind("FDSTORE=1", 0), 0u);
    EXPECT_EQ(manager.Take(), "BARRIER=1");
  }
  ASSERT_EQ(inbox_.Await("region 1"), absl::OkStatus());
  ASSERT_EQ(inbox_.Await("store 1"), absl::OkStatus());
}

}  // namespace
}  // namespace memtide
