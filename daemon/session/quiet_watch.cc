#include "daemon/session/quiet_watch.h"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace memtide {

void QuietWatch::Add(Ended ended, Instant now) {
  const uint32_t uid = ended.uid;
  watched_.push_back({std::move(ended), now + kQuietWithin});
  const auto is_users = [uid, now](const Watched& watched) {
    return watched.ended.uid == uid && watched.quiet_at > now;
  };
  if (std::count_if(watched_.begin(), watched_.end(), is_users) <= max_per_uid_) return;
  std::find_if(watched_.begin(), watched_.end(), is_users)->quiet_at = now;
}

void QuietWatch::NoteExits(Instant now) {
  std::vector<pollfd> processes;
  processes.reserve(watched_.size());
  for (const Watched& watched : watched_) {
    // poll ignores a descriptor of -1.
    processes.push_back({watched.gone ? -1 : watched.ended.process.get(), POLLIN, 0});
  }
  if (poll(processes.data(), processes.size(), 0) <= 0) return;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].revents == 0) continue;
    watched_[i].gone = true;
    watched_[i].quiet_at = std::min(watched_[i].quiet_at, now + kAfterExit);
  }
}

std::vector<ClientQuiet> QuietWatch::Take(Instant now) {
  if (watched_.empty()) return {};
  NoteExits(now);
  std::vector<ClientQuiet> quiet;
  for (auto watched = watched_.begin(); watched != watched_.end();) {
    if (watched->quiet_at > now) {
      ++watched;
      continue;
    }
    quiet.push_back({watched->ended.session, /*process_lives=*/!watched->gone});
    watched = watched_.erase(watched);
  }
  return quiet;
}

absl::optional<Duration> QuietWatch::next(Instant now) const {
  absl::optional<Duration> next;
  for (const Watched& watched : watched_) {
    const bool awaited = !watched.gone && watched.ended.process.valid();
    const Duration left = std::max(Duration(0), watched.quiet_at - now);
    const Duration due = awaited ? std::min(left, kPeriod) : left;
    if (!next.has_value() || due < *next) next = due;
  }
  return next;
}

}  // namespace memtide
