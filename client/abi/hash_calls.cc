// Implements client/memtide.h: digests.
#include <string.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/content_hash.h"
#include "base/status_macros.h"
#include "client/abi/guard.h"
#include "client/memtide.h"

using memtide::ContentHash;
using memtide::HashSecret;
using memtide::client::CheckArray;
using memtide::client::Guarded;
using memtide::client::NullArgument;

static_assert(MEMTIDE_LEAST_SECRET_BYTES == HashSecret::kMinBytes, "");

extern "C" int memtide_hash_pieces(const void* secret, size_t secret_bytes,
                                   const memtide_span* pieces, size_t count,
                                   uint8_t digest[MEMTIDE_DIGEST_BYTES]) {
  return Guarded([&]() -> absl::Status {
    if (secret == nullptr) return NullArgument("secret");
    MEMTIDE_RETURN_IF_ERROR(CheckArray(pieces, count, "pieces"));
    if (digest == nullptr) return NullArgument("digest");
    MEMTIDE_ASSIGN_OR_RETURN(
        const HashSecret known,
        HashSecret::FromBytes({static_cast<const char*>(secret), secret_bytes}));
    ContentHash hash(&known);
    for (size_t i = 0; i < count; ++i) {
      const auto [address, bytes] = pieces[i];
      // The address of a piece without bytes is not used.
      if (bytes > 0 && address == 0) return NullArgument("the address of a piece");
      if (bytes > std::numeric_limits<uint64_t>::max() - address) {
        return absl::InvalidArgumentError(
            absl::StrCat("piece ", i, " of ", bytes, " bytes ends beyond the last address"));
      }
      hash.Update({reinterpret_cast<const char*>(address), bytes});
    }
    const auto found = hash.Value().ToBytes();
    static_assert(sizeof(found) == MEMTIDE_DIGEST_BYTES, "");
    memcpy(digest, found.data(), sizeof(found));
    return absl::OkStatus();
  });
}
