// Allocations that wait for slots of their home tier.
#include <vector>

#include "daemon/engine/testing/step_training.h"

namespace memtide {
namespace {

// A snapshot keeps its slots until the next is saved, also those of chunks that were freed.
TEST(AllocateTest, AnAllocationGetsTheSlotsOfASnapshotOnceTheNextIsSaved) {
  EngineOptions options = SmallHost();
  options.ssd_capacity = EngineByteHarness::kChunk * 8;
  EngineByteHarness node(options);
  const SessionId session = node.OpenDurable("job", 1);
  const std::vector<ChunkId> chunks = node.Allocate(session, 4);
  for (uint64_t step = 1; step <= 2; ++step) {
    for (const ChunkId chunk : chunks) node.Fill(session, chunk, {static_cast<float>(step)});
    const CommitCall commit{node.Call(), session, step};
    node.Post(commit);
    for (int i = 0; i < 100 && !node.SavesNow(); ++i) node.Advance();
    ASSERT_TRUE(node.SavesNow());
    if (step == 1) node.FinishUntilAnswered(commit.call);
  }
  for (const ChunkId chunk : chunks) node.Free(session, chunk);
  const AllocateCall more{node.Call(), session, 900, 1};
  node.Post(more);
  ASSERT_FALSE(node.Answered(more.call)) << "two snapshots have all slots";
  node.FinishOne();
  EXPECT_EQ(node.Finish<AllocateReply>(more.call).chunks.size(), 1u);
}

}  // namespace
}  // namespace memtide
