#include "daemon/effect_log.h"

#include <spdlog/spdlog.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

std::string NameOf(JobId id, const std::string& name) {
  return name.empty() ? absl::StrCat("job ", id.value()) : Named(name);
}

}  // namespace

std::string Named(const std::string& job) {
  return absl::StrCat("job \"", absl::CEscape(job), "\"");
}

void Log(const JobLost& lost) {
  if (lost.is_saved) {
    spdlog::error("durable {} is not restored at its step {}, and its files stay: {}",
                  Named(lost.job_name), lost.committed_step, std::string(lost.why.message()));
    return;
  }
  if (lost.goes_on_at.has_value()) {
    spdlog::warn("durable {} goes on from its step {}, as its step {} could not be restored: {}",
                 Named(lost.job_name), *lost.goes_on_at, lost.committed_step,
                 std::string(lost.why.message()));
    return;
  }
  spdlog::warn("{} is lost, with its step {}: {}", Named(lost.job_name), lost.committed_step,
               std::string(lost.why.message()));
}

void Log(const MachineShort& shortage) {
  if (shortage.begins) {
    spdlog::warn(
        "{} are available (of the machine, or of memory_limit_bytes), less than the {} kept for "
        "programs (host_reserve_bytes) or than they are about to need: jobs lend what they can "
        "spare of the host pool",
        FormatBytes(shortage.available), FormatBytes(shortage.reserve));
    return;
  }
  spdlog::info("{} are available: the host pool is whole again", FormatBytes(shortage.available));
}

void Log(const LentUnderProcess& lent) {
  spdlog::warn(
      "session {} ended, and its process is not known to have: {} slots of the GPU that it had "
      "leased are lent again, although its kernels may still run. If the process hangs, end it",
      lent.session.value(), lent.slots);
}

void Log(const RegionsStayExposed& exposed) {
  spdlog::warn(
      "{} keeps its host memory, to which a process that was not renewed, or that served the last "
      "daemon, may still write: {}. If such a process hangs, end it before you resume the job",
      NameOf(exposed.job, exposed.job_name), std::string(exposed.why.message()));
}

void Log(const BadCopyFound& found) {
  spdlog::error("chunk {} of {}: {}; read twice. {}", found.chunk.value(),
                NameOf(found.job, found.job_name), std::string(found.what.message()),
                found.has_other_copy
                    ? "Another copy is valid, and is written to the SSD again"
                    : "No other copy is valid: what the chunk holds is lost. Check the drive");
}

void Log(const TransfersFail& failures) {
  spdlog::error("{}: {} failed, the last one of {}. Check the drive or the device",
                NameOf(failures.job, failures.job_name),
                failures.count == 1 ? "a transfer" : absl::StrCat(failures.count, " transfers"),
                std::string(failures.last.message()));
}

void Log(const WritesWait& wait, const std::vector<std::string>& ssd_dirs) {
  const DailyBudget& budget = wait.budget;
  const bool is_of_quota = !budget.quota.empty();
  const std::string whose = budget.drive  ? ssd_dirs[*budget.drive]
                            : is_of_quota ? budget.quota
                                          : "the user";
  const std::string set_by =
      is_of_quota ? "memtide admin quota set " + budget.quota + " ssd-written-per-day=..."
                  : std::string(budget.drive ? "--ssd" : "--user-ssd") + "-written-per-day";
  spdlog::warn(
      "evictions of uid {} to SSD wait: the daily budget of {} of {} is used up, and placement is "
      "as slow as it permits ({})",
      wait.uid, whose, FormatBytes(budget.per_day), set_by);
}

void Log(const Misprediction& misprediction) {
  const std::string job = NameOf(misprediction.job, misprediction.job_name);
  if (misprediction.expected == 0) {
    spdlog::info("{}: recorded iteration {}: {} chunk uses", job, misprediction.iteration,
                 misprediction.uses);
    return;
  }
  spdlog::info(
      "{}: iteration {} was mispredicted (misprediction {} of this job): {} of its {} chunk uses "
      "came "
      "in the order of the {} predicted; {}",
      job, misprediction.iteration, misprediction.mispredictions, misprediction.as_expected,
      misprediction.uses, misprediction.expected,
      misprediction.remembered ? "its new order is recorded" : "its order is not recorded");
}

}  // namespace memtide
