#include "daemon/engine/writes/ssd_writes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace memtide {

namespace {

constexpr size_t kMostServed = 256;

Bytes SizeOf(const SsdWrite& write) {
  return std::accumulate(write.parts.begin(), write.parts.end(), Bytes());
}

}  // namespace

SsdWrites::SsdWrites(const std::vector<SsdDrive>& drives, Bytes user_per_day)
    : user_per_day_(user_per_day) {
  // After a restart no 24 hours may have more than a budget, and some writes may not be known.
  const auto start_of = [](bool was_used) {
    return was_used ? TokenBucket::Start::kEmpty : TokenBucket::Start::kFull;
  };
  for (const SsdDrive& drive : drives) {
    drives_.push_back({TokenBucket(drive.per_day, start_of(drive.was_used)), drive.written});
    were_used_ = were_used_ || drive.was_used;
  }
  if (drives_.empty()) drives_.push_back({TokenBucket(Bytes()), Bytes()});
  for (size_t i = 0; i < drives.size(); ++i) {
    for (const PastWrites& past : drives[i].last_day) {
      const auto found = users_.emplace(past.uid, User{TokenBucket(user_per_day, start_of(true)),
                                                       std::vector<DayWindow>(drives_.size()),
                                                       {}});
      found.first->second.windows[i].Add(past.at, past.bytes);
    }
  }
}

Bytes SsdWrites::BudgetOf(uint32_t uid) const {
  const auto found = budgets_.find(uid);
  return found == budgets_.end() ? user_per_day_ : found->second;
}

void SsdWrites::SetUserBudget(uint32_t uid, Bytes per_day) {
  budgets_[uid] = per_day;
  const auto found = users_.find(uid);
  if (found == users_.end()) return;
  found->second.bucket = TokenBucket(per_day, TokenBucket::Start::kEmpty);
}

SsdWrites::User& SsdWrites::UserOf(Instant now, uint32_t uid) {
  if (!started_.has_value()) started_ = now;
  const auto found = users_.find(uid);
  if (found != users_.end()) return found->second;
  // The last daemon may have ended before it noted what the user wrote.
  const bool may_have_written = were_used_ && now - *started_ < kDay;
  const auto start = may_have_written ? TokenBucket::Start::kEmpty : TokenBucket::Start::kFull;
  return users_
      .emplace(uid,
               User{TokenBucket(BudgetOf(uid), start), std::vector<DayWindow>(drives_.size()), {}})
      .first->second;
}

absl::optional<uint32_t> SsdWrites::LackingDrive(Instant now, const SsdWrite& write) {
  absl::optional<uint32_t> lacking;
  // All are asked, so that each knows of the size.
  for (uint32_t i = 0; i < drives_.size(); ++i) {
    if (!drives_[i].bucket.Has(now, write.parts[i]) && !lacking.has_value()) lacking = i;
  }
  return lacking;
}

bool SsdWrites::HasTokens(Instant now, User& user, const SsdWrite& write, Bytes size) {
  return user.bucket.Has(now, size) && !LackingDrive(now, write).has_value();
}

void SsdWrites::TakeTokens(User& user, const SsdWrite& write, Bytes size) {
  user.bucket.Take(size);
  for (size_t i = 0; i < drives_.size(); ++i) drives_[i].bucket.Take(write.parts[i]);
}

void SsdWrites::CountWrite(Instant now, User& user, const SsdWrite& write) {
  for (size_t i = 0; i < drives_.size(); ++i) {
    if (write.parts[i].IsZero()) continue;
    user.windows[i].Add(now, write.parts[i]);
    drives_[i].written += write.parts[i];
  }
}

bool SsdWrites::MayBegin(Instant now, const SsdWrite& write) {
  const auto listed = listed_.find(write.chunk);
  if (listed != listed_.end()) return listed->second.is_granted;
  User& user = UserOf(now, write.uid);
  return user.queue.empty() && !awaited_drive_.has_value() &&
         HasTokens(now, user, write, SizeOf(write));
}

bool SsdWrites::Begin(Instant now, const SsdWrite& write) {
  MEMTIDE_CHECK(write.parts.size() == drives_.size());
  User& user = UserOf(now, write.uid);
  const bool begins = MayBegin(now, write);
  const auto listed = listed_.find(write.chunk);
  if (listed != listed_.end()) {
    if (!begins) return false;
    MEMTIDE_CHECK(listed->second.write.parts == write.parts) << "granted for another place";
    listed_.erase(listed);
    if (--waiting_of_[write.job] == 0) waiting_of_.erase(write.job);
  } else if (begins) {
    TakeTokens(user, write, SizeOf(write));
  } else {
    if (user.bucket.Has(now, SizeOf(write)) && !awaited_drive_.has_value()) {
      awaited_drive_ = LackingDrive(now, write);
    }
    Enqueue(user, write, SizeOf(write));
    return false;
  }
  CountWrite(now, user, write);
  return true;
}

void SsdWrites::Enqueue(User& user, const SsdWrite& write, Bytes size) {
  if (user.queue.empty()) {
    absl::optional<uint64_t> least;
    for (const auto& [uid, other] : users_) {
      if (!other.queue.empty()) least = std::min(least.value_or(other.served), other.served);
    }
    // A user that did not wait so far has saved up no turns.
    user.served = std::max(user.served, least.value_or(0));
  }
  user.queue.push_back(write.chunk);
  listed_.emplace(write.chunk, Listed{write, size});
  ++waiting_of_[write.job];
}

void SsdWrites::Withdraw(ChunkIndex chunk) {
  const auto found = listed_.find(chunk);
  if (found == listed_.end()) return;
  const Listed& listed = found->second;
  User& user = users_.at(listed.write.uid);
  if (listed.is_granted) {
    user.bucket.Return(listed.size);
    for (size_t i = 0; i < drives_.size(); ++i) drives_[i].bucket.Return(listed.write.parts[i]);
    user.served -= std::min(user.served, listed.size.count());
  } else {
    user.queue.erase(std::find(user.queue.begin(), user.queue.end(), chunk));
  }
  if (--waiting_of_[listed.write.job] == 0) waiting_of_.erase(listed.write.job);
  listed_.erase(found);
}

std::map<uint32_t, SsdWrites::User>::iterator SsdWrites::Next(Instant now) {
  auto next = users_.end();
  for (auto user = users_.begin(); user != users_.end(); ++user) {
    if (user->second.queue.empty()) continue;
    if (next != users_.end() && next->second.served <= user->second.served) continue;
    const Listed& head = listed_.at(user->second.queue.front());
    if (user->second.bucket.Has(now, head.size)) next = user;
  }
  return next;
}

std::vector<ChunkIndex> SsdWrites::Serve(Instant now) {
  ForgetIdle(now);
  std::vector<ChunkIndex> served;
  awaited_drive_.reset();
  while (served.size() < kMostServed) {
    const auto next = Next(now);
    if (next == users_.end()) break;
    User& user = next->second;
    Listed& head = listed_.at(user.queue.front());
    awaited_drive_ = LackingDrive(now, head.write);
    if (awaited_drive_.has_value()) break;
    TakeTokens(user, head.write, head.size);
    user.served += head.size.count();
    head.is_granted = true;
    served.push_back(head.write.chunk);
    user.queue.pop_front();
  }
  return served;
}

void SsdWrites::ForgetIdle(Instant now) {
  if (now - forgot_at_ < DayWindow::kSlot) return;
  forgot_at_ = now;
  for (auto user = users_.begin(); user != users_.end();) {
    Bytes last_day;
    for (DayWindow& window : user->second.windows) last_day += window.Sum(now);
    const auto is_of_user = [&](const auto& entry) {
      return entry.second.write.uid == user->first;
    };
    const bool idle = last_day.IsZero() && std::none_of(listed_.begin(), listed_.end(), is_of_user);
    user = idle ? users_.erase(user) : std::next(user);
  }
}

uint32_t SsdWrites::WaitingOf(JobId job) const {
  const auto found = waiting_of_.find(job);
  return found == waiting_of_.end() ? 0 : found->second;
}

std::vector<DriveWrites> SsdWrites::DriveUse(Instant now) {
  std::vector<DriveWrites> use;
  for (uint32_t i = 0; i < drives_.size(); ++i) {
    DriveWrites drive;
    drive.per_day = drives_[i].bucket.per_day();
    drive.written = drives_[i].written;
    drive.is_awaited = awaited_drive_ == i;
    for (auto& [uid, user] : users_) drive.last_day += user.windows[i].Sum(now);
    use.push_back(drive);
  }
  return use;
}

std::vector<UserWrites> SsdWrites::UserUse(Instant now) {
  std::vector<UserWrites> use;
  for (auto& [uid, user] : users_) {
    UserWrites writes;
    writes.uid = uid;
    writes.per_day = user.bucket.per_day();
    for (DayWindow& window : user.windows) writes.last_day += window.Sum(now);
    writes.waiting_chunks = static_cast<uint32_t>(user.queue.size());
    writes.is_awaited =
        !user.queue.empty() && !user.bucket.Has(now, listed_.at(user.queue.front()).size);
    use.push_back(writes);
  }
  return use;
}

std::vector<std::vector<PastWrites>> SsdWrites::Past(Instant now) {
  std::vector<std::vector<PastWrites>> past(drives_.size());
  for (auto& [uid, user] : users_) {
    for (size_t i = 0; i < drives_.size(); ++i) {
      if (user.windows[i].Sum(now).IsZero()) continue;
      for (const auto& [at, bytes] : user.windows[i].Slots()) past[i].push_back({at, uid, bytes});
    }
  }
  return past;
}

void SsdWrites::CheckInvariants() const {
  size_t queued = 0;
  for (const auto& [uid, user] : users_) {
    queued += user.queue.size();
    for (const ChunkIndex chunk : user.queue) {
      const Listed& listed = listed_.at(chunk);
      MEMTIDE_CHECK(!listed.is_granted && listed.write.uid == uid) << chunk;
    }
  }
  size_t granted = 0;
  std::map<JobId, uint32_t> of_jobs;
  for (const auto& [chunk, listed] : listed_) {
    granted += listed.is_granted;
    ++of_jobs[listed.write.job];
  }
  MEMTIDE_CHECK(queued + granted == listed_.size() && of_jobs == waiting_of_);
}

}  // namespace memtide
