#include "daemon/session/token_table.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

uint64_t Prefix(const char* token) {
  uint64_t prefix;
  std::memcpy(&prefix, token, sizeof(prefix));
  return prefix;
}

// Compares every byte, so that the time does not depend on where the first difference is.
bool EqualInConstantTime(const char* a, const char* b, size_t size) {
  // Without volatile, the compiler might end the loop at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < size; ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace

absl::Status FillRandom(char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t got = getrandom(bytes, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return absl::InternalError(absl::StrCat("getrandom: ", std::strerror(errno)));
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<Token> TokenTable::Mint(Identity identity) {
  for (;;) {
    Token token;
    MEMTIDE_RETURN_IF_ERROR(FillRandom(token.data(), token.size()));
    MutexLock lock(&mutex_);
    // The prefix is the key, so a token whose prefix is taken is drawn again.
    if (entries_.try_emplace(Prefix(token.data()), Entry{token, identity}).second) return token;
  }
}

void TokenTable::Revoke(const Token& token) {
  MutexLock lock(&mutex_);
  const auto it = entries_.find(Prefix(token.data()));
  if (it == entries_.end()) return;
  if (EqualInConstantTime(it->second.token.data(), token.data(), kTokenBytes)) entries_.erase(it);
}

absl::optional<Identity> TokenTable::Find(absl::string_view token) const {
  if (token.size() != kTokenBytes) return absl::nullopt;
  MutexLock lock(&mutex_);
  const auto it = entries_.find(Prefix(token.data()));
  if (it == entries_.end()) return absl::nullopt;
  // The time of the look-up may reveal the first 8 bytes; the other 24 stay secret.
  if (!EqualInConstantTime(it->second.token.data(), token.data(), kTokenBytes)) {
    return absl::nullopt;
  }
  return it->second.identity;
}

}  // namespace memtide
