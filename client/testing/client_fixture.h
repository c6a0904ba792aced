// ClientTest: the fixture of the tests of Client, with a FakeDaemonSession of a chosen number of
// slots. Real addresses, real page faults and real eviction, without a daemon.
#ifndef MEMTIDE_CLIENT_TESTING_CLIENT_FIXTURE_H_
#define MEMTIDE_CLIENT_TESTING_CLIENT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "client/client.h"
#include "client/testing/fake_daemon_session.h"
#include "client/testing/places.h"

namespace memtide::client {

inline constexpr size_t kChunkBytes = 2 << 20;

class ClientTest : public testing::Test {
 protected:
  void Open(uint32_t slots, uint32_t budget) {
    FakeDaemonSession::Options options;
    options.slots = slots;
    options.lease_budget = budget;
    auto session = std::make_unique<FakeDaemonSession>(options);
    session_ = session.get();
    auto client = Client::OpenWith(std::move(session), {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(client).value();
  }
  PlaceRange Allocate(uint32_t count, InitialContent initial_content = InitialContent::kZeros) {
    auto range = client_->leases()->Allocate(count, ChunkKind::kOther, initial_content);
    EXPECT_TRUE(range.ok()) << range.status();
    return range.value();
  }
  uint64_t* Words(PlaceId place) { return reinterpret_cast<uint64_t*>(client_->address(place)); }
  LeaseStats stats() { return client_->leases()->monitor().stats(); }

  FakeDaemonSession* session_ = nullptr;
  std::unique_ptr<Client> client_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_TESTING_CLIENT_FIXTURE_H_
