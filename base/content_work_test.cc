#include "base/content_work.h"

#include <array>
#include <string>

#include "gtest/gtest.h"

namespace memtide {
namespace {

using Chunk = std::array<char, 4096>;

class ContentWorkTest : public testing::Test {
 protected:
  ContentWorkTest() {
    for (size_t i = 0; i < chunks_.size(); ++i) chunks_[i].fill(static_cast<char>('a' + i));
    chunks_[1] = chunks_[0];
  }
  ContentResult Run(const ContentWork& work) {
    std::vector<char*> places;
    for (Chunk& chunk : chunks_) places.push_back(chunk.data());
    return memtide::Run(work, places, Bytes(sizeof(Chunk)), secret_);
  }

  std::array<Chunk, 4> chunks_;
  const HashSecret secret_ = *HashSecret::FromBytes(std::string(HashSecret::kMinBytes, 's'));
};

TEST_F(ContentWorkTest, EqualBytesHaveEqualDigestsAndOthersOthers) {
  const std::vector<Digest> digests = Run({{0, 1, 2}, {}, {}}).digests;
  ASSERT_EQ(digests.size(), 3u);
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_NE(digests[0], digests[2]);
  EXPECT_TRUE(digests[0].is_set());
}

TEST_F(ContentWorkTest, ADifferenceInTheLastByteIsFound) {
  EXPECT_EQ(Run({{}, {{0, 1}, {0, 2}}, {}}).are_equal, (std::vector<bool>{true, false}));
  chunks_[1].back() ^= 1;
  EXPECT_EQ(Run({{}, {{0, 1}}, {}}).are_equal, std::vector<bool>{false});
}

TEST_F(ContentWorkTest, ACopyHasAllBytesAndItsSourceStays) {
  const Chunk before = chunks_[2];
  Run({{}, {}, {{2, 3}}});
  EXPECT_EQ(chunks_[3], before);
  EXPECT_EQ(chunks_[2], before);
}

}  // namespace
}  // namespace memtide
