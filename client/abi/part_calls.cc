// Implements client/memtide.h: parts of optimizer steps that the program computes itself.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/abi/client_call.h"
#include "client/abi/structs.h"
#include "client/memtide.h"
#include "proto/digest_bytes.h"

namespace {

using memtide::Digest;
using memtide::kDigestBytes;
using memtide::client::CheckArray;
using memtide::client::CopyCommonFields;
using memtide::client::LeaseClient;
using memtide::client::NullArgument;
using memtide::client::OwnPart;
using memtide::client::PartContents;
using memtide::client::PartDifference;
using memtide::client::PartState;
using memtide::client::PlaceId;
using memtide::client::ReadCommonFields;
using memtide::client::StartedPart;
using memtide::client::WithLeases;

static_assert(sizeof(memtide_part_contents::work_digest) == kDigestBytes);
// In memtide.h, 0 stands for no state, so its states are one more than PartState's.
static_assert(static_cast<int>(PartState::kNeedsDigests) + 1 == MEMTIDE_NEEDS_DIGESTS);

absl::StatusOr<OwnPart> ReadPart(const uint32_t* places, size_t count, size_t reads) {
  if (places == nullptr) return NullArgument("places");
  if (reads > count) {
    return absl::InvalidArgumentError(absl::StrCat("reads: ", reads, " of ", count, " places"));
  }
  OwnPart part;
  part.places.assign(reinterpret_cast<const PlaceId*>(places),
                     reinterpret_cast<const PlaceId*>(places) + count);
  part.reads = static_cast<uint32_t>(reads);
  return part;
}

Digest ReadDigest(const uint8_t* bytes) {
  return memtide::FromProto({reinterpret_cast<const char*>(bytes), kDigestBytes});
}

absl::StatusOr<PartContents> ReadContents(const memtide_part_contents* given, uint32_t reads) {
  MEMTIDE_ASSIGN_OR_RETURN(const memtide_part_contents known, ReadCommonFields("contents", given));
  PartContents contents;
  contents.work = ReadDigest(known.work_digest);
  if (!contents.work.is_set()) {
    return absl::InvalidArgumentError(
        "contents.work_digest is not set; a part that no other rank wants is memtide_start_part's");
  }
  if (known.read_digests == nullptr) return contents;
  for (uint32_t i = 0; i < reads; ++i) {
    contents.reads.push_back(ReadDigest(known.read_digests + i * kDigestBytes));
  }
  return contents;
}

void WriteAddresses(const std::vector<char*>& from, uint64_t* to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] = reinterpret_cast<uint64_t>(from[i]);
}

// REQUIRES: the arrays of `out` hold what the part may have.
void WriteStarted(const OwnPart& part, const StartedPart& started, memtide_shared_part* out) {
  out->state = static_cast<uint32_t>(started.outcome.state) + 1;
  // Only a part that has begun has a number: there is no other to end.
  out->part = started.outcome.state == PartState::kComputing ? part.id : 0;
  WriteAddresses(started.addresses, out->addresses);
  const std::vector<uint32_t>& unknown = started.outcome.unknown_reads;
  out->unknown_count = static_cast<uint32_t>(unknown.size());
  std::copy(unknown.begin(), unknown.end(), out->unknown_reads);
  out->has_difference = started.outcome.difference.has_value() ? 1 : 0;
  const PartDifference difference = started.outcome.difference.value_or(PartDifference());
  out->different_rank = difference.rank;
  out->different_work = difference.work ? 1 : 0;
  out->different_count = static_cast<uint32_t>(difference.reads.size());
  std::copy(difference.reads.begin(), difference.reads.end(), out->different_reads);
}

}  // namespace

extern "C" {

int memtide_start_part(memtide_client* client, const uint32_t* places, size_t count, size_t reads,
                       uint64_t* part, uint64_t* addresses) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (part == nullptr) return NullArgument("part");
    if (addresses == nullptr) return NullArgument("addresses");
    MEMTIDE_ASSIGN_OR_RETURN(OwnPart own, ReadPart(places, count, reads));
    MEMTIDE_ASSIGN_OR_RETURN(const StartedPart started, leases.StartPart(&own));
    *part = own.id;
    WriteAddresses(started.addresses, addresses);
    return absl::OkStatus();
  });
}

int memtide_start_shared_part(memtide_client* client, const uint32_t* places, size_t count,
                              size_t reads, const memtide_part_contents* contents,
                              memtide_shared_part* part) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (contents == nullptr) return NullArgument("contents");
    if (part == nullptr) return NullArgument("part");
    MEMTIDE_ASSIGN_OR_RETURN(memtide_shared_part out, ReadCommonFields("part", part));
    if (out.addresses == nullptr) return NullArgument("part.addresses");
    MEMTIDE_RETURN_IF_ERROR(CheckArray(out.unknown_reads, reads, "part.unknown_reads"));
    MEMTIDE_RETURN_IF_ERROR(CheckArray(out.different_reads, reads, "part.different_reads"));
    MEMTIDE_ASSIGN_OR_RETURN(OwnPart own, ReadPart(places, count, reads));
    MEMTIDE_ASSIGN_OR_RETURN(own.contents, ReadContents(contents, own.reads));
    MEMTIDE_ASSIGN_OR_RETURN(const StartedPart started, leases.StartPart(&own));
    WriteStarted(own, started, &out);
    CopyCommonFields(out, part);
    return absl::OkStatus();
  });
}

int memtide_end_part(memtide_client* client, uint64_t part, int computed,
                     uint64_t non_finite_gradients) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    return leases.EndPart(part, {computed != 0, non_finite_gradients});
  });
}

}  // extern "C"
