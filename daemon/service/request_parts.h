// Conversions of parts that several requests share. As in convert.h, only the form is checked, and
// errors name the field, its value and the limit. Internal to this package.
#ifndef MEMTIDE_DAEMON_SERVICE_REQUEST_PARTS_H_
#define MEMTIDE_DAEMON_SERVICE_REQUEST_PARTS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/generated_enum_reflection.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/engine/interface/types.h"
#include "daemon/service/convert.h"

namespace memtide {

// "tier: 7 is not known here; known: 0 to 3".
template <typename Enum>
absl::Status CheckKnown(absl::string_view field, Enum value) {
  const google::protobuf::EnumDescriptor& type = *google::protobuf::GetEnumDescriptor<Enum>();
  if (type.FindValueByNumber(value) != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      field, ": ", static_cast<int>(value), " is not known here; known: ", type.value(0)->number(),
      " to ", type.value(type.value_count() - 1)->number()));
}

using ProtoMoments = google::protobuf::RepeatedPtrField<v1::Moment>;
// At most limits.moments_per_call, with limits.uses_per_call uses and
// limits.iteration_ends_per_call ends of iterations in all.
absl::StatusOr<std::vector<MomentReport>> ToMoments(const ProtoMoments& moments,
                                                    const Limits& limits);

using ProtoIds = google::protobuf::RepeatedField<uint64_t>;
// At most limits.chunks_per_call.
absl::StatusOr<std::vector<ChunkId>> ToChunks(absl::string_view field, const ProtoIds& ids,
                                              const Limits& limits);
// At least one.
absl::StatusOr<std::vector<ChunkId>> ToSomeChunks(const ProtoIds& ids, const Limits& limits);

absl::StatusOr<Duration> ToDuration(absl::string_view field,
                                    const google::protobuf::Duration& duration, Duration longest);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_REQUEST_PARTS_H_
