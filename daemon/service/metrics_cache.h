// MetricsCache: the metrics as text, a second old at most, so that no number of scrapes loads the
// engine. Thread-safe.
#ifndef MEMTIDE_DAEMON_SERVICE_METRICS_CACHE_H_
#define MEMTIDE_DAEMON_SERVICE_METRICS_CACHE_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "daemon/engine/interface/effects.h"

namespace memtide {

class MetricsCache {
 public:
  static constexpr Duration kLasts = std::chrono::seconds(1);

  // `write` makes the text, and knows its sources besides the reply. Called from any thread.
  using Write = std::function<std::string(const InspectReply& node)>;
  explicit MetricsCache(Write write) : write_(std::move(write)) {}

  // The last text; nullopt: there is none that is young enough.
  absl::optional<std::string> Recent(Instant now) const ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (!at_.has_value() || now - *at_ >= kLasts) return absl::nullopt;
    return text_;
  }
  std::string Update(const InspectReply& node, Instant now) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::string text = write_(node);
    MutexLock lock(&mutex_);
    at_ = now;
    text_ = text;
    return text;
  }

 private:
  const Write write_;
  mutable Mutex mutex_;
  absl::optional<Instant> at_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_METRICS_CACHE_H_
