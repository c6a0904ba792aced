// Structs of client/memtide.h that begin with struct_bytes, the caller's size of the struct. The
// program may be built against an older or a newer header, so only the fields that both sides know
// are read and written.
#ifndef MEMTIDE_CLIENT_ABI_STRUCTS_H_
#define MEMTIDE_CLIENT_ABI_STRUCTS_H_

#include <string.h>

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace memtide::client {

// Returns a copy of the caller's struct, which is named `name` in memtide.h. Fields that the
// program does not know are zero. INVALID_ARGUMENT: struct_bytes is not set.
template <typename Struct>
absl::StatusOr<Struct> ReadCommonFields(const char* name, const Struct* given) {
  if (given->struct_bytes < sizeof(uint32_t)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".struct_bytes is not set"));
  }
  Struct read = {};
  memcpy(&read, given, std::min<size_t>(given->struct_bytes, sizeof(Struct)));
  return read;
}

template <typename Struct>
void CopyCommonFields(const Struct& from, Struct* to) {
  const uint32_t known = std::min<uint32_t>(to->struct_bytes, sizeof(Struct));
  // The caller's size outlives the copy, so that the struct can be passed again.
  const uint32_t theirs = to->struct_bytes;
  memcpy(to, &from, known);
  if (known >= sizeof(uint32_t)) to->struct_bytes = theirs;
}

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_ABI_STRUCTS_H_
