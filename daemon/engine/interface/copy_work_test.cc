// Copies as data: what is refused, and what they do to chunks.
#include "daemon/engine/interface/copy_work.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

using testing::HasSubstr;

constexpr uint64_t kChunkBytes = 4096;
constexpr uint32_t kReads = 4, kChunks = 7;

// From chunks 0 and 3 to chunks 4 and 5.
CopyWork SomeCopies() { return {{{{0, 0}, {4, 64}, 32}, {{3, 128}, {5, 0}, 64}}}; }

absl::Status Checked(const CopyWork& work) { return Validate(work, kReads, kChunks, kChunkBytes); }

struct Refusal {
  std::string said;
  std::function<void(CopyWork*)> spoil;
};

TEST(CopyWorkTest, IsRefusedWithWhatIsWrongAndWhatIsAllowed) {
  ASSERT_TRUE(Checked(SomeCopies()).ok()) << Checked(SomeCopies());
  const Refusal refusals[] = {
      {"from: chunk number 4 is not one of the read ones (4 of 7",
       [](CopyWork* w) { w->copies[0].from.chunk = 4; }},
      {"to: chunk number 3 is not one of the written ones",
       [](CopyWork* w) { w->copies[1].to.chunk = 3; }},
      {"to: chunk number 7 is not one", [](CopyWork* w) { w->copies[0].to.chunk = 7; }},
      {"to: 2 bytes from 4095 do not lie in a chunk of 4096",
       [](CopyWork* w) {
         w->copies = {{{0, 0}, {4, kChunkBytes - 1}, 2}};
       }},
      {"from: 32 bytes from 18446744073709551612 do not lie",
       [](CopyWork* w) { w->copies[0].from.offset = ~uint64_t{3}; }},
      {"from: 18446744073709551615 bytes from 0 do not lie",
       [](CopyWork* w) { w->copies[0].bytes = ~uint64_t{0}; }},
      {"chunk number 5: 4160 bytes or more are written to it, which holds 4096; write each byte "
       "once",
       [](CopyWork* w) {
         w->copies.push_back({{0, 0}, {5, 0}, kChunkBytes});
       }},
      {"chunk number 6: 6144 bytes or more are written",
       [](CopyWork* w) {
         w->copies.assign(8192, {{0, 0}, {6, 1024}, 2048});
       }},
  };
  for (const Refusal& refusal : refusals) {
    CopyWork work = SomeCopies();
    refusal.spoil(&work);
    const absl::Status status = Checked(work);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.said;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.said));
  }
}

TEST(CopyWorkTest, MayEndWhereItsChunksEnd) {
  const CopyWork work{{{{0, 0}, {4, 32}, kChunkBytes - 32}, {{0, kChunkBytes}, {5, 0}, 0}}};
  EXPECT_TRUE(Checked(work).ok()) << Checked(work);
}

// Memory for the chunks of one work.
struct Memory {
  Memory() : chunks(kChunks, std::vector<char>(kChunkBytes)) {
    for (uint32_t i = 0; i < kReads; ++i) {
      for (size_t n = 0; n < kChunkBytes; ++n) chunks[i][n] = static_cast<char>(i + n % 251 + 1);
    }
  }
  std::vector<char*> Addresses() {
    std::vector<char*> addresses;
    for (std::vector<char>& chunk : chunks) addresses.push_back(chunk.data());
    return addresses;
  }

  std::vector<std::vector<char>> chunks;
};

TEST(CopyWorkTest, WritesItsSpansAndNothingElseAndTheSameTwice) {
  Memory memory;
  const Memory before = memory;
  RunAll(SomeCopies(), memory.Addresses());
  const Memory once = memory;
  for (uint32_t i = 0; i < kReads; ++i) EXPECT_EQ(memory.chunks[i], before.chunks[i]) << i;
  EXPECT_EQ(memory.chunks[4][63], 0);
  EXPECT_EQ(memory.chunks[4][64], memory.chunks[0][0]);
  EXPECT_EQ(memory.chunks[4][64 + 31], memory.chunks[0][31]);
  EXPECT_EQ(memory.chunks[4][64 + 32], 0);
  EXPECT_EQ(memory.chunks[5][0], memory.chunks[3][128]);
  EXPECT_EQ(memory.chunks[5][64], 0);
  RunAll(SomeCopies(), memory.Addresses());
  EXPECT_EQ(memory.chunks, once.chunks);
}

TEST(CopyWorkTest, IsDividedAnywhereWithTheSameResult) {
  CopyWork work = SomeCopies();
  work.copies.push_back({{1, 0}, {4, 100}, 0});
  EXPECT_EQ(BytesWritten(work), 32u + 64u);
  Memory whole, divided;
  RunAll(work, whole.Addresses());
  CopyProgress progress;
  size_t calls = 1;
  while (!RunSome(work, divided.Addresses(), 10, &progress)) ++calls;
  EXPECT_EQ(calls, 10u) << "ten bytes at a time";
  EXPECT_EQ(whole.chunks, divided.chunks);
}

}  // namespace
}  // namespace memtide
