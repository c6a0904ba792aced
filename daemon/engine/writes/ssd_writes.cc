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

DailyBudget SsdWrites::BudgetOf(uint32_t uid) const {
  const auto own = by_user_.find(uid);
  const Quota* const quota = own != by_user_.end() ? &own->second : default_ ? &*default_ : nullptr;
  if (quota == nullptr || !quota->most.written_per_day) return {user_per_day_, {}, ""};
  return {*quota->most.written_per_day, {}, quota->name};
}

void SsdWrites::SetQuotas(const std::vector<Quota>& quotas) {
  MEMTIDE_CHECK(listed_.empty());
  // Writes before, under other budgets or none, count as all that the new ones permit.
  const auto start =
      started_.has_value() || were_used_ ? TokenBucket::Start::kEmpty : TokenBucket::Start::kFull;
  by_user_.clear();
  default_.reset();
  awaited_groups_.clear();
  std::map<uint32_t, Group> groups;
  for (const Quota& quota : quotas) {
    if (quota.kind == Quota::Kind::kDefault) default_ = quota;
    if (quota.kind == Quota::Kind::kUser) by_user_[quota.id] = quota;
    if (quota.kind != Quota::Kind::kGroup || !quota.most.written_per_day) continue;
    const Bytes per_day = *quota.most.written_per_day;
    const auto before = groups_.find(quota.id);
    Group group = before == groups_.end() ? Group{"", TokenBucket(per_day, start), {}}
                                          : std::move(before->second);
    group.quota = quota.name;
    if (group.bucket.per_day() != per_day) group.bucket = TokenBucket(per_day, start);
    groups.emplace(quota.id, std::move(group));
  }
  groups_ = std::move(groups);
  for (auto& [uid, user] : users_) {
    const Bytes per_day = BudgetOf(uid).per_day;
    if (user.bucket.per_day() != per_day) user.bucket = TokenBucket(per_day, start);
  }
}

std::vector<uint32_t> SsdWrites::WithBudget(const std::vector<uint32_t>& groups) const {
  std::vector<uint32_t> with;
  if (groups_.empty()) return with;
  for (const uint32_t group : groups) {
    if (groups_.count(group) > 0) with.push_back(group);
  }
  return with;
}

std::vector<ChunkIndex> SsdWrites::Waiting() const {
  std::vector<ChunkIndex> waiting;
  for (const auto& [chunk, listed] : listed_) waiting.push_back(chunk);
  return waiting;
}

DailyBudget SsdWrites::AwaitedBudget(Instant now, uint32_t uid) {
  User& user = users_.at(uid);
  const Listed& head = listed_.at(user.queue.front());
  if (!user.bucket.Has(now, head.size)) return BudgetOf(uid);
  for (const uint32_t number : head.write.groups) {
    Group& group = groups_.at(number);
    if (awaited_groups_.count(number) == 0 && group.bucket.Has(now, head.size)) continue;
    return {group.bucket.per_day(), {}, group.quota};
  }
  const uint32_t drive = awaited_drive_.value_or(0);
  return {drives_[drive].bucket.per_day(), drive, ""};
}

SsdWrites::User& SsdWrites::UserOf(Instant now, uint32_t uid) {
  if (!started_.has_value()) started_ = now;
  const auto found = users_.find(uid);
  if (found != users_.end()) return found->second;
  // The last daemon may have ended before it noted what the user wrote.
  const bool may_have_written = were_used_ && now - *started_ < kDay;
  const auto start = may_have_written ? TokenBucket::Start::kEmpty : TokenBucket::Start::kFull;
  return users_
      .emplace(uid, User{TokenBucket(BudgetOf(uid).per_day, start),
                         std::vector<DayWindow>(drives_.size()),
                         {}})
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

absl::optional<uint32_t> SsdWrites::LackingGroup(Instant now, const SsdWrite& write, Bytes size) {
  absl::optional<uint32_t> lacking;
  for (const uint32_t group : write.groups) {
    if (!groups_.at(group).bucket.Has(now, size) && !lacking.has_value()) lacking = group;
  }
  return lacking;
}

// Whether a write of another user waits for the budget of a group of this one.
bool SsdWrites::IsAwaited(const SsdWrite& write) const {
  return std::any_of(write.groups.begin(), write.groups.end(),
                     [this](uint32_t group) { return awaited_groups_.count(group) > 0; });
}

bool SsdWrites::HasTokens(Instant now, User& user, const SsdWrite& write, Bytes size) {
  return user.bucket.Has(now, size) && !LackingGroup(now, write, size).has_value() &&
         !LackingDrive(now, write).has_value();
}

void SsdWrites::TakeTokens(User& user, const SsdWrite& write, Bytes size) {
  user.bucket.Take(size);
  for (const uint32_t group : write.groups) groups_.at(group).bucket.Take(size);
  for (size_t i = 0; i < drives_.size(); ++i) drives_[i].bucket.Take(write.parts[i]);
}

void SsdWrites::ReturnTokens(User& user, const SsdWrite& write, Bytes size) {
  user.bucket.Return(size);
  for (const uint32_t group : write.groups) groups_.at(group).bucket.Return(size);
  for (size_t i = 0; i < drives_.size(); ++i) drives_[i].bucket.Return(write.parts[i]);
}

void SsdWrites::End(Instant began, const SsdWrite& write, bool wrote) {
  if (wrote) {
    for (size_t i = 0; i < drives_.size(); ++i) drives_[i].written += write.parts[i];
    return;
  }
  const auto user = users_.find(write.uid);
  if (user == users_.end()) return;  // It wrote nothing in the last 24 hours.
  ReturnTokens(user->second, write, SizeOf(write));
  for (size_t i = 0; i < drives_.size(); ++i) user->second.windows[i].Remove(began, write.parts[i]);
  for (const uint32_t group : write.groups) groups_.at(group).window.Remove(began, SizeOf(write));
}

bool SsdWrites::MayBegin(Instant now, const SsdWrite& write) {
  const auto listed = listed_.find(write.chunk);
  if (listed != listed_.end()) return listed->second.is_granted;
  User& user = UserOf(now, write.uid);
  return user.queue.empty() && !awaited_drive_.has_value() && !IsAwaited(write) &&
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
    if (user.bucket.Has(now, SizeOf(write)) && user.queue.empty()) {
      const absl::optional<uint32_t> group = LackingGroup(now, write, SizeOf(write));
      if (group.has_value()) awaited_groups_.insert(*group);
      if (!group.has_value() && !awaited_drive_.has_value()) {
        awaited_drive_ = LackingDrive(now, write);
      }
    }
    Enqueue(user, write, SizeOf(write));
    return false;
  }
  // They are briefly too high, and never too low.
  for (size_t i = 0; i < drives_.size(); ++i) {
    if (!write.parts[i].IsZero()) user.windows[i].Add(now, write.parts[i]);
  }
  for (const uint32_t group : write.groups) groups_.at(group).window.Add(now, SizeOf(write));
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
    ReturnTokens(user, listed.write, listed.size);
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
    if (user->second.bucket.Has(now, head.size) && !IsAwaited(head.write)) next = user;
  }
  return next;
}

std::vector<ChunkIndex> SsdWrites::Serve(Instant now) {
  ForgetIdle(now);
  std::vector<ChunkIndex> served;
  awaited_drive_.reset();
  awaited_groups_.clear();
  while (served.size() < kMostServed) {
    const auto next = Next(now);
    if (next == users_.end()) break;
    User& user = next->second;
    Listed& head = listed_.at(user.queue.front());
    if (const auto group = LackingGroup(now, head.write, head.size)) {
      awaited_groups_.insert(*group);
      continue;
    }
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
    writes.is_awaited = !user.queue.empty() && !AwaitedBudget(now, uid).drive.has_value();
    use.push_back(writes);
  }
  return use;
}

Bytes SsdWrites::LastDayOf(Instant now, const QuotaUse& use) {
  if (use.quota.kind == Quota::Kind::kGroup) {
    const auto group = groups_.find(use.quota.id);
    return group == groups_.end() ? Bytes() : group->second.window.Sum(now);
  }
  const bool is_of_user = use.quota.kind == Quota::Kind::kUser || use.uid.has_value();
  const auto user = users_.find(use.uid.value_or(use.quota.id));
  if (!is_of_user || user == users_.end()) return Bytes();
  Bytes last_day;
  for (DayWindow& window : user->second.windows) last_day += window.Sum(now);
  return last_day;
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
