// memtide_start_shared_part, with a FakeDaemonSession.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "client/memtide.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

constexpr uint32_t kUntouched = 77;

class PartCallsTest : public ClientTest {
 protected:
  void SetUp() override {
    Open(4, 3);
    const PlaceRange range = Allocate(3);
    for (uint32_t i = 0; i < 3; ++i) places_[i] = Nth(range, i).value();
    unknown_.fill(kUntouched);
    different_.fill(kUntouched);
    contents_.struct_bytes = sizeof(contents_);
    contents_.work_digest[15] = 1;
    part_.struct_bytes = sizeof(part_);
    part_.addresses = addresses_.data();
    part_.unknown_reads = unknown_.data();
    part_.different_reads = different_.data();
  }
  memtide_client* client() { return reinterpret_cast<memtide_client*>(client_.get()); }
  // Begins a part that reads the first two places and writes the third.
  int Start() {
    return memtide_start_shared_part(client(), places_.data(), 3, 2, &contents_, &part_);
  }

  std::array<uint32_t, 3> places_ = {};
  std::array<uint64_t, 3> addresses_ = {};
  std::array<uint32_t, 2> unknown_, different_;
  memtide_part_contents contents_ = {};
  memtide_shared_part part_ = {};
};

TEST_F(PartCallsTest, APartThatBeginsHasAddressesANumberAndADifference) {
  PartOutcome outcome;
  outcome.difference = PartDifference{6, /*work=*/true, {1}};
  session_->AnswerNextPart(outcome);
  std::array<uint8_t, 32> digests = {};
  digests[31] = 9;
  contents_.read_digests = digests.data();
  ASSERT_EQ(Start(), MEMTIDE_OK) << memtide_last_error();
  EXPECT_EQ(session_->part_contents()->work, (Digest{0, 1}));
  EXPECT_EQ(session_->part_contents()->reads, (std::vector<Digest>{{}, {0, 9}}));
  EXPECT_EQ(part_.state, static_cast<uint32_t>(MEMTIDE_COMPUTING));
  EXPECT_NE(addresses_[2], 0u);
  EXPECT_EQ(part_.unknown_count, 0u);
  EXPECT_EQ(part_.has_difference, 1u);
  EXPECT_EQ(part_.different_rank, 6u);
  EXPECT_EQ(part_.different_work, 1u);
  EXPECT_EQ(part_.different_count, 1u);
  EXPECT_EQ(different_, (std::array<uint32_t, 2>{1, kUntouched}));
  EXPECT_EQ(memtide_end_part(client(), part_.part, 1, 0), MEMTIDE_OK);
}

TEST_F(PartCallsTest, APartThatWasMadeHasNoNumber) {
  part_.part = part_.has_difference = kUntouched;
  PartOutcome outcome;
  outcome.state = PartState::kMade;
  session_->AnswerNextPart(outcome);
  ASSERT_EQ(Start(), MEMTIDE_OK) << memtide_last_error();
  EXPECT_TRUE(session_->part_contents()->reads.empty());
  EXPECT_EQ(part_.state, static_cast<uint32_t>(MEMTIDE_MADE));
  EXPECT_EQ(part_.part, 0u);
  EXPECT_EQ(part_.has_difference, 0u);
  EXPECT_EQ(addresses_, (std::array<uint64_t, 3>{}));
}

TEST_F(PartCallsTest, NeededDigestsAreNamed) {
  PartOutcome outcome;
  outcome.state = PartState::kNeedsDigests;
  outcome.unknown_reads = {1};
  session_->AnswerNextPart(outcome);
  ASSERT_EQ(Start(), MEMTIDE_OK) << memtide_last_error();
  EXPECT_EQ(part_.state, static_cast<uint32_t>(MEMTIDE_NEEDS_DIGESTS));
  EXPECT_EQ(part_.part, 0u);
  EXPECT_EQ(part_.unknown_count, 1u);
  EXPECT_EQ(unknown_, (std::array<uint32_t, 2>{1, kUntouched}));
}

TEST_F(PartCallsTest, StructsOfOtherProgramsAreReadAsFarAsBothKnow) {
  // A later header has more fields.
  contents_.struct_bytes += 8;
  part_.struct_bytes += 8;
  ASSERT_EQ(Start(), MEMTIDE_OK) << memtide_last_error();
  EXPECT_EQ(part_.struct_bytes, sizeof(part_) + 8) << "so that the struct can be passed again";
  EXPECT_EQ(memtide_end_part(client(), part_.part, 0, 0), MEMTIDE_OK);
  part_.struct_bytes = 8;  // Its arrays are beyond.
  EXPECT_EQ(Start(), MEMTIDE_INVALID_ARGUMENT);
  part_.struct_bytes = sizeof(part_);
  contents_.struct_bytes = 0;
  EXPECT_EQ(Start(), MEMTIDE_INVALID_ARGUMENT);
  EXPECT_STREQ(memtide_last_error(), "contents.struct_bytes is not set");
}

TEST_F(PartCallsTest, WhatIsMissingIsNamed) {
  contents_.work_digest[15] = 0;
  EXPECT_EQ(Start(), MEMTIDE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(memtide_last_error()).find("work_digest is not set"), std::string::npos);
  contents_.work_digest[0] = 1;
  part_.unknown_reads = nullptr;
  EXPECT_EQ(Start(), MEMTIDE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(memtide_last_error()).find("part.unknown_reads"), std::string::npos);
  part_.unknown_reads = unknown_.data();
  EXPECT_EQ(memtide_start_shared_part(client(), places_.data(), 1, 2, &contents_, &part_),
            MEMTIDE_INVALID_ARGUMENT)
      << "more reads than places";
  EXPECT_EQ(memtide_start_shared_part(client(), places_.data(), 3, 2, nullptr, &part_),
            MEMTIDE_INVALID_ARGUMENT);
  EXPECT_EQ(Start(), MEMTIDE_OK) << memtide_last_error();
  EXPECT_EQ(memtide_end_part(client(), part_.part, 0, 0), MEMTIDE_OK);
}

}  // namespace
}  // namespace memtide::client
