#include "daemon/service/open_calls.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

// gRPC sees the end of the connection, and drops all that it has for it. REQUIRES: a call of it is
// charged.
void Disconnect(const OpenCalls::Caller& caller) {
  // ENOTCONN: the client has left.
  shutdown(caller.fd, SHUT_RDWR);
}

}  // namespace

OpenCalls::Charge::~Charge() {
  if (calls_ != nullptr) calls_->End(*this);
}

void OpenCalls::Charge::SetReply(size_t bytes) {
  MutexLock lock(&calls_->mutex_);
  calls_->Remove(caller_.uid, std::exchange(reply_bytes_, bytes));
  calls_->Add(caller_, bytes);
}

size_t OpenCalls::LimitWith(size_t more) const {
  return std::max(kAlwaysLeft, max_bytes_ - std::min(max_bytes_, all_bytes_ + more));
}

void OpenCalls::Add(const Caller& caller, size_t bytes) {
  all_bytes_ += bytes;
  size_t& of_uid = bytes_by_uid_[caller.uid];
  of_uid += bytes;
  // Refusals, and replies that are larger than what was reserved, are charged beyond the limit.
  if (of_uid > 2 * LimitWith(0)) Disconnect(caller);
}

void OpenCalls::Remove(uint32_t uid, size_t bytes) {
  const auto of_uid = bytes_by_uid_.find(uid);
  MEMTIDE_CHECK(of_uid != bytes_by_uid_.end() && of_uid->second >= bytes);
  of_uid->second -= bytes;
  if (of_uid->second == 0) bytes_by_uid_.erase(of_uid);
  all_bytes_ -= bytes;
}

absl::Status OpenCalls::Begin(const Caller& caller, size_t reply_bytes, Charge* charge) {
  MEMTIDE_CHECK(charge->calls_ == nullptr) << "charged twice";
  MutexLock lock(&mutex_);
  charge->calls_ = this;
  charge->caller_ = caller;
  Add(caller, kCallBytes);
  const size_t bytes = bytes_by_uid_[caller.uid] + reply_bytes;
  const size_t limit = LimitWith(reply_bytes);
  if (bytes > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("uid ", caller.uid, " has ", bytes,
                     " bytes of calls without an answer and of replies that it does not read; the "
                     "limit is now ",
                     limit, ". Read replies, and make fewer calls at a time"));
  }
  charge->reply_bytes_ = reply_bytes;
  Add(caller, reply_bytes);
  return absl::OkStatus();
}

absl::Status OpenCalls::BeginTrace(const Charge& charge, Instant now) {
  MutexLock lock(&mutex_);
  if (traces_.size() < kMaxTraces) {
    traces_.push_back({&charge, now});
    return absl::OkStatus();
  }
  for (const Trace& trace : traces_) {
    if (now - trace.since >= kTracePatience) Disconnect(trace.charge->caller_);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("max_traces: the node sends ", kMaxTraces, " traces already; try again soon"));
}

void OpenCalls::End(const Charge& charge) {
  MutexLock lock(&mutex_);
  Remove(charge.caller_.uid, kCallBytes + charge.reply_bytes_);
  traces_.erase(std::remove_if(traces_.begin(), traces_.end(),
                               [&charge](const Trace& trace) { return trace.charge == &charge; }),
                traces_.end());
}

}  // namespace memtide
