// TokenTable: maps tokens to sessions.
//
// A token is 256 random bits, minted when a process connects to the fd socket and valid until that
// connection ends. It is the only credential of a gRPC call; the uid and pid behind it come from
// the kernel. Lookup takes the same time for every token that shares its first 64 bits with a
// real one, so that the other 192 cannot be guessed byte by byte. Thread-safe. Tokens are secrets:
// never logged, never shown.
#ifndef MEMTIDE_DAEMON_SESSION_TOKEN_TABLE_H_
#define MEMTIDE_DAEMON_SESSION_TOKEN_TABLE_H_

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/ids.h"
#include "base/mutex.h"

namespace memtide {

inline constexpr size_t kTokenBytes = 32;
using Token = std::array<char, kTokenBytes>;

struct Identity {
  SessionId session;
  uint32_t uid = 0;
};

class TokenTable {
 public:
  // A fresh token for `identity`. INTERNAL when the kernel has no random bytes to give.
  absl::StatusOr<Token> Mint(Identity identity) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes the token invalid. Unknown tokens are ignored.
  void Revoke(const Token& token) ABSL_LOCKS_EXCLUDED(mutex_);
  // `token` is untrusted and may have any length.
  absl::optional<Identity> Find(absl::string_view token) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    Token token;
    Identity identity;
  };

  mutable Mutex mutex_;
  // By the first 64 bits of the token.
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// `size` random bytes from the kernel. INTERNAL when it has none to give.
absl::Status FillRandom(char* bytes, size_t size);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SESSION_TOKEN_TABLE_H_
