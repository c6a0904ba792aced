#include "daemon/engine/errors.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/protocol.h"

namespace memtide {

absl::Status CheckDeadline(const Limits& limits, Duration deadline) {
  const Duration most = limits.max_wait;
  if (deadline >= Duration(0) && deadline <= most) return absl::OkStatus();
  const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
  return absl::InvalidArgumentError(
      absl::StrCat("deadline: ", seconds(deadline), " s; between 0 and ", seconds(most), " s"));
}

absl::Status CheckMoments(const Limits& limits, const std::vector<MomentReport>& moments) {
  size_t uses = 0, ends = 0;
  for (const MomentReport& moment : moments) {
    uses += moment.uses.size();
    ends += moment.ends_iteration;
  }
  if (moments.size() <= limits.moments_per_call && uses <= limits.uses_per_call &&
      ends <= limits.iteration_ends_per_call) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(moments.size(), " moments with ", uses, " uses and ", ends,
                   " ends of iterations reported; at most ", limits.moments_per_call, ", ",
                   limits.uses_per_call, " and ", limits.iteration_ends_per_call, " a call"));
}

absl::Status TornChunkError(const ChunkTable& chunks, ChunkIndex index) {
  if (chunks[index].copies().memory_failed) {
    return absl::DataLossError(absl::StrCat(
        "the content of chunk ", chunks.IdOf(index).value(),
        " is lost: the memory of the GPU that had its only copy failed (the log of memtided names "
        "it); resume from the last commit (--resume)"));
  }
  return absl::DataLossError(
      absl::StrCat("the content of chunk ", chunks.IdOf(index).value(),
                   " is lost: its writer died, or the daemon did; write it anew"));
}

absl::Status FreedChunkError(const ChunkTable& chunks, ChunkIndex index) {
  return absl::NotFoundError(absl::StrCat("chunk ", chunks.IdOf(index).value(), " was freed"));
}

absl::Status CallAgain(const std::string& why) {
  absl::Status status = absl::UnavailableError(why);
  status.SetPayload(kCallAgain, absl::Cord());
  return status;
}

absl::Status AwaitsBudget(const std::string& what) {
  return CallAgain(absl::StrCat(what,
                                " must wait for a daily budget of writes to SSD (`memtide status` "
                                "has it); the wait goes on when the call comes again"));
}

}  // namespace memtide
