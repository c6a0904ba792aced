// Conversions of optimizer steps, their parts and commits.
#include <gtest/gtest.h>

#include "daemon/service/convert.h"

namespace memtide {
namespace {

template <typename Request>
absl::StatusCode StepCodeOf(const Request& request) {
  return ToEvent(request, NodeDefaults()).status().code();
}

TEST(ConvertStepTest, TakesAPartOfTheSession) {
  v1::StartPartRequest request;
  EXPECT_EQ(StepCodeOf(request), absl::StatusCode::kInvalidArgument) << "it names no chunk";
  request.add_chunk_ids(3);
  request.add_chunk_ids(4);
  request.set_reads(1);
  request.set_part_id(9);
  request.mutable_deadline()->set_seconds(-1);
  EXPECT_EQ(StepCodeOf(request), absl::StatusCode::kInvalidArgument);
  request.mutable_deadline()->set_seconds(2);
  const auto event = ToEvent(request, NodeDefaults());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->chunks, (std::vector<ChunkId>{ChunkId(3), ChunkId(4)}));
  EXPECT_EQ(event->reads, 1u);
  EXPECT_EQ(event->part, 9u);
  EXPECT_EQ(event->deadline, std::chrono::seconds(2));
  EXPECT_EQ(event->work, nullptr);
  EXPECT_FALSE(event->contents.has_value());
  v1::StartPartResponse response;
  ToResponse(PartReply{{{RegionId(5), MiB(2)}, {RegionId(6), MiB(4)}}}, &response);
  ASSERT_EQ(response.places_size(), 2);
  EXPECT_EQ(response.places(1).region_id(), 6u);
  EXPECT_EQ(response.places(1).offset_bytes(), MiB(4).count());
  EXPECT_FALSE(response.made());
  EXPECT_FALSE(response.has_difference());
  v1::EndPartRequest end;
  end.set_part_id(9);
  end.set_computed(true);
  end.set_non_finite_gradients(7);
  const auto ended = ToEvent(end, NodeDefaults());
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->part, 9u);
  EXPECT_TRUE(ended->computed);
  EXPECT_EQ(ended->non_finite_gradients, 7u);
}

// A part that reads two chunks and writes one.
v1::StartPartRequest PartOfWork(const std::string& work) {
  v1::StartPartRequest request;
  for (uint64_t id = 1; id <= 3; ++id) request.add_chunk_ids(id);
  request.set_reads(2);
  request.set_part_id(9);
  request.set_work_digest(work);
  return request;
}

TEST(ConvertStepTest, TakesWhatAPartComputes) {
  v1::StartPartRequest request = PartOfWork(std::string(15, '\0') + "\x07");
  auto event = ToEvent(request, NodeDefaults());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->contents->work, (Digest{0, 7}));
  EXPECT_EQ(event->contents->reads, std::vector<Digest>(2)) << "one for each, not set";
  request.add_read_digests("");
  request.add_read_digests(std::string(16, '\1'));
  event = ToEvent(request, NodeDefaults());
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_FALSE(event->contents->reads[0].is_set());
  EXPECT_EQ(event->contents->reads[1], (Digest{0x0101010101010101u, 0x0101010101010101u}));
  EXPECT_FALSE(ToEvent(PartOfWork(std::string(16, '\0')), NodeDefaults())->contents.has_value());
}

TEST(ConvertStepTest, RefusesDigestsOfOtherLengthsAndNumbers) {
  const std::string digest(16, 'd');
  const auto message = [](const v1::StartPartRequest& request) {
    const absl::Status status = ToEvent(request, NodeDefaults()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(PartOfWork("short")), "work_digest: a digest of 5 bytes; it has 16, or none");
  v1::StartPartRequest request = PartOfWork(digest);
  request.add_read_digests(digest);
  EXPECT_EQ(message(request), "read_digests: 1; must be none, or one for each of 2 reads");
  request.add_read_digests(digest + digest);
  EXPECT_EQ(message(request), "read_digests: a digest of 32 bytes; it has 16, or none");
  request.clear_work_digest();
  EXPECT_EQ(message(request), "work_digest: not given; read_digests need it");
  request = PartOfWork(digest);
  request.set_reads(UINT32_MAX);
  EXPECT_EQ(message(request), "reads: 4294967295 of 3 chunks");
}

TEST(ConvertStepTest, SaysWhatBecameOfAPartOfSeveralRanks) {
  PartReply reply;
  reply.made = true;
  v1::StartPartResponse made;
  ToResponse(reply, &made);
  EXPECT_TRUE(made.made());
  EXPECT_EQ(made.places_size() + made.unknown_reads_size(), 0);
  reply = PartReply();
  reply.unknown_reads = {0, 5};
  v1::StartPartResponse unknown;
  ToResponse(reply, &unknown);
  EXPECT_FALSE(unknown.made());
  ASSERT_EQ(unknown.unknown_reads_size(), 2);
  EXPECT_EQ(unknown.unknown_reads(1), 5u);
  reply = PartReply();
  reply.places.emplace_back();
  reply.difference = PartDifference{3, /*work=*/true, {1, 4}};
  v1::StartPartResponse different;
  ToResponse(reply, &different);
  EXPECT_EQ(different.places_size(), 1);
  EXPECT_EQ(different.difference().rank(), 3u);
  EXPECT_TRUE(different.difference().work());
  ASSERT_EQ(different.difference().reads_size(), 2);
  EXPECT_EQ(different.difference().reads(1), 4u);
}

TEST(ConvertStepTest, ConvertsACommit) {
  v1::CommitRequest request;
  request.set_step(2);
  request.add_chunk_ids(7);
  request.add_shadow_chunk_ids(8);
  request.set_keep_old_content(true);
  request.set_step_manifest(std::string("a\0b", 3));
  const auto event = ToEvent(request, NodeDefaults());
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->step, 2u);
  EXPECT_EQ(event->chunks[0], ChunkId(7));
  EXPECT_EQ(event->shadows[0], ChunkId(8));
  EXPECT_TRUE(event->keep_old_content);
  EXPECT_EQ(event->manifest.size(), 3u);
  OpenReply opened;
  opened.committed_step = 2;
  opened.manifest = event->manifest;
  v1::OpenResponse response;
  ToResponse(opened, &response);
  EXPECT_EQ(response.committed_step(), 2u);
  EXPECT_EQ(response.step_manifest(), event->manifest);
}

}  // namespace
}  // namespace memtide
