#include "base/content_hash.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
// Its macros replace functions of xxhash.h by those that choose their vectors at run time.
#include <xxh_x86dispatch.h>
#include <xxhash.h>

#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {

absl::StatusOr<HashSecret> HashSecret::Random() {
  std::string bytes(kMinBytes, '\0');
  // The kernel gives up to 256 bytes as a whole, but a signal may end the wait for its first ones.
  ssize_t got;
  do {
    got = getrandom(&bytes[0], bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(bytes.size())) return HashSecret(std::move(bytes));
  return absl::InternalError(absl::StrCat("getrandom gave no secret of ", bytes.size(),
                                          " bytes: ", got < 0 ? strerror(errno) : "too few"));
}

absl::StatusOr<HashSecret> HashSecret::FromBytes(absl::string_view bytes) {
  if (bytes.size() >= kMinBytes) return HashSecret(std::string(bytes));
  return absl::InvalidArgumentError(
      absl::StrCat("a secret of ", bytes.size(), " bytes; it has ", kMinBytes, " or more"));
}

ContentHash::ContentHash(const HashSecret* secret) : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  const std::string& bytes = secret->bytes();
  // The state keeps the pointer.
  const XXH_errorcode error =
      XXH3_128bits_reset_withSecret(state_.get(), bytes.data(), bytes.size());
  MEMTIDE_CHECK(error == XXH_OK) << bytes.size();
}

void ContentHash::Update(absl::Span<const char> bytes) {
  // xxHash calls it an error if an empty span has no address.
  if (bytes.empty()) return;
  const XXH_errorcode error = XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  MEMTIDE_CHECK(error == XXH_OK);
}

Digest ContentHash::Value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

void ContentHash::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace memtide
