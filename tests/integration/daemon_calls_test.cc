// Tests the replies of memtided to correct clients, and to wrong or hostile ones.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "tests/integration/daemon_process.h"

namespace memtide {
namespace {

using grpc::StatusCode;

class DaemonCallsTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(daemon_.WaitUntilReady()) << daemon_.log(); }
  std::string SocketDir() const { return scratch_.path() + "/s"; }

  StatusCode Fetch(Session* session, const std::vector<uint64_t>& chunks,
                   v1::FetchResponse* response) {
    v1::FetchRequest request;
    request.mutable_chunk_ids()->Add(chunks.begin(), chunks.end());
    return session->chunks().Fetch(session->Context().get(), request, response).error_code();
  }
  size_t Descriptors() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(daemon_.pid()) + "/fd")) {
      ++count;
    }
    return count;
  }
  // The peak of the daemon's resident memory in KiB (VmHWM).
  uint64_t PeakMemoryKiB() const {
    std::ifstream status("/proc/" + std::to_string(daemon_.pid()) + "/status");
    std::string word;
    uint64_t value = 0;
    while (status >> word) {
      if (word == "VmHWM:" && status >> value) return value;
    }
    ADD_FAILURE() << "no VmHWM";
    return 0;
  }

  const ScratchDirectory scratch_;
  DaemonProcess daemon_{DaemonProcess::SmallFlags(scratch_.path())};
};

TEST_F(DaemonCallsTest, LeasesChunksAtTheDeviceAndTakesThemBack) {
  Session session(SocketDir());
  const v1::OpenResponse opened = session.Open();
  EXPECT_EQ(opened.device_slots(), 4u);
  for (int i = 0; i < opened.region_ids_size(); ++i) {
    EXPECT_TRUE(session.Receive().has_region());
  }
  const std::vector<uint64_t> chunks = session.Allocate(8);
  v1::FetchResponse response;
  ASSERT_EQ(Fetch(&session, {chunks[0], chunks[1]}, &response), StatusCode::OK);
  ASSERT_EQ(response.leases_size(), 2);
  EXPECT_EQ(response.leases(1).chunk_id(), chunks[1]);
  EXPECT_EQ(response.leases(1).tier(), v1::TIER_DEVICE);
  v1::ReleaseRequest release;
  release.set_request_id(1000);
  release.add_chunk_ids(chunks[0]);
  v1::ReleaseResponse released;
  EXPECT_TRUE(session.chunks().Release(session.Context().get(), release, &released).ok());
}

TEST_F(DaemonCallsTest, AForeignChunkIsNotFoundJustAsOneThatDoesNotExist) {
  Session owner(SocketDir()), stranger(SocketDir());
  owner.Open();
  stranger.Open();
  const std::vector<uint64_t> chunks = owner.Allocate(1);
  v1::FetchRequest foreign, absent;
  foreign.add_chunk_ids(chunks[0]);
  absent.add_chunk_ids(chunks[0] + 12345);
  v1::FetchResponse response;
  const grpc::Status for_foreign =
      stranger.chunks().Fetch(stranger.Context().get(), foreign, &response);
  const grpc::Status for_absent =
      stranger.chunks().Fetch(stranger.Context().get(), absent, &response);
  EXPECT_EQ(for_foreign.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(for_absent.error_code(), StatusCode::NOT_FOUND);
}

TEST_F(DaemonCallsTest, ATokenIsWorthNothingOnceItsConnectionHasEnded) {
  Session other(SocketDir());
  std::unique_ptr<grpc::ClientContext> context;
  {
    Session session(SocketDir());
    session.Open();
    context = session.Context();
  }
  // The daemon reads sockets in order, so when it has greeted this session it has seen the other
  // end.
  Session later(SocketDir());
  v1::RenewResponse response;
  EXPECT_EQ(other.sessions().Renew(context.get(), {}, &response).error_code(),
            StatusCode::UNAUTHENTICATED);
  grpc::ClientContext without;
  EXPECT_EQ(other.sessions().Renew(&without, {}, &response).error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(DaemonCallsTest, MessagesAboveTheCapAreRefusedWithoutBeingKept) {
  Session session(SocketDir());
  session.Open();
  v1::FetchRequest request;
  v1::FetchResponse response;
  const std::vector<uint64_t> chunks((1 << 20) / 4, UINT64_MAX);
  request.mutable_chunk_ids()->Add(chunks.begin(), chunks.end());
  const auto send = [&](int messages) {
    for (int i = 0; i < messages; ++i) {
      EXPECT_EQ(session.chunks().Fetch(session.Context().get(), request, &response).error_code(),
                StatusCode::RESOURCE_EXHAUSTED);
    }
  };
  send(20);  // gRPC's buffers, and freed memory that a sanitizer holds back, are there by now.
  const uint64_t before_kib = PeakMemoryKiB();
  send(40);
  EXPECT_LT(PeakMemoryKiB(), before_kib + 32 * 1024) << "100 MiB were sent since then";
}

TEST_F(DaemonCallsTest, DescriptorsThatClientsKeepHoldNoMemoryThatIsLentAgain) {
  std::vector<int> descriptors;
  for (int round = 0; round < 5; ++round) {
    Session session(SocketDir());
    const v1::OpenResponse opened = session.Open();
    for (int i = 0; i < opened.region_ids_size(); ++i) {
      int descriptor = -1;
      ASSERT_TRUE(session.Receive(&descriptor).has_region());
      ASSERT_GE(descriptor, 0);
      descriptors.push_back(descriptor);
    }
    int64_t bytes = 0;
    for (const int descriptor : descriptors) {
      struct stat info;
      ASSERT_EQ(fstat(descriptor, &info), 0);
      bytes += info.st_blocks * 512;
    }
    EXPECT_GT(bytes, 0);
    EXPECT_LE(bytes, int64_t{16 + 64} << 20) << "more than the pools, in round " << round;
    v1::CloseResponse closed;
    EXPECT_TRUE(session.sessions().Close(session.Context().get(), {}, &closed).ok());
  }
  for (const int descriptor : descriptors) close(descriptor);
}

TEST_F(DaemonCallsTest, LastsThroughAThousandHalfDoneHandshakes) {
  Session before(SocketDir());
  before.Open();
  const size_t descriptors = Descriptors();
  for (int i = 0; i < 1000; ++i) {
    const int fd = ConnectSeqPacket(SocketDir() + "/fd.sock");
    ASSERT_GE(fd, 0) << i << ": " << std::strerror(errno);
    // EPIPE: too many handshakes wait, and the daemon has closed this one.
    ASSERT_TRUE(i % 2 == 0 || send(fd, "\x08", 1, MSG_NOSIGNAL) == 1 || errno == EPIPE) << i;
    close(fd);
  }
  while (!Session(SocketDir()).welcome()) {
  }
  // The daemon greets this session after all of the above. Its descriptors, and those of the last
  // Session, may still be open.
  Session after(SocketDir());
  ASSERT_TRUE(after.welcome());
  EXPECT_LE(Descriptors(), descriptors + 6);
  EXPECT_EQ(before.Allocate(1).size(), 1u);
}

// A token is a secret, in whatever form: who reads the log could use the session.
TEST(DaemonLogTest, HasNoSecretAndThereIsNoCore) {
  const ScratchDirectory scratch;
  std::vector<std::string> flags = DaemonProcess::SmallFlags(scratch.path());
  flags.push_back("--log-level=debug");
  DaemonProcess daemon(flags);
  ASSERT_TRUE(daemon.WaitUntilReady()) << daemon.log();
  std::ifstream limits("/proc/" + std::to_string(daemon.pid()) + "/limits");
  std::string line;
  while (std::getline(limits, line) && line.rfind("Max core file size", 0) != 0) {
  }
  EXPECT_THAT(line, testing::ContainsRegex("Max core file size +0 +0 "));

  std::vector<std::string> tokens;
  for (int i = 0; i < 3; ++i) {
    Session session(scratch.path() + "/s");
    session.Open();
    const std::vector<uint64_t> chunks = session.Allocate(2);
    v1::FetchRequest request;
    v1::FetchResponse response;
    request.add_chunk_ids(chunks[0]);
    EXPECT_TRUE(session.chunks().Fetch(session.Context().get(), request, &response).ok());
    request.add_chunk_ids(chunks[0]);
    const grpc::Status refused =
        session.chunks().Fetch(session.Context().get(), request, &response);
    EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
    tokens.push_back(session.first_frame().welcome().token());
    ASSERT_EQ(tokens.back().size(), 32u);
    EXPECT_EQ(refused.error_message().find(tokens.back()), std::string::npos);
  }
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.Wait(), 0);
  EXPECT_THAT(daemon.log(), testing::HasSubstr(" info: "));
  const std::string log = absl::AsciiStrToLower(daemon.log());
  for (const std::string& token : tokens) {
    // Any six bytes of it, as they are, in hexadecimal and in base 64.
    for (size_t at = 0; at + 6 <= token.size(); at += 3) {
      const std::string part = token.substr(at, 6);
      EXPECT_EQ(daemon.log().find(part), std::string::npos);
      EXPECT_EQ(log.find(absl::BytesToHexString(part)), std::string::npos);
      EXPECT_EQ(daemon.log().find(absl::Base64Escape(part)), std::string::npos);
    }
  }
}

TEST_F(DaemonCallsTest, HealthAndReflectionAnswer) {
  Session session(SocketDir());
  grpc::GenericStub stub(session.channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  const grpc::Slice empty;
  auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                    grpc::ByteBuffer(&empty, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag;
  bool ok;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();

  // ServerReflectionRequest{list_services: "*"}: field 7, a string of one byte.
  grpc::ClientContext reflection_context;
  auto stream =
      stub.PrepareCall(&reflection_context,
                       "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice list(std::string("\x3a\x01*"));
  stream->WriteLast(grpc::ByteBuffer(&list, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer services;
  stream->Read(&services, nullptr);
  queue.Next(&tag, &ok);
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  ASSERT_TRUE(status.ok()) << status.error_message();
  grpc::Slice slice;
  ASSERT_TRUE(services.DumpToSingleSlice(&slice).ok());
  const std::string text(reinterpret_cast<const char*>(slice.begin()), slice.size());
  for (const char* name : {"SessionService", "ChunkService", "AdminService"}) {
    EXPECT_NE(text.find(std::string("memtide.v1.") + name), std::string::npos) << name;
  }
}

TEST_F(DaemonCallsTest, InspectionAddsUp) {
  Session session(SocketDir());
  session.Open();
  const std::vector<uint64_t> chunks = session.Allocate(4);
  v1::FetchResponse fetched;
  ASSERT_EQ(Fetch(&session, chunks, &fetched), StatusCode::OK);
  v1::InspectNodeRequest request;
  request.set_sessions(true);
  request.set_max_chunks(100);
  grpc::ClientContext context;
  v1::InspectNodeResponse node;
  ASSERT_TRUE(session.admin().InspectNode(&context, request, &node).ok());
  ASSERT_EQ(node.pools_size(), 3);
  for (const v1::Pool& pool : node.pools()) {
    EXPECT_EQ(
        pool.used_bytes() + pool.reserved_bytes() + pool.scrubbing_bytes() + pool.free_bytes(),
        pool.capacity_bytes())
        << pool.ShortDebugString();
  }
  EXPECT_EQ(node.session_count(), 1u);
  ASSERT_EQ(node.sessions_size(), 1);
  EXPECT_EQ(node.sessions(0).pid(), getpid());
  EXPECT_EQ(node.sessions(0).uid(), getuid());
  EXPECT_EQ(node.chunk_count(), 4u);
  EXPECT_EQ(node.chunks_size(), 4);
  EXPECT_EQ(node.boot_id(), session.first_frame().welcome().boot_id());
}

}  // namespace
}  // namespace memtide
