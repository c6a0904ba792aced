// ContentHash: the 128-bit digest by which equal bytes are found: XXH3-128 with a secret.
//
// XXH3 is xxHash's, and the algorithm is frozen: every version of the library since 0.8.0, on every
// CPU, computes the same digest of the same bytes. A ContentHash takes bytes in any number of
// pieces, and its digest is that of the bytes in a row. Where they were cut does not matter, so a
// comparison of digests needs one of the layouts, too, if these may differ. The bytes are only
// read, and only during Update(), which may fault (client/memory).
//
// Equal bytes have equal digests. Two different contents have one digest with a probability of
// about 2^-128, as long as they were made without knowledge of the secret; XXH3 is no cryptographic
// hash, and a process that knows the secret can make two contents with one digest. So a secret is
// random, and is shared only by processes that trust each other, such as the ranks of one training.
//
// Vectors: the functions of xxh_x86dispatch.h, which Debian's libxxhash has, choose AVX-512, AVX2
// or SSE2 at run time. XXH_INLINE_ALL would compile one of them into this file, for all machines.
//
// Ownership: a HashSecret owns its bytes. A ContentHash owns its state of 576 bytes and points to
// its secret, which outlives it.
//
// Thread safety: thread-compatible; threads may use one HashSecret in different hashes at once.
#ifndef MEMTIDE_BASE_CONTENT_HASH_H_
#define MEMTIDE_BASE_CONTENT_HASH_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/digest.h"

struct XXH3_state_s;  // xxHash's state of a hash.

namespace memtide {

class HashSecret {
 public:
  // As many as xxHash's own secret has, with which its quality is measured.
  static constexpr size_t kMinBytes = 192;

  // Random bytes of the kernel, kMinBytes of them. INTERNAL: it gave none.
  static absl::StatusOr<HashSecret> Random();
  // A copy of another process's secret. INVALID_ARGUMENT: fewer than kMinBytes.
  static absl::StatusOr<HashSecret> FromBytes(absl::string_view bytes);

  const std::string& bytes() const { return bytes_; }

 private:
  explicit HashSecret(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string bytes_;
};

class ContentHash {
 public:
  // Throws std::bad_alloc as `new` does, if there is no memory for the state.
  explicit ContentHash(const HashSecret* secret);

  // Appends these bytes to those that are hashed.
  void Update(absl::Span<const char> bytes);
  // The digest of all bytes so far. More may follow.
  Digest Value() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };

  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_CONTENT_HASH_H_
