#include "daemon/session/fd_packet.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/engine/interface/effects.h"
#include "memtide/v1/session.pb.h"

namespace memtide {
namespace {

std::string HelloPacket(uint32_t version, const std::string& program) {
  v1::FdHello hello;
  hello.set_protocol_version(version);
  hello.set_program(program);
  return hello.SerializeAsString();
}

TEST(FdPacketTest, TakesAHelloOfItsVersion) {
  const auto hello = DecodeHello(HelloPacket(1, "train.py"));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->program, "train.py");
}

TEST(FdPacketTest, NamesTheVersionItSpeaksToOthers) {
  const absl::Status status = DecodeHello(HelloPacket(2, "")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("known: 1"), absl::string_view::npos) << status;
  EXPECT_EQ(DecodeHello("").status().code(), absl::StatusCode::kUnimplemented);
}

TEST(FdPacketTest, RefusesWhatIsNotAHello) {
  EXPECT_EQ(DecodeHello("\xff\xff\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeHello(std::string(kMaxPacketBytes + 1, '\0')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FdPacketTest, CutsAndCleansTheProgramsName) {
  const auto hello = DecodeHello(HelloPacket(1, "a\nb" + std::string(1000, 'c')));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->program.size(), kMaxProgramBytes);
  EXPECT_EQ(hello->program.substr(0, 4), "a?bc");
}

TEST(FdPacketTest, SaysWhatAClientMustKnow) {
  Welcome welcome;
  welcome.token.fill('t');
  welcome.boot_id = "boot";
  welcome.grpc_target = "unix:/run/memtide/grpc.sock";
  v1::FdFrame frame;
  ASSERT_TRUE(frame.ParseFromString(EncodeWelcome(welcome)));
  EXPECT_EQ(frame.welcome().token(), std::string(kTokenBytes, 't'));
  EXPECT_EQ(frame.welcome().boot_id(), "boot");
  EXPECT_EQ(frame.welcome().grpc_target(), "unix:/run/memtide/grpc.sock");
  ASSERT_TRUE(frame.ParseFromString(
      EncodeRegion(RegionId(3), {MemoryKind::kCudaIpc, MiB(64), -1, std::string(64, 'h')})));
  EXPECT_EQ(frame.region().region_id(), 3u);
  EXPECT_EQ(frame.region().size_bytes(), MiB(64).count());
  EXPECT_EQ(frame.region().memory(), v1::MEMORY_KIND_CUDA_IPC);
  EXPECT_EQ(frame.region().cuda_ipc_handle(), std::string(64, 'h'));
  ASSERT_TRUE(frame.ParseFromString(EncodeRegionGone(RegionId(4), 12, 9)));
  EXPECT_EQ(frame.region_gone().region_id(), 4u);
  EXPECT_EQ(frame.region_gone().device_slots(), 12u);
  EXPECT_EQ(frame.region_gone().lease_budget(), 9u);
  ASSERT_TRUE(frame.ParseFromString(EncodeLeaseBudget({SessionId(1), 20, 15, 23})));
  EXPECT_EQ(frame.lease_budget().slots(), 20u);
  EXPECT_EQ(frame.lease_budget().leases(), 15u);
  EXPECT_EQ(frame.lease_budget().max_in_use(), 23u);
}

TEST(FdPacketTest, EveryFrameFitsAPacket) {
  const std::vector<ChunkId> chunks(kMaxRevokedChunks, ChunkId(UINT64_MAX));
  EXPECT_LE(EncodeRevoke(UINT32_MAX, chunks).size(), kMaxPacketBytes);
  const std::string refused = EncodeRefused(absl::InternalError(std::string(10000, 'x')));
  EXPECT_LE(refused.size(), kMaxPacketBytes);
  v1::FdFrame frame;
  ASSERT_TRUE(frame.ParseFromString(refused));
  EXPECT_EQ(frame.refused().code(), 13);
}

}  // namespace
}  // namespace memtide
