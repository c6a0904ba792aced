// Contents on SSD whose bytes change behind the engine's back.
#include <cstring>
#include <string>
#include <vector>

#include "daemon/engine/testing/engine_byte_harness.h"
#include "daemon/engine/testing/step_training.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr Duration kAnHour = std::chrono::hours(1);

EngineOptions Verified(Verify verify = Verify::kKept) {
  EngineOptions options = SmallHost();
  options.persistent_jobs = true;
  options.verify = verify;
  return options;
}

// A chunk whose only copy is on SSD, and its bytes there.
struct OnSsd {
  ChunkId chunk;
  char* bytes;
};

void Evict(EngineByteHarness* node, SessionId session, ChunkId chunk) {
  const EvictCall evict{node->Call(), session, Tier::kSsd, {chunk}};
  node->Post(evict);
  node->FinishUntilAnswered(evict.call);
  ASSERT_EQ(node->ReplyTo(evict.call).status, absl::OkStatus());
}

OnSsd Store(EngineByteHarness* node, SessionId session, float value) {
  const ChunkId chunk = node->Allocate(session, 1)[0];
  node->Fill(session, chunk, {value});
  Evict(node, session, chunk);
  return {chunk, node->LastWritten()};
}

void ExpectLost(EngineByteHarness* node, SessionId session, ChunkId chunk) {
  const absl::Status status = node->Fetch(session, chunk, Tier::kHost, Access::kRead).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  const std::string name = "chunk " + std::to_string(chunk.value()) + ":";
  EXPECT_NE(status.message().find(name), absl::string_view::npos) << status;
}

TEST(VerifyTest, ABitThatFlippedOnSsdIsNeverShown) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd stored = Store(&node, session, 7);
  for (const size_t byte : {size_t{0}, size_t{5000}, EngineByteHarness::kChunk.count() / 2,
                            EngineByteHarness::kChunk.count() - 1}) {
    for (int bit = 0; bit < 8; ++bit) {
      stored.bytes[byte] ^= static_cast<char>(1 << bit);
      ExpectLost(&node, session, stored.chunk);
      stored.bytes[byte] ^= static_cast<char>(1 << bit);
    }
  }
  EXPECT_EQ(node.bad_copies().size(), 32u) << "each is in the log";
  EXPECT_EQ(node.Read(session, stored.chunk, 1)[0], 7) << "the right bytes are read again";
}

TEST(VerifyTest, OneReadThatWentWrongIsRepeated) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd stored = Store(&node, session, 7);
  stored.bytes[0] ^= 1;
  FetchCall fetch{node.Call(), session, Tier::kHost, Access::kRead, {stored.chunk}};
  node.Post(fetch);
  node.FinishOne();
  EXPECT_FALSE(node.Answered(fetch.call));
  stored.bytes[0] ^= 1;
  node.FinishUntilAnswered(fetch.call);
  EXPECT_EQ(node.ReplyTo(fetch.call).status, absl::OkStatus());
  EXPECT_TRUE(node.bad_copies().empty());
}

TEST(VerifyTest, AWriteThatTheDriveForgotShows) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd stored = Store(&node, session, 7);
  const std::string old(stored.bytes, EngineByteHarness::kChunk.count());
  node.Fill(session, stored.chunk, {8});
  Evict(&node, session, stored.chunk);
  std::memcpy(stored.bytes, old.data(), old.size());
  ExpectLost(&node, session, stored.chunk);
}

TEST(VerifyTest, AContentInThePlaceOfAnotherShows) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd a = Store(&node, session, 1), b = Store(&node, session, 2);
  std::memcpy(b.bytes, a.bytes, EngineByteHarness::kChunk.count());
  ExpectLost(&node, session, b.chunk);
  EXPECT_EQ(node.Read(session, a.chunk, 1)[0], 1);
}

TEST(VerifyTest, TheNextDaemonKnowsTheSums) {
  EngineByteHarness node(Verified());
  SessionId session = node.Open("job", kAnHour);
  const OnSsd a = Store(&node, session, 1), b = Store(&node, session, 2);
  EXPECT_TRUE(node.DaemonDies(0).empty());
  session = node.Open("job", kAnHour);
  b.bytes[100] ^= 4;
  EXPECT_EQ(node.Read(session, a.chunk, 1)[0], 1);
  ExpectLost(&node, session, b.chunk);
}

TEST(VerifyTest, RecordsWithAnotherNumberOfSumsAreRefused) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd stored = Store(&node, session, 7);
  const uint32_t place = static_cast<uint32_t>(stored.chunk.value());
  ASSERT_EQ(node.chunk_records().at(place).ssd->sums.size(), 2u);
  node.chunk_records().at(place).ssd->sums.pop_back();
  const std::vector<JobLost> lost = node.DaemonDies(0);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].why.code(), absl::StatusCode::kDataLoss);
}

// The sums of each content go to the other chunk with it.
TEST(VerifyTest, StepsAreCommittedWithTheirSums) {
  const std::vector<State> expected = Expected(SmallHost());
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  StepTraining training(&node, session);
  for (uint64_t step = 1; step <= kSteps; ++step) {
    training.Step(step);
    EXPECT_EQ(training.Read(), expected[step]);
  }
  const ChunkId parameter = training.chunks()[1];
  Evict(&node, session, parameter);
  node.StoredBytes(parameter)[EngineByteHarness::kChunk.count() - 1] ^= 1;
  ExpectLost(&node, session, parameter);
}

TEST(VerifyTest, AStepThatReadsWrongBytesFails) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  StepTraining training(&node, session);
  training.Step(1);
  Evict(&node, session, training.chunks()[2]);
  node.StoredBytes(training.chunks()[2])[0] ^= 1;
  training.FillGradient(2);
  const CallId step = training.StartStep();
  node.FinishUntilAnswered(step);
  EXPECT_EQ(node.ReplyTo(step).status.code(), absl::StatusCode::kDataLoss);
}

TEST(VerifyTest, TheScrubberReplacesABadCopyByAnotherOne) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd stored = Store(&node, session, 7);
  EXPECT_EQ(node.Read(session, stored.chunk, 1)[0], 7);
  ASSERT_TRUE(node.Describe(session, stored.chunk).on_host);
  stored.bytes[3] ^= 1;
  for (int i = 0; i < 40; ++i) node.Advance();
  ASSERT_EQ(node.bad_copies().size(), 1u);
  EXPECT_EQ(node.bad_copies()[0].chunk, stored.chunk);
  EXPECT_TRUE(node.bad_copies()[0].has_other_copy);
  EXPECT_EQ(stored.bytes[3], '\x40') << "7.0 ends with this byte";
  Evict(&node, session, stored.chunk);
  EXPECT_EQ(node.Read(session, stored.chunk, 1)[0], 7);
}

TEST(VerifyTest, TheScrubberSaysThatTheOnlyCopyIsBad) {
  EngineByteHarness node(Verified());
  const SessionId session = node.Open("job", kAnHour);
  const OnSsd good = Store(&node, session, 6), bad = Store(&node, session, 7);
  bad.bytes[EngineByteHarness::kChunk.count() - 1] ^= 1;
  for (int i = 0; i < 40; ++i) node.Advance();
  ASSERT_FALSE(node.bad_copies().empty());
  for (const BadCopyFound& found : node.bad_copies()) {
    EXPECT_EQ(found.chunk, bad.chunk);
    EXPECT_FALSE(found.has_other_copy);
  }
  ExpectLost(&node, session, bad.chunk);
  EXPECT_EQ(node.Read(session, good.chunk, 1)[0], 6);
}

// They are gone with their session, or with the daemon; to verify all is a choice.
TEST(VerifyTest, ContentsThatAreNotKeptHaveSumsOnlyWhereAllHave) {
  for (const Verify verify : {Verify::kOff, Verify::kKept, Verify::kAll}) {
    EngineByteHarness node(Verified(verify));
    const SessionId session = node.Open("", Duration(0));
    const OnSsd stored = Store(&node, session, 7);
    stored.bytes[EngineByteHarness::kChunk.count() - 1] ^= 1;
    const absl::Status status =
        node.Fetch(session, stored.chunk, Tier::kHost, Access::kRead).status;
    EXPECT_EQ(absl::IsDataLoss(status), verify == Verify::kAll) << status;
  }
}

}  // namespace
}  // namespace memtide
