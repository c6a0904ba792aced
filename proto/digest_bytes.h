// A Digest as the protocol has it, in bytes, and back. Pure functions.
#ifndef MEMTIDE_PROTO_DIGEST_BYTES_H_
#define MEMTIDE_PROTO_DIGEST_BYTES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "base/digest.h"

namespace memtide {

// No bytes for a digest that is not set.
std::string ToProto(const Digest& digest);
// Not set if `bytes` are empty or zeros. REQUIRES: there are none, or kDigestBytes.
Digest FromProto(absl::string_view bytes);

}  // namespace memtide

#endif  // MEMTIDE_PROTO_DIGEST_BYTES_H_
