#include "daemon/engine/tables/shared_parts.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

const SessionId kMaker(1), kOther(2);

PartKey KeyOf(uint64_t work, size_t reads) {
  PartKey key{{7, work}, {}, 1};
  key.reads.resize(reads);
  return key;
}

// A part of `kMaker` that writes one chunk, and is made.
void Make(SharedParts* parts, uint32_t number, size_t reads) {
  SharedPart part;
  part.maker = kMaker;
  part.number = number;
  part.writes = {ChunkIndex(number)};
  parts->Begin(KeyOf(number, reads), std::move(part));
  EXPECT_NE(parts->End(kMaker, number, /*computed=*/true).part, nullptr);
}

TEST(SharedPartsTest, AJobKeepsTheLastPartsThatWereMadeWithSomeReadsInAll) {
  SharedParts parts;
  constexpr uint32_t kParts = 100;
  constexpr size_t kReads = 4096;  // 64 such parts are kept.
  for (uint32_t number = 1; number <= kParts; ++number) Make(&parts, number, kReads);
  for (uint32_t number = 1; number <= kParts; ++number) {
    const bool is_kept = number > kParts - 64;
    EXPECT_EQ(parts.Find(KeyOf(number, kReads)) != nullptr, is_kept) << number;
    EXPECT_EQ(parts.WriterOf(ChunkIndex(number)) != nullptr, is_kept) << number;
  }
}

TEST(SharedPartsTest, APartThatIsBeingMadeIsKeptWhateverItReads) {
  SharedParts parts;
  SharedPart part;
  part.maker = kOther;
  part.number = 1;
  part.writes = {ChunkIndex(1000)};
  parts.Begin(KeyOf(1000, size_t{1} << 18), std::move(part));
  for (uint32_t number = 1; number <= 3; ++number) Make(&parts, number, 1);
  EXPECT_NE(parts.Find(KeyOf(1000, size_t{1} << 18)), nullptr);
  EXPECT_EQ(parts.Find(KeyOf(2, 1)), nullptr);
  EXPECT_NE(parts.Find(KeyOf(3, 1)), nullptr) << "the last one";
}

}  // namespace
}  // namespace memtide
