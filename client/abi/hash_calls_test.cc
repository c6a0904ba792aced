// memtide_hash_pieces over real page faults, without a daemon.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "client/memtide.h"
#include "client/testing/client_fixture.h"

namespace memtide::client {
namespace {

using DigestBytes = std::array<uint8_t, MEMTIDE_DIGEST_BYTES>;

std::string Noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

const std::string& Secret() {
  static const std::string secret = Noise(MEMTIDE_LEAST_SECRET_BYTES, 1);
  return secret;
}

memtide_span Piece(const char* begin, size_t size) {
  return {reinterpret_cast<uint64_t>(begin), size};
}

DigestBytes HashPieces(const std::vector<memtide_span>& pieces) {
  DigestBytes digest = {};
  EXPECT_EQ(memtide_hash_pieces(Secret().data(), Secret().size(), pieces.data(), pieces.size(),
                                digest.data()),
            MEMTIDE_OK)
      << memtide_last_error();
  return digest;
}

DigestBytes Expected(const std::string& bytes) {
  const HashSecret secret = HashSecret::FromBytes(Secret()).value();
  ContentHash hash(&secret);
  hash.Update(bytes);
  return hash.Value().ToBytes();
}

class HashCallsTest : public ClientTest {};

TEST_F(HashCallsTest, ChunksThatAreNotMappedAreLeasedByPageFaults) {
  constexpr uint32_t kChunks = 8, kBudget = 3;
  Open(4, kBudget);
  const PlaceRange range = Allocate(kChunks);
  const std::string bytes = Noise(kChunks * kChunkBytes, 2);
  char* const base = client_->address(range.first);
  memcpy(base, bytes.data(), bytes.size());
  ASSERT_TRUE(client_->leases()->Flush().ok());
  const uint64_t faults = stats().faults;
  // The second piece begins within a chunk and ends within the last but one.
  EXPECT_EQ(HashPieces({Piece(base, 100), Piece(base + 100, 6 * kChunkBytes),
                        Piece(base + 6 * kChunkBytes + 100, 2 * kChunkBytes - 100)}),
            Expected(bytes));
  // Chunks that the reclaimer was giving back when Flush() came may have been mapped still.
  EXPECT_GE(stats().faults, faults + kChunks - kBudget);
  EXPECT_LE(stats().leases_held, kBudget);
  EXPECT_EQ(stats().upgrades, 0u) << "they are only read";
}

TEST_F(HashCallsTest, AChangedByteOfAChunkChangesTheDigest) {
  Open(2, 1);
  const PlaceRange range = Allocate(2);
  const std::vector<memtide_span> both = {Piece(client_->address(range.first), 2 * kChunkBytes)};
  const DigestBytes zeros = HashPieces(both);
  EXPECT_EQ(zeros, Expected(std::string(2 * kChunkBytes, '\0')));
  client_->address(range.first)[2 * kChunkBytes - 1] = 1;
  EXPECT_NE(HashPieces(both), zeros);
}

TEST(HashPiecesTest, PiecesInAnyMemoryAreHashedInTheirOrder) {
  const std::string one = Noise(1000, 3), other = Noise(17, 4);
  const auto pieces = [](const std::string& first, const std::string& second) {
    return std::vector<memtide_span>{Piece(first.data(), first.size()), Piece(nullptr, 0),
                                     Piece(second.data(), second.size())};
  };
  EXPECT_EQ(HashPieces(pieces(one, other)), Expected(one + other));
  EXPECT_EQ(HashPieces(pieces(other, one)), Expected(other + one));
  EXPECT_EQ(HashPieces({}), Expected(""));
}

TEST(HashPiecesTest, ArgumentsThatNameNoBytesAreRefused) {
  const auto refusal = [](const void* secret, size_t secret_bytes, const memtide_span* pieces,
                          uint8_t* digest) -> std::string {
    EXPECT_EQ(memtide_hash_pieces(secret, secret_bytes, pieces, 1, digest),
              MEMTIDE_INVALID_ARGUMENT);
    return memtide_last_error();
  };
  const void* const secret = Secret().data();
  const size_t enough = Secret().size();
  const memtide_span good = Piece("x", 1), no_address = {0, 1}, too_long = {4096, ~uint64_t{0}};
  DigestBytes digest;
  EXPECT_EQ(refusal(nullptr, enough, &good, digest.data()), "secret is NULL");
  EXPECT_EQ(refusal(secret, enough, nullptr, digest.data()), "pieces is NULL");
  EXPECT_EQ(refusal(secret, enough, &good, nullptr), "digest is NULL");
  EXPECT_EQ(refusal(secret, enough - 1, &good, digest.data()),
            "a secret of 191 bytes; it has 192 or more");
  EXPECT_EQ(refusal(secret, enough, &no_address, digest.data()), "the address of a piece is NULL");
  EXPECT_EQ(refusal(secret, enough, &too_long, digest.data()),
            "piece 0 of 18446744073709551615 bytes ends beyond the last address");
}

}  // namespace
}  // namespace memtide::client
