#include "client/session_events.h"

namespace memtide::client {

void SessionEvents::Attach(LeaseMonitor* leases) {
  const MutexLock lock(&mutex_);
  leases_ = leases;
  for (const auto& [id, share] : gone_) leases->SetShare(share, id);
  if (budget_.has_value()) leases->SetSoftBudget(*budget_);
  if (!lost_.ok()) leases->FailWith(lost_);
}

void SessionEvents::RegionArrived(RegionId id, Region region) {
  regions_->Add(id, std::move(region));
}

void SessionEvents::RegionGone(RegionId id, const DeviceShare& share) {
  const MutexLock lock(&mutex_);
  if (leases_ != nullptr) {
    leases_->SetShare(share, id);
  } else {
    gone_.emplace_back(id, share);
  }
}

void SessionEvents::RevokeRequested(const Revocation& revocation) {
  const MutexLock lock(&mutex_);
  if (leases_ != nullptr) leases_->Revoke(revocation);
}

void SessionEvents::LeaseBudgetChanged(const LeaseBudget& budget) {
  const MutexLock lock(&mutex_);
  budget_ = budget;
  if (leases_ != nullptr) leases_->SetSoftBudget(budget);
}

void SessionEvents::Lost(const absl::Status& reason) {
  regions_->Close();
  const MutexLock lock(&mutex_);
  lost_ = reason;
  if (leases_ != nullptr) leases_->FailWith(reason);
}

}  // namespace memtide::client
