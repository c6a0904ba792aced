#include "daemon/device/remote/messages.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace memtide {
namespace {

using testing::ElementsAre;

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }
int NewDescriptor() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(MessagesTest, WhatIsEncodedIsDecoded) {
  DeviceRequest request;
  request.call = DeviceCall::kCopyOut;
  request.memory = 7;
  request.offset = MiB(2);
  request.host = 9;
  request.host_offset = MiB(4);
  request.size = MiB(6);
  const DeviceRequest got = *DecodeRequest(Encode(request));
  EXPECT_EQ(got.call, DeviceCall::kCopyOut);
  EXPECT_EQ(got.memory, 7u);
  EXPECT_EQ(got.offset, MiB(2));
  EXPECT_EQ(got.host, 9u);
  EXPECT_EQ(got.host_offset, MiB(4));
  EXPECT_EQ(got.size, MiB(6));

  DeviceAnswer answer;
  answer.status = absl::DataLossError("ECC");
  answer.host_memory.pinned = MiB(3);
  answer.host_memory.coherent = true;
  const DeviceAnswer answered = *DecodeAnswer(Encode(answer));
  EXPECT_EQ(answered.status, answer.status);
  EXPECT_EQ(answered.host_memory.pinned, MiB(3));
  EXPECT_TRUE(answered.host_memory.coherent);

  DeviceNotice notice;
  notice.what = DeviceNotice::What::kOpened;
  notice.text = "GPU 0";
  notice.kinds = {MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc};
  notice.copies_in_flight = 2;
  notice.host_memory.numa_node = 1;
  const DeviceNotice noticed = *DecodeNotice(Encode(notice));
  EXPECT_THAT(noticed.kinds, ElementsAre(MemoryKind::kCudaDescriptor, MemoryKind::kCudaIpc));
  EXPECT_EQ(noticed.host_memory.numa_node, 1);
  EXPECT_EQ(noticed.text, "GPU 0");
}

TEST(MessagesTest, ATextIsCutToItsLimit) {
  DeviceAnswer answer;
  answer.status = absl::InternalError(std::string(3 * kMostPacketBytes, 'x'));
  EXPECT_EQ(DecodeAnswer(Encode(answer))->status.message().size(), kMostMessageText);
}

TEST(MessagesTest, APacketOfAnotherLengthIsNoMessage) {
  const HelperPacket whole = Encode(DeviceAnswer());
  for (size_t size = 0; size < whole.text.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeAnswer({whole.text.substr(0, size), -1}).status())) << size;
    EXPECT_FALSE(DecodeRequest({whole.text.substr(0, size), -1}).ok()) << size;
    EXPECT_FALSE(DecodeNotice({whole.text.substr(0, size), -1}).ok()) << size;
  }
  EXPECT_FALSE(DecodeAnswer({whole.text + std::string(kMostMessageText + 1, 'x'), -1}).ok());
}

// Every value of every byte of each message decodes or is refused, and none passes on a descriptor
// that it should not have.
TEST(MessagesTest, MessagesWithOneWrongByteAreHarmless) {
  DeviceNotice opened;
  opened.what = DeviceNotice::What::kOpened;
  opened.kinds = {MemoryKind::kCudaDescriptor};
  opened.copies_in_flight = 2;
  const HelperPacket packets[] = {Encode(DeviceRequest()), Encode(DeviceAnswer()), Encode(opened)};
  for (const HelperPacket& packet : packets) {
    for (size_t at = 0; at < packet.text.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        HelperPacket wrong = packet;
        wrong.text[at] = static_cast<char>(value);
        const auto request = DecodeRequest(wrong);
        if (request.ok()) {
          EXPECT_LE(request->call, DeviceCall::kZero);
          EXPECT_LE(request->kind, MemoryKind::kCudaIpc);
        }
        const auto answer = DecodeAnswer(wrong);
        if (answer.ok()) {
          EXPECT_LE(answer->status.code(), absl::StatusCode::kUnauthenticated);
        }
        const auto notice = DecodeNotice(wrong);
        if (notice.ok() && notice->what == DeviceNotice::What::kOpened) {
          EXPECT_GT(notice->copies_in_flight, 0u);
          EXPECT_LE(notice->copies_in_flight, 16u);
          EXPECT_FALSE(notice->kinds.empty());
        }
      }
    }
  }
}

TEST(MessagesTest, ADescriptorThatIsNotWantedIsClosed) {
  const int fd = NewDescriptor();
  HelperPacket packet = Encode(DeviceRequest());
  packet.descriptor = fd;
  EXPECT_FALSE(DecodeRequest(packet).ok());
  EXPECT_FALSE(IsOpen(fd));

  DeviceAnswer failed;
  failed.status = absl::InternalError("no");
  packet = Encode(failed);
  packet.descriptor = NewDescriptor();
  EXPECT_FALSE(DecodeAnswer(packet).ok());
  EXPECT_FALSE(IsOpen(packet.descriptor));

  DeviceRequest share;
  share.call = DeviceCall::kShareHost;
  EXPECT_FALSE(DecodeRequest(Encode(share)).ok()) << "it needs one";
}

class PacketTest : public testing::Test {
 protected:
  PacketTest() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets_), 0); }
  ~PacketTest() override {
    for (const int socket : sockets_) {
      if (IsOpen(socket)) close(socket);
    }
  }
  int sockets_[2];
};

TEST_F(PacketTest, APacketThatIsTooLongIsRefused) {
  const std::string text(kMostPacketBytes + 1, 'x');
  ASSERT_EQ(send(sockets_[0], text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(absl::IsDataLoss(ReceivePacket(sockets_[1], kForever).status()));
}

TEST_F(PacketTest, SeveralDescriptorsAreRefusedAndClosed) {
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  char byte = 'x';
  iovec data = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int both[2] = {sockets_[0], sockets_[1]};
  std::copy(both, both + 2, reinterpret_cast<int*>(CMSG_DATA(header)));
  ASSERT_EQ(sendmsg(sockets_[0], &message, 0), 1);
  const int next = NewDescriptor();
  close(next);
  EXPECT_TRUE(absl::IsDataLoss(ReceivePacket(sockets_[1], kForever).status()));
  const int after = NewDescriptor();
  close(after);
  EXPECT_EQ(after, next) << "no descriptor is left open";
}

TEST_F(PacketTest, TheEndOfTheOtherProcessIsUnavailable) {
  close(sockets_[0]);
  EXPECT_TRUE(absl::IsUnavailable(ReceivePacket(sockets_[1], kForever).status()));
  EXPECT_TRUE(absl::IsUnavailable(SendPacket(sockets_[1], {"x", -1})));
}

TEST_F(PacketTest, AnAnswerThatDoesNotComeIsDeadlineExceeded) {
  const auto none = ReceivePacket(sockets_[1], std::chrono::milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(none.status()));
}

}  // namespace
}  // namespace memtide
