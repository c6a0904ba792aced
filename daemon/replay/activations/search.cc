#include "daemon/replay/activations/search.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "daemon/replay/activations/lower_bound.h"
#include "daemon/replay/activations/ranking.h"
#include "daemon/replay/activations/timeline.h"

namespace memtide {

namespace {

// Each byte that a drive takes is a part of its life: it counts as this part of the time that it
// takes more, also where nothing waits for it.
constexpr double kWear = 1.0 / 16;

// The search takes the same time on a machine that is busy with training.
Duration ThreadTime() {
  timespec time{};
  MEMTIDE_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
}

class Searcher {
 public:
  Searcher(const ActivationModel& model, const SearchOptions& options)
      : model_(model),
        options_(options),
        began_(ThreadTime()),
        judge_(model, options.replay),
        timeline_(model, options.replay, kForeseenSlots) {
    MEMTIDE_CHECK(options.replay.compute_scale == 1);
  }

  absl::StatusOr<Found> Run() {
    found_.unlimited = ComputeTime(model_.states);
    found_.lower_bound = LowerBound(model_, options_.replay);
    found_.forced = ForcedPlans(model_);
    found_.unlimited_kept = MostKept(model_, found_.forced.front().candidate);
    if (options_.forced.has_value()) {
      MEMTIDE_RETURN_IF_ERROR(TryOnly(*options_.forced));
    } else if (options_.foreseen) {
      LookAhead();
    } else if (options_.replays_forced) {
      MEMTIDE_RETURN_IF_ERROR(TryForced());
      MEMTIDE_RETURN_IF_ERROR(TryRanked());
    } else {
      MEMTIDE_RETURN_IF_ERROR(TryEstimatedBest());
    }
    if (!found_.verdict.has_value()) found_.least_budget = LeastBudget(model_);
    found_.replays = judge_.replays();
    found_.took = ThreadTime() - began_;
    return std::move(found_);
  }

 private:
  bool IsBetter(const Verdict& verdict, const absl::optional<Verdict>& than) const {
    const LinkOptions& links = options_.replay.links;
    return !than.has_value() || CountedSeconds(verdict, links) < CountedSeconds(*than, links);
  }

  absl::StatusOr<absl::optional<Verdict>> Judged(const Candidate& candidate) {
    if (options_.foreseen) return Foreseen(model_, candidate, &timeline_);
    return judge_(candidate);
  }

  absl::StatusOr<absl::optional<Verdict>> Try(const Candidate& candidate) {
    const Duration before = ThreadTime();
    MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Verdict> verdict, Judged(candidate));
    longest_replay_ = std::max(longest_replay_, ThreadTime() - before);
    if (verdict.has_value() && IsBetter(*verdict, found_.verdict)) {
      found_.verdict = verdict;
      found_.candidate = candidate;
    }
    return verdict;
  }

  absl::Status TryOnly(Choice choice) {
    Candidate candidate = ForcedTo(model_, choice);
    MEMTIDE_RETURN_IF_ERROR(Try(candidate).status());
    if (found_.verdict.has_value() || choice == Choice::kKeep) return absl::OkStatus();
    // Tensors saved outside of blocks are moved where they do not fit.
    candidate.others = Choice::kMove;
    return Try(candidate).status();
  }

  // Ranks by Timeline alone: what it says of a candidate is the verdict.
  void LookAhead() {
    Ranking ranking(model_, options_.replay, kForeseenSlots);
    for (const Forced& forced : found_.forced) ranking.Propose(forced.candidate);
    for (uint32_t i = 0; i <= options_.most_replays; ++i) {
      const absl::optional<Candidate> next = ranking.Next();
      if (!next.has_value()) break;
      const absl::optional<Verdict> verdict = Foreseen(model_, *next, &timeline_);
      if (!verdict.has_value()) continue;
      ranking.Judged(*next, verdict->elapsed);
      if (!IsBetter(*verdict, found_.verdict)) continue;
      found_.verdict = verdict;
      found_.candidate = *next;
    }
  }

  absl::Status TryForced() {
    for (Forced& forced : found_.forced) {
      MEMTIDE_ASSIGN_OR_RETURN(forced.verdict, Try(forced.candidate));
      // Where all fits, nothing is to be done.
      if (forced.verdict.has_value() && forced.verdict->stalled == Duration(0) &&
          forced.verdict->recomputed == Duration(0)) {
        found_.forced.erase(found_.forced.begin() + (&forced - found_.forced.data()) + 1,
                            found_.forced.end());
        break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status TryEstimatedBest() {
    Ranking ranking(model_, options_.replay);
    for (const Forced& forced : found_.forced) ranking.Propose(forced.candidate);
    while (!found_.verdict.has_value()) {
      const absl::optional<Candidate> next = ranking.Next();
      if (!next.has_value()) break;
      MEMTIDE_RETURN_IF_ERROR(Try(*next).status());
    }
    return absl::OkStatus();
  }

  bool IsDone() const {
    if (found_.verdict.has_value() && found_.verdict->elapsed <= found_.lower_bound) return true;
    return judge_.replays() >= options_.most_replays + found_.forced.size() ||
           ThreadTime() - began_ + longest_replay_ > options_.most_time;
  }

  absl::Status TryRanked() {
    if (IsDone()) return absl::OkStatus();
    Ranking ranking(model_, options_.replay);
    for (const Forced& forced : found_.forced) {
      if (forced.verdict.has_value()) ranking.Judged(forced.candidate, forced.verdict->elapsed);
    }
    while (!IsDone()) {
      const absl::optional<Candidate> next = ranking.Next();
      if (!next.has_value()) break;
      MEMTIDE_ASSIGN_OR_RETURN(const absl::optional<Verdict> verdict, Try(*next));
      if (verdict.has_value()) ranking.Judged(*next, verdict->elapsed);
    }
    return absl::OkStatus();
  }

  const ActivationModel& model_;
  const SearchOptions& options_;
  const Duration began_;
  Duration longest_replay_{0};  // The search ends where another one could take too long.
  Judge judge_;
  Timeline timeline_;
  Found found_;
};

}  // namespace

double CountedSeconds(const Verdict& verdict, const LinkOptions& links) {
  const auto written = static_cast<double>(verdict.moved.disk_written.count());
  return std::chrono::duration<double>(verdict.elapsed).count() +
         kWear * written / links.disk_write.bytes_per_second;
}

absl::StatusOr<Found> Search(const ActivationModel& model, const SearchOptions& options) {
  return Searcher(model, options).Run();
}

}  // namespace memtide
