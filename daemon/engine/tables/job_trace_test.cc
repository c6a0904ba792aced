#include "daemon/engine/tables/job_trace.h"

#include <string>

#include "gtest/gtest.h"
#include "proto/protocol.h"

namespace memtide {
namespace {

std::string NameInTrace(const std::string& name) {
  JobTrace trace;
  MomentReport moment;
  moment.name = name;
  trace.Begin(Instant(), moment);
  TraceReply reply;
  trace.AddTo(&reply);
  return reply.moments.at(0).name;
}

TEST(JobTraceTest, ANameIsCutBetweenCharacters) {
  const std::string most(kMaxMomentNameBytes, 'a');
  EXPECT_EQ(NameInTrace(most), most);
  EXPECT_EQ(NameInTrace(most + "a"), most);
  // Characters of two, three and four bytes, at each place where a cut may meet them.
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001f30a"}) {
    for (size_t before = 1; before <= character.size(); ++before) {
      const std::string start(kMaxMomentNameBytes - before, 'a');
      const bool fits = before == character.size();
      EXPECT_EQ(NameInTrace(start + character + "b"), fits ? start + character : start)
          << character << " after " << start.size();
    }
  }
}

TEST(JobTraceTest, TheOldestMovesAndStallsAreForgotten) {
  JobTrace trace;
  trace.Begin(Instant(), MomentReport());
  for (uint32_t i = 0; i <= JobTrace::kMaxMoves; ++i) {
    TracedMove move;
    move.chunk = i;
    trace.Moved(move);
  }
  for (uint32_t i = 0; i <= JobTrace::kMaxStalls; ++i) {
    TracedStall stall;
    stall.chunks = i;
    trace.Stalled(stall);
  }
  TraceReply reply;
  trace.AddTo(&reply);
  ASSERT_EQ(reply.moves.size(), JobTrace::kMaxMoves + 0);
  EXPECT_EQ(reply.moves.front().chunk, 1u);
  ASSERT_EQ(reply.stalls.size(), JobTrace::kMaxStalls + 0);
  EXPECT_EQ(reply.stalls.front().chunks, 1u);
}

}  // namespace
}  // namespace memtide
