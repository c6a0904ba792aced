#include "daemon/service/request_parts.h"

#include "base/status_macros.h"

namespace memtide {
namespace {

absl::Status CheckCount(absl::string_view field, size_t count, uint32_t most) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", count, "; at most ", most, " a call"));
}

// A message of two bytes makes a report of about a hundred, so that reports are counted before they
// are made.
absl::Status CheckCounts(const ProtoMoments& moments, const Limits& limits) {
  MEMTIDE_RETURN_IF_ERROR(
      CheckCount("moments", static_cast<size_t>(moments.size()), limits.moments_per_call));
  size_t uses = 0, ends = 0;
  for (const v1::Moment& moment : moments) {
    uses += static_cast<size_t>(moment.uses_size());
    ends += moment.ends_iteration();
  }
  MEMTIDE_RETURN_IF_ERROR(CheckCount("moments.uses", uses, limits.uses_per_call));
  return CheckCount("moments.ends_iteration", ends, limits.iteration_ends_per_call);
}

}  // namespace

absl::StatusOr<std::vector<MomentReport>> ToMoments(const ProtoMoments& moments,
                                                    const Limits& limits) {
  MEMTIDE_RETURN_IF_ERROR(CheckCounts(moments, limits));
  std::vector<MomentReport> reports;
  reports.reserve(static_cast<size_t>(moments.size()));
  for (const v1::Moment& moment : moments) {
    MomentReport report;
    // proto3 passes unknown enum values on; a newer client may send them.
    MEMTIDE_RETURN_IF_ERROR(CheckKnown("moments.phase", moment.phase()));
    report.phase = FromProto(moment.phase());
    report.name = moment.name();
    report.own_device = Bytes(moment.own_device_bytes());
    report.own_host = Bytes(moment.own_host_bytes());
    report.uses.reserve(static_cast<size_t>(moment.uses_size()));
    for (const v1::Use& use : moment.uses()) {
      MEMTIDE_RETURN_IF_ERROR(CheckKnown("moments.uses.access", use.access()));
      report.uses.push_back({ChunkId(use.chunk_id()), FromProto(use.access())});
    }
    report.continues = moment.continues();
    report.ends_iteration = moment.ends_iteration();
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::StatusOr<std::vector<ChunkId>> ToChunks(absl::string_view field, const ProtoIds& ids,
                                              const Limits& limits) {
  // The limit is checked before the copy is made.
  if (static_cast<uint32_t>(ids.size()) > limits.chunks_per_call) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", ids.size(), " chunks; at most ",
                                                   limits.chunks_per_call,
                                                   " a call. Split the batch"));
  }
  std::vector<ChunkId> chunks;
  chunks.reserve(static_cast<size_t>(ids.size()));
  for (const uint64_t id : ids) chunks.emplace_back(id);
  return chunks;
}

absl::StatusOr<std::vector<ChunkId>> ToSomeChunks(const ProtoIds& ids, const Limits& limits) {
  if (ids.empty()) return absl::InvalidArgumentError("chunk_ids: empty");
  return ToChunks("chunk_ids", ids, limits);
}

absl::StatusOr<Duration> ToDuration(absl::string_view field,
                                    const google::protobuf::Duration& duration, Duration longest) {
  constexpr int32_t kNanosPerSecond = 1'000'000'000;
  const auto longest_s = std::chrono::floor<std::chrono::seconds>(longest);
  const bool in_range = duration.seconds() >= 0 && duration.nanos() >= 0 &&
                        duration.nanos() < kNanosPerSecond &&
                        duration.seconds() <= longest_s.count();
  // The range is checked before the sum, which could overflow a Duration.
  const Duration value = in_range ? std::chrono::seconds(duration.seconds()) +
                                        std::chrono::nanoseconds(duration.nanos())
                                  : Duration::max();
  if (value <= longest) return value;
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", duration.seconds(), " s and ",
                                                 duration.nanos(), " ns; must be 0 to ",
                                                 longest_s.count(), " s"));
}

}  // namespace memtide
