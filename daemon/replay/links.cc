#include "daemon/replay/links.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace memtide {

namespace {

Duration TimeFor(const LinkSpeed& speed, Bytes size) {
  MEMTIDE_CHECK(speed.bytes_per_second > 0);
  const double seconds = static_cast<double>(size.count()) / speed.bytes_per_second;
  return speed.latency + Duration(std::llround(seconds * 1e9));
}

}  // namespace

LinkBytes& LinkBytes::operator+=(const LinkBytes& other) {
  to_device += other.to_device;
  from_device += other.from_device;
  disk_read += other.disk_read;
  disk_written += other.disk_written;
  return *this;
}

LinkBytes& LinkBytes::operator-=(const LinkBytes& other) {
  to_device -= other.to_device;
  from_device -= other.from_device;
  disk_read -= other.disk_read;
  disk_written -= other.disk_written;
  return *this;
}

void Links::Start(Instant now, const StartTransfer& transfer) {
  using Kind = StartTransfer::Kind;
  // Zeroing uses the queue into the device, too.
  Instant* queue = &in_;
  Duration time{0};
  switch (transfer.kind) {
    case Kind::kZero:
      // Zeroing writes where the slot is, so no bytes pass a link.
      time = options_.to_device.latency;
      break;
    case Kind::kHostToDevice:
      time = TimeFor(options_.to_device, transfer.size);
      moved_.to_device += transfer.size;
      break;
    case Kind::kDeviceToHost:
    case Kind::kCompareDeviceWithHost:
      queue = &out_;
      time = TimeFor(options_.from_device, transfer.size);
      moved_.from_device += transfer.size;
      break;
    case Kind::kSsdToHost:
    case Kind::kVerifySsd:
      queue = &disk_;
      time = TimeFor(options_.disk_read, transfer.size);
      moved_.disk_read += transfer.size;
      break;
    case Kind::kHostToSsd:
      queue = &disk_;
      time = TimeFor(options_.disk_write, transfer.size);
      moved_.disk_written += transfer.size;
      break;
  }
  // The transfer begins when the one before it in its queue has ended.
  *queue = std::max(*queue, now) + time;
  under_way_.insert({*queue, transfer.transfer});
}

absl::optional<Instant> Links::NextDone() const {
  if (under_way_.empty()) return absl::nullopt;
  return under_way_.begin()->when;
}

TransferId Links::TakeDone() {
  MEMTIDE_CHECK(!under_way_.empty());
  const TransferId done = under_way_.begin()->transfer;
  under_way_.erase(under_way_.begin());
  return done;
}

}  // namespace memtide
