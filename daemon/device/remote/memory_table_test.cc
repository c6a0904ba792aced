#include "daemon/device/remote/memory_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

namespace memtide {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Bytes kAllocated = MiB(2);

class MemoryTableTest : public testing::Test {
 protected:
  ~MemoryTableTest() override { close(fd_); }

  uint64_t Allocate() {
    DeviceRequest request = {DeviceCall::kAllocate};
    request.size = kAllocated;
    request.memory = table_.NewNumber();
    table_.Insert(request, AnswerWithDescriptor());
    return request.memory;
  }
  DeviceAnswer AnswerWithDescriptor() const {
    DeviceAnswer answer;
    answer.descriptor = dup(fd_);
    return answer;
  }
  std::vector<DeviceCall> TakeAllUnsent() {
    std::vector<DeviceCall> calls;
    while (const absl::optional<DeviceRequest> request = table_.TakeUnsent()) {
      calls.push_back(request->call);
    }
    return calls;
  }

  const int fd_ = memfd_create("memory", MFD_CLOEXEC);
  char memory_[16] = {};
  MemoryTable table_;
};

TEST_F(MemoryTableTest, ANewProcessGetsAllMemoryThatIsThereAndThenEachChange) {
  table_.Share(memory_, Bytes(8), fd_);
  table_.Share(memory_ + 8, Bytes(8), fd_);
  table_.Add(memory_ + 12, Bytes(4));
  table_.Unshare(memory_);
  const uint64_t number = Allocate();
  table_.BeginReplay();
  EXPECT_THAT(TakeAllUnsent(),
              ElementsAre(DeviceCall::kShareHost, DeviceCall::kAddHost, DeviceCall::kAllocate));
  table_.Remove(memory_ + 12);
  close(table_.Export(number).fd);
  table_.Free(number);
  EXPECT_THAT(TakeAllUnsent(), ElementsAre(DeviceCall::kRemoveHost, DeviceCall::kFree));
  table_.EndReplay();
  table_.Unshare(memory_ + 8);
  EXPECT_THAT(TakeAllUnsent(), IsEmpty());
}

TEST_F(MemoryTableTest, HostMemoryIsLocatedInTheRangeThatHasIt) {
  table_.Share(memory_, Bytes(8), fd_);
  const uint64_t second = table_.Share(memory_ + 8, Bytes(8), fd_).host;
  DeviceRequest request = {DeviceCall::kCopyIn};
  request.size = Bytes(4);
  table_.Locate(memory_ + 12, &request);
  EXPECT_EQ(request.host, second);
  EXPECT_EQ(request.host_offset, Bytes(4));
  EXPECT_DEATH(table_.Locate(memory_ + 13, &request), "host memory that is not shared");
}

TEST_F(MemoryTableTest, ADescriptorThatANewProcessMayNeedIsOpenUntilItHasAll) {
  const int shared = table_.Share(memory_, Bytes(8), fd_).descriptor;
  table_.BeginReplay();
  table_.Unshare(memory_);
  EXPECT_EQ(table_.TakeUnsent()->descriptor, shared);
  EXPECT_EQ(close(dup(shared)), 0);
  table_.EndReplay();
  EXPECT_EQ(dup(shared), -1);
}

TEST_F(MemoryTableTest, MemoryThatIsAllocatedAgainKeepsTheNumberOfItsDescriptor) {
  const uint64_t number = Allocate();
  const int before = table_.Export(number).fd;
  table_.BeginReplay();
  table_.Receive(*table_.TakeUnsent(), AnswerWithDescriptor());
  EXPECT_EQ(table_.Export(number).fd, before);
  // The answer about memory that was freed meanwhile has a descriptor that is closed.
  const DeviceRequest late = {DeviceCall::kAllocate, {}, number + 1};
  const DeviceAnswer answer = AnswerWithDescriptor();
  table_.Receive(late, answer);
  EXPECT_EQ(dup(answer.descriptor), -1);
  table_.Free(number);
  EXPECT_EQ(close(before), 0);
}

}  // namespace
}  // namespace memtide
