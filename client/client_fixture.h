// What the tests of Client share: one over a FakeLender, with as many slots as a test wants. Real
// addresses, real faults, real eviction, no daemon.
#ifndef MEMTIDE_CLIENT_CLIENT_FIXTURE_H_
#define MEMTIDE_CLIENT_CLIENT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "client/client.h"
#include "client/fake_lender.h"
#include "client/test_places.h"

namespace memtide::client {

inline constexpr size_t kChunkBytes = 2 << 20;

class ClientTest : public testing::Test {
 protected:
  void Open(uint32_t slots, uint32_t budget) {
    FakeLender::Options options;
    options.slots = slots;
    options.lease_budget = budget;
    auto lender = std::make_unique<FakeLender>(options);
    lender_ = lender.get();
    auto client = Client::OpenWith(std::move(lender), {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = std::move(client).value();
  }
  PlaceRange Allocate(uint32_t count, Unwritten unwritten = Unwritten::kZeros) {
    auto range = client_->Allocate(count, ChunkKind::kOther, unwritten);
    EXPECT_TRUE(range.ok()) << range.status();
    return range.value();
  }
  uint64_t* Words(PlaceId place) { return reinterpret_cast<uint64_t*>(client_->address(place)); }
  LeaseStats stats() { return client_->stats().value(); }

  FakeLender* lender_ = nullptr;
  std::unique_ptr<Client> client_;
};

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CLIENT_FIXTURE_H_
