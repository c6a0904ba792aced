// Parts of optimizer steps that the program computes: alone, or once for several ranks.
#include <gtest/gtest.h>
#include <string.h>

#include <vector>

#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

TEST_F(ClientTest, AnOwnPartHasItsChunksElsewhereThanAtTheirPlaces) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  *Words(Nth(range, 0)) = 5;
  OwnPart part;
  part.places = {Nth(range, 0), Nth(range, 1)};
  part.reads = 1;
  const absl::StatusOr<StartedPart> started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  const std::vector<char*>& at = started->addresses;
  ASSERT_EQ(at.size(), 2u);
  EXPECT_EQ(stats().leases_held, 0u) << "idle leases end before";
  EXPECT_NE(at[0], client_->address(Nth(range, 0)));
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(at[0]), 5u);
  *reinterpret_cast<uint64_t*>(at[1]) = 6;
  OwnPart next = part;
  ASSERT_TRUE(client_->leases()->EndPart(part.id, {/*computed=*/true}).ok());
  EXPECT_EQ(*Words(Nth(range, 1)), 6u);
  EXPECT_EQ(session_->computed_parts(), 1u);
  EXPECT_EQ(client_->leases()->EndPart(part.id, {true}).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client_->leases()->StartPart(&next).ok());
  EXPECT_NE(next.id, part.id);
  ASSERT_TRUE(client_->leases()->EndPart(next.id, {/*computed=*/false}).ok());
  EXPECT_EQ(session_->computed_parts(), 1u);
}

TEST_F(ClientTest, AnOwnPartThatCannotBeginLeavesNothing) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  OwnPart part;
  part.places = {range.first, PlaceId(100)};
  EXPECT_EQ(client_->leases()->StartPart(&part).status().code(), absl::StatusCode::kNotFound);
  part.places = {range.first};
  session_->FailNextFetch(absl::DataLossError("torn"));
  EXPECT_EQ(client_->leases()->StartPart(&part).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(client_->leases()->EndPart(part.id, {true}).code(), absl::StatusCode::kNotFound);
  *Words(range.first) = 1;
}

// A part that reads the first place and writes the second.
OwnPart SharedPart(const PlaceRange& range) {
  OwnPart part;
  part.places = {Nth(range, 0), Nth(range, 1)};
  part.reads = 1;
  part.contents = PartContents{{1, 2}, {}};
  return part;
}

uint64_t MadeWord() {
  uint64_t word;
  memset(&word, FakeDaemonSession::kMade, sizeof(word));
  return word;
}

TEST_F(ClientTest, APartThatAnotherRankMadeHasItsResultsAndNoEnd) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  *Words(Nth(range, 0)) = 5;
  *Words(Nth(range, 1)) = 6;  // Its lease is idle when the part is to begin.
  PartOutcome made;
  made.state = PartState::kMade;
  session_->AnswerNextPart(made);
  OwnPart part = SharedPart(range);
  const absl::StatusOr<StartedPart> started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->outcome.state, PartState::kMade);
  EXPECT_TRUE(started->addresses.empty());
  EXPECT_EQ(*Words(Nth(range, 1)), MadeWord());
  EXPECT_EQ(*Words(Nth(range, 0)), 5u);
  EXPECT_EQ(client_->leases()->EndPart(part.id, {true}).code(), absl::StatusCode::kNotFound);
}

TEST_F(ClientTest, DigestsThatAreNeededAreAskedForBeforeAPartBegins) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  PartOutcome outcome;
  outcome.state = PartState::kNeedsDigests;
  outcome.unknown_reads = {0};
  session_->AnswerNextPart(outcome);
  OwnPart part = SharedPart(range);
  absl::StatusOr<StartedPart> started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->outcome.state, PartState::kNeedsDigests);
  EXPECT_EQ(started->outcome.unknown_reads, std::vector<uint32_t>{0});
  EXPECT_EQ(client_->leases()->EndPart(part.id, {true}).code(), absl::StatusCode::kNotFound);
  part.contents->reads = {{3, 4}};
  started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(session_->part_contents()->reads[0], (Digest{3, 4}));
  EXPECT_EQ(started->outcome.state, PartState::kComputing);
  EXPECT_EQ(started->addresses.size(), 2u);
  EXPECT_TRUE(client_->leases()->EndPart(part.id, {true}).ok());
}

TEST_F(ClientTest, APartThatDiffersFromAnotherRanksIsComputedHere) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  PartOutcome outcome;
  outcome.difference = PartDifference{7, /*work=*/true, {0}};
  session_->AnswerNextPart(outcome);
  OwnPart part = SharedPart(range);
  const absl::StatusOr<StartedPart> started = client_->leases()->StartPart(&part);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(started->addresses.size(), 2u);
  EXPECT_EQ(started->outcome.difference->rank, 7u);
  EXPECT_TRUE(started->outcome.difference->work);
  EXPECT_EQ(started->outcome.difference->reads, std::vector<uint32_t>{0});
  EXPECT_TRUE(client_->leases()->EndPart(part.id, {true}).ok());
}

TEST_F(ClientTest, APartWhoseReplyIsLostIsEndedAndMayBeginAgain) {
  Open(4, 3);
  const PlaceRange range = Allocate(2);
  OwnPart part = SharedPart(range);
  session_->LoseNextPartReply();
  EXPECT_EQ(client_->leases()->StartPart(&part).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(session_->counts().leases, 0u) << "the part had begun";
  PartOutcome made;
  made.state = PartState::kMade;
  for (const bool is_lost : {true, false}) {
    session_->AnswerNextPart(made);
    if (is_lost) session_->LoseNextPartReply();
    EXPECT_EQ(client_->leases()->StartPart(&part).ok(), !is_lost);
  }
  EXPECT_EQ(*Words(Nth(range, 1)), MadeWord());
  EXPECT_EQ(session_->computed_parts(), 0u);
}

}  // namespace
}  // namespace memtide::client
