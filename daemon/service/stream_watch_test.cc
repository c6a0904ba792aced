#include "daemon/service/stream_watch.h"

#include <fcntl.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/io/owned_fd.h"
#include "daemon/metrics/edge_counters.h"
#include "daemon/service/testing/http2_frames.h"

namespace memtide {
namespace {

// A server that answers no call, and clients that acknowledge no setting.
class StreamWatchTest : public testing::Test {
 protected:
  StreamWatchTest() {
    grpc::ServerBuilder builder;
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    // gRPC reads while somebody waits for the queue.
    poller_ = std::thread([this] {
      void* tag;
      bool ok;
      while (queue_->Next(&tag, &ok)) {
      }
    });
  }
  ~StreamWatchTest() override {
    watch_.reset();
    clients_.clear();
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    poller_.join();
  }

  void Connect(uint32_t calls) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ASSERT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    watch_->Add(ends[0]);
    clients_.emplace_back(ends[1]);
    const std::string sent = http2::Preface() + http2::Calls(calls);
    ASSERT_EQ(send(ends[1], sent.data(), sent.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(sent.size()));
  }
  // The client whose connection is closed next; others send what they like.
  size_t NextClosed() {
    for (;;) {
      for (size_t i = 0; i < clients_.size(); ++i) {
        char bytes[4096];
        if (recv(clients_[i].get(), bytes, sizeof(bytes), MSG_DONTWAIT) == 0) return i;
      }
      poll(nullptr, 0, 1);
    }
  }
  void Close(size_t client) { clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(client)); }

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread poller_;
  EdgeCounters counters_;
  std::unique_ptr<StreamWatch> watch_ = std::make_unique<StreamWatch>(
      StreamLimits{/*per_connection=*/10, /*per_uid=*/25}, &counters_);
  std::vector<OwnedFd> clients_;
};

TEST_F(StreamWatchTest, ClosesTheConnectionThatHasMoreCallsThanOneMayHave) {
  Connect(10);
  Connect(11);
  Connect(3);
  EXPECT_EQ(NextClosed(), 1u);
  EXPECT_EQ(counters_.grpc_connections_refused, 1u);
}

TEST_F(StreamWatchTest, ClosesThoseWithMostCallsWhereAUserHasTooMany) {
  Connect(8);
  Connect(10);
  Connect(7);
  Connect(1);
  EXPECT_EQ(NextClosed(), 1u);
  Close(1);
  Connect(9);
  Connect(1);
  EXPECT_EQ(NextClosed(), 3u) << "26 calls again: 8, 7, 1, 9 and 1";
  EXPECT_EQ(counters_.grpc_connections_refused, 2u);
}

}  // namespace
}  // namespace memtide
