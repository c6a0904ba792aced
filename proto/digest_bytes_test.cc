#include "proto/digest_bytes.h"

#include <gtest/gtest.h>

namespace memtide {
namespace {

TEST(DigestBytesTest, TheHighestByteIsFirst) {
  const std::string bytes("\x80\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff", 16);
  const Digest digest = FromProto(bytes);
  EXPECT_EQ(digest.high, 0x8001020304050607u);
  EXPECT_EQ(digest.low, 0x08090a0b0c0d0effu);
  EXPECT_EQ(ToProto(digest), bytes);
}

TEST(DigestBytesTest, NoDigestHasNoBytes) {
  EXPECT_EQ(ToProto(Digest()), "");
  EXPECT_FALSE(FromProto("").is_set());
  EXPECT_FALSE(FromProto(std::string(kDigestBytes, '\0')).is_set());
  EXPECT_EQ(ToProto({0, 1}).size(), kDigestBytes) << "a half may be zero";
}

}  // namespace
}  // namespace memtide
