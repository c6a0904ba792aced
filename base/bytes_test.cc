#include "base/bytes.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace memtide {
namespace {

TEST(BytesTest, CheckedArithmeticRefusesToWrap) {
  EXPECT_EQ(CheckedMultiply(MiB(64), uint64_t{1} << 63), absl::nullopt);
  EXPECT_EQ(CheckedAdd(Bytes(UINT64_MAX), Bytes(1)), absl::nullopt);
  EXPECT_EQ(CheckedMultiply(MiB(64), 16), GiB(1));
}

TEST(BytesTest, UnderflowIsABrokenInvariant) {
  EXPECT_DEATH(MiB(1) - MiB(2), "is negative");
  EXPECT_DEATH(Bytes(UINT64_MAX) + Bytes(1), "overflows");
}

TEST(BytesTest, ParsesWhatPeopleWrite) {
  EXPECT_EQ(*ParseBytes("96MiB"), MiB(96));
  EXPECT_EQ(*ParseBytes(" 1.5 GiB "), MiB(1536));
  EXPECT_EQ(*ParseBytes("4096"), KiB(4));
  EXPECT_EQ(*ParseBytes("64MB"), Bytes(64000000));
  EXPECT_EQ(*ParseBytes("0"), Bytes(0));
}

TEST(BytesTest, RefusesWhatIsNotASize) {
  for (const char* text : {"", "MiB", "12 parsecs", "-1", "1.2.3MiB", "99999999999999999999",
                           "18446744073709551615GiB", "nan", "1e3"}) {
    EXPECT_EQ(ParseBytes(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(BytesTest, FormatsForPeople) {
  EXPECT_EQ(FormatBytes(MiB(96)), "96 MiB");
  EXPECT_EQ(FormatBytes(MiB(1536)), "1.5 GiB");
  EXPECT_EQ(FormatBytes(Bytes(17)), "17 B");
}

}  // namespace
}  // namespace memtide
