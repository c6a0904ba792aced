// With MEMTIDE_LONG in the environment, the random tests take minutes (tools/test --long).
#include "base/content_sums.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace memtide {
namespace {

bool IsLong() { return std::getenv("MEMTIDE_LONG") != nullptr; }

uint64_t Next(uint64_t* state) {
  return *state = *state * 6364136223846793005 + 1442695040888963407;
}

std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>(Next(&state) >> 56);
  return bytes;
}

// Journals and SSD stores outlive the library that made their sums.
TEST(ContentSumsTest, ASumIsXxh3sForAllVersions) {
  EXPECT_EQ(SumOf(std::string()), 0x2d06800538d394c2u) << "xxHash's published value of no bytes";
  EXPECT_EQ(SumOf(std::string("a")), 0xe6c632b61e964e1fu) << "and that of one";
}

TEST(ContentSumsTest, EveryMebibyteHasASumOfItsOwn) {
  const std::string content = Pattern(kSummedPiece.count() * 2 + 4096);
  const ContentSums sums = SumsOf(content);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[1], SumOf(absl::MakeConstSpan(content).subspan(1 << 20, 1 << 20)));
  EXPECT_EQ(sums[2], SumOf(absl::MakeConstSpan(content).subspan(2 << 20)));
  EXPECT_EQ(FirstWrongPiece(content, sums), absl::nullopt);
  for (const size_t piece : {0, 1, 2}) {
    std::string other = content;
    other[piece << 20] ^= 1;
    EXPECT_EQ(FirstWrongPiece(other, sums), absl::optional<size_t>(piece));
  }
}

TEST(ContentSumsTest, AnyBitThatFlipsIsSeen) {
  for (const size_t size : {size_t{1}, size_t{16}, size_t{200}, size_t{4096}}) {
    std::string bytes = Pattern(size);
    const uint64_t sum = SumOf(bytes);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ASSERT_NE(SumOf(bytes), sum) << "bit " << bit << " of " << size << " bytes";
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
}

// In each eighth page.
TEST(ContentSumsTest, AnyBitOfAPieceThatFlipsIsSeen) {
  std::string piece = Pattern(kSummedPiece.count());
  const uint64_t sum = SumOf(piece);
  const size_t pages = piece.size() / 4096, bits_of_page = 4096 * 8;
  uint64_t flips = 0, seen = 0;
  for (size_t page = 0; page < pages; page += 8) {
    // Unless there is time: some bits, of other places in each page.
    for (size_t bit = IsLong() ? 0 : page; bit < bits_of_page; bit += IsLong() ? 1 : 997) {
      char& byte = piece[page * 4096 + bit / 8];
      byte ^= static_cast<char>(1 << bit % 8);
      ++flips;
      seen += SumOf(piece) != sum;
      byte ^= static_cast<char>(1 << bit % 8);
    }
  }
  EXPECT_EQ(seen, flips);
  EXPECT_GT(flips, IsLong() ? 1000000u : 1000u);
}

// In memory of another alignment a sum takes other paths of the library.
TEST(ContentSumsTest, NoCleanPieceIsCalledWrong) {
  const uint64_t pieces = IsLong() ? 10000000 : 100000;
  std::string memory = Pattern(4096), elsewhere(4096 + 64, '\0');
  uint64_t state = 1, wrong = 0;
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t word = Next(&state);
    memory.replace(word >> 32 & 4088, 8, reinterpret_cast<const char*>(&word), 8);
    char* const copy = &elsewhere[i % 64];
    memory.copy(copy, 4096);
    wrong += FirstWrongPiece({copy, 4096}, SumsOf(memory)).has_value();
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(ContentSumsTest, ExchangedPiecesAreSeen) {
  const std::string content = Pattern(kSummedPiece.count() * 2);
  const std::string exchanged = content.substr(1 << 20) + content.substr(0, 1 << 20);
  EXPECT_EQ(FirstWrongPiece(exchanged, SumsOf(content)), absl::optional<size_t>(0));
}

}  // namespace
}  // namespace memtide
