#include "base/content_hash.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Compiles xxHash into this file, with the vectors of the compiler's flags: another way to the same
// digests than through the library, and xxHash's own secret, for which digests are published.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace memtide {
namespace {

using ::testing::Ne;
using ::testing::SizeIs;

// At these lengths XXH3 changes its algorithm: 16, 128 and 240 bytes are the last of theirs. With a
// secret of 192 bytes, a block has 1024, and the state buffers 256.
const size_t kShortLengths[] = {0, 1, 3, 4, 8, 9, 16, 17, 128, 129, 240, 241, 256, 257, 1024, 1025};
constexpr size_t kLong = 1 << 20;

std::string Noise(size_t size, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

HashSecret Secret(uint32_t seed) {
  return HashSecret::FromBytes(Noise(HashSecret::kMinBytes, seed)).value();
}

Digest DigestOf(const HashSecret& secret, absl::string_view bytes) {
  ContentHash hash(&secret);
  hash.Update(bytes);
  return hash.Value();
}

std::vector<size_t> AllLengths() {
  std::vector<size_t> lengths(std::begin(kShortLengths), std::end(kShortLengths));
  lengths.push_back(kLong);
  return lengths;
}

TEST(ContentHashTest, ADigestIsXxh3sOfTheBytesAndTheSecret) {
  const HashSecret secret = Secret(7);
  for (const size_t length : AllLengths()) {
    const std::string bytes = Noise(length);
    const XXH128_hash_t expected =
        XXH3_128bits_withSecret(bytes.data(), length, secret.bytes().data(), secret.bytes().size());
    EXPECT_EQ(DigestOf(secret, bytes), (Digest{expected.high64, expected.low64})) << length;
  }
}

TEST(ContentHashTest, WithXxhashsOwnSecretDigestsAreThePublishedOnes) {
  const absl::string_view own(reinterpret_cast<const char*>(XXH3_kSecret), sizeof(XXH3_kSecret));
  const HashSecret secret = HashSecret::FromBytes(own).value();
  EXPECT_EQ(DigestOf(secret, ""), (Digest{0x99aa06d3014798d8, 0x6001c324468d497f}));
}

TEST(ContentHashTest, DifferentSecretsGiveDifferentDigests) {
  for (const size_t length : AllLengths()) {
    const std::string bytes = Noise(length);
    EXPECT_NE(DigestOf(Secret(1), bytes), DigestOf(Secret(2), bytes)) << length;
    EXPECT_EQ(DigestOf(Secret(1), bytes), DigestOf(Secret(1), bytes)) << length;
  }
}

TEST(ContentHashTest, EveryByteOfALongerSecretCounts) {
  const std::string longer = Noise(300), bytes = Noise(kLong);
  const Digest digest = DigestOf(HashSecret::FromBytes(longer).value(), bytes);
  for (size_t at = 0; at < longer.size(); ++at) {
    std::string other = longer;
    other[at] ^= 1;
    EXPECT_NE(DigestOf(HashSecret::FromBytes(other).value(), bytes), digest) << at;
  }
}

TEST(ContentHashTest, AnyFlippedBitOfAFewBytesChangesTheDigest) {
  const HashSecret secret = Secret(3);
  for (const size_t length : kShortLengths) {
    std::string bytes = Noise(length);
    const Digest before = DigestOf(secret, bytes);
    for (size_t bit = 0; bit < 8 * length; ++bit) {
      bytes[bit / 8] ^= 1 << bit % 8;
      ASSERT_NE(DigestOf(secret, bytes), before) << "bit " << bit << " of " << length << " bytes";
      bytes[bit / 8] ^= 1 << bit % 8;
    }
  }
}

TEST(ContentHashTest, AnyFlippedBitOfZerosChangesTheDigest) {
  const HashSecret secret = Secret(3);
  std::string bytes(2049, '\0');
  const Digest before = DigestOf(secret, bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= 1 << bit % 8;
    ASSERT_NE(DigestOf(secret, bytes), before) << bit;
    bytes[bit / 8] ^= 1 << bit % 8;
  }
}

TEST(ContentHashTest, AFlippedBitAnywhereInAMebibyteChangesTheDigest) {
  const HashSecret secret = Secret(4);
  std::string bytes = Noise(kLong);
  const Digest before = DigestOf(secret, bytes);
  std::vector<size_t> bits = {0, 8 * kLong - 1};
  std::mt19937 random(5);
  while (bits.size() < 500) bits.push_back(random() % (8 * kLong));
  for (const size_t bit : bits) {
    bytes[bit / 8] ^= 1 << bit % 8;
    ASSERT_NE(DigestOf(secret, bytes), before) << bit;
    bytes[bit / 8] ^= 1 << bit % 8;
  }
}

TEST(ContentHashTest, ZerosOfDifferentLengthsHaveDifferentDigests) {
  const HashSecret secret = Secret(3);
  std::vector<Digest> digests;
  for (size_t length = 0; length < 2000; ++length) {
    digests.push_back(DigestOf(secret, std::string(length, '\0')));
  }
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::adjacent_find(digests.begin(), digests.end()), digests.end());
}

TEST(ContentHashTest, AFewBytesCutAnywhereHaveTheDigestOfTheWhole) {
  const HashSecret secret = Secret(5);
  for (const size_t length : kShortLengths) {
    const std::string bytes = Noise(length);
    const Digest whole = DigestOf(secret, bytes);
    for (size_t cut = 0; cut <= length; ++cut) {
      ContentHash hash(&secret);
      hash.Update(absl::MakeConstSpan(bytes).first(cut));
      hash.Update(absl::MakeConstSpan(bytes).subspan(cut));
      ASSERT_EQ(hash.Value(), whole) << length << " bytes, cut at " << cut;
    }
  }
}

TEST(ContentHashTest, AMebibyteCutAnywhereHasTheDigestOfTheWhole) {
  const HashSecret secret = Secret(6);
  const std::string bytes = Noise(kLong);
  const Digest whole = DigestOf(secret, bytes);
  std::mt19937 random(8);
  for (const size_t most : {7, 300, 5000, 400000}) {
    ContentHash hash(&secret);
    absl::Span<const char> rest = absl::MakeConstSpan(bytes);
    while (!rest.empty()) {
      const size_t size = std::min<size_t>(rest.size(), random() % (most + 1));
      hash.Update(rest.first(size));
      rest.remove_prefix(size);
    }
    EXPECT_EQ(hash.Value(), whole) << "pieces of up to " << most;
  }
}

TEST(ContentHashTest, ASpanWithoutBytesMayHaveNoAddress) {
  const HashSecret secret = Secret(9);
  ContentHash hash(&secret);
  hash.Update({});
  EXPECT_EQ(hash.Value(), DigestOf(secret, ""));
}

TEST(ContentHashTest, MoreBytesMayFollowADigest) {
  const HashSecret secret = Secret(9);
  for (const size_t length : AllLengths()) {
    const std::string bytes = Noise(length);
    ContentHash hash(&secret);
    hash.Update(bytes);
    EXPECT_EQ(hash.Value(), DigestOf(secret, bytes));
    hash.Update(bytes);
    EXPECT_EQ(hash.Value(), DigestOf(secret, bytes + bytes)) << length;
  }
}

TEST(HashSecretTest, RandomSecretsAreLongEnoughAndDiffer) {
  const auto one = HashSecret::Random(), other = HashSecret::Random();
  ASSERT_TRUE(one.ok() && other.ok()) << one.status() << other.status();
  EXPECT_THAT(one->bytes(), SizeIs(HashSecret::kMinBytes));
  EXPECT_THAT(one->bytes(), Ne(other->bytes()));
  // None of the parts is left out.
  const std::string zeros(8, '\0');
  for (size_t at = 0; at < HashSecret::kMinBytes; at += 8) {
    EXPECT_NE(one->bytes().substr(at, 8), zeros) << at;
  }
}

TEST(HashSecretTest, AShorterOneIsRefused) {
  EXPECT_TRUE(HashSecret::FromBytes(Noise(HashSecret::kMinBytes)).ok());
  const auto shorter = HashSecret::FromBytes(Noise(HashSecret::kMinBytes - 1));
  EXPECT_TRUE(absl::IsInvalidArgument(shorter.status()));
  EXPECT_EQ(shorter.status().message(), "a secret of 191 bytes; it has 192 or more");
}

}  // namespace
}  // namespace memtide
